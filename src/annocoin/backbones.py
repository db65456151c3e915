"""Image backbones: torchvision networks, a tiny one, and the boundary network.

Also the ImageNet pixel statistics, image resizing and reading of weight files, which several rooms
share.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt
import torch
import torchvision
from safetensors.torch import load as load_bytes
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import mobilenet_v2

from annocoin.errors import InputError, brief

Image = npt.NDArray[np.uint8]
"""An RGB image, uint8 [H, W, 3]."""

Precision = Literal["32", "bf16"]
"""Full precision, or bfloat16 autocast."""

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's RGB pixels in 0..1, as in torchvision."""

SHORTEST_SIDE = 32
"""The shortest side of a resized image: the stride of most backbones."""

IMAGENET = "imagenet"
SCRATCH = "none"
TINY = "tiny"
TINY_LAYERS = 7
TINY_CHANNELS = 32

FEATURES_PREFIX = "features."
"""Prefix of the convolutional weights in torchvision networks other than ResNets."""

CLASSIFIER_PREFIX = "trunk."
"""Prefix of the backbone's weights in an annocoin classifier file."""

TAPS = (1, 3, 6, 13, 17)
"""Layers of MobileNetV2 whose outputs have strides 2, 4, 8, 16, 32."""

TAP_CHANNELS = (16, 24, 32, 96, 320)


def resize_longest_side(image: Image, size: int) -> Tensor:
    """An image, uint8 [H, W, 3], resized to a longest side of `size`: float [3, h, w] in 0..1.

    The shorter side gets at least 32 pixels, since most backbones have a stride of 32.
    """
    height, width = image.shape[:2]
    scale = size / max(height, width)
    resized = cv2.resize(
        image,
        (max(SHORTEST_SIDE, round(width * scale)), max(SHORTEST_SIDE, round(height * scale))),
        interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR,
    )
    return torch.from_numpy(np.ascontiguousarray(resized.transpose(2, 0, 1))).float() / 255


def build_backbone(
    name: str, weights: str | Path = IMAGENET, *, stride_in_1x1: bool = False
) -> nn.Sequential:
    """The convolutional layers of a classification network: [B, 3, H, W] to [B, F, h, w].

    Args:
        name: a convolutional classification network of torchvision ("resnet50", "resnet101",
            "mobilenet_v2", ...), or "tiny".
        weights: "imagenet" for torchvision's weights, downloaded if needed (those of "tiny" are
            part of the package); "none" for random weights; or a .pth or .safetensors file with the
            state dict of the whole network or of an annocoin classifier with this backbone.
        stride_in_1x1: put the stride of a ResNet's stages in the first 1x1 convolution, as the
            original networks do, instead of the 3x3. Weight files do not record this.
    """
    if name == TINY:
        return tiny_backbone(weights)
    net = _torchvision_network(name, pretrained=str(weights) == IMAGENET)
    if str(weights) not in (IMAGENET, SCRATCH):
        _load_weights(net, Path(weights), name)
    if stride_in_1x1:
        move_strides(net, name)
    children = dict(net.named_children())
    features = children.get("features")
    if isinstance(features, nn.Sequential):
        return features
    if "layer4" not in children:
        raise InputError(
            f"backbone {name}: its features are not a map; use a ResNet, VGG or MobileNet"
        )
    layers = nn.Sequential()
    for key in list(children)[: list(children).index("layer4") + 1]:
        layers.add_module(key, children[key])
    return layers


def tiny_backbone(weights: str | Path = IMAGENET, width: int = 64) -> nn.Sequential:
    """A small backbone of stride 8: the first layers of the boundary network and a new one.

    The pretrained layers are part of the package.
    """
    if str(weights) not in (IMAGENET, SCRATCH):
        raise InputError(
            f"backbone weights {weights}; the tiny backbone takes only {IMAGENET} or {SCRATCH}"
        )
    layers = list(boundary_network(pretrained=str(weights) == IMAGENET).encoder)[:TINY_LAYERS]
    head = nn.Sequential(nn.Conv2d(TINY_CHANNELS, width, 3, padding=1), nn.ReLU())
    return nn.Sequential(*layers, head)


def boundary_network(*, pretrained: bool = True) -> BoundaryNet:
    """The boundary network, in evaluation mode; its weights are part of the package."""
    net = BoundaryNet()
    if pretrained:
        file = resources.files("annocoin.weights").joinpath("boundaries.safetensors")
        load_boundary_weights(net, load_bytes(file.read_bytes()))
    return net.eval().to(memory_format=torch.channels_last)


