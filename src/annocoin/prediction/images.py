"""Images as the prediction network sees them: resized, normalised, one batch of any sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection.image_list import ImageList

from annocoin.prediction.networks import STRIDE
from annocoin.regions.network import MEAN, STD


@dataclass(frozen=True, eq=False)
class View:
    """An image at the size at which a network sees it.

    Args:
        pixels: RGB in 0..1, float32 [3, h, w].
        original: height and width before.
    """

    pixels: Tensor
    original: tuple[int, int]

    @property
    def size(self) -> tuple[int, int]:
        return int(self.pixels.shape[1]), int(self.pixels.shape[2])

    @property
    def scale(self) -> Tensor:
        """Factors of a box's four coordinates, from the original to here: float32 [4]."""
        down, across = (new / old for new, old in zip(self.size, self.original, strict=True))
        return torch.tensor([across, down, across, down])

    def mirrored(self) -> View:
        """Left and right changed."""
        return View(self.pixels.flip(2), self.original)


def view(image: npt.NDArray[np.uint8], size: int, longest: int) -> View:
    """An image, uint8 [H, W, 3], with its shorter side `size`, its longer at most `longest`."""
    height, width = image.shape[:2]
    scale = min(size / min(height, width), longest / max(height, width))
    wanted = (max(1, round(height * scale)), max(1, round(width * scale)))
    pixels = torch.tensor(image).permute(2, 0, 1).float() / 255
    if wanted != (height, width):
        # without averaging where it shrinks, as torchvision's own transform does at test time
        pixels = F.interpolate(pixels[None], wanted, mode="bilinear", align_corners=False)[0]
    return View(pixels, (height, width))


def batch_of(views: Sequence[View], device: torch.device | str = "cpu") -> ImageList:
    """Normalised images in one tensor [B, 3, H, W]; smaller ones end in zeros, as torchvision's."""
    height = max(own.size[0] for own in views)
    width = max(own.size[1] for own in views)
    height, width = (-(-side // STRIDE) * STRIDE for side in (height, width))
    mean, std = torch.tensor(MEAN).view(3, 1, 1), torch.tensor(STD).view(3, 1, 1)
    together = torch.zeros(len(views), 3, height, width)
    for place, own in zip(together, views, strict=True):
        place[:, : own.size[0], : own.size[1]] = (own.pixels - mean) / std
    return ImageList(together.to(device), [own.size for own in views])
