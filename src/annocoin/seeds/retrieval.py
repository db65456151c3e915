"""Initial pseudo labels: the region retrieved for every seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import cv2
import numpy as np
import torch
from torch import Tensor

from annocoin import masks
from annocoin.errors import InputError, check_choice
from annocoin.regions.algebra import outlines
from annocoin.regions.region_set import RegionSet
from annocoin.regions.superpixel_graph import BoundaryElements
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.votes import probability_inside, response_inside, vote
from annocoin.types import Annotation, Instances

Method = Literal["votes", "combined", "objectness", "response"]
METHODS: tuple[Method, ...] = get_args(Method)

INSIDE_WEIGHT = 0.8
CONTOUR_WIDTH = 5
LOW_RATIO = 0.1
LOW_PENALTY = 1e-5
"""PRM's score: the weight of the response inside relative to that on the contour; the width of the
contour in pixels; pixels below this ratio of the class map's mean are low; the penalty of one."""

EVIDENCE_WEIGHT = 0.4
"""Of response and class probability relative to objectness, in the combined score."""


@dataclass(frozen=True, eq=False)
class Retrieved:
    """The regions retrieved for M seeds.

    Args:
        regions: positions in the region set, int64 [M].
        seeds: positions in the seeds, int64 [M].
        scores: of the region for the seed, float32 [M].
    """

    regions: Tensor
    seeds: Tensor
    scores: Tensor

    def __len__(self) -> int:
        return len(self.regions)

    def instances(self, regions: RegionSet, seeds: Seeds) -> Instances:
        """As instances, scored by the class probability at the peak."""
        return Instances(
            size=regions.size,
            masks=regions[self.regions].rles(),
            labels=seeds.labels[self.seeds],
            scores=seeds.scores[self.seeds].double().sigmoid(),
        )


def retrieve(
    regions: RegionSet,
    seeds: Seeds,
    annotation: Annotation,
    method: Method = "votes",
    *,
    scores: Tensor | None = None,
    box_overlap: float = 0.5,
    nms_threshold: float = 0.3,
) -> Retrieved:
    """The best region of every seed, after non-maximum suppression among the regions of tags.

    Only regions compatible with the seed's weak label are considered: for a point those that
    contain it; for a box those whose tight box has an IoU of at least `box_overlap` with it; for a
    mask, or a box without such a region, the one with the highest IoU.

    Args:
        method: "votes", the highest expected IoU under the seed's votes, see `vote`; "combined",
            objectness, response and class probability; "objectness", the highest region score
            (as in WISE), both among regions that contain the peak; "response", the best fit to
            the peak response map (as in PRM).
        scores: of each region for each seed, [N, P], instead of those of a method.
        nms_threshold: a tag's region is dropped if its IoU with the region of a better seed of its
            class is higher.
    """
    check_choice("method", method, METHODS)
    if regions.size != annotation.size:
        raise InputError(
            f"regions of an image {regions.size}, an annotation of {annotation.size}; "
            "expected one image"
        )
    seeds.check_for(annotation)
    if len(seeds) == 0 or len(regions) == 0:
        empty = torch.zeros(0, dtype=torch.int64)
        return Retrieved(empty, empty, torch.zeros(0))
    scores = SCORES[method](regions, seeds) if scores is None else scores
    scores = _restrict_to_annotation(scores, regions, seeds, annotation, box_overlap)
    best_scores, best = scores.max(dim=1)
    is_tag = [annotation[index].kind == "tag" for index in seeds.annotation_index.tolist()]
    kept = _suppress(regions[best].iou(), seeds, is_tag, nms_threshold)
    return Retrieved(best[kept], kept, best_scores[kept])


def vote_scores(regions: RegionSet, seeds: Seeds) -> Tensor:
    """The expected IoU of each region with each seed's object, [N, P]."""
    return vote(regions, seeds) @ regions.iou()


