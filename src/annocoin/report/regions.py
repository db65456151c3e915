"""Draw how an image falls into regions: boundaries, hierarchy, superpixels, the best regions."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from annocoin.regions.hierarchy import contours
from annocoin.regions.proposals import Analysis, enlarged
from annocoin.regions.region_set import RegionSet
from annocoin.report.overlay import Picture, caption, colour, sheet, tinted

SIDE = 400
"""The length of a panel's longer side."""


def draw_regions(
    image: Picture, analysis: Analysis, regions: RegionSet, *, best: int = 12
) -> Picture:
    """Panels: the image, its boundaries, contours and superpixels, then the best regions."""
    size = image.shape[:2]
    mosaic = analysis.mosaic
    heights = contours(analysis.trees[0], mosaic.ids, mosaic.elements)
    panels = [
        (image, "image"),
        (_grey(enlarged(analysis.edges, size)), "boundaries"),
        (_grey(enlarged(heights, size)), "hierarchy (contours)"),
        (_mean_colours(image, regions), f"{regions.membership.shape[1]} superpixels"),
    ]
    chosen = regions[:best]
    for i, mask in enumerate(chosen.masks().numpy()):
        drawn = tinted((image * 0.6).astype(np.uint8), mask, colour(i))
        panels.append((drawn, f"{i + 1}: {float(chosen.scores[i]):.2f}"))
    return sheet([_panel(picture, text) for picture, text in panels], columns=4)


def _panel(picture: Picture, text: str) -> Picture:
    fit = SIDE / max(picture.shape[:2])
    width, height = (max(1, round(side * fit)) for side in (picture.shape[1], picture.shape[0]))
    method = cv2.INTER_AREA if fit < 1 else cv2.INTER_NEAREST
    resized = np.array(cv2.resize(picture, (width, height), interpolation=method), dtype=np.uint8)
    caption(resized, text, 2, 2, 0.45)
    return resized


def _grey(values: npt.NDArray[np.generic]) -> Picture:
    """Values in 0..1 as dark lines on white."""
    grey = (255 * (1 - np.clip(values.astype(np.float64), 0, 1))).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _mean_colours(image: Picture, regions: RegionSet) -> Picture:
    """Every superpixel in its mean colour."""
    ids = regions.superpixels.numpy()
    areas = regions.superpixel_areas.numpy()
    channels = [np.bincount(ids.ravel(), image[:, :, c].ravel()) / areas for c in range(3)]
    return np.stack(channels, axis=1).astype(np.uint8)[ids]
