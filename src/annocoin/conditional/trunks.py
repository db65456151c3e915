"""Trunks of the conditional network: from an image to features, before noise and regions.

A trunk maps normalised images [B, 3, H, W] to features [B, F, h, w]; its `channels` is F.
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
UNET_CHANNELS = (32, 64, 128, 192, 192, 192, 192)
"""Channels per level, full resolution first: the U-Net of Kohl et al., which the paper adapts."""

DECODER_CHANNELS = (128, 96, 64, 48, UNET_CHANNELS[0])

BACKBONE_STRIDE, FEATURE_STRIDE = 32, 8
"""The stride of a backbone's last features, and the one to which they are interpolated."""


def build_trunk(
    name: str,
    weights: str | Path = IMAGENET,
    *,
    stride_in_1x1: bool = False,
    upsample: bool = True,
) -> nn.Module:
    """A trunk by name.

    Args:
        name: "unet", the paper's U-Net, without pretrained weights; "unet-ENCODER", a U-Net with an
            encoder of segmentation-models-pytorch ("unet-resnet50", "unet-mobilenet_v2", ...);
            "resnet50", "resnet101", ..., the last stage of a classification network (the paper's
            appendix C); or "tiny", the feature pyramid of the boundary network.
        weights: "imagenet" (downloaded if needed; those of "tiny" are part of the package), "none",
            or a file with a state dict of the encoder's torchvision network.
        stride_in_1x1: see `annocoin.backbones.build_backbone`.
        upsample: see `Backbone`.
    """
    if name == UNET:
        if str(weights) not in (IMAGENET, SCRATCH):
            raise InputError(f"trunk weights {weights}: the plain U-Net has no pretrained weights")
        return UNet()
    if name == TINY:
        return Pyramid(weights)
    if name.startswith(f"{UNET}-"):
        return EncoderUNet(name.removeprefix(f"{UNET}-"), weights, stride_in_1x1=stride_in_1x1)
    return Backbone(name, weights, stride_in_1x1=stride_in_1x1, upsample=upsample)


class UNet(nn.Module):
    """Images [B, 3, H, W] to features [B, channels[0], H, W], of any height and width.

    Three 3x3 convolutions per level, average pooling on the way down, bilinear interpolation and
    concatenation with the features of the same level on the way up.

    Args:
        channels: of each level, full resolution first.
    """

    def __init__(self, channels: Sequence[int] = UNET_CHANNELS) -> None:
        super().__init__()
        self.channels = channels[0]
        inputs = (3, *channels[:-1])
        self.down = nn.ModuleList(_level(a, b) for a, b in zip(inputs, channels, strict=True))
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
    convolutions = [nn.Conv2d(width, outputs, 3, padding=1) for width in (inputs, outputs, outputs)]
    for convolution in convolutions:
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
    return nn.Sequential(*(layer for conv in convolutions for layer in (conv, nn.ReLU())))


class Pyramid(nn.Module):
    """The finest level of the boundary network's feature pyramid: 32 channels, half resolution."""

    channels = 32

    def __init__(self, weights: str | Path) -> None:
        super().__init__()
        if str(weights) not in (IMAGENET, SCRATCH):
            raise InputError(
                f"trunk weights {weights}: the tiny trunk takes only {IMAGENET} or {SCRATCH}"
            )
        self.net = boundary_network(pretrained=str(weights) == IMAGENET)
        for unused in (self.net.side, self.net.stem, self.net.reduce, self.net.head):
            unused.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.net.pyramid(images)[0]


class _FrozenStatistics(nn.Module):
    """A module whose batch normalisation keeps its pretrained statistics in training."""

    def train(self, mode: bool = True) -> _FrozenStatistics:
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


class Backbone(_FrozenStatistics):
    """The last features of a classification network.

    Args:
        upsample: interpolate them from stride 32 to stride 8.
    """

    def __init__(
        self, name: str, weights: str | Path, *, stride_in_1x1: bool, upsample: bool = True
    ) -> None:
        super().__init__()
        self.stride = FEATURE_STRIDE if upsample else BACKBONE_STRIDE
        self.layers = build_backbone(name, weights, stride_in_1x1=stride_in_1x1)
        with torch.inference_mode():
            self.channels = int(self.layers.eval()(torch.zeros(1, 3, 64, 64)).shape[1])

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        features: Tensor = self.layers(_pad(images, BACKBONE_STRIDE))
        if self.stride < BACKBONE_STRIDE:
            factor = BACKBONE_STRIDE // self.stride
            features = F.interpolate(features, scale_factor=factor, mode="bilinear")
        return features[..., : -(-height // self.stride), : -(-width // self.stride)]


class EncoderUNet(_FrozenStatistics):
    """A U-Net with a classification network as encoder: full resolution, 32 channels."""

    channels = DECODER_CHANNELS[-1]

    def __init__(self, encoder: str, weights: str | Path, *, stride_in_1x1: bool) -> None:
        super().__init__()
        import segmentation_models_pytorch as smp  # here, because the import takes seconds

        try:
            net = smp.Unet(
                encoder,
                encoder_weights=IMAGENET if str(weights) == IMAGENET else None,
                decoder_channels=DECODER_CHANNELS,
                decoder_use_norm=False,  # batches are small
            )
        except (KeyError, ValueError, OSError, RuntimeError) as error:
            raise InputError(
                f"trunk unet-{encoder}: segmentation-models-pytorch cannot build it "
                f"({brief(str(error))}); if weights cannot be fetched, use --weights DIR"
            ) from None
        self.encoder, self.decoder = net.encoder, net.decoder
        if str(weights) not in (IMAGENET, SCRATCH):
            self._load(Path(weights), encoder)
        if stride_in_1x1:
            move_strides(self.encoder, encoder)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.decoder(self.encoder(_pad(images, 2 ** len(DECODER_CHANNELS))))
        return features[..., : images.shape[-2], : images.shape[-1]]

    def _load(self, path: Path, encoder: str) -> None:
        state = read_weights(path, self.encoder.state_dict())
        try:  # the encoder's own load_state_dict fails without a classification head
            missing, _ = nn.Module.load_state_dict(self.encoder, state, strict=False)
        except RuntimeError as error:  # other shapes
            raise InputError(f"{path}: not weights of {encoder} ({brief(str(error))})") from None
        missing = [name for name in missing if not name.endswith("num_batches_tracked")]
        if missing:
            raise InputError(f"{path}: not weights of {encoder}: without {missing[0]!r}")


def _pad(images: Tensor, stride: int) -> Tensor:
    """Images [B, 3, H, W] with zeros at the right and below, to multiples of a stride."""
    height, width = images.shape[-2:]
    return F.pad(images, (0, -width % stride, 0, -height % stride))
