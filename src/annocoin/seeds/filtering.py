"""Which regions of an image are worth keeping: those that a seed touches, or that fit a box."""

from __future__ import annotations

import torch
from torch import Tensor

from annocoin.errors import InputError
from annocoin.regions import RegionSet
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation

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


def worth_keeping(
    regions: RegionSet,
    seeds: Seeds,
    annotation: Annotation,
    *,
    strong: float = STRONG,
    best: int = BEST,
    box_overlap: float = BOX_OVERLAP,
) -> Tensor:
    """The regions that the annotation leaves, bool [P].

    If all marks are boxes, those that fit one; else also those that a seed of another mark touches,
    and the first `best` of all. The paper has the touched ones alone (`best=0`).
    """
    in_box = torch.tensor([kind == "box" for kind in annotation.kinds], dtype=torch.bool)
    free = seeds[~in_box[seeds.marks]]
    kept = touched(regions, free, strong) | fitting_boxes(regions, annotation, box_overlap)
    if len(free):
        kept[:best] = True
    return kept
