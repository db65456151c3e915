"""What training does to images before the classifier sees them: size, place, mirror, colours."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torch import Tensor

from annocoin.regions.network import MEAN
from annocoin.seeds.classifier import Image, look_at

SCALES = (0.7, 1.25)
"""The longer side of the image, as a share of the side of the square it is put into."""

COLOURS = 0.3
"""How much brightness, contrast and saturation may change, up or down."""


def augmented(image: Image, size: int, rng: np.random.Generator) -> Tensor:
    """An image uint8 [H, W, 3], changed at random, in a square: [3, size, size] in 0..1.

    What does not fit is cut, at most a fifth of the longer side, so that tags mostly stay true;
    what is left of the square has ImageNet's mean colour.
    """
    longer = max(1, round(size * rng.uniform(*SCALES)))
    pixels = look_at(_recoloured(image, rng), longer)
    if rng.random() < 0.5:
        pixels = pixels.flip(2)
    square = torch.tensor(MEAN).view(3, 1, 1).expand(3, size, size).clone()
    height, width = pixels.shape[1:]
    rows, from_rows = _span(height, size, rng)
    columns, from_columns = _span(width, size, rng)
    square[:, rows, columns] = pixels[:, from_rows, from_columns]
    return square


def _span(length: int, size: int, rng: np.random.Generator) -> tuple[slice, slice]:
    """Where a length goes within the square's side, and which part of it goes there."""
    room = int(rng.integers(0, abs(size - length) + 1))
    if length <= size:
        return slice(room, room + length), slice(0, length)
    return slice(0, size), slice(room, room + size)


def _recoloured(image: Image, rng: np.random.Generator) -> Image:
    brightness, contrast, saturation = rng.uniform(1 - COLOURS, 1 + COLOURS, 3)
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    mean = float(grey.mean())
    changed = saturation * image + (1 - saturation) * grey[:, :, None].astype(np.float32)
    changed = brightness * (contrast * changed + (1 - contrast) * mean)
    return np.clip(changed, 0, 255).astype(np.uint8)
