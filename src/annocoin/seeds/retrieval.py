"""First pseudo labels: for every seed the region that its peak speaks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import cv2
import numpy as np
import torch
from torch import Tensor

from annocoin.errors import check_choice
from annocoin.regions import RegionSet
from annocoin.regions.algebra import outlines
from annocoin.regions.elements import Elements
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation, Instances

By = Literal["combined", "objectness", "response"]
WAYS: tuple[By, ...] = get_args(By)

INSIDE = 0.8
CONTOUR = 5
LOW = 0.1
PENALTY = 1e-5
"""PRM's score: how much the mass in the region counts beside that on its contour, the contour's
width in pixels, which share of the class map's mean is low, and what a pixel there costs."""

EVIDENCE = 0.4
"""How much the response and the class map count beside objectness, in the combined score."""


@dataclass(frozen=True, eq=False)
class Retrieved:
    """M regions that stand for seeds.

    Args:
        regions: positions in the region set, int64 [M].
        seeds: positions in the seeds, int64 [M].
        scores: how good the region is for the seed, float32 [M].
    """

    regions: Tensor
    seeds: Tensor
    scores: Tensor

    def __len__(self) -> int:
        return len(self.regions)

    def instances(self, regions: RegionSet, seeds: Seeds) -> Instances:
        """As instances, ranked by the probability of the class at the peak."""
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
    by: By = "combined",
    *,
    box_overlap: float = 0.5,
    overlap: float = 0.3,
) -> Retrieved:
    """The best region of every seed, without those that overlap a better seed's of the same class.

    Args:
        by: "objectness", the most object-like region that contains the peak (as WISE does);
            "response", the region that fits the peak response map best (as PRM does); or
            "combined", an object-like region that contains the peak, much of its response, and
            little where the class is unlikely.
        box_overlap: for a seed in a box, the region's tight box has at least this IoU with it;
            if none has, the one with the greatest is taken.
        overlap: of two regions of one class with a greater IoU, that of the lower seed is dropped,
            unless it is all that its mark has.
    """
    check_choice("by", by, get_args(By))
    if len(seeds) == 0 or len(regions) == 0:
        empty = torch.zeros(0, dtype=torch.int64)
        return Retrieved(empty, empty, torch.zeros(0))
    scores = _within_boxes(SCORES[by](regions, seeds), regions, seeds, annotation, box_overlap)
    best, chosen = scores.max(dim=1)
    kept = _suppressed(regions, seeds, chosen, overlap)
    return Retrieved(chosen[kept], kept, best[kept])


def objectness_scores(regions: RegionSet, seeds: Seeds) -> Tensor:
    """The score of each region for each seed: its own if it contains the peak, [N, P].

    Where no region contains a peak, those that hold most of its response are next.
    """
    contains = regions.contains(seeds.points).T
    mass = regions.pool(seeds.responses_in_image(), over="sum").T
    lowest = regions.scores.min() - 2
    return torch.where(contains, regions.scores, lowest + mass)


def combined_scores(regions: RegionSet, seeds: Seeds) -> Tensor:
    """Objectness, the share of the response inside, and the mean probability inside: [N, P].

    The second wants large regions, the third pure ones.
    """
    inside = regions.pool(seeds.responses_in_image(), over="sum").T
    likely = regions.pool(seeds.maps_in_image().sigmoid(), over="region").T
    return objectness_scores(regions, seeds) + EVIDENCE * (inside + likely)


def response_scores(regions: RegionSet, seeds: Seeds) -> Tensor:
    """PRM's score of each region for each seed, [N, P].

    The mass of the response in the region, that on its contour, and a small price for every pixel
    where the class map is low.
    """
    responses = seeds.responses_in_image()
    maps = seeds.maps_in_image().clamp(min=0)
    low = (maps < LOW * maps.mean(dim=(1, 2), keepdim=True)).float()
    inside = regions.pool(responses, over="sum").T
    outside = regions.pool(low, over="sum").T
    return INSIDE * inside + contour_mass(regions, responses) - PENALTY * outside


def contour_mass(regions: RegionSet, values: Tensor) -> Tensor:
    """The values [N, H, W] along each region's outline, in a band of 5 pixels: [N, P].

    The band is laid along the borders of superpixels: a border's mass is that of a 5 x 5 window's
    mean, times its width, at each pixel side of it.
    """
    elements = Elements.of(regions.superpixels.numpy())
    on_element = np.stack(
        [elements.means(CONTOUR * cv2.blur(value, (CONTOUR, CONTOUR))) for value in values.numpy()]
    )
    on_outline = outlines(regions.membership, regions.elements)
    return torch.from_numpy(on_element).float() @ on_outline.float()


SCORES: dict[By, Callable[[RegionSet, Seeds], Tensor]] = {
    "combined": combined_scores,
    "objectness": objectness_scores,
    "response": response_scores,
}


def _within_boxes(
    scores: Tensor, regions: RegionSet, seeds: Seeds, annotation: Annotation, least: float
) -> Tensor:
    """Scores [N, P] in which the regions that fit a seed's box come before all others."""
    boxes = annotation.boxes[seeds.marks]
    has_box = ~boxes.isnan().any(dim=1)
    if not has_box.any():
        return scores
    fit = regions.box_iou(boxes[has_box]).T
    span = scores.max() - scores.min() + 1
    scores = scores.clone()
    scores[has_box] += span * torch.where(fit >= least, 1.0, fit)
    return scores


def _suppressed(regions: RegionSet, seeds: Seeds, chosen: Tensor, overlap: float) -> Tensor:
    """The seeds that are left, by falling score: int64 [M]."""
    iou = regions[chosen].iou()
    kept: list[int] = []
    for i in seeds.scores.argsort(descending=True, stable=True).tolist():
        same = [k for k in kept if seeds.labels[k] == seeds.labels[i]]
        alone = not any(seeds.marks[k] == seeds.marks[i] for k in kept)
        if alone or all(iou[i, k] <= overlap for k in same):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)
