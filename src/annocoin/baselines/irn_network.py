"""The network of IRN: a frozen backbone with branches for class boundaries and displacements."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from annocoin.backbones import SCRATCH
from annocoin.errors import InputError
from annocoin.network_files import read_network, write_network
from annocoin.seeds.class_maps import halve_stride
from annocoin.seeds.classifier import Classifier, ClassifierArchitecture

KIND = "irn"
STRIDE = 4
"""Pixels of the input per cell of the output, down and across."""

CONTEXT_STRIDE = 32
BOUNDARY_CHANNELS = 32
MEAN_MOMENTUM = 0.1
"""Of the running mean of the displacements."""


@dataclass(frozen=True)
class IrnArchitecture:
    """The arguments of an `IrnNetwork`, apart from its weights.

    Args:
        backbone, stride_in_1x1: see `annocoin.backbones.build_backbone`.
        width: channels of the displacement branch; a quarter of it for fine features.
    """

    backbone: str
    stride_in_1x1: bool = False
    width: int = 256

    def __post_init__(self) -> None:
        if self.width < 32 or self.width % 32:
            raise InputError(f"width {self.width}; expected a multiple of 32 channels")


class Relations(NamedTuple):
    """The output for B images: h x w cells of 4 x 4 pixels."""

    boundary: Tensor  # logits, [B, h, w]
    displacement: Tensor  # rows and columns in cells, [B, 2, h, w]


class IrnNetwork(nn.Module):
    """A frozen backbone with two branches of 1x1 convolutions on its features of all strides.

    The last stage of the backbone is dilated instead of strided. A backbone with a stride below 32,
    whose features know too little of their surroundings for displacements, is followed by trained
    3x3 convolutions of stride 2 up to 32.

    Example:
        >>> net = IrnNetwork(IrnArchitecture("tiny", width=32)).eval()
        >>> net(torch.rand(1, 3, 64, 48)).displacement.shape
        torch.Size([1, 2, 16, 12])
    """

    mean: Tensor
    std: Tensor
    mean_displacement: Tensor

    def __init__(self, architecture: IrnArchitecture, weights: str | Path = SCRATCH) -> None:
        super().__init__()
        self.architecture, width = architecture, architecture.width
        classifier = Classifier(
            ClassifierArchitecture(("any",), architecture.backbone, architecture.stride_in_1x1),
            weights,
        )
        self.register_buffer("mean", classifier.mean, persistent=False)
        self.register_buffer("std", classifier.std, persistent=False)
        self.register_buffer("mean_displacement", torch.zeros(2))
        self.taps = _taps(classifier.trunk)
        self.trunk = halve_stride(classifier).trunk.requires_grad_(False)
        self.edges = nn.ModuleList(_layer(tap.channels, BOUNDARY_CHANNELS) for tap in self.taps)
        self.boundary = nn.Conv2d(BOUNDARY_CHANNELS * len(self.taps), 1, 1)
        fine = [tap for tap in self.taps if tap.stride <= STRIDE]
        coarse = [tap for tap in self.taps if tap.stride > STRIDE]
        self.fine = nn.ModuleList(_layer(tap.channels, width // 4) for tap in fine)
        self.coarse = nn.ModuleList(_layer(tap.channels, width) for tap in coarse)
        extra = round(math.log2(CONTEXT_STRIDE / coarse[-1].stride))
        self.context = nn.ModuleList(_layer(width, width, 3, 2) for _ in range(extra))
        self.merge = _layer(width * (len(coarse) + extra), width)
        self.displacement = nn.Sequential(
            _layer(width // 4 * len(fine) + width, width), nn.Conv2d(width, 2, 1, bias=False)
        )
        self.to(memory_format=torch.channels_last)

    @classmethod
    def from_classifier(cls, classifier: Classifier, width: int = 256) -> IrnNetwork:
        """A network with the backbone of a trained classifier, on its device."""
        architecture = classifier.architecture
        net = cls(IrnArchitecture(architecture.backbone, architecture.stride_in_1x1, width))
        net.trunk.load_state_dict(classifier.trunk.state_dict())
        return net.to(classifier.mean.device)

    def train(self, mode: bool = True) -> IrnNetwork:
        """Training mode of the branches; the backbone stays in evaluation mode."""
        super().train(mode)
        self.trunk.eval()
        return self

    def forward(self, images: Tensor, *, bfloat16: bool = False) -> Relations:
        """The relations of RGB images in 0..1, [B, 3, H, W].

        Only differences of displacements are trained: their mean is not determined. In evaluation
        mode the running mean of the training is subtracted.
        """
        size = [-(-side // STRIDE) for side in images.shape[-2:]]
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
            with torch.no_grad():
                features = self.features((images - self.mean) / self.std)
            edges = [layer(x) for layer, x in zip(self.edges, features, strict=True)]
            edges = [_resize(edge, size) for edge in edges]
            boundary = self.boundary(torch.cat(edges, dim=1))[:, 0].float()
            displacement = self._displacement(features, size).float()
        if self.training:
            with torch.no_grad():
                self.mean_displacement.lerp_(displacement.mean(dim=(0, 2, 3)), MEAN_MOMENTUM)
        else:
            displacement = displacement - self.mean_displacement.view(1, 2, 1, 1)
        return Relations(boundary, displacement)

    def _displacement(self, features: Sequence[Tensor], size: Sequence[int]) -> Tensor:
        count = len(self.fine)
        fine = [layer(x) for layer, x in zip(self.fine, features[:count], strict=True)]
        coarse = [layer(x) for layer, x in zip(self.coarse, features[count:], strict=True)]
        for layer in self.context:
            coarse.append(layer(coarse[-1]))
        merged = self.merge(torch.cat([_resize(x, coarse[0].shape[-2:]) for x in coarse], dim=1))
        field: Tensor = self.displacement(torch.cat([_resize(x, size) for x in (*fine, merged)], 1))
        return field

    def features(self, x: Tensor) -> list[Tensor]:
        """The features of normalised images at each tap."""
        found, taps = [], {tap.layer for tap in self.taps}
        for number, layer in enumerate(self.trunk):
            x = layer(x)
            if number in taps:
                found.append(x)
        return found


def write_irn(
    path: str | Path, net: IrnNetwork, provenance: Mapping[str, Any] | None = None
) -> None:
    """Write a network as .safetensors, atomically; `provenance` is how it was trained."""
    write_network(path, net, KIND, asdict(net.architecture), provenance)


def read_irn(path: str | Path) -> IrnNetwork:
    """Read a file of `write_irn`; anything else is an `InputError`."""
    return read_network(
        path,
        KIND,
        lambda fields: IrnNetwork(IrnArchitecture(**fields)),
        "annocoin train --method irn",
    )


class _Tap(NamedTuple):
    """The last layer of a backbone with a certain stride."""

    layer: int
    channels: int
    stride: int


def _taps(trunk: nn.Sequential) -> list[_Tap]:
    """Where the backbone's features of each stride of 2 or more end, fine ones first."""
    side, taps = 128, {}
    with torch.inference_mode():
        x = torch.zeros(1, 3, side, side)
        for number, layer in enumerate(trunk.eval()):
            x = layer(x)
            stride = side // x.shape[2]
            taps[stride] = _Tap(number, x.shape[1], stride)
    if not STRIDE < max(taps) <= CONTEXT_STRIDE:
        raise InputError(f"IRN: a backbone of stride {max(taps)}; expected 8, 16 or 32")
    return [tap for stride, tap in taps.items() if stride > 1]


def _layer(channels: int, width: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel, stride, kernel // 2, bias=False),
        nn.GroupNorm(width // 8, width),
        nn.ReLU(),
    )


def _resize(x: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(x, tuple(size), mode="bilinear", align_corners=False)
