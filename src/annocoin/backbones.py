"""Convolutional trunks of image classifiers: torchvision's, with ImageNet weights, and a tiny one.

A trunk keeps the plane: [B, 3, H, W] becomes [B, F, h, w]. Its parts are in order, so that the
first of them can be kept from learning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import torchvision
from safetensors.torch import load as load_bytes
from safetensors.torch import load_file as load_safetensors
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import mobilenet_v2

from annocoin.errors import InputError, brief

TINY = "tiny"
TINY_LAYERS = 7
TINY_CHANNELS = 32
IMAGENET = "imagenet"
SCRATCH = "none"

FEATURES = "features"
"""What torchvision calls the trunks of networks other than ResNets."""

OURS = "trunk."
"""What the names of a trunk's weights begin with in a classifier's file."""


def build_backbone(
    name: str, weights: str | Path = IMAGENET, *, stride_in_1x1: bool = False
) -> nn.Sequential:
    """A backbone without its pooling and its last layer.

    Args:
        name: a classification network of torchvision made of convolutions ("resnet50",
            "resnet101", "mobilenet_v2", ...), or "tiny".
        weights: "imagenet" takes torchvision's own, which may be downloaded ("tiny" brings its
            own); "none" starts from random numbers; else a file, .pth or .safetensors, of the whole
            network's state dict, or one of our own classifiers with such a trunk.
        stride_in_1x1: ResNets that halve the resolution in the first 1x1 convolution of a stage,
            as the original ones did; torchvision's do it in the 3x3. The weights do not tell.
    """
    if name == TINY:
        return tiny_trunk(weights)
    net = _network(name, str(weights) == IMAGENET)
    if str(weights) not in (IMAGENET, SCRATCH):
        _load(net, Path(weights), name)
    if stride_in_1x1:
        move_strides(net, name)
    return _without_head(net, name)


def tiny_trunk(weights: str | Path = IMAGENET, width: int = 64) -> nn.Sequential:
    """A small trunk of stride 8: the first layers of our boundary detector, and a new one.

    Those layers came from ImageNet and are part of the package; for patterns of twenty pixels or
    so, seven of them are enough.
    """
    if str(weights) not in (IMAGENET, SCRATCH):
        raise InputError(f"backbone weights {weights}: the tiny backbone brings its own, or none")
    detector = boundary_network(pretrained=str(weights) == IMAGENET)
    layers = list(detector.encoder)[:TINY_LAYERS]
    new = nn.Sequential(nn.Conv2d(TINY_CHANNELS, width, 3, padding=1), nn.ReLU())
    return nn.Sequential(*layers, new)


def boundary_network(*, pretrained: bool = True) -> BoundaryNet:
    """The boundary network, in evaluation mode; pretrained weights are part of the package."""
    net = BoundaryNet()
    if pretrained:
        shipped = resources.files("annocoin.weights").joinpath("boundaries.safetensors")
        load_boundary_weights(net, load_bytes(shipped.read_bytes()))
    return net.eval().to(memory_format=torch.channels_last)


def load_boundary_weights(net: BoundaryNet, weights: Mapping[str, Tensor]) -> None:
    """Load weights that `tools/train_boundaries.py` wrote, of any precision."""
    precise = {name: value.float() for name, value in weights.items()}
    missing, unexpected = net.load_state_dict(precise, strict=False)
    if unexpected or any(not name.endswith("num_batches_tracked") for name in missing):
        raise ValueError(f"weights do not fit: {missing} {unexpected}")


def _network(name: str, pretrained: bool) -> nn.Module:
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
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
            f"backbone {name}: ImageNet weights cannot be fetched ({error}); "
            "give a file with --backbone-weights, or to `train` a folder with --weights"
        ) from None
    return net


def _load(net: nn.Module, path: Path, name: str) -> None:
    """Load a state dict of the whole network, or of all but its last layer."""
    state = read_weights(path, net.state_dict())
    head = {key for key in net.state_dict() if key.startswith(("fc.", "classifier."))}
    optional = head | {key for key in net.state_dict() if key.endswith("num_batches_tracked")}
    kept = {key: value.float() for key, value in state.items() if key not in head}
    try:
        missing, unexpected = net.load_state_dict(kept, strict=False)
    except RuntimeError as error:  # other shapes
        raise InputError(f"{path}: not weights of {name} ({brief(str(error))})") from None
    absent = [key for key in missing if key not in optional]
    if absent or unexpected:
        found = f"without {absent[0]!r}" if absent else f"with {unexpected[0]!r}"
        raise InputError(f"{path}: not weights of {name}: {found}")


def read_weights(path: Path, names: Collection[str]) -> dict[str, Tensor]:
    """The state dict in a .pth or .safetensors file; no code in it is run.

    Args:
        names: those of the network's weights. In a classifier of ours the trunk's begin otherwise.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file of backbone weights")
    try:
        state: Any = (
            load_safetensors(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # a damaged file raises many kinds
        raise InputError(f"{path}: no weights that can be read ({brief(str(error))})") from None
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(f"{path}: expected a state dict, names and tensors")
    ours = {key.removeprefix(OURS): v for key, v in state.items() if key.startswith(OURS)}
    if ours and not any(key in names for key in ours):
        return {f"{FEATURES}.{key}": value for key, value in ours.items()}
    return ours or state


def move_strides(net: nn.Module, name: str) -> None:
    """Halve the resolution in the first 1x1 convolution of each stage, as original ResNets did."""
    for stage in ("layer2", "layer3", "layer4"):
        block: Any = getattr(net, stage, [None])[0]
        if not hasattr(block, "conv3"):
            raise InputError(f"backbone {name}: only ResNets of 50 layers or more have 1x1 strides")
        block.conv1.stride, block.conv2.stride = (2, 2), (1, 1)


def _without_head(net: nn.Module, name: str) -> nn.Sequential:
    features = getattr(net, FEATURES, None)
    if isinstance(features, nn.Sequential):
        return features
    parts = OrderedDict(net.named_children())
    if "layer4" in parts:
        names = list(parts)
        kept = names[: names.index("layer4") + 1]
        return nn.Sequential(OrderedDict((key, parts[key]) for key in kept))
    raise InputError(f"backbone {name}: its features are no map; take a ResNet, VGG or MobileNet")


TAPS = (1, 3, 6, 13, 17)
"""Layers of MobileNetV2 whose outputs have strides 2, 4, 8, 16, 32."""

TAP_CHANNELS = (16, 24, 32, 96, 320)
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
