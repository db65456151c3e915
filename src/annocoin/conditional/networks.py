"""The conditional network: scores of regions for classes, another for every noise sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

FINE = 96
"""The least length of the longer side at which scores are averaged over regions of an image."""


@dataclass(frozen=True)
class ConditionalArchitecture:
    """What a conditional network is made of, apart from its weights.

    Args:
        classes: the names of classes 1..C.
        trunk: see `build_trunk`.
        stride_in_1x1: where its ResNet halves the resolution.
        size: the length of an image's longer side when the trunk sees it.
        noise: the form of noise, see `draw_noise`.
        noise_channels: how many channels it adds.
        relu: whether a ReLU follows the convolution that joins noise and features. Without it, as
            in the paper's words, the noise shifts scores by the same amount in every image.
        over: what scores are averaged over, the "image" (the paper's global average pooling) or
            the "region".
        scale: factor of the scores; averages over the image are small.
    """

    classes: tuple[str, ...]
    trunk: str = "unet"
    stride_in_1x1: bool = False
    size: int = 256
    noise: NoiseForm = "grid"
    noise_channels: int = 4
    relu: bool = True
    over: Over = "image"
    scale: float = 16.0

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("a conditional network needs at least one class")
        if not 32 <= self.size <= 4096:
            raise InputError(f"size {self.size}; expected 32 to 4096 pixels")
        check_choice("noise", self.noise, get_args(NoiseForm))
        check_positive("noise_channels", self.noise_channels)
        check_choice("over", self.over, ("image", "region"))
        if not self.scale > 0:
            raise InputError(f"scale {self.scale}; expected above 0")


class ConditionalNetwork(nn.Module):
    """A trunk, and a head that runs once for each of K noise samples; F^k in the paper.

    The paper joins noise to the features as further channels, brings them back to the features'
    number by a 1x1 convolution, masks and averages them over each region and has another 1x1
    convolution to C+1 classes. Averaging commutes with the last one, so here it comes after it.

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
            architecture.trunk, weights, stride_in_1x1=architecture.stride_in_1x1
        )
        width = int(self.trunk.channels)  # type: ignore[arg-type]
        self.join = nn.Conv2d(width, width, 1)  # one convolution of features and noise, in two
        self.join_noise = nn.Conv2d(architecture.noise_channels, width, 1, bias=False)
        self.classify = nn.Conv2d(width, len(architecture.classes) + 1, 1)
        nn.init.dirac_(self.join.weight)
        nn.init.zeros_(self.join.bias)  # type: ignore[arg-type]
        nn.init.normal_(self.classify.weight, std=0.01)
        nn.init.zeros_(self.classify.bias)  # type: ignore[arg-type]

    def features(self, images: Tensor) -> Tensor:
        """Features [B, F, h, w] of RGB images in 0..1, [B, 3, H, W]: the trunk, once an image."""
        features: Tensor = self.trunk((images - self.mean) / self.std)
        return features

    def noise(
        self, samples: int, features: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Noise [K, Z, h, w] for an image's features [F, h, w]."""
        height, width = features.shape[-2:]
        drawn = draw_noise(
            samples,
            self.architecture.noise_channels,
            (height, width),
            form=self.architecture.noise,
            generator=generator,
        )
        return drawn.to(features)

    def pixel_scores(
        self, features: Tensor, noise: Tensor | None, labels: Sequence[int] | None = None
    ) -> Tensor:
        """Scores [K, J, h, w] of every pixel, from features [F, h, w] and noise [K, Z, h, w].

        Args:
            noise: None is zero noise, the pointwise network PW_c, with K = 1.
            labels: the J classes that are asked for, 0 among them if wanted; default 0..C.
        """
        height, width = features.shape[-2:]
        joined = self.join(features[None])[0].flatten(1)  # [F, hw], once for all samples
        weight, bias = self.classify.weight.flatten(1), self.classify.bias
        if labels is not None:
            if any(not 0 <= label < len(weight) for label in labels):
                raise InputError(f"classes {list(labels)}; the network has 0..{len(weight) - 1}")
            chosen = torch.as_tensor(labels, device=weight.device)
            weight, bias = weight[chosen], bias[chosen]  # type: ignore[index]

        def classified(hidden: Tensor) -> Tensor:
            bent = F.relu(hidden) if self.architecture.relu else hidden
            return torch.addmm(bias[:, None], weight, bent)  # type: ignore[index]

        if noise is None:
            return classified(joined).view(1, -1, height, width)
        of_noise = self.join_noise.weight.flatten(1)
        # 1x1 convolutions as products, a sample at a time: what is in work stays in the cache
        each = [classified(torch.addmm(joined, of_noise, own.flatten(1))) for own in noise]
        return torch.stack(each).view(len(noise), -1, height, width)

    def unary(
        self,
        features: Tensor,
        noise: Tensor | None,
        regions: RegionSet,
        labels: Sequence[int] | None = None,
    ) -> Tensor:
        """F^k_{u,j}, the score of each region for each class: [K, P, J]; see `pixel_scores`."""
        pixels = self.pixel_scores(features, noise, labels).float()  # argmaxes want all digits
        height, width = pixels.shape[-2:]
        larger = min(FINE, max(regions.size)) / max(height, width)
        if larger > 1:  # or small regions would get no pixel at all
            size = (max(1, round(height * larger)), max(1, round(width * larger)))
            pixels = F.interpolate(pixels, size, mode="bilinear")
        return self.architecture.scale * regions.pool(pixels, over=self.architecture.over)

    @torch.no_grad()
    def redraw_noise(self, features: Tensor, strength: float, generator: torch.Generator) -> None:
        """Give the noise new weights under which it moves joined features [B, F, h, w] visibly.

        Learning from one target for all samples teaches the network to overlook its noise, and
        the objective keeps diversity but cannot create it.

        Args:
            strength: the spread of what the noise adds, in spreads of each joined feature.
        """
        spread = self.join(features).transpose(0, 1).flatten(1).std(dim=1)
        drawn = torch.randn(self.join_noise.weight.shape, generator=generator).to(spread)
        channels = drawn.shape[1]
        of_noise = (channels / 3) ** 0.5  # the variance of a uniform number in -1..1 is 1/3
        self.join_noise.weight.copy_(drawn * (strength / of_noise) * spread[:, None, None, None])


NoiseForm = Literal["grid", "pixel", "vector"]
CELLS = 8


def draw_noise(
    samples: int,
    channels: int,
    size: tuple[int, int],
    *,
    form: NoiseForm = "grid",
    cells: int = CELLS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Noise uniform in -1..1 for K samples of one image, float32 [K, channels, h, w] on the CPU.

    Args:
        size: (h, w) of the features that it joins.
        form: "grid" draws a value for each of cells x cells places and is smooth between them, so
            that it does not average out over a region; "pixel" draws one for every pixel (the
            paper's extra channel, literally); "vector" one for the whole image (as Kohl et al. do).
    """
    check_choice("noise", form, get_args(NoiseForm))
    check_positive("cells", cells)
    drawn = {"grid": (cells, cells), "pixel": size, "vector": (1, 1)}[form]
    noise = torch.rand(samples, channels, *drawn, generator=generator) * 2 - 1
    if form == "grid":
        return F.interpolate(noise, size=size, mode="bilinear", align_corners=True)
    return noise.expand(samples, channels, *size)


CONDITIONAL_KIND = "conditional network"


def write_conditional(
    path: str | Path, net: ConditionalNetwork, made: Mapping[str, Any] | None = None
) -> None:
    """Write a conditional network as .safetensors, whole or not at all."""
    write_network(path, net, CONDITIONAL_KIND, asdict(net.architecture), made)


def read_conditional(path: str | Path) -> ConditionalNetwork:
    """Read what `write_conditional` wrote; anything else is an `InputError`."""

    def build(said: dict[str, Any]) -> ConditionalNetwork:
        return ConditionalNetwork(
            ConditionalArchitecture(**{**said, "classes": tuple(said["classes"])})
        )

    return read_network(path, CONDITIONAL_KIND, build, "annocoin train")
