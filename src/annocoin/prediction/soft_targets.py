"""Soft targets: the K samples of an image as one training target.

Boxes are matched to the instances of every sample, and sampled for training, with weights that are
means over the samples.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.ops import box_iou


@dataclass(frozen=True, eq=False)
class SoftTargets:
    """The U distinct instances of an image's samples, and the samples that contain them.

    Args:
        boxes: float32 [U, 4], in pixels of the masks unless stated otherwise.
        labels: int64 [U] of 1..C.
        masks: bool [U, H, W].
        members: which instances each of L distinct samples contains, bool [L, U].
        weights: fraction of the K samples that are equal to each of the L, float32 [L].
    """

    boxes: Tensor
    labels: Tensor
    masks: Tensor
    members: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def mirrored(self) -> SoftTargets:
        """The targets of the image flipped left to right."""
        boxes = self.boxes.clone()
        boxes[:, [0, 2]] = self.masks.shape[2] - self.boxes[:, [2, 0]]
        return replace(self, boxes=boxes, masks=self.masks.flip(2))

    def to(self, device: torch.device | str) -> SoftTargets:
        return SoftTargets(*(getattr(self, field.name).to(device) for field in fields(self)))


class MatchWeights(NamedTuple):
    """How much each of N boxes counts as each instance and as background, as means over samples.

    Args:
        instances: fraction of samples in which a box is matched to an instance, float32 [N, U].
        background: fraction in which it is background, float32 [N]; in the rest it is ignored.
    """

    instances: Tensor
    background: Tensor


def match_boxes(
    boxes: Tensor,
    targets: SoftTargets,
    fg_iou_thresh: float,
    bg_iou_thresh: float,
    *,
    allow_low_quality_matches: bool = False,
) -> MatchWeights:
    """Match boxes to the instances of each sample, as torchvision does for one labelling.

    In a sample, a box is matched to the instance of highest IoU if that is at least
    `fg_iou_thresh`, is background if it is below `bg_iou_thresh`, and is ignored otherwise.

    Args:
        boxes: [N, 4].
        targets: with boxes in the same coordinates.
        allow_low_quality_matches: also match the boxes that have the highest IoU of all boxes with
            some instance, below the threshold too.
    """
    instances = boxes.new_zeros(len(boxes), len(targets))
    background = boxes.new_zeros(len(boxes))
    if not len(targets):
        return MatchWeights(instances, background + 1)
    iou = box_iou(targets.boxes, boxes)  # [U, N]
    highest = iou.amax(dim=1, keepdim=True)
    is_highest = (iou == highest) & (highest > 0)
    rows = torch.arange(len(boxes), device=boxes.device)
    for members, weight in zip(targets.members, targets.weights, strict=True):
        indices = members.nonzero()[:, 0]
        if not len(indices):
            background += weight
            continue
        best_iou, best = iou[indices].max(dim=0)
        matched = best_iou >= fg_iou_thresh
        if allow_low_quality_matches:
            matched |= is_highest[indices].any(dim=0)
        pairs = (rows[matched], indices[best[matched]])
        instances.index_put_(pairs, weight, accumulate=True)
        background += weight * ((best_iou < bg_iou_thresh) & ~matched)
    return MatchWeights(instances, background)


def sample_anchors(
    matches: MatchWeights, count: int, max_positive: int, generator: torch.Generator
) -> tuple[Tensor, MatchWeights]:
    """Sample about `count` of N boxes: their indices, int64 [n], and their weights.

    The weights are scaled by the inverse of the probability of being sampled: if all samples have
    the same number of matched boxes, the expected weights are the mean over samples of those that
    torchvision's sampling of each sample would give. A single labelling has weights of 1.

    Args:
        matches: of all N boxes.
        max_positive: maximum number of boxes matched to an instance.
        generator: on the CPU, on whatever device the boxes are.
    """
    positive = matches.instances.sum(dim=1)
    total_positive, total_negative = float(positive.sum()), float(matches.background.sum())
    positive_count = min(float(max_positive), total_positive)
    positive_rate = positive_count / max(total_positive, 1e-6)
    negative_rate = min(1.0, (count - positive_count) / max(total_negative, 1e-6))
    probability = (positive * (max_positive / max(total_positive, 1e-6))).clamp(max=1)
    first = _systematic_sample(probability, generator)
    negative = _only_background(matches)
    rest = _random_subset(negative, max(0, count - len(first)), generator)
    probability[rest] = len(rest) / max(1, len(negative))
    chosen = torch.cat([first, rest])
    scale = 1 / probability[chosen]
    return chosen, MatchWeights(
        matches.instances[chosen] * (positive_rate * scale)[:, None],
        matches.background[chosen] * (negative_rate * scale),
    )


def sample_rois(
    matches: MatchWeights, count: int, max_positive: int, generator: torch.Generator
) -> tuple[Tensor, MatchWeights]:
    """Sample at most `count` of N boxes: their indices, int64 [n], and their unchanged weights.

    Args:
        matches: of all N boxes.
        max_positive: maximum number of boxes matched to an instance in some sample, which come
            first; the rest are background.
        generator: on the CPU, on whatever device the boxes are.
    """
    matched = (matches.instances.sum(dim=1) > 0).nonzero()[:, 0]
    first = _random_subset(matched, max_positive, generator)
    rest = _random_subset(_only_background(matches), count - len(first), generator)
    chosen = torch.cat([first, rest])
    return chosen, MatchWeights(matches.instances[chosen], matches.background[chosen])


def _only_background(matches: MatchWeights) -> Tensor:
    """Indices of boxes that are background in some sample and matched in none."""
    return ((matches.instances.sum(dim=1) == 0) & (matches.background > 0)).nonzero()[:, 0]


def _systematic_sample(probability: Tensor, generator: torch.Generator) -> Tensor:
    """Sample indices with these probabilities [N]; their number is the sum, rounded up or down."""
    uncertain = ((probability > 0) & (probability < 1)).nonzero()[:, 0]
    uncertain = _random_subset(uncertain, len(uncertain), generator)
    steps = probability[uncertain].double()
    ends = steps.cumsum(dim=0) + torch.rand((), generator=generator, dtype=torch.float64).item()
    chosen = ends.floor() > (ends - steps).floor()
    return torch.cat([(probability >= 1).nonzero()[:, 0], uncertain[chosen]])


def _random_subset(indices: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """At most `count` of the indices, in random order."""
    order = torch.randperm(len(indices), generator=generator)[:count]
    return indices[order.to(indices.device)]
