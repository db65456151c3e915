"""Votes: how much each region may be the object that a seed shows. First labels, but soft.

A peak lies on the most telling part of an object, and that part is often a fine region itself. No
single choice is safe; but the regions around a peak, each heard in proportion to how much it looks
like a whole object, tend to agree about its extent.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from annocoin.errors import InputError
from annocoin.regions.algebra import outlines
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation

SHARPNESS = 4.0
AREA = 0.2
LEAST_SCORE, LEAST_EDGE = 0.05, 0.02


def vote(
    regions: RegionSet,
    seeds: Seeds,
    compatible: Tensor | None = None,
    *,
    sharpness: float = SHARPNESS,
) -> Tensor:
    """The share of each seed's vote that each region gets, float32 [N, P]; rows sum to 1.

    Candidates are the regions that contain the peak and no peak of another class, as far as there
    are any. They are heard by how much they look like whole objects and how much of the seed's
    response and class is in them.

    Args:
        compatible: the only regions that a seed may vote for, bool [N, P]; where there is none, the
            seed has no vote.
        sharpness: how much more the better regions are heard.
    """
    if len(seeds) == 0 or len(regions) == 0:
        return torch.zeros(len(seeds), len(regions))
    holds = regions.contains(seeds.points).T
    if compatible is None:
        compatible = torch.ones_like(holds)
    rows = []
    for own, label, may in zip(holds, seeds.labels, compatible, strict=True):
        foreign = holds[seeds.labels != label].any(dim=0)
        rows.append(first_that_leaves_any(may & own & ~foreign, may & own, may))
    evidence = response_inside(regions, seeds) + likelihood_inside(regions, seeds)
    likely = sharpness * (wholeness(regions) + evidence)
    return torch.where(torch.stack(rows), likely, -torch.inf).softmax(dim=1).nan_to_num(0)


def wholeness(regions: RegionSet) -> Tensor:
    """How much regions look like whole objects, a logarithm, float32 [P].

    Made of the region's own score, the mean edge along its outline, and a mild preference for large
    ones that do not fill the image.
    """
    on_outline = outlines(regions.membership, regions.elements).float()
    edge = (regions.masses @ on_outline) / (regions.lengths @ on_outline).clamp(min=1)
    area = regions.areas / regions.superpixels.numel()
    return (
        0.5 * (regions.scores.clamp(min=0) + LEAST_SCORE).log()
        + 0.5 * (edge + LEAST_EDGE).log()
        + AREA * area.log()
        + (1 - area).clamp(min=1e-3).log()
    )


def soft_labels(regions: RegionSet, seeds: Seeds, votes: Tensor, labels: tuple[int, ...]) -> Tensor:
    """How much every superpixel belongs to each class, by votes [N, P]: [J+1, S], summing to 1.

    Row 0 is the background; a class has what the seed of it that wants the superpixel most gives.
    """
    wanted = votes @ regions.membership.to(votes.dtype)
    classes = greatest_of_class(wanted, seeds, labels)
    taken = torch.cat([wanted.new_zeros(1, wanted.shape[1]), classes]).amax(dim=0, keepdim=True)
    shares = torch.cat([1 - taken, classes]).clamp(min=0)
    return shares / shares.sum(dim=0, keepdim=True).clamp(min=1e-6)


def greatest_of_class(
    values: Tensor, seeds: Seeds, labels: tuple[int, ...], without: float = 0.0
) -> Tensor:
    """The greatest value that a seed of each class has, [J, X], of values [N, X].

    Args:
        without: for classes that have no seed.
    """
    rows = []
    for label in labels:
        own = values[seeds.labels == label]
        missing = values.new_full((values.shape[1],), without)
        rows.append(own.amax(dim=0) if len(own) else missing)
    return torch.stack(rows) if rows else values.new_zeros(0, values.shape[1])


def first_that_leaves_any(*choices: Tensor) -> Tensor:
    """The first of some bool [P] that is true anywhere; else the last."""
    return next((choice for choice in choices if choice.any()), choices[-1])


def response_inside(regions: RegionSet, seeds: Seeds) -> Tensor:
    """The share of each seed's response in each region, [N, P]; it wants large regions."""
    return _per_seed(
        regions, seeds, lambda seed: regions.pool(seed.responses_in_image(), over="sum")
    )


