"""Soft targets: K labellings of an image as one target, whose loss is the mean over all K."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import box_iou


@dataclass(frozen=True, eq=False)
class SoftTargets:
    """The different instances of an image's samples, and which of them each sample has.

    Args:
        boxes: float32 [U, 4] in pixels of the image as the masks have it.
        labels: int64 [U] of 1..C.
        masks: bool [U, H, W].
        members: which instances each of L different samples has, bool [L, U].
        weights: the share of the K samples that each of them stands for, float32 [L], sums to 1.
    """

    boxes: Tensor
    labels: Tensor
    masks: Tensor
    members: Tensor
    weights: Tensor

    @classmethod
    def certain(cls, boxes: Tensor, labels: Tensor, masks: Tensor) -> SoftTargets:
        """One labelling, as in plain training."""
        return cls(
            boxes.float(),
            labels,
            masks,
            torch.ones(1, len(labels), dtype=torch.bool),
            torch.ones(1),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def mirrored(self) -> SoftTargets:
        """Left and right changed."""
        width = self.masks.shape[2]
        boxes = self.boxes.clone()
        boxes[:, [0, 2]] = width - self.boxes[:, [2, 0]]
        return replace(self, boxes=boxes, masks=self.masks.flip(2))

    def to(self, device: torch.device | str) -> SoftTargets:
        return SoftTargets(
            self.boxes.to(device),
            self.labels.to(device),
            self.masks.to(device),
            self.members.to(device),
            self.weights.to(device),
        )


class Shares(NamedTuple):
    """How often, over the samples, a box stands for each instance, or for the background.

    Args:
        instances: float32 [N, U].
        background: float32 [N]; what is left to 1 is the share of samples that ignore the box.
    """

    instances: Tensor
    background: Tensor


def match(
    boxes: Tensor,
    places: Tensor,
    targets: SoftTargets,
    *,
    foreground: float,
    background: float,
    best_too: bool = False,
) -> Shares:
    """Match boxes with the instances of each sample, as torchvision does with one labelling.

    In a sample a box stands for the instance that it overlaps most, if by `foreground` or more; for
    the background if by less than `background`; and for nothing in between.

    Args:
        boxes: [N, 4].
        places: the instances' boxes in the same coordinates, [U, 4].
        best_too: whether the boxes that overlap an instance most stand for something however
            little that is ("low quality matches").
    """
    count, instances = len(boxes), len(targets)
    shares = boxes.new_zeros(count, instances)
    if not instances:
        return Shares(shares, boxes.new_ones(count))
    iou = box_iou(places, boxes)  # [U, N]
    none = boxes.new_zeros(count)
    most = iou.amax(dim=1, keepdim=True)
    reached = (iou == most) & (most > 0)
    rows = torch.arange(count, device=boxes.device)
    for members, weight in zip(targets.members, targets.weights, strict=True):
        own = members.nonzero()[:, 0]
        if not len(own):
            none += weight
            continue
        best, which = iou[own].max(dim=0)
        matched = best >= foreground
        if best_too:
            matched |= reached[own].any(dim=0)
        shares.index_put_((rows[matched], own[which[matched]]), weight, accumulate=True)
        none += weight * ((best < background) & ~matched)
    return Shares(shares, none)
