"""Mosaic: an image cut into superpixels, and what is known about them and their borders."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
import numpy.typing as npt

from annocoin.regions.elements import Elements

COLOUR_SPREAD = 20.0
"""The distance in Lab at which two colours count as different: 1 - exp(-distance / this)."""


@dataclass(frozen=True)
class Mosaic:
    """What trees, candidates and their ranking are made from.

    Args:
        image: RGB, uint8 [H, W, 3].
        ids: superpixels 0..S-1, int32 [H, W].
        elements: their E borders.
        strengths: the mean edge on each border, on average over the scales, then at each scale:
            [K, E] in 0..1.
    """

    image: npt.NDArray[np.uint8]
    ids: npt.NDArray[np.int32]
    elements: Elements
    strengths: npt.NDArray[np.float64]

    @cached_property
    def areas(self) -> npt.NDArray[np.int64]:
        """Pixels of each superpixel, [S]."""
        return np.bincount(self.ids.ravel())

    @cached_property
    def lab(self) -> npt.NDArray[np.float32]:
        """The pixels' Lab colours, [H * W, 3]."""
        colours = cv2.cvtColor(self.image.astype(np.float32) / 255, cv2.COLOR_RGB2Lab)
        return np.asarray(colours.reshape(-1, 3), dtype=np.float32)

    @cached_property
    def colour_sums(self) -> npt.NDArray[np.float64]:
        """The Lab colours summed over each superpixel, [S, 3]."""
        return self.sums(*self.lab.T)

    @cached_property
    def colour_differences(self) -> npt.NDArray[np.float64]:
        """How much the mean colours at both sides of each border differ, [E] in 0..1."""
        means = self.colour_sums / self.areas[:, None]
        first, second = means[self.elements.pairs[:, 0]], means[self.elements.pairs[:, 1]]
        distance = np.linalg.norm(first - second, axis=1)
        return np.asarray(1 - np.exp(-distance / COLOUR_SPREAD))

    def sums(self, *values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """Values of all pixels, V x [H * W], summed over each superpixel: [S, V]."""
        flat = self.ids.ravel()
        return np.stack([np.bincount(flat, value, len(self.areas)) for value in values], axis=1)
