"""The plain U-Net that the paper takes over from the probabilistic U-Net (Kohl et al., 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CHANNELS = (32, 64, 128, 192, 192, 192, 192)


class UNet(nn.Module):
    """Images [B, 3, H, W] to features [B, channels[0], H, W], of any height and width.

    Each level halves the resolution by averaging on the way down and doubles it bilinearly on the
    way up, where it meets the features of the way down; a level has three 3x3 convolutions.

    Args:
        channels: of each level, full resolution first.
    """

    def __init__(self, channels: Sequence[int] = CHANNELS) -> None:
        super().__init__()
        self.channels = channels[0]
        before = (3, *channels[:-1])
        self.down = nn.ModuleList(_level(a, b) for a, b in zip(before, channels, strict=True))
        self.up = nn.ModuleList(_level(fine + coarse, fine) for fine, coarse in pairwise(channels))

    def forward(self, images: Tensor) -> Tensor:
        levels = [self.down[0](images)]
        for block in self.down[1:]:
            levels.append(block(F.avg_pool2d(levels[-1], 2, ceil_mode=True)))
        features = levels.pop()
        for block, fine in zip(reversed(self.up), reversed(levels), strict=True):
            enlarged = F.interpolate(features, fine.shape[-2:], mode="bilinear")
            features = block(torch.cat([fine, enlarged], dim=1))
        return features


def _level(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, outputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.ReLU()]
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return nn.Sequential(*layers)
