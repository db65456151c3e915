"""Which regions of an image would meet a mark of its annotation."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from annocoin import masks as rle
from annocoin.masks import Size
from annocoin.regions import RegionSet
from annocoin.seeds import Seeds
from annocoin.seeds.votes import first_that_leaves_any
from annocoin.types import Annotation, Mark

NEARLY = 0.9
"""A region fits a box nearly as well as the best one if its IoU is at least this share of that."""

MOSTLY = 0.5
"""A region belongs to the place of a crowd if more than this share of it lies there."""


def admissible_regions(
    number: int,
    annotation: Annotation,
    regions: RegionSet,
    seeds: Seeds | None,
    box_overlap: float,
) -> Tensor:
    """Which regions meet mark `number` of the annotation, bool [P].

    - A tag: all; with seeds, those that hold a peak of its class and none of another.
    - A point: those that contain it, and no other point.
    - A box: those whose tight box has an IoU of `box_overlap` with it and fits nearly as well as
      any.
    - A crowd: those that lie mostly in its place.

    Where two conditions leave no region, the second of them is dropped.
    """
    mark = annotation[number]
    if len(regions) == 0:
        return torch.zeros(0, dtype=torch.bool)
    if mark.crowd and mark.kind in ("box", "mask"):
        inside = torch.from_numpy(place_of(mark, regions.size))[None].float()
        return regions.pool(inside, over="region")[:, 0] > MOSTLY
    if mark.box is not None:
        fit = regions.box_iou([mark.box])[:, 0]
        fits = (fit >= box_overlap) & (fit >= NEARLY * fit.max())
        if mark.point is None:
            return fits
        return first_that_leaves_any(fits & regions.contains([mark.point])[:, 0], fits)
    if mark.point is not None:
        contains = regions.contains([mark.point])[:, 0]
        others = annotation.points[[i for i in range(len(annotation)) if i != number]]
        others = others[others.isfinite().all(dim=1)]
        return first_that_leaves_any(contains & ~regions.contains(others).any(dim=1), contains)
    return _seeded(mark.label, regions, seeds)


def place_of(mark: Mark, size: Size) -> npt.NDArray[np.bool_]:
    """The pixels of a mark's mask, or else of its box."""
    if mark.mask is not None:
        return rle.decode([mark.mask], size)[0].astype(bool)
    assert mark.box is not None
    x0, y0 = int(np.floor(mark.box[0])), int(np.floor(mark.box[1]))
    x1, y1 = int(np.ceil(mark.box[2])), int(np.ceil(mark.box[3]))
    inside: npt.NDArray[np.bool_] = np.zeros(size, dtype=bool)
    inside[y0:y1, x0:x1] = True
    return inside


def _seeded(label: int, regions: RegionSet, seeds: Seeds | None) -> Tensor:
    """The regions that seeds leave for a tag."""
    everything = torch.ones(len(regions), dtype=torch.bool)
    if seeds is None or not len(seeds):
        return everything
    holds = regions.contains(seeds.points)
    own = holds[:, seeds.labels == label].any(dim=1)
    alone = own & ~holds[:, seeds.labels != label].any(dim=1)
    return first_that_leaves_any(alone, own, everything)