def likelihood_inside(regions: RegionSet, seeds: Seeds) -> Tensor:
    """The mean probability of each seed's class in each region, [N, P]; it wants pure regions."""
    return _per_seed(
        regions, seeds, lambda seed: regions.pool(seed.maps_in_image().sigmoid(), over="region")
    )


def _per_seed(regions: RegionSet, seeds: Seeds, pooled: Callable[[Seeds], Tensor]) -> Tensor:
    """Maps are large, so one seed at a time."""
    rows = [pooled(seed)[:, 0] for seed in seeds]
    return torch.stack(rows) if rows else torch.zeros(0, len(regions))


STRONG = 0.1
"""A pixel belongs to a seed if the response there is at least this share of the greatest."""

BEST = 300
"""So many of the most object-like regions stay anyway: classifiers miss small objects."""

BOX_OVERLAP = 0.5


def seed_pixels(seeds: Seeds, strong: float = STRONG) -> Tensor:
    """The pixels of each seed, bool [N, H, W]: its peak, and where its response is strong."""
    if not 0 < strong <= 1:
        raise InputError(f"strong {strong}; expected above 0 and at most 1")
    height, width = seeds.size
    pixels = torch.zeros(len(seeds), height, width, dtype=torch.bool)
    for own, seed in zip(pixels, seeds, strict=True):
        response = seed.responses_in_image()[0]
        own[:] = response >= strong * response.max()
        x, y = seed.points[0].long().tolist()
        own[min(y, height - 1), min(x, width - 1)] = True
    return pixels


def touched(regions: RegionSet, seeds: Seeds, strong: float = STRONG) -> Tensor:
    """Regions that hold at least one pixel of a seed: bool [P]."""
    pixels = seed_pixels(seeds, strong).any(dim=0)
    count = regions.membership.shape[1]
    hit = torch.bincount(regions.superpixels[pixels].long(), minlength=count) > 0
    return (regions.membership & hit).any(dim=1)


def fitting_boxes(regions: RegionSet, annotation: Annotation, least: float = BOX_OVERLAP) -> Tensor:
    """Regions whose tight box has at least this IoU with a box of the annotation: bool [P].

    Every box keeps at least the region that fits it best, if any overlaps it, and that of a crowd
    all that lie in it.
    """
    boxed = annotation.only("box")
    if len(boxed) == 0 or len(regions) == 0:
        return torch.zeros(len(regions), dtype=torch.bool)
    fit = regions.box_iou(boxed.boxes)
    kept = ((fit >= least) | ((fit == fit.amax(dim=0)) & (fit > 0))).any(dim=1)
    for x0, y0, x1, y1 in boxed.boxes[boxed.crowd].tolist():
        left, top, right, bottom = regions.boxes.unbind(dim=1)
        kept |= (left >= x0 - 1) & (top >= y0 - 1) & (right <= x1 + 1) & (bottom <= y1 + 1)
    return kept


def filter_regions(
    regions: RegionSet,
    seeds: Seeds,
    annotation: Annotation,
    *,
    strong: float = STRONG,
    best: int = BEST,
    box_overlap: float = BOX_OVERLAP,
) -> Tensor:
    """The regions that the annotation leaves, bool [P].

    If all weak_labels are boxes, those that fit one; else also those that a seed of another weak_label touches,
    and the first `best` of all. The paper has the touched ones alone (`best=0`).
    """
    in_box = torch.tensor([kind == "box" for kind in annotation.kinds], dtype=torch.bool)
    free = seeds[~in_box[seeds.annotation_index]]
    kept = touched(regions, free, strong) | fitting_boxes(regions, annotation, box_overlap)
    if len(free):
        kept[:best] = True
    return kept
