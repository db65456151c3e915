"""The filter of an image's regions by its seeds and boxes, and the pixels of seeds (paper, 6.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation

RESPONSE_THRESHOLD = 0.1
"""Pixels of a seed have at least this share of its maximal response."""

TOP_REGIONS = 300
"""Regions that the filter always keeps: classifiers miss small objects."""

BOX_OVERLAP = 0.5


def filter_regions(
    regions: RegionSet,
    seeds: Seeds,
    annotation: Annotation,
    *,
    response_threshold: float = RESPONSE_THRESHOLD,
    top_regions: int = TOP_REGIONS,
    box_overlap: float = BOX_OVERLAP,
) -> Tensor:
    """The regions to keep, bool [P]: those on the seeds of tags, points and masks, or in a box.

    Unless all weak labels are boxes, also the first `top_regions`, which the paper does not keep.
    """
    is_box = torch.tensor([kind == "box" for kind in annotation.kinds], dtype=torch.bool)
    others = seeds[~is_box[seeds.annotation_index]]
    kept = regions_on_seeds(regions, others, response_threshold)
    kept |= regions_in_boxes(regions, annotation, box_overlap)
    if len(others):
        kept[:top_regions] = True
    return kept


def regions_on_seeds(regions: RegionSet, seeds: Seeds, response_threshold: float) -> Tensor:
    """Regions with at least one pixel of a seed: bool [P]."""
    pixels = seed_pixels(seeds, response_threshold).any(dim=0)
    count = regions.membership.shape[1]
    on_seed = torch.bincount(regions.superpixels[pixels].long(), minlength=count) > 0
    return (regions.membership & on_seed).any(dim=1)


def seed_pixels(seeds: Seeds, response_threshold: float = RESPONSE_THRESHOLD) -> Tensor:
    """The pixels of each seed, bool [N, H, W]: its peak, and those with a high response."""
    if not 0 < response_threshold <= 1:
        raise InputError(f"response threshold {response_threshold}; expected above 0, at most 1")
    height, width = seeds.size
    pixels = torch.zeros(len(seeds), height, width, dtype=torch.bool)
    for mask, seed in zip(pixels, seeds, strict=True):
        response = seed.responses_in_image()[0]
        mask[:] = response >= response_threshold * response.max()
        x, y = seed.points[0].long().tolist()
        mask[min(y, height - 1), min(x, width - 1)] = True
    return pixels


def regions_in_boxes(regions: RegionSet, annotation: Annotation, min_iou: float) -> Tensor:
    """Regions whose tight box has at least this IoU with an annotated box: bool [P].

    For every box also the best region, if any overlaps it; for a crowd all regions inside it.
    """
    boxed = annotation.only("box")
    if len(boxed) == 0 or len(regions) == 0:
        return torch.zeros(len(regions), dtype=torch.bool)
    iou = regions.box_iou(boxed.boxes)
    kept = ((iou >= min_iou) | ((iou == iou.amax(dim=0)) & (iou > 0))).any(dim=1)
    for x0, y0, x1, y1 in boxed.boxes[boxed.crowd].tolist():
        left, top, right, bottom = regions.boxes.unbind(dim=1)
        kept |= (left >= x0 - 1) & (top >= y0 - 1) & (right <= x1 + 1) & (bottom <= y1 + 1)
    return kept
