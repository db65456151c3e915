"""The mask loss of box supervision: projections of masks onto rows and columns (BBTP).

A tight box tells of every line of pixels whether it crosses the object: if it crosses the box, some
pixel of it is foreground (a positive bag); otherwise all are background (a negative bag).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

BAG_WEIGHT = 1.0
SMOOTHNESS_WEIGHT = 0.05


def projection_losses(logits: Tensor, boxes: Tensor) -> Tensor:
    """Losses of N masks [N, h, w] whose boxes are known: [N].

    The mean over the h + w rows and columns of the cross entropy of the line's highest logit, plus
    `smoothness`.

    Args:
        logits: of the masks.
        boxes: 1 inside the object's box, 0 outside, [N, h, w]. A mask with that box gives the same,
            unless it leaves out whole lines.
    """
    lines = torch.cat([logits.amax(dim=2), logits.amax(dim=1)], dim=1)
    crossed = torch.cat([boxes.amax(dim=2), boxes.amax(dim=1)], dim=1) > 0.5
    bags = F.binary_cross_entropy_with_logits(lines, crossed.to(lines.dtype), reduction="none")
    return BAG_WEIGHT * bags.mean(dim=1) + SMOOTHNESS_WEIGHT * smoothness(logits.sigmoid())


def smoothness(masks: Tensor) -> Tensor:
    """The mean squared difference of each pixel to its 8 neighbours, [N, h, w] to [N]."""
    pairs = (
        masks[:, :, 1:] - masks[:, :, :-1],
        masks[:, 1:] - masks[:, :-1],
        masks[:, 1:, 1:] - masks[:, :-1, :-1],
        masks[:, 1:, :-1] - masks[:, :-1, 1:],
    )
    return torch.stack([difference.square().mean(dim=(1, 2)) for difference in pairs]).mean(dim=0)
