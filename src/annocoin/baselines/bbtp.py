"""BBTP: masks from boxes by the tightness of the boxes (Hsu et al., NeurIPS 2019).

Mask R-CNN is trained as always, but for the loss of its masks: that needs only boxes, see
`annocoin.prediction.soft_losses`. So the label of an object is its box, and the option `masks`
of the losses is "projection":

    labels[image_id] = PseudoLabels.single(box_instances(annotation))  # per image
    config = replace(config, losses=bbtp_losses(config.losses))
    train_prediction(net, config, images, labels, steps=steps)

The trained network is the result. Its masks in the annotated boxes are the labels of a run.

Simplified: RoIs without an object have no mask loss, where the authors' code counts all of their
lines as negative bags; predicted masks are not refined by a CRF.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from annocoin.baselines.peer import Peer, PeerInputs
from annocoin.data.dataset import WeakImage
from annocoin.errors import InputError
from annocoin.prediction.networks import read_prediction, resize_shortest_side
from annocoin.prediction.region_scoring import segment_boxes
from annocoin.prediction.soft_losses import LossOptions
from annocoin.types import Annotation, Instances


def bbtp_losses(options: LossOptions) -> LossOptions:
    """The options of the losses with BBTP's loss of masks, and without self diversity."""
    return replace(options, masks="projection", pointwise=True)


def box_instances(annotation: Annotation) -> Instances:
    """The annotated boxes as instances that fill them, without those of crowds.

    A tag without box is an `InputError`: its object would be learned as background.
    """
    labels = [label for label in annotation if not label.crowd]
    if any(label.box is None for label in labels):
        raise InputError("a label without box; the method bbtp needs a box for every object")
    boxes = torch.tensor([label.box for label in labels], dtype=torch.float64).reshape(-1, 4)
    masks = torch.zeros(len(boxes), *annotation.size, dtype=torch.bool)
    low, high = boxes[:, :2].floor().long(), boxes[:, 2:].ceil().long()
    for mask, (x0, y0), (x1, y1) in zip(masks, low.tolist(), high.tolist(), strict=True):
        mask[y0:y1, x0:x1] = True
    classes = [label.label for label in labels]
    return Instances(size=annotation.size, masks=masks, labels=classes, boxes=boxes)


class BoxTargets:
    """The annotated boxes as training targets; tags beside them (of crowds) have none."""

    def __init__(self, _: PeerInputs) -> None:
        pass

    def __call__(self, image: WeakImage) -> Instances:
        return box_instances(image.annotation.only("box"))


class BoxSegmenter:
    """The masks of the trained network in the annotated boxes; the whole box where it sees none."""

    def __init__(self, inputs: PeerInputs) -> None:
        net, self.architecture = read_prediction(inputs.given_network())
        self.net = net.to(inputs.device)

    def __call__(self, image: WeakImage) -> Instances:
        filled = box_instances(image.annotation.only("box"))
        sides = (self.architecture.min_size, self.architecture.max_size)
        resized = resize_shortest_side(image.pixels(), *sides)
        masks, labels, scores = segment_boxes(self.net, resized, filled.boxes, filled.labels)
        boxes = filled.dense()
        masks = masks & boxes
        empty = ~masks.flatten(1).any(dim=1)
        masks[empty] = boxes[empty]
        return Instances(
            size=filled.size, masks=masks, labels=labels, scores=scores, boxes=filled.boxes
        )


BBTP = Peer(BoxSegmenter, targets=BoxTargets)
