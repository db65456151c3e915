"""The boundary network: a MobileNetV2 encoder, a feature pyramid, a stem at full resolution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import mobilenet_v2

TAPS = (1, 3, 6, 13, 17)
"""Layers of MobileNetV2 whose outputs have strides 2, 4, 8, 16, 32."""

CHANNELS = (16, 24, 32, 96, 320)
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
"""Of ImageNet's pixels in 0..1, as torchvision has it."""


class BoundaryNet(nn.Module):
    """Images [N, 3, H, W] in 0..1 to boundary logits [N, 1, H, W].

    The encoder's batch normalisation keeps its ImageNet statistics, in training too.
    """

    def __init__(self, width: int = 32, stem: int = 12, head: int = 16) -> None:
        super().__init__()
        self.encoder = mobilenet_v2(weights=None).features[: TAPS[-1] + 1]
        self.lateral = nn.ModuleList(nn.Conv2d(c, width, 1) for c in CHANNELS)
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in CHANNELS)
        self.side = nn.ModuleList(nn.Conv2d(width, 1, 1) for _ in CHANNELS)
        self.stem = nn.Sequential(
            nn.Conv2d(3, stem, 3, padding=1), nn.ReLU(), nn.Conv2d(stem, stem, 3, padding=1)
        )
        self.reduce = nn.Conv2d(width, head, 1)
        self.head = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(head + stem, head, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(head, 1, 3, padding=1),
        )

    def train(self, mode: bool = True) -> BoundaryNet:
        super().train(mode)
        self.encoder.eval()
        return self

    def forward(self, images: Tensor) -> Tensor:
        return self.with_sides(images)[0]

    def with_sides(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The logits, and for training those of every level of the pyramid, fine ones first."""
        x = (images - images.new_tensor(MEAN).view(3, 1, 1)) / images.new_tensor(STD).view(3, 1, 1)
        pyramid = self.pyramid(x)
        fine = _resize(self.reduce(pyramid[0]), images.shape[-2:])
        logits = self.head(torch.cat([fine, self.stem(x)], dim=1))
        sides = [side(level) for side, level in zip(self.side, pyramid, strict=True)]
        return logits, sides

    def pyramid(self, x: Tensor) -> list[Tensor]:
        """Features of normalised images at strides 2, 4, 8, 16 and 32: `width` channels each."""
        levels = []
        for i, layer in enumerate(self.encoder):
            x = layer(x)
            if i in TAPS:
                levels.append(x)
        pyramid: list[Tensor] = []
        for i in reversed(range(len(levels))):
            own = self.lateral[i](levels[i])
            if pyramid:
                own = own + _resize(pyramid[0], own.shape[-2:])
            pyramid.insert(0, F.relu(self.smooth[i](own)) + own)
        return pyramid


def _resize(x: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)
