"""Masks as polygons, for formats that have nothing else, and back.

Corners are pixel centres and the outline belongs to the mask, as OpenCV and YOLO's tools draw it.
One polygon per mask: parts are joined by a seam that runs there and back; holes close.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from annocoin.masks import Size

Corners = npt.NDArray[np.float64]


def to_polygon(mask: npt.NDArray[np.bool_]) -> Corners | None:
    """The outline of a mask [H, W] as corners [M, 2] (x, y); None if the mask is empty."""
    found, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    parts = [part.reshape(-1, 2) for part in found]
    if not parts:
        return None
    outline = parts[0]
    for part in parts[1:]:
        outline = _joined(outline, part)
    return outline.astype(np.float64)


def from_polygon(corners: Corners, size: Size) -> npt.NDArray[np.bool_]:
    """The mask [H, W] that the polygon [M, 2] outlines."""
    mask = np.zeros(size, dtype=np.uint8)
    cv2.fillPoly(mask, [np.rint(corners).astype(np.int32)], 1)
    return mask.astype(bool)


def _joined(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Walk round the first, cross to the second at the nearest corners, round it, and back."""
    gaps = ((first[:, None].astype(np.int64) - second[None]) ** 2).sum(axis=2)
    i, j = np.unravel_index(int(gaps.argmin()), gaps.shape)
    there = np.roll(second, -int(j), axis=0)
    return np.concatenate([first[: i + 1], there, there[:1], first[i:]])