def combined_scores(regions: RegionSet, seeds: Seeds) -> Tensor:
    """Objectness, the share of the response inside, and the mean probability inside: [N, P]."""
    evidence = response_inside(regions, seeds) + probability_inside(regions, seeds)
    return objectness_scores(regions, seeds) + EVIDENCE_WEIGHT * evidence


def objectness_scores(regions: RegionSet, seeds: Seeds) -> Tensor:
    """The scores of the regions that contain each peak, [N, P].

    Regions that do not contain it rank below, by the share of its response inside.
    """
    contains = regions.contains(seeds.points).T
    lower = regions.scores.min() - 2 + response_inside(regions, seeds)
    return torch.where(contains, regions.scores, lower)


def response_scores(regions: RegionSet, seeds: Seeds) -> Tensor:
    """PRM's score of each region for each seed, [N, P].

    The response inside the region and on its contour, minus a small penalty for every pixel where
    the class map is low.
    """
    penalties, contours = [], []
    for seed in seeds:
        values = seed.maps_in_image().clamp(min=0)
        low = (values < LOW_RATIO * values.mean()).float()
        penalties.append(LOW_PENALTY * regions.pool(low, over="sum")[:, 0])
        contours.append(contour_response(regions, seed.responses_in_image()[0]))
    inside = response_inside(regions, seeds)
    return INSIDE_WEIGHT * inside + torch.stack(contours) - torch.stack(penalties)


def contour_response(regions: RegionSet, response: Tensor) -> Tensor:
    """A response [H, W] summed over a band of `CONTOUR_WIDTH` along each region's outline: [P].

    Every pixel side of the outline counts the mean of the windows around it, times the width.
    """
    elements = BoundaryElements.of(regions.superpixels.numpy())
    window = (CONTOUR_WIDTH, CONTOUR_WIDTH)
    blurred = np.asarray(cv2.blur(response.numpy(), window), dtype=np.float32)
    on_element = torch.from_numpy(elements.line_integral(CONTOUR_WIDTH * blurred)).float()
    return on_element @ outlines(regions.membership, regions.elements).float()


SCORES: dict[Method, Callable[[RegionSet, Seeds], Tensor]] = {
    "votes": vote_scores,
    "combined": combined_scores,
    "objectness": objectness_scores,
    "response": response_scores,
}


def _restrict_to_annotation(
    scores: Tensor, regions: RegionSet, seeds: Seeds, annotation: Annotation, box_overlap: float
) -> Tensor:
    """Scores [N, P], -inf for regions incompatible with the seed's weak label.

    Without a compatible region, the scores are the IoU with the weak label.
    """
    rows = []
    for seed, row in zip(seeds, scores, strict=True):
        weak_label = annotation[int(seed.annotation_index)]
        if weak_label.mask is not None:
            mask = torch.from_numpy(masks.decode([weak_label.mask], annotation.size))
            fit, least = regions.iou_with(mask)[:, 0], 1.0
        elif weak_label.box is not None:
            fit, least = regions.box_iou([weak_label.box])[:, 0], box_overlap
        elif weak_label.point is not None and bool(regions.contains(seed.points).any()):
            fit, least = regions.contains(seed.points)[:, 0].float(), 1.0
        else:
            rows.append(row)
            continue
        compatible = fit >= least
        rows.append(torch.where(compatible, row, -torch.inf) if compatible.any() else fit)
    return torch.stack(rows)


def _suppress(iou: Tensor, seeds: Seeds, is_tag: list[bool], nms_threshold: float) -> Tensor:
    """The seeds left by the IoU of their regions [N, N]: those with a location, then tags, [M]."""
    order = seeds.scores.argsort(descending=True, stable=True).tolist()
    kept = [i for i in order if not is_tag[i]]
    for i in order:
        same_class = [k for k in kept if seeds.labels[k] == seeds.labels[i]]
        if is_tag[i] and all(iou[i, k] <= nms_threshold for k in same_class):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)
