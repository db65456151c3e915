"""Boundary detector: from an image to the probability of an object boundary at every pixel.

A small network of our own (a MobileNetV2 encoder, a feature pyramid, a stem at full resolution),
trained on BSDS500 by `tools/train_boundaries.py`; its weights are part of the package.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import mobilenet_v2

TAPS = (1, 3, 6, 13, 17)
"""Layers of MobileNetV2 whose outputs have strides 2, 4, 8, 16, 32."""

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class BoundaryNet(nn.Module):
    """Images [N, 3, H, W] in 0..1 to boundary logits [N, 1, H, W].

    The encoder's batch normalisation keeps its ImageNet statistics, in training too.
    """

    def __init__(self, width: int = 32, stem: int = 12, head: int = 16) -> None:
        super().__init__()
        self.encoder = mobilenet_v2(weights=None).features[: TAPS[-1] + 1]
        channels = (16, 24, 32, 96, 320)
        self.lateral = nn.ModuleList(nn.Conv2d(c, width, 1) for c in channels)
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in channels)
        self.side = nn.ModuleList(nn.Conv2d(width, 1, 1) for _ in channels)
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
        """The logits, and for training those of every level of the pyramid, coarse ones last."""
        x = (images - images.new_tensor(MEAN).view(3, 1, 1)) / images.new_tensor(STD).view(3, 1, 1)
        levels = []
        features = x
        for i, layer in enumerate(self.encoder):
            features = layer(features)
            if i in TAPS:
                levels.append(features)
        pyramid: list[Tensor] = []
        top: Tensor | None = None
        for level, lateral, smooth in zip(
            reversed(levels), reversed(self.lateral), reversed(self.smooth), strict=True
        ):
            own = lateral(level)
            if top is not None:
                own = own + _resize(top, own.shape[-2:])
            top = F.relu(smooth(own)) + own
            pyramid.insert(0, top)
        fine = _resize(self.reduce(pyramid[0]), images.shape[-2:])
        logits = self.head(torch.cat([fine, self.stem(x)], dim=1))
        sides = [side(level) for side, level in zip(self.side, pyramid, strict=True)]
        return logits, sides


def _resize(x: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)
