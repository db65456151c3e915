"""The image classifier: class maps, their peaks, class scores, and average precision of tags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from annocoin.backbones import IMAGENET_MEAN, IMAGENET_STD, SCRATCH, build_backbone
from annocoin.errors import InputError
from annocoin.network_files import read_network, write_network

KIND = "classifier"


@dataclass(frozen=True)
class ClassifierArchitecture:
    """The arguments of a `Classifier`, apart from its weights.

    Args:
        classes: the names of classes 1..C.
        backbone, stride_in_1x1: see `build_backbone`.
        size: the longer side of its input images, in pixels.
    """

    classes: tuple[str, ...]
    backbone: str
    stride_in_1x1: bool = False
    size: int = 448

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("a classifier needs at least one class")
        if not 32 <= self.size <= 4096:
            raise InputError(f"size {self.size}; expected 32 to 4096 pixels")


class Classifier(nn.Module):
    """A fully convolutional classifier: a backbone and a 1x1 convolution to C class maps.

    Example:
        >>> net = Classifier(ClassifierArchitecture(("cat", "dog"), "tiny", size=64)).eval()
        >>> maps = net(torch.rand(1, 3, 64, 48))
        >>> maps.shape, net.scores(maps).shape
        (torch.Size([1, 2, 8, 6]), torch.Size([1, 2]))
    """

    mean: Tensor
    std: Tensor

    def __init__(self, architecture: ClassifierArchitecture, weights: str | Path = SCRATCH) -> None:
        super().__init__()
        self.architecture = architecture
        self.register_buffer("mean", torch.tensor(IMAGENET_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_STD).view(1, 3, 1, 1), persistent=False)
        name, stride_in_1x1 = architecture.backbone, architecture.stride_in_1x1
        self.trunk = build_backbone(name, weights, stride_in_1x1=stride_in_1x1)
        self.head = nn.Conv2d(_out_channels(self.trunk, name), len(architecture.classes), 1)
        nn.init.normal_(self.head.weight, std=0.01)

    def forward(self, images: Tensor) -> Tensor:
        """Class maps, logits [B, C, h, w], of RGB images in 0..1, [B, 3, H, W]."""
        maps: Tensor = self.head(self.trunk((images - self.mean) / self.std))
        return maps

    def scores(self, maps: Tensor) -> Tensor:
        """Class scores, logits [B, C], of class maps [B, C, h, w]: the maxima of the maps."""
        return maps.amax(dim=(-2, -1))


def _out_channels(backbone: nn.Module, name: str) -> int:
    with torch.inference_mode():
        out = backbone.eval()(torch.zeros(1, 3, 64, 128))
    has_linear = any(isinstance(module, nn.Linear) for module in backbone.modules())
    if has_linear or out.ndim != 4 or out.shape[3] != 2 * out.shape[2]:
        raise InputError(
            f"backbone {name}: not fully convolutional; use a ResNet, VGG or MobileNet"
        )
    return int(out.shape[1])


def write_classifier(
    path: str | Path, net: Classifier, provenance: Mapping[str, Any] | None = None
) -> None:
    """Write a classifier as .safetensors, atomically; `provenance` is how it was trained."""
    write_network(path, net, KIND, asdict(net.architecture), provenance)


def read_classifier(path: str | Path) -> Classifier:
    """Read a file of `write_classifier`; anything else is an `InputError`."""

    def build(fields: dict[str, Any]) -> Classifier:
        return Classifier(ClassifierArchitecture(**{**fields, "classes": tuple(fields["classes"])}))

    return read_network(path, KIND, build, "annocoin seeds")


def find_peaks(maps: Tensor, window: int = 3) -> Tensor:
    """Whether cells are peaks: maps [..., C, h, w] to bool of the same shape.

    A peak is the maximum of the window around it and at least the map's median. Of equal values in
    one window, the first in reading order is the peak.
    """
    height, width = maps.shape[-2:]
    flat = maps.detach().reshape(-1, 1, height, width)
    _, argmax = F.max_pool2d(flat, window, stride=1, padding=window // 2, return_indices=True)
    positions = torch.arange(height * width, device=maps.device).view(height, width)
    median = flat.flatten(1).median(dim=1).values[:, None, None, None]
    return ((argmax == positions) & (flat >= median)).view(maps.shape)


def peak_scores(maps: Tensor, window: int = 3, sharpness: float = 0.0) -> Tensor:
    """Peak stimulation: the mean over a map's peaks, [..., C, h, w] to [..., C], differentiable.

    Every map has a peak, its maximum.

    Args:
        sharpness: peaks are weighted by exp(sharpness * value). 0 is the plain mean, as in PRM; a
            high value approaches the maximum.
    """
    peaks = find_peaks(maps, window).flatten(-2)
    values = maps.flatten(-2)
    weights = torch.where(peaks, sharpness * values, -torch.inf).softmax(dim=-1)
    return (weights * values).sum(dim=-1)


def tag_average_precision(scores: Tensor, tags: Tensor) -> Tensor:
    """Average precision of each class over N images, float64 [C]; NaN for classes without image.

    The area under the monotone precision envelope, PASCAL VOC's measure of classification since
    2010. Images of equal score have the precision of the last of them, so that a constant score
    gets the share of positives.

    Args:
        scores: of each image for each class, [N, C].
        tags: which classes each image has, bool [N, C].

    Example:
        >>> tags = torch.tensor([[True], [False], [True]])
        >>> round(tag_average_precision(torch.tensor([[3.0], [2.0], [1.0]]), tags).item(), 4)
        0.8333
    """
    if scores.shape != tags.shape or scores.ndim != 2:
        raise ValueError(f"scores {tuple(scores.shape)}, tags {tuple(tags.shape)}: expected [N, C]")
    result = torch.full((scores.shape[1],), torch.nan, dtype=torch.float64)
    for c in tags.any(dim=0).nonzero()[:, 0].tolist():
        ordered, order = scores[:, c].double().sort(descending=True, stable=True)
        positive = tags[order, c].double()
        precision = positive.cumsum(0) / torch.arange(1, len(positive) + 1)
        last_of_equal = torch.searchsorted(-ordered, -ordered, right=True) - 1
        envelope = precision[last_of_equal].flip(0).cummax(0).values.flip(0)
        result[c] = (envelope * positive).sum() / positive.sum()
    return result
