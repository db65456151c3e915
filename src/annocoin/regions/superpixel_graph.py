"""The superpixels of an image as a graph: borders, with edge strength and colour contrast."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import cv2
import numpy as np
import numpy.typing as npt

Map = npt.NDArray[np.floating]

COLOUR_SCALE = 20.0
"""Lab distances d become differences 1 - exp(-d / COLOUR_SCALE)."""


@dataclass(frozen=True)
class SuperpixelGraph:
    """Superpixels and their borders: the input of hierarchies, candidate regions and ranking.

    Args:
        image: RGB, uint8 [H, W, 3].
        ids: superpixels 0..S-1, int32 [H, W].
        elements: the E borders between superpixels.
        mean_strength: mean edge strength per pixel side of each border, in 0..1: [1 + K, E], first
            of the average map, then of each of the K scales.
    """

    image: npt.NDArray[np.uint8]
    ids: npt.NDArray[np.int32]
    elements: BoundaryElements
    mean_strength: npt.NDArray[np.float64]

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
        """Difference of the mean colours on both sides of each border, [E] in 0..1."""
        means = self.colour_sums / self.areas[:, None]
        first, second = self.elements.pairs.T
        distance = np.linalg.norm(means[first] - means[second], axis=1)
        return np.asarray(1 - np.exp(-distance / COLOUR_SCALE))

    def sums(self, *values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
        """Values of all pixels, V x [H * W], summed over each superpixel: [S, V]."""
        ids = self.ids.ravel()
        return np.stack([np.bincount(ids, value, len(self.areas)) for value in values], axis=1)


@dataclass(frozen=True)
class BoundaryElements:
    """The E boundary elements of a superpixel map [H, W], sorted by their pair.

    An element consists of the sides that pixels of two superpixels share (4-neighbours).

    Args:
        pairs: superpixels a < b, int64 [E, 2].
        lengths: number of pixel sides, float64 [E].
        side_pixels: the flat indices of the two pixels at each of the T pixel sides, int64 [T, 2].
        side_elements: the element of each pixel side, int64 [T].

    Example:
        >>> elements = BoundaryElements.of(np.array([[0, 0, 1], [2, 2, 1]]))
        >>> elements.pairs.tolist(), elements.lengths.tolist()
        ([[0, 1], [0, 2], [1, 2]], [1.0, 2.0, 1.0])
    """

    pairs: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.float64]
    side_pixels: npt.NDArray[np.int64]
    side_elements: npt.NDArray[np.int64]

    @classmethod
    def of(cls, superpixels: npt.NDArray[np.integer]) -> BoundaryElements:
        """The elements of a superpixel map with ids from 0."""
        width = superpixels.shape[1]
        across = np.argwhere(superpixels[:, :-1] != superpixels[:, 1:]) @ (width, 1)
        down = np.argwhere(superpixels[:-1] != superpixels[1:]) @ (width, 1)
        first = np.concatenate([across, down])
        second = np.concatenate([across + 1, down + width])
        pixels = np.stack([first, second], axis=1)
        ids = superpixels.ravel()[pixels].astype(np.int64)
        count = int(superpixels.max()) + 1
        keys, owner = np.unique(ids.min(axis=1) * count + ids.max(axis=1), return_inverse=True)
        pairs = np.stack([keys // count, keys % count], axis=1)
        lengths = np.bincount(owner, minlength=len(keys)).astype(np.float64)
        return cls(pairs, lengths, pixels, owner)

    def edge_strength(self, edges: Map) -> npt.NDArray[np.float64]:
        """Boundary probabilities [H, W] summed along each element, [E].

        Each pixel side counts the greater value of its two pixels.
        """
        values = edges.ravel()[self.side_pixels].max(axis=1)
        return np.bincount(self.side_elements, values, len(self.pairs)).astype(np.float64)

    def line_integral(self, values: Map) -> npt.NDArray[np.float64]:
        """Values [H, W] summed along each element, [E]: at each side the mean of its two pixels."""
        values = values.ravel()[self.side_pixels].mean(axis=1)
        return np.bincount(self.side_elements, values, len(self.pairs)).astype(np.float64)
