"""BBTP: masks from boxes by the tightness of the boxes (Hsu et al., NeurIPS 2019).

Mask R-CNN is trained as always, but for the loss of its masks: that needs only boxes, see
`annocoin.prediction.projection_loss`. So the label of an object is its box, and the option `masks`
of the losses is "projection":

    labels[image_id] = PseudoLabels.single(box_instances(annotation))  # per image
    config = replace(config, losses=bbtp_losses(config.losses))
    train_prediction(net, config, images, labels, steps=steps)

Simplified: RoIs without an object have no mask loss, where the authors' code counts all of their
lines as negative bags; predicted masks are not refined by a CRF.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from annocoin.errors import InputError
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
