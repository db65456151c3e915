"""The image classifier: from an image to a map for every class, and from its peaks to tags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from annocoin.errors import InputError
from annocoin.regions.network import MEAN, STD
from annocoin.seeds.backbones import SCRATCH, build_trunk

Image = npt.NDArray[np.uint8]


SHORTEST = 32


@dataclass(frozen=True)
class Architecture:
    """What a classifier is made of, apart from its weights.

    Args:
        classes: the names of classes 1..C.
        backbone: its trunk, see `build_trunk`.
        stride_in_1x1: where its ResNet halves the resolution.
        size: the length of an image's longer side when it is looked at.
    """

    classes: tuple[str, ...]
    backbone: str
    stride_in_1x1: bool = False
    size: int = 448

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("a classifier needs at least one class")
        if not 32 <= self.size <= 4096:
            raise InputError(f"size {self.size}; expected 32 to 4096 pixels")


class Classifier(nn.Module):
    """A fully convolutional classifier: a trunk and a 1x1 convolution to C class maps.

    Example:
        >>> net = Classifier(Architecture(("cat", "dog"), "tiny", size=64)).eval()
        >>> maps = net(torch.rand(1, 3, 64, 48))
        >>> maps.shape, net.scores(maps).shape
        (torch.Size([1, 2, 8, 6]), torch.Size([1, 2]))
    """

    mean: Tensor
    std: Tensor

    def __init__(self, architecture: Architecture, weights: str | Path = SCRATCH) -> None:
        super().__init__()
        self.architecture = architecture
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1), persistent=False)
        self.trunk = build_trunk(
            architecture.backbone, weights, stride_in_1x1=architecture.stride_in_1x1
        )
        self.head = nn.Conv2d(
            _width(self.trunk, architecture.backbone), len(architecture.classes), 1
        )
        nn.init.normal_(self.head.weight, std=0.01)

    def forward(self, images: Tensor) -> Tensor:
        """Class maps, logits [B, C, h, w], of RGB images in 0..1, [B, 3, H, W]."""
        maps: Tensor = self.head(self.trunk((images - self.mean) / self.std))
        return maps

    def scores(self, maps: Tensor) -> Tensor:
        """Class scores, logits [B, C], of class maps [B, C, h, w]: the values of the best peaks."""
        return maps.amax(dim=(-2, -1))


def _width(trunk: nn.Module, name: str) -> int:
    """The channels of a trunk's maps, by trying it."""
    with torch.inference_mode():
        out = trunk.eval()(torch.zeros(1, 3, 64, 128))
    if (
        out.ndim != 4
        or out.shape[3] != 2 * out.shape[2]
        or any(isinstance(module, nn.Linear) for module in trunk.modules())
    ):
        raise InputError(
            f"backbone {name}: not made of convolutions alone; take a ResNet, VGG or MobileNet"
        )
    return int(out.shape[1])


def look_at(image: Image, size: int) -> Tensor:
    """An image, uint8 [H, W, 3], as a classifier sees it: [3, h, w] in 0..1, `size` at most.

    Its shorter side has at least `SHORTEST` pixels, for backbones give nothing for fewer.
    """
    height, width = image.shape[:2]
    fit = size / max(height, width)
    resized = cv2.resize(
        image,
        (max(SHORTEST, round(width * fit)), max(SHORTEST, round(height * fit))),
        interpolation=cv2.INTER_AREA if fit < 1 else cv2.INTER_LINEAR,
    )
    return torch.from_numpy(np.ascontiguousarray(resized.transpose(2, 0, 1))).float() / 255
