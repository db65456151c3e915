"""Inference: the labelling of greatest score that meets every requirement, by a greedy algorithm.

Algorithm 1 of the paper, for the score S(y) = sum_u G_{u,y_u} + Q(y) of eq. 3. Starting from
background everywhere, labelling region u as class j gains the margin G_{u,j} - G_{u,0}; regions are
selected by that.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from annocoin.conditional.requirements import Requirements
from annocoin.errors import InputError, check_choice

OverlapDenominator = Literal["smaller", "later"]

NMS_THRESHOLD = 0.3
CROSS_CLASS_NMS_THRESHOLD = 0.5

PAIR_CANDIDATES = 64
"""Local search tries pairs among this many regions of greatest gain."""


class Labelling(NamedTuple):
    """K labellings of P regions.

    Args:
        labels: y^k, int64 [K, P] of 0..C, mostly 0.
        required_regions: the region that meets each of R requirements, int64 [K, R].
    """

    labels: Tensor
    required_regions: Tensor


class Suppression(NamedTuple):
    """Which regions cannot both be selected.

    Args:
        same_class: region l after region i as instances of class j, bool [J, P (i), P (l)].
        cross_class: as instances of two classes, bool [P, P], symmetric.
    """

    same_class: Tensor
    cross_class: Tensor

    def to(self, device: torch.device | str) -> Suppression:
        return Suppression(self.same_class.to(device), self.cross_class.to(device))


def build_suppression(
    requirements: Requirements,
    nms_threshold: float = NMS_THRESHOLD,
    overlap_denominator: OverlapDenominator = "smaller",
    cross_class_nms_threshold: float = CROSS_CLASS_NMS_THRESHOLD,
) -> Suppression:
    """Which regions a selected region i suppresses.

    In its class, regions that overlap it by more than a threshold, and those without a seed peak
    that i does not contain (see `Requirements.peaks`). In other classes, regions that overlap it by
    more than another threshold.

    Args:
        nms_threshold: t, the greatest overlap of two instances of a class.
        overlap_denominator: divide the intersection by the area of the "smaller" region, or of the
            "later" region l. The latter, which the paper prints, keeps regions that contain i.
        cross_class_nms_threshold: the greatest overlap of two classes, as a share of the smaller
            region; 1, as in the paper, allows any.
    """
    check_choice("overlap_denominator", overlap_denominator, get_args(OverlapDenominator))
    containment = requirements.regions.containment()
    of_smaller = torch.maximum(containment, containment.T)
    overlap = of_smaller if overlap_denominator == "smaller" else containment.T
    overlapping = overlap > nms_threshold
    same_class = overlapping.repeat(len(requirements.peaks), 1, 1)
    for suppressed, contains in zip(same_class, requirements.peaks, strict=True):
        if contains.shape[1]:
            peaks = contains.float()
            suppressed |= (1 - peaks) @ peaks.T == 0
    return Suppression(same_class, of_smaller > cross_class_nms_threshold)


@torch.no_grad()
def infer(
    scores: Tensor,
    requirements: Requirements,
    suppression: Suppression,
    *,
    extra_margin: float | Tensor | None = None,
    select_all: bool = False,
    local_search: bool = False,
) -> Labelling:
    """The greedy labelling for each of K scores.

    First, each requirement gets a different compatible region, with the greatest sum of gains. Then
    further regions are selected by descending gain, as long as it is positive and near that of the
    best region of their class, unless a selected region suppresses them. Finally, local search
    replaces single regions by pairs.

    Args:
        scores: G, [K, P, J+1]: the background and the J classes of the requirements.
        suppression: see `build_suppression`.
        extra_margin: the greatest difference of an extra instance's gain to the greatest gain of a
            compatible region of its class, one number or [K]; None, as in the paper, for any.
        select_all: rank by G_{u,j} and continue until no region is left, as the paper prints it.
        local_search: whether to take the last step, which is not in the paper.
    """
    count, num_classes = len(requirements.regions), len(requirements.labels)
    if scores.ndim != 3 or tuple(scores.shape[1:]) != (count, num_classes + 1):
        raise InputError(
            f"scores of shape {tuple(scores.shape)}; expected [K, {count}, {num_classes + 1}]"
        )
    if not bool(scores.isfinite().all()):
        raise InputError("scores are NaN or infinite; expected finite numbers")
    gains = scores[..., 1:] if select_all else scores[..., 1:] - scores[..., :1]
    gains = gains.transpose(1, 2)  # [K, J, P]
    columns = [requirements.labels.index(r.label) for r in requirements.required]
    required_regions = _meet_requirements(gains[:, columns], requirements, suppression)
    selected = torch.zeros(gains.shape, dtype=torch.bool, device=gains.device)
    selected[torch.arange(len(gains))[:, None], columns, required_regions] = True
    min_gains = torch.full_like(gains[..., :1], -torch.inf if select_all else 0)
    if extra_margin is not None and count:
        allowed = requirements.extra_allowed.to(gains.device)
        best = gains.masked_fill(~allowed, -torch.inf).amax(dim=2, keepdim=True)
        margins = torch.as_tensor(extra_margin, dtype=gains.dtype, device=gains.device)
        min_gains = torch.maximum(min_gains, best - margins.view(-1, 1, 1))
    _select_extra(selected, gains, requirements, suppression, min_gains)
    if local_search and not select_all:
        for k in range(len(gains)):
            for j in range(num_classes):
                sample = (selected[k], required_regions[k], gains[k, j], min_gains[k, j], j)
                _replace_by_pairs(*sample, requirements, suppression)
    classes = torch.tensor(requirements.labels, dtype=torch.int64, device=gains.device)
    return Labelling((selected * classes[:, None]).sum(dim=1), required_regions)


def _meet_requirements(
    gains: Tensor, requirements: Requirements, suppression: Suppression
) -> Tensor:
    """A different region for each requirement, of greatest total gain: int64 [K, R].

    Args:
        gains: of each region for the class of each requirement, [K, R, P].
    """
    required = requirements.required
    if not required:
        return torch.zeros(len(gains), 0, dtype=torch.int64, device=gains.device)
    compatible = torch.stack([r.compatible for r in required]).to(gains.device)
    gains = gains.masked_fill(~compatible, -torch.inf)
    best = gains.argmax(dim=2)
    for k, row in enumerate(best.tolist()):
        if len(set(row)) < len(row):
            assigned = linear_sum_assignment(gains[k].double().cpu().numpy(), maximize=True)[1]
            best[k] = torch.from_numpy(assigned)
    labels = torch.tensor([r.label for r in required], device=gains.device)
    conflict = suppression.cross_class[best[:, :, None], best[:, None, :]]
    conflict &= labels[:, None] != labels
    for k in conflict.any(dim=(1, 2)).nonzero()[:, 0].tolist():
        _separate_classes(best[k], gains[k], requirements, suppression.cross_class)
    return best


def _separate_classes(
    best: Tensor, gains: Tensor, requirements: Requirements, cross_class: Tensor
) -> None:
    """Move tags and crowds whose region overlaps a better one of another class to the next best.

    Otherwise one object would be an instance of two classes; if no other region is left, it is.

    Args:
        best: the region of each requirement, [R], changed in place.
        gains: [R, P], -inf where a region is not compatible.
        cross_class: bool [P, P], see `Suppression`.
    """
    required = requirements.required
    best_gains = gains.gather(1, best[:, None])[:, 0].tolist()
    order = sorted(range(len(required)), key=lambda r: (required[r].allows_extra, -best_gains[r]))
    for position, r in enumerate(order):
        label = required[r].label
        others = [int(best[o]) for o in order[:position] if required[o].label != label]
        if required[r].allows_extra and bool(cross_class[others, int(best[r])].any()):
            free = (gains[r] > -torch.inf) & ~cross_class[others].any(dim=0)
            free[best] = False
            if bool(free.any()):
                best[r] = gains[r].masked_fill(~free, -torch.inf).argmax()


def _select_extra(
    selected: Tensor,
    gains: Tensor,
    requirements: Requirements,
    suppression: Suppression,
    min_gains: Tensor,
) -> None:
    """Add to `selected`, bool [K, J, P], the region of greatest gain of each sample, repeatedly.

    Args:
        gains: [K, J, P].
        min_gains: gains up to this are not selected, [K, J, 1].
    """
    if not gains.numel():
        return
    of_class = selected.float()
    of_others = of_class.sum(dim=1, keepdim=True) - of_class
    suppressed = torch.einsum("kjp,jpq->kjq", of_class, suppression.same_class.float())
    suppressed = (suppressed + of_others @ suppression.cross_class.float()) > 0
    free = requirements.extra_allowed.to(gains.device) & ~suppressed
    free &= ~selected.any(dim=1, keepdim=True) & (gains > min_gains)
    while True:
        index = gains.masked_fill(~free, -torch.inf).flatten(1).argmax(dim=1)
        k = free.flatten(1).any(dim=1).nonzero()[:, 0]
        if not len(k):
            return
        j, region = index[k] // gains.shape[2], index[k] % gains.shape[2]
        selected[k, j, region] = True
        free_in_class = free[k, j] & ~suppression.same_class[j, region]
        free[k] &= ~suppression.cross_class[region][:, None]
        free[k, j] = free_in_class
        free[k, :, region] = False


def _replace_by_pairs(
    selected: Tensor,
    required_regions: Tensor,
    gains: Tensor,
    min_gain: Tensor,
    column: int,
    requirements: Requirements,
    suppression: Suppression,
) -> None:
    """Local search: replace regions of a class by two of that class with a greater sum of gains.

    Every replacement raises S(y), so that the search ends. Regions of points, boxes and masks stay.

    Args:
        selected: of one sample, bool [J, P], changed in place.
        required_regions: int64 [R], changed accordingly.
        gains: of the class, [P].
        min_gain: gains up to this are not selected, [1].
        column: the class, 0..J-1.
    """
    untried = selected[column].nonzero()[:, 0].tolist()
    while untried:
        region = untried.pop(0)
        met = (required_regions == region).nonzero()[:, 0].tolist()
        if not all(requirements.required[r].allows_extra for r in met):
            continue
        pair = _better_pair(region, selected, gains, min_gain, column, requirements, suppression)
        if pair is None:
            continue
        meets = [requirements.required[r].compatible[pair] for r in met]
        if not all(bool(either.any()) for either in meets):
            continue
        selected[column, region] = False
        selected[column, pair] = True
        for r, either in zip(met, meets, strict=True):
            required_regions[r] = pair[int(either.int().argmax())]
        untried = selected[column].nonzero()[:, 0].tolist()


def _better_pair(
    region: int,
    selected: Tensor,
    gains: Tensor,
    min_gain: Tensor,
    column: int,
    requirements: Requirements,
    suppression: Suppression,
) -> list[int] | None:
    """The best two regions to select in place of `region`; None if their gain is not greater."""
    same_class = suppression.same_class[column]
    kept = selected.clone()
    kept[column, region] = False
    of_class, of_any = kept[column], kept.any(dim=0)
    free = requirements.extra_allowed[column].to(gains.device) & (gains > min_gain) & ~of_any
    free &= ~same_class[of_class].any(dim=0) & ~same_class[:, of_class].any(dim=1)
    free &= ~suppression.cross_class[of_any & ~of_class].any(dim=0)
    free[region] = False
    best, index = gains.masked_fill(~free, -torch.inf).topk(min(PAIR_CANDIDATES, int(free.sum())))
    if len(best) < 2:
        return None
    conflict = same_class[index][:, index]
    totals = (best[:, None] + best).masked_fill(conflict | conflict.T, -torch.inf)
    total, pair = totals.fill_diagonal_(-torch.inf).flatten().max(dim=0)
    if total <= gains[region]:
        return None
    return [int(index[pair // len(index)]), int(index[pair % len(index)])]
