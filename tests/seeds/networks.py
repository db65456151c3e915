"""A small network with all kinds of layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """Convolutions, batch normalisation, ReLU and ReLU6, pooling, and a residual addition."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.relu6 = nn.ReLU6(inplace=True)
        self.project = nn.Conv2d(6, 6, 1)
        self.bn3 = nn.BatchNorm2d(6)
        self.head = nn.Conv2d(6, 4, 1)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1, 1)  # some factors are negative
                nn.init.normal_(module.bias, 0.5)
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.5) / 0.25
        x = self.pool(self.relu(self.bn1(self.first(x))))
        out = self.bn3(self.project(self.relu6(2 * self.bn2(self.depthwise(x)))))
        out += x
        return self.head(self.relu(out))
