"""SuperpixelGraph: an image cut into superpixels, and what is known about them and their borders."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
import numpy.typing as npt

COLOUR_SPREAD = 20.0
"""The distance in Lab at which two colours count as different: 1 - exp(-distance / this)."""


@dataclass(frozen=True)
class SuperpixelGraph:
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


Map = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Elements:
    """The E boundary elements of a superpixel map [H, W], sorted by their pair.

    A border is made of the sides that two pixels of different superpixels share (4-neighbours).

    Args:
        pairs: superpixels a < b, int64 [E, 2].
        lengths: pixel sides along the border, float64 [E].
        pixels: for each of the T pixel sides, the flat positions of its two pixels, int64 [T, 2].
        owner: the element of each pixel side, int64 [T].

    Example:
        >>> found = Elements.of(np.array([[0, 0, 1], [2, 2, 1]]))
        >>> found.pairs.tolist(), found.lengths.tolist()
        ([[0, 1], [0, 2], [1, 2]], [1.0, 2.0, 1.0])
    """

    pairs: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.float64]
    pixels: npt.NDArray[np.int64]
    owner: npt.NDArray[np.int64]

    @classmethod
    def of(cls, superpixels: npt.NDArray[np.integer]) -> Elements:
        """The elements of a map of superpixel ids from 0 on."""
        width = superpixels.shape[1]
        sides = []
        for step, whole in (
            (1, superpixels[:, :-1] != superpixels[:, 1:]),
            (width, superpixels[:-1] != superpixels[1:]),
        ):
            rows, columns = np.nonzero(whole)
            first = rows * width + columns
            sides.append(np.stack([first, first + step], axis=1))
        pixels = np.concatenate(sides)
        ids = superpixels.ravel()[pixels].astype(np.int64)
        count = int(superpixels.max()) + 1
        keys = ids.min(axis=1) * count + ids.max(axis=1)
        unique, owner = np.unique(keys, return_inverse=True)
        pairs = np.stack([unique // count, unique % count], axis=1)
        lengths = np.bincount(owner, minlength=len(unique)).astype(np.float64)
        return cls(pairs, lengths, pixels, owner)

    def masses(self, edges: Map) -> npt.NDArray[np.float64]:
        """The edge mass on each element, [E]: the greater value of both pixels, summed over sides.

        Args:
            edges: the probability of a boundary at every pixel, [H, W].
        """
        return self._sums(edges.ravel()[self.pixels].max(axis=1))

    def means(self, values: Map) -> npt.NDArray[np.float64]:
        """Values [H, W] along each element, [E]: the mean of both pixels, summed over sides."""
        return self._sums(values.ravel()[self.pixels].mean(axis=1))

    def _sums(self, values: Map) -> npt.NDArray[np.float64]:
        sums = np.bincount(self.owner, values, minlength=len(self.pairs))
        return sums.astype(np.float64)
