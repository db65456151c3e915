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
        """Left and right override."""
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


class MatchWeights(NamedTuple):
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
) -> MatchWeights:
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
        return MatchWeights(shares, boxes.new_ones(count))
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
    return MatchWeights(shares, none)


def sample_anchors(
    shares: MatchWeights, most: int, positive: int, generator: torch.Generator
) -> tuple[Tensor, MatchWeights]:
    """Positions of about `most` of N boxes, int64 [n], and their shares times what they count.

    In the mean over draws every box counts as often as in the mean over its samples' own draws, if
    all samples have as many boxes with an instance. Boxes of a single labelling count 1.

    Args:
        shares: what the N boxes stand for.
        most: boxes in a sample's draw.
        positive: those of them with an instance, at most.
        generator: on the processor, whatever the boxes' device.
    """
    often = shares.instances.sum(dim=1)
    with_instance, without = float(often.sum()), float(shares.background.sum())
    wanted = min(float(positive), with_instance)
    as_instance = wanted / max(with_instance, 1e-6)
    as_background = min(1.0, (most - wanted) / max(without, 1e-6))
    chance = (often * (positive / max(with_instance, 1e-6))).clamp(max=1)
    first = _by_chance(chance, generator)
    other = ((often == 0) & (shares.background > 0)).nonzero()[:, 0]
    rest = _some(other, max(0, most - len(first)), generator)
    chance[rest] = len(rest) / max(1, len(other))
    chosen = torch.cat([first, rest])
    counts = 1 / chance[chosen]
    return chosen, MatchWeights(
        shares.instances[chosen] * (as_instance * counts)[:, None],
        shares.background[chosen] * (as_background * counts),
    )


def sample_rois(
    shares: MatchWeights, most: int, positive: int, generator: torch.Generator
) -> tuple[Tensor, MatchWeights]:
    """Positions of at most `most` of N boxes, int64 [n], and their shares as they are.

    Args:
        shares: what the N boxes stand for.
        positive: so many stand for an instance in some sample, at most, and come first; fewer leave
            more room for the rest.
        generator: on the processor, whatever the boxes' device.
    """
    often = shares.instances.sum(dim=1)
    first = _some((often > 0).nonzero()[:, 0], positive, generator)
    other = ((often == 0) & (shares.background > 0)).nonzero()[:, 0]
    chosen = torch.cat([first, _some(other, most - len(first), generator)])
    return chosen, MatchWeights(shares.instances[chosen], shares.background[chosen])


def _by_chance(chance: Tensor, generator: torch.Generator) -> Tensor:
    """Positions chosen with these probabilities [N]; their number is the probabilities' sum, or
    the whole number beside it."""
    places = ((chance > 0) & (chance < 1)).nonzero()[:, 0]
    places = _some(places, len(places), generator)
    own = chance[places].double()
    ends = own.cumsum(dim=0) + torch.rand((), generator=generator, dtype=torch.float64).item()
    reached = ends.floor() > (ends - own).floor()
    return torch.cat([(chance >= 1).nonzero()[:, 0], places[reached]])


def _some(places: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """At most so many of these positions, in any order."""
    order = torch.randperm(len(places), generator=generator)[:most]
    return places[order.to(places.device)]
