"""Draw how an image falls into regions: boundaries, hierarchy, superpixels, the best regions."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from annocoin.regions.algebra import resized
from annocoin.regions.hierarchy import contours
from annocoin.regions.proposals import Analysis
from annocoin.regions.region_set import RegionSet
from annocoin.report.overlay import Picture, caption, colour, sheet, tinted

SIDE = 400
"""The length of a panel's longer side."""


def draw_regions(
    image: Picture, analysis: Analysis, regions: RegionSet, *, best: int = 12
) -> Picture:
    """Panels: the image, its boundaries, contours and superpixels, then the best regions."""
    fit = SIDE / max(image.shape[:2])
    size = (max(1, round(image.shape[0] * fit)), max(1, round(image.shape[1] * fit)))
    small = _resized(image, size)
    ids = resized(regions.superpixels, size).numpy()
    mosaic = analysis.mosaic
    heights = contours(analysis.trees[0], mosaic.ids, mosaic.elements)
    panels = [
        (small, "image"),
        (_resized(_grey(analysis.edges), size), "boundaries"),
        (_resized(_grey(heights), size), "hierarchy (contours)"),
        (_mean_colours(small, ids), f"{regions.membership.shape[1]} superpixels"),
    ]
    for i, members in enumerate(regions.membership[:best].numpy()):
        drawn = tinted((small * 0.6).astype(np.uint8), members[ids], colour(i))
        panels.append((drawn, f"{i + 1}: {float(regions.scores[i]):.2f}"))
    for picture, text in panels:
        caption(picture, text, 2, 2, 0.45)
    return sheet([picture for picture, _ in panels], columns=4)


def _resized(picture: Picture, size: tuple[int, int]) -> Picture:
    method = cv2.INTER_AREA if size[0] < picture.shape[0] else cv2.INTER_NEAREST
    return np.array(cv2.resize(picture, size[::-1], interpolation=method), dtype=np.uint8)


def _grey(values: npt.NDArray[np.floating]) -> Picture:
    """Values in 0..1 as dark lines on white."""
    grey = (255 * (1 - np.clip(values, 0, 1))).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _mean_colours(image: Picture, ids: npt.NDArray[np.int32]) -> Picture:
    """Every superpixel in its mean colour."""
    areas = np.bincount(ids.ravel()).clip(1)
    channels = [np.bincount(ids.ravel(), image[:, :, c].ravel()) / areas for c in range(3)]
    return np.stack(channels, axis=1).astype(np.uint8)[ids]
