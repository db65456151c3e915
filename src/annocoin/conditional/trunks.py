"""Trunks of the conditional network: from an image to features, before noise and regions.

A trunk takes normalised images [B, 3, H, W], gives features [B, F, h, w] and has `channels` F.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from annocoin.backbones import (
    IMAGENET,
    SCRATCH,
    TINY,
    boundary_network,
    build_backbone,
    move_strides,
    read_weights,
)
from annocoin.errors import InputError, brief

UNET = "unet"
WIDTH = 32
"""Channels that a U-Net ends with, the paper's."""

DECODER = (128, 96, 64, 48, WIDTH)

DEEP, SHALLOW = 32, 8
"""The stride of a backbone's last features, and the one they are enlarged to."""


def build_trunk(
    name: str, weights: str | Path = IMAGENET, *, stride_in_1x1: bool = False
) -> nn.Module:
    """A trunk by name.

    Args:
        name: "unet", the paper's plain U-Net, which starts from random numbers; "unet-ENCODER", a
            U-Net on a pretrained encoder that segmentation-models-pytorch knows ("unet-resnet50",
            "unet-mobilenet_v2", ...); "resnet50", "resnet101", ..., the features of a classifier's
            last stage (the paper's appendix C); or "tiny", the pyramid of our own boundary network.
        weights: "imagenet" (may be downloaded; "tiny" brings its own), "none", or a file with a
            state dict of the torchvision network that is the encoder.
        stride_in_1x1: see `annocoin.seeds.backbones.build_trunk`.
    """
    if name == UNET:
        if str(weights) not in (IMAGENET, SCRATCH):
            raise InputError(f"trunk weights {weights}: the plain U-Net starts from random numbers")
        return UNet()
    if name == TINY:
        return Pyramid(weights)
    if name.startswith(f"{UNET}-"):
        return EncoderUNet(name[len(UNET) + 1 :], weights, stride_in_1x1=stride_in_1x1)
    return Backbone(name, weights, stride_in_1x1=stride_in_1x1)


class EncoderUNet(nn.Module):
    """A U-Net whose way down is a pretrained classifier: full resolution, 32 channels."""

    channels = WIDTH

    def __init__(self, encoder: str, weights: str | Path, *, stride_in_1x1: bool) -> None:
        super().__init__()
        import segmentation_models_pytorch as smp  # here, for it takes seconds to load

        try:
            net = smp.Unet(
                encoder,
                encoder_weights=IMAGENET if str(weights) == IMAGENET else None,
                decoder_channels=DECODER,
                decoder_use_norm=False,  # batches are small
            )
        except (KeyError, ValueError, OSError, RuntimeError) as error:
            raise InputError(
                f"trunk unet-{encoder}: segmentation-models-pytorch cannot make it "
                f"({brief(str(error))}); if weights cannot be fetched, give --weights DIR"
            ) from None
        self.encoder, self.decoder = net.encoder, net.decoder
        if str(weights) not in (IMAGENET, SCRATCH):
            self._load(Path(weights), encoder)
        if stride_in_1x1:
            move_strides(self.encoder, encoder)

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        stride = 2 ** len(DECODER)
        padded = F.pad(images, (0, -width % stride, 0, -height % stride))
        features: Tensor = self.decoder(self.encoder(padded))
        return features[..., :height, :width]

    def train(self, mode: bool = True) -> EncoderUNet:
        """Training mode; but the encoder's batch normalisation keeps its statistics."""
        super().train(mode)
        for module in self.encoder.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self

    def _load(self, path: Path, encoder: str) -> None:
        own = self.encoder.state_dict()
        state = {key: value.float() for key, value in read_weights(path, own).items() if key in own}
        lacking = [k for k in own if k not in state and not k.endswith("num_batches_tracked")]
        if lacking:
            raise InputError(f"{path}: not weights of {encoder}: without {lacking[0]!r}")
        try:
            nn.Module.load_state_dict(self.encoder, state, strict=False)
        except RuntimeError as error:  # other shapes
            raise InputError(f"{path}: not weights of {encoder} ({brief(str(error))})") from None


class Backbone(nn.Module):
    """The last features of a classifier's backbone, enlarged from a stride of 32 to one of 8."""

    def __init__(self, name: str, weights: str | Path, *, stride_in_1x1: bool) -> None:
        super().__init__()
        self.layers = build_backbone(name, weights, stride_in_1x1=stride_in_1x1)
        with torch.inference_mode():
            self.channels = int(self.layers.eval()(torch.zeros(1, 3, 64, 64)).shape[1])

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        features = self.layers(F.pad(images, (0, -width % DEEP, 0, -height % DEEP)))
        larger = F.interpolate(features, scale_factor=DEEP // SHALLOW, mode="bilinear")
        return larger[..., : -(-height // SHALLOW), : -(-width // SHALLOW)]

    def train(self, mode: bool = True) -> Backbone:
        """Training mode; but batch normalisation keeps its statistics."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


class Pyramid(nn.Module):
    """The finest level of our boundary network's pyramid: 32 channels at half the resolution.

    Its weights are part of the package, so that nothing is downloaded.
    """

    channels = WIDTH

    def __init__(self, weights: str | Path) -> None:
        super().__init__()
        if str(weights) not in (IMAGENET, SCRATCH):
            raise InputError(f"trunk weights {weights}: the tiny trunk brings its own, or none")
        self.net = boundary_network(pretrained=str(weights) == IMAGENET)
        for part in (self.net.side, self.net.stem, self.net.reduce, self.net.head):
            part.requires_grad_(False)  # of no use here

    def forward(self, images: Tensor) -> Tensor:
        return self.net.pyramid(images)[0]


UNET_CHANNELS = (32, 64, 128, 192, 192, 192, 192)


class UNet(nn.Module):
    """Images [B, 3, H, W] to features [B, channels[0], H, W], of any height and width.

    Each level halves the resolution by averaging on the way down and doubles it bilinearly on the
    way up, where it meets the features of the way down; a level has three 3x3 convolutions.

    Args:
        channels: of each level, full resolution first.
    """

    def __init__(self, channels: Sequence[int] = UNET_CHANNELS) -> None:
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
