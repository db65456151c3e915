"""Masks as polygons, for formats that have nothing else, and back.

Corners are centres of pixels that belong to the mask, as OpenCV and YOLO's tools have it. There is
one polygon per mask: parts and holes are joined by seams that run there and back, and a pixel is
inside if it is enclosed an odd number of times. Only a seam that leaves the mask changes it.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from annocoin.masks import Size, far

Corners = npt.NDArray[np.float64]


def to_polygon(mask: npt.NDArray[np.bool_]) -> Corners | None:
    """The outline of a mask [H, W] as corners [M, 2] (x, y), M >= 3; None if the mask is empty."""
    found, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_CCOMP, cv2.CHAIN_APPROX_NONE)
    parts: list[npt.NDArray[Any]] = [np.asarray(part).reshape(-1, 2) for part in found]
    if not parts:
        return None
    outline: npt.NDArray[Any] = parts.pop(0)
    latest = outline
    gaps: npt.NDArray[Any] = np.full(len(parts), np.inf)
    while parts:  # always the part that is nearest to what is joined already
        distance, _ = cKDTree(latest).query(np.concatenate(parts))
        starts = np.cumsum([0, *(len(part) for part in parts[:-1])])
        gaps = np.minimum(gaps, np.minimum.reduceat(distance, starts))
        nearest = int(gaps.argmin())
        gaps = np.delete(gaps, nearest)
        latest = parts.pop(nearest)
        outline = _joined(outline, latest)
    return np.asarray(_corners_only(outline) + 0.5, dtype=np.float64)


def from_polygon(corners: Corners, size: Size) -> npt.NDArray[np.bool_]:
    """The mask [H, W] that the polygon [M, 2] outlines, as far as it lies in the image."""
    reach = far(size)  # what lies outside is cut off; this only bounds the numbers
    pixels = np.clip(np.floor(corners), -reach, reach).astype(np.int32)
    mask = np.zeros(size, dtype=np.uint8)
    cv2.fillPoly(mask, [pixels], 1)
    return mask.astype(bool)


def _joined(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Walk round the first, cross to the second at the nearest corners, round it, and back."""
    distance, index = cKDTree(first).query(second)
    j = int(distance.argmin())
    i = int(index[j])
    there = np.roll(second, -j, axis=0)
    return np.concatenate([first[: i + 1], there, there[:1], first[i:]])


def _corners_only(outline: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Without the pixels that lie between two others on a row, a column or a diagonal."""
    before = outline - np.roll(outline, 1, axis=0)
    after = np.roll(outline, -1, axis=0) - outline
    one_step = np.abs(before).max(axis=1) == 1
    corners = outline[~((before == after).all(axis=1) & one_step)]
    if len(corners) < 3:
        corners = np.concatenate([outline, outline, outline])[:3]
    return corners
