"""The conditional network: scores of regions for classes, different for every noise sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from annocoin.backbones import IMAGENET_MEAN, IMAGENET_STD, SCRATCH
from annocoin.conditional.trunks import build_trunk
from annocoin.errors import InputError, check_choice, check_positive
from annocoin.network_files import read_network, write_network
from annocoin.regions.region_set import Over, RegionSet

NoiseForm = Literal["grid", "pixel", "vector"]

NOISE_GRID = 8
"""Rows and columns of the "grid" noise."""

MIN_POOLING_SIZE = 96
"""Least longest side of the maps of scores that are averaged over regions."""

CONDITIONAL_KIND = "conditional network"


@dataclass(frozen=True)
class ConditionalArchitecture:
    """The structure of a conditional network.

    Args:
        classes: the names of classes 1..C.
        trunk, stride_in_1x1: see `build_trunk`.
        size: longest side of the resized image in pixels.
        upsample: interpolate the features of a backbone to stride 8, and maps of scores to at least
            96 pixels before they are averaged over regions. Without it, as in the paper, both have
            the resolution of the trunk: stride 32 of a ResNet, where small regions have no pixel.
        noise: the form of noise, see `draw_noise`.
        noise_channels: the number of channels that it adds.
        relu: whether a ReLU follows the 1x1 convolution of features and noise. Without it, as in
            the paper, noise shifts the scores of every image by the same amount.
        pool_over: average scores over the "image" (the paper's global average pooling of masked
            features) or over the "region".
        score_scale: factor of the averages, which are small over the image.
        bias_outside: whether the last convolution's bias counts outside of a region too. So it does
            in the paper, which masks before that convolution, and is then a constant of the class.
    """

    classes: tuple[str, ...]
    trunk: str = "unet"
    stride_in_1x1: bool = False
    size: int = 256
    upsample: bool = True
    noise: NoiseForm = "grid"
    noise_channels: int = 4
    relu: bool = True
    pool_over: Over = "image"
    score_scale: float = 16.0
    bias_outside: bool = False

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("a conditional network needs at least one class")
        if not 32 <= self.size <= 4096:
            raise InputError(f"size {self.size}; expected 32 to 4096 pixels")
        check_choice("noise", self.noise, get_args(NoiseForm))
        check_positive("noise_channels", self.noise_channels)
        check_choice("pool_over", self.pool_over, ("image", "region"))
        if not self.score_scale > 0:
            raise InputError(f"score_scale {self.score_scale}; expected above 0")


class ConditionalNetwork(nn.Module):
    """A trunk that runs once per image, and a head that runs for each of K noise samples.

    The paper concatenates noise to the features, restores the number of channels by a 1x1
    convolution, multiplies the result with the mask of each region, and applies another 1x1
    convolution to C+1 classes and global average pooling. Pooling and the last convolution commute,
    but for its bias; here, the convolution comes first.

    Example:
        >>> regions = RegionSet.of([[0, 0, 1, 1]] * 4, [[1, 0], [1, 1]])
        >>> net = ConditionalNetwork(ConditionalArchitecture(("cat", "dog"), "tiny")).eval()
        >>> features = net.features(torch.rand(1, 3, 64, 64))[0]
        >>> net.unary(features, net.noise(10, features), regions).shape
        torch.Size([10, 2, 3])
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self, architecture: ConditionalArchitecture, weights: str | Path = SCRATCH
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD).view(1, 3, 1, 1), persistent=False)
        self.trunk = build_trunk(
            architecture.trunk,
            weights,
            stride_in_1x1=architecture.stride_in_1x1,
            upsample=architecture.upsample,
        )
        width = int(self.trunk.channels)  # type: ignore[arg-type]
        # the convolution of features and noise, in two parts
        self.join = nn.Conv2d(width, width, 1)
        self.join_noise = nn.Conv2d(architecture.noise_channels, width, 1, bias=False)
        self.classify = nn.Conv2d(width, len(architecture.classes) + 1, 1)
        nn.init.dirac_(self.join.weight)
        nn.init.zeros_(self.join.bias)  # type: ignore[arg-type]
        nn.init.normal_(self.classify.weight, std=0.01)
        nn.init.zeros_(self.classify.bias)  # type: ignore[arg-type]

    def features(self, images: Tensor) -> Tensor:
        """Features [B, F, h, w] of RGB images in 0..1, [B, 3, H, W]."""
        features: Tensor = self.trunk((images - self.mean) / self.std)
        return features

    def noise(
        self, num_samples: int, features: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Noise [K, Z, h, w] for the features [F, h, w] of an image."""
        channels, form = self.architecture.noise_channels, self.architecture.noise
        size = (features.shape[-2], features.shape[-1])
        return draw_noise(num_samples, channels, size, form=form, generator=generator).to(features)

    def pixel_scores(
        self, features: Tensor, noise: Tensor | None, labels: Sequence[int] | None = None
    ) -> Tensor:
        """Scores [K, J, h, w] of every pixel.

        Args:
            features: [F, h, w].
            noise: [K, Z, h, w]; None is zero noise, the pointwise network PW_c, with K = 1.
            labels: the J classes to score, 0 for the background; default 0..C.
        """
        height, width = features.shape[-2:]
        joined = self.join(features[None])[0].flatten(1)  # [F, hw], shared by all samples
        weight, bias = self.classify.weight.flatten(1), self.classify.bias
        if labels is not None:
            if any(not 0 <= label < len(weight) for label in labels):
                raise InputError(f"classes {list(labels)}; the network has 0..{len(weight) - 1}")
            index = torch.as_tensor(labels, device=weight.device)
            weight, bias = weight[index], bias[index]  # type: ignore[index]
        noise_weight = self.join_noise.weight.flatten(1)
        scores = []
        for z in (None,) if noise is None else noise:
            # 1x1 convolutions as products of one sample at a time, which fit into the cache
            hidden = joined if z is None else torch.addmm(joined, noise_weight, z.flatten(1))
            hidden = F.relu(hidden) if self.architecture.relu else hidden
            scores.append(torch.addmm(bias[:, None], weight, hidden))  # type: ignore[index]
        return torch.stack(scores).view(len(scores), -1, height, width)

    def unary(
        self,
        features: Tensor,
        noise: Tensor | None,
        regions: RegionSet,
        labels: Sequence[int] | None = None,
    ) -> Tensor:
        """F^k_{u,j}, the score of each region for each class: [K, P, J]; see `pixel_scores`."""
        return self.region_scores(self.pixel_scores(features, noise, labels), regions, labels)

    def region_scores(
        self, pixels: Tensor, regions: RegionSet, labels: Sequence[int] | None = None
    ) -> Tensor:
        """F [K, P, J] from the scores of pixels [K, J, h, w]."""
        pixels = pixels.float()  # full precision for argmaxes
        height, width = pixels.shape[-2:]
        factor = min(MIN_POOLING_SIZE, max(regions.size)) / max(height, width)
        if self.architecture.upsample and factor > 1:  # or small regions might contain no pixel
            size = (max(1, round(height * factor)), max(1, round(width * factor)))
            pixels = F.interpolate(pixels, size, mode="bilinear")
        scale, over = self.architecture.score_scale, self.architecture.pool_over
        if not self.architecture.bias_outside:
            return scale * regions.pool(pixels, over=over)
        bias = self.classify.bias
        assert bias is not None
        bias = (bias if labels is None else bias[list(labels)])[:, None, None]
        return scale * (regions.pool(pixels - bias, over=over) + bias[:, 0, 0])

    @torch.no_grad()
    def init_noise_weights(
        self, features: Tensor, strength: float, generator: torch.Generator
    ) -> None:
        """Initialise the weights of the noise relative to the spread of features [B, F, h, w].

        For after a training with one target for all samples, which makes the network ignore its
        noise; the objective preserves diversity but cannot create it.

        Args:
            strength: the standard deviation of what noise adds, in those of each joined feature.
        """
        spread = self.join(features).transpose(0, 1).flatten(1).std(dim=1)
        weight = torch.randn(self.join_noise.weight.shape, generator=generator).to(spread)
        deviation = (weight.shape[1] / 3) ** 0.5  # the variance of a uniform number in -1..1 is 1/3
        self.join_noise.weight.copy_(weight * (strength / deviation) * spread[:, None, None, None])


def draw_noise(
    num_samples: int,
    channels: int,
    size: tuple[int, int],
    *,
    form: NoiseForm = "grid",
    generator: torch.Generator | None = None,
) -> Tensor:
    """Noise uniform in -1..1 for K samples of one image, float32 [K, channels, h, w] on the CPU.

    Args:
        size: (h, w) of the features.
        form: "grid" draws 8 x 8 values and interpolates them, so that noise does not average out
            over a region; "pixel" draws one value per pixel (literally the paper's extra channel);
            "vector" draws one for the whole image (as Kohl et al. do).
    """
    check_choice("noise", form, get_args(NoiseForm))
    drawn = {"grid": (NOISE_GRID, NOISE_GRID), "pixel": size, "vector": (1, 1)}[form]
    noise = torch.rand(num_samples, channels, *drawn, generator=generator) * 2 - 1
    if form == "grid":
        return F.interpolate(noise, size=size, mode="bilinear", align_corners=True)
    return noise.expand(num_samples, channels, *size)


def write_conditional(path: str | Path, net: ConditionalNetwork) -> None:
    """Write a conditional network as .safetensors, atomically."""
    write_network(path, net, CONDITIONAL_KIND, asdict(net.architecture))


def read_conditional(path: str | Path) -> ConditionalNetwork:
    """Read a file of `write_conditional`; anything else is an `InputError`."""

    def build(fields: dict[str, Any]) -> ConditionalNetwork:
        fields["classes"] = tuple(fields["classes"])
        return ConditionalNetwork(ConditionalArchitecture(**fields))

    return read_network(path, CONDITIONAL_KIND, build, "annocoin train")
