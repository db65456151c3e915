"""First pseudo labels: for every seed the region that its peak speaks for."""

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
from annocoin.regions.superpixel_graph import Elements
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.votes import likelihood_inside, response_inside, vote
from annocoin.types import Annotation, Instances

By = Literal["votes", "combined", "objectness", "response"]
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
    by: By = "votes",
    *,
    box_overlap: float = 0.5,
    overlap: float = 0.3,
) -> Retrieved:
    """The best region of every seed, without those of a tag that overlap a better one of its class.

    A seed chooses among the regions that its weak_label admits: for a point those that contain it, for a
    mask the one nearest to it, for a box those whose tight box has an IoU of `box_overlap` with it.
    If a weak_label admits none, it is the one that comes nearest.

    Args:
        by: "votes", the region that agrees best with all that contain the peak, see `vote`;
            "combined", an object-like region that contains the peak, much of its response, and
            little where the class is unlikely; "objectness", the most object-like region that
            contains the peak (as WISE does); or "response", the region that fits the peak response
            map best (as PRM does).
        overlap: a tag's region with a greater IoU than this with another of its class is dropped,
            unless its class would be left with none.
    """
    check_choice("by", by, WAYS)
    if regions.size != annotation.size:
        raise InputError(
            f"regions of an image {regions.size}, an annotation of {annotation.size}; "
            "expected one image"
        )
    seeds.check_for(annotation)
    if len(seeds) == 0 or len(regions) == 0:
        empty = torch.zeros(0, dtype=torch.int64)
        return Retrieved(empty, empty, torch.zeros(0))
    scores = _admitted(SCORES[by](regions, seeds), regions, seeds, annotation, box_overlap)
    best, chosen = scores.max(dim=1)
    is_tag = torch.tensor(
        [annotation[weak_label].kind == "tag" for weak_label in seeds.annotation_index.tolist()]
    )
    kept = _suppressed(regions, seeds, chosen, is_tag, overlap)
    return Retrieved(chosen[kept], kept, best[kept])


def objectness_scores(regions: RegionSet, seeds: Seeds) -> Tensor:
    """The score of each region for each seed: its own if it contains the peak, [N, P].

    Where no region contains a peak, those that hold most of its response are next.
    """
    return _of_containing(regions, seeds, response_inside(regions, seeds))


def combined_scores(regions: RegionSet, seeds: Seeds) -> Tensor:
    """Objectness, the share of the response inside, and the mean probability inside: [N, P]."""
    inside = response_inside(regions, seeds)
    evidence = inside + likelihood_inside(regions, seeds)
    return _of_containing(regions, seeds, inside) + EVIDENCE * evidence


def response_scores(regions: RegionSet, seeds: Seeds) -> Tensor:
    """PRM's score of each region for each seed, [N, P].

    The mass of the response in the region, that on its contour, and a small price for every pixel
    where the class map is low.
    """
    prices, contours = [], []
    for seed in seeds:
        values = seed.maps_in_image().clamp(min=0)
        low = (values < LOW * values.mean()).float()
        prices.append(PENALTY * regions.pool(low, over="sum")[:, 0])
        contours.append(contour_mass(regions, seed.responses_in_image()[0]))
    inside = response_inside(regions, seeds)
    return INSIDE * inside + torch.stack(contours) - torch.stack(prices)


def vote_scores(regions: RegionSet, seeds: Seeds) -> Tensor:
    """The overlap that each region is expected to have with each seed's object, [N, P]."""
    return vote(regions, seeds) @ regions.iou()


SCORES: dict[By, Callable[[RegionSet, Seeds], Tensor]] = {
    "votes": vote_scores,
    "combined": combined_scores,
    "objectness": objectness_scores,
    "response": response_scores,
}


def contour_mass(regions: RegionSet, values: Tensor) -> Tensor:
    """The values [H, W] along each region's outline, in a band of 5 pixels: [P].

    The band is laid along the borders of superpixels: a border's mass is that of a 5 x 5 window's
    mean, times its width, at each pixel side of it.
    """
    elements = Elements.of(regions.superpixels.numpy())
    blurred = np.asarray(cv2.blur(values.numpy(), (CONTOUR, CONTOUR)), dtype=np.float32)
    on_element = elements.means(CONTOUR * blurred)
    on_outline = outlines(regions.membership, regions.elements)
    return torch.from_numpy(on_element).float() @ on_outline.float()


def _of_containing(regions: RegionSet, seeds: Seeds, inside: Tensor) -> Tensor:
    """Regions' own scores where they contain the peak, else below all of them, by `inside`."""
    contains = regions.contains(seeds.points).T
    return torch.where(contains, regions.scores, regions.scores.min() - 2 + inside)


def _admitted(
    scores: Tensor, regions: RegionSet, seeds: Seeds, annotation: Annotation, box_overlap: float
) -> Tensor:
    """Scores [N, P], -inf for regions that a seed's weak_label does not admit.

    Where it admits none, how near each region comes to it instead.
    """
    rows = []
    for row, point, number in zip(
        scores, seeds.points, seeds.annotation_index.tolist(), strict=True
    ):
        weak_label = annotation[number]
        if weak_label.mask is not None:
            mask = torch.from_numpy(masks.decode([weak_label.mask], annotation.size))
            fit, least = regions.iou_with(mask)[:, 0], 1.0
        elif weak_label.box is not None:
            fit, least = regions.box_iou([weak_label.box])[:, 0], box_overlap
        elif weak_label.point is not None and bool(regions.contains(point[None]).any()):
            fit, least = regions.contains(point[None])[:, 0].float(), 1.0
        else:
            rows.append(row)
            continue
        fits = fit >= least
        rows.append(torch.where(fits, row, -torch.inf) if fits.any() else fit)
    return torch.stack(rows)


def _suppressed(
    regions: RegionSet, seeds: Seeds, chosen: Tensor, is_tag: Tensor, overlap: float
) -> Tensor:
    """The seeds that are left, int64 [M]: those with a place, then of tags, by falling score."""
    iou = regions[chosen].iou()
    order = seeds.scores.argsort(descending=True, stable=True).tolist()
    kept = [i for i in order if not is_tag[i]]
    for i in order:
        if is_tag[i]:
            same = [k for k in kept if seeds.labels[k] == seeds.labels[i]]
            if all(iou[i, k] <= overlap for k in same):
                kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)
