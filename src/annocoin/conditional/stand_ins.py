"""Stand-ins: regions made for marks that no region fits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from annocoin import masks as rle
from annocoin.conditional.admission import place_of
from annocoin.conditional.grab_cut import grab_cut
from annocoin.masks import RLE
from annocoin.regions import RegionSet
from annocoin.types import Mark

Mask = npt.NDArray[np.bool_]


def stand_in(
    mark: Mark, regions: RegionSet, image: npt.NDArray[np.uint8] | None, box_overlap: float
) -> RLE:
    """A region for a mark: GrabCut's answer or else the box, the superpixel of a point, or all.

    Args:
        image: for GrabCut, [H, W, 3].
        box_overlap: the IoU that the tight box of GrabCut's answer must have with the box.
    """
    height, width = regions.size
    mask: Mask = np.ones((height, width), dtype=bool)
    if mark.mask is not None or mark.box is not None:
        mask = place_of(mark, regions.size)
        cut = grab_cut(image, mask) if image is not None and not mark.crowd else None
        if cut is not None and _box_overlap(cut, mask) >= box_overlap:
            mask = cut
    elif mark.point is not None:
        x, y = min(int(mark.point[0]), width - 1), min(int(mark.point[1]), height - 1)
        superpixels = regions.superpixels.cpu().numpy()
        mask = superpixels == superpixels[y, x]
    return rle.encode(mask[None])[0]


def _box_overlap(first: Mask, second: Mask) -> float:
    """The IoU of two masks' tight boxes."""
    a, b = rle.boxes(rle.encode(np.stack([first, second])))
    sides = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None)
    common = float(sides.prod())
    return common / (float((a[2:] - a[:2]).prod()) + float((b[2:] - b[:2]).prod()) - common)
