"""WISE: where are the masks (Laradji et al., BMVC 2019), from tags.

The peaks of PRM say where objects are; the region of the highest objectness that covers a peak says
how far its object reaches. A Mask R-CNN is trained on these regions.

Simplified: the best region is taken, where WISE can also draw one by its objectness in every epoch;
and the masks of the trained network are not replaced by regions in the end, because all peers are
compared by the output of the same network. Objectness is the score of our regions, the expected IoU
with an object (WISE: that of MCG). Regions of one class that overlap are suppressed.
"""

from __future__ import annotations

from annocoin.baselines.peer import Peer, PeerInputs
from annocoin.baselines.prm import RetrievingLabeller


def _labeller(inputs: PeerInputs) -> RetrievingLabeller:
    return RetrievingLabeller(inputs, "objectness")


WISE = Peer(_labeller)