class BoundaryNet(nn.Module):
    """Images [N, 3, H, W] in 0..1 to boundary logits [N, 1, H, W].

    The encoder's batch normalisation keeps its ImageNet statistics, in training too.
    """

    def __init__(self, width: int = 32, stem: int = 12, head: int = 16) -> None:
        super().__init__()
        self.encoder = mobilenet_v2(weights=None).features[: TAPS[-1] + 1]
        self.lateral = nn.ModuleList(nn.Conv2d(c, width, 1) for c in TAP_CHANNELS)
        self.smooth = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in TAP_CHANNELS)
        self.side = nn.ModuleList(nn.Conv2d(width, 1, 1) for _ in TAP_CHANNELS)
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
        """The logits, and for training the side outputs [N, 1, h, w] of every level, fine first."""
        mean, std = (images.new_tensor(v).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
        x = (images - mean) / std
        pyramid = self.pyramid(x)
        fine = _resize(self.reduce(pyramid[0]), images.shape[-2:])
        logits = self.head(torch.cat([fine, self.stem(x)], dim=1))
        return logits, [side(level) for side, level in zip(self.side, pyramid, strict=True)]

    def pyramid(self, x: Tensor) -> list[Tensor]:
        """Features of normalised images at strides 2, 4, 8, 16 and 32: `width` channels each."""
        levels = []
        for i, layer in enumerate(self.encoder):
            x = layer(x)
            if i in TAPS:
                levels.append(x)
        pyramid: list[Tensor] = []
        for i in reversed(range(len(levels))):
            level = self.lateral[i](levels[i])
            if pyramid:
                level = level + _resize(pyramid[0], level.shape[-2:])
            pyramid.insert(0, F.relu(self.smooth[i](level)) + level)
        return pyramid


def load_boundary_weights(net: BoundaryNet, weights: Mapping[str, Tensor]) -> None:
    """Load weights that `tools/train_boundaries.py` wrote, of any precision."""
    full_precision = {name: value.float() for name, value in weights.items()}
    missing, unexpected = net.load_state_dict(full_precision, strict=False)
    if unexpected or any(not name.endswith("num_batches_tracked") for name in missing):
        raise ValueError(f"weights do not fit: {missing} {unexpected}")


def read_weights(path: Path, names: Collection[str]) -> dict[str, Tensor]:
    """The state dict in a .pth or .safetensors file; code in the file is not executed.

    Args:
        names: the names of the network's weights. Those in an annocoin classifier file are
            translated to them.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file of backbone weights")
    try:
        if zipfile.is_zipfile(path):  # as torch writes them, without compression
            with zipfile.ZipFile(path) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > path.stat().st_size:
                    raise ValueError("compressed; torch does not write such files")
        state: Any = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # a damaged file raises many kinds
        raise InputError(f"{path}: no weights that can be read ({brief(str(error))})") from None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(f"{path}: expected a state dict, names and tensors")
    backbone = {
        key.removeprefix(CLASSIFIER_PREFIX): value
        for key, value in state.items()
        if key.startswith(CLASSIFIER_PREFIX)
    }
    if backbone and not any(key in names for key in backbone):
        return {FEATURES_PREFIX + key: value for key, value in backbone.items()}
    return backbone or state


def move_strides(net: nn.Module, name: str) -> None:
    """Put the stride of each ResNet stage in its first 1x1 convolution, as original ResNets do."""
    for stage in ("layer2", "layer3", "layer4"):
        block: Any = getattr(net, stage, [None])[0]
        if not hasattr(block, "conv3"):
            raise InputError(f"backbone {name}: only ResNets of 50 layers or more have 1x1 strides")
        block.conv1.stride, block.conv2.stride = (2, 2), (1, 1)


def _torchvision_network(name: str, *, pretrained: bool) -> nn.Module:
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise InputError(
            f"backbone {name!r}; expected {TINY!r} or a classification network of torchvision, "
            "such as resnet50, resnet101 or mobilenet_v2"
        )
    try:
        net: nn.Module = torchvision.models.get_model(
            name, weights="DEFAULT" if pretrained else None
        )
    except (OSError, RuntimeError) as error:  # no connection, no space, a broken file
        raise InputError(
            f"backbone {name}: ImageNet weights cannot be fetched ({error}); pass a "
            "folder with local ones with --weights DIR"
        ) from None
    return net


def _load_weights(net: nn.Module, path: Path, name: str) -> None:
    """Load a state dict of the whole network, or of all but its last layer."""
    names = net.state_dict()
    head = {key for key in names if key.startswith(("fc.", "classifier."))}
    state = {k: v.float() for k, v in read_weights(path, names).items() if k not in head}
    try:
        missing, unexpected = net.load_state_dict(state, strict=False)
    except RuntimeError as error:  # other shapes
        raise InputError(f"{path}: not weights of {name} ({brief(str(error))})") from None
    missing = [k for k in missing if k not in head and not k.endswith("num_batches_tracked")]
    if missing or unexpected:
        difference = f"without {missing[0]!r}" if missing else f"with {unexpected[0]!r}"
        raise InputError(f"{path}: not weights of {name}: {difference}")


def _resize(x: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)
