"""PRM: peak response maps (Zhou et al., CVPR 2018), from tags.

A classifier is trained so that the peaks of its class maps mark objects (peak stimulation). Each
peak is propagated back through the network to the pixels that it results from, its peak response
map, and the region that fits this map best is the instance: most of the response inside and on its
contour, few pixels where the class map is low.

As published, that is the whole system: classifier and regions are needed for every test image, and
no network learns to segment. Here its instances of the training images train the same prediction
network as all peers; the quality of the instances themselves is what `annocoin train --measure`
logs. Differences: the tags of the training images are known, so there is no threshold on the class
score; the response is propagated by the rule of the run's seeds (`seeds.rule`: "conserving", the
better one on our data, or "published"); regions of one class that overlap are suppressed.
"""

from __future__ import annotations

from annocoin.baselines.peer import Peer, PeerInputs
from annocoin.data.dataset import WeakImage
from annocoin.seeds.retrieval import Method, retrieve
from annocoin.types import Instances


class RetrievingLabeller:
    """The best region of every seed by one of the scores of `retrieve`."""

    def __init__(self, inputs: PeerInputs, method: Method) -> None:
        self.inputs, self.method = inputs, method

    def __call__(self, image: WeakImage) -> Instances:
        regions, seeds = self.inputs.of(image)
        return retrieve(regions, seeds, image.annotation, self.method).instances(regions, seeds)


def _labeller(inputs: PeerInputs) -> RetrievingLabeller:
    return RetrievingLabeller(inputs, "response")


PRM = Peer(_labeller)
