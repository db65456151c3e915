"""The image classifier: from an image to a map for every class, and from its peaks to tags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F

from annocoin import files
from annocoin.backbones import IMAGENET_MEAN, IMAGENET_STD, SCRATCH, build_backbone
from annocoin.errors import InputError, brief
from annocoin.network_files import MADE, read_network, write_network


@dataclass(frozen=True)
class ClassifierArchitecture:
    """What a classifier is made of, apart from its weights.

    Args:
        classes: the names of classes 1..C.
        backbone: its trunk, see `build_backbone`.
        stride_in_1x1: where its ResNet halves the resolution.
        size: the length of an image's longer side when it is looked at.
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
    """A fully convolutional classifier: a trunk and a 1x1 convolution to C class maps.

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
        self.trunk = build_backbone(
            architecture.backbone, weights, stride_in_1x1=architecture.stride_in_1x1
        )
        self.head = nn.Conv2d(
            _width(self.trunk, architecture.backbone), len(architecture.classes), 1
        )
        nn.init.normal_(self.head.weight, std=0.01)

    def forward(self, images: Tensor) -> Tensor:
        """Class maps, logits [B, C, h, w], of RGB images in 0..1, [B, 3, H, W]."""
        maps: Tensor = self.head(self.trunk((images - self.mean) / self.std))
        return maps

    def scores(self, maps: Tensor) -> Tensor:
        """Class scores, logits [B, C], of class maps [B, C, h, w]: the values of the best peaks."""
        return maps.amax(dim=(-2, -1))


def _width(trunk: nn.Module, name: str) -> int:
    """The channels of a trunk's maps, by trying it."""
    with torch.inference_mode():
        out = trunk.eval()(torch.zeros(1, 3, 64, 128))
    if (
        out.ndim != 4
        or out.shape[3] != 2 * out.shape[2]
        or any(isinstance(module, nn.Linear) for module in trunk.modules())
    ):
        raise InputError(
            f"backbone {name}: not made of convolutions alone; take a ResNet, VGG or MobileNet"
        )
    return int(out.shape[1])


WINDOW = 3


def find_peaks(maps: Tensor, window: int = WINDOW) -> Tensor:
    """Which places are peaks: maps [..., C, h, w] to bool of the same shape.

    A peak is the greatest value of the window around it, and at least the map's median. Of equal
    values in one window the first one in reading order is the peak.
    """
    *leading, height, width = maps.shape
    flat = maps.detach().reshape(-1, 1, height, width)
    reach = window // 2
    padded = F.pad(flat, (reach,) * 4, value=-torch.inf)
    _, chosen = F.max_pool2d(padded, window, stride=1, return_indices=True)
    rows, columns = chosen // (width + 2 * reach) - reach, chosen % (width + 2 * reach) - reach
    own = torch.arange(height * width, device=maps.device).view(height, width)
    median = flat.flatten(1).median(dim=1).values[:, None, None, None]
    return ((rows * width + columns == own) & (flat >= median)).view(*leading, height, width)


def peak_scores(maps: Tensor, window: int = WINDOW, sharpness: float = 0.0) -> Tensor:
    """Peak stimulation: a map's mean over its peaks, [..., C, h, w] to [..., C], differentiable.

    Every map has a peak: its greatest value.

    Args:
        sharpness: peaks count by exp(sharpness * value); 0 is the plain mean, as PRM has it, and a
            great number leaves the greatest peak alone.
    """
    peaks = find_peaks(maps, window).flatten(-2)
    values = maps.flatten(-2)
    weights = torch.where(peaks, sharpness * values, -torch.inf).softmax(dim=-1)
    return (weights * values).sum(dim=-1)


def tag_average_precision(scores: Tensor, tags: Tensor) -> Tensor:
    """Average precision of each class over N images, float64 [C]; NaN for a class that none has.

    It is the area under the monotone precision envelope, as PASCAL VOC has measured
    classification since 2010. Images of equal score share the precision of the last of them, so
    that a constant score earns the share of positives.

    Args:
        scores: what each image got for each class, [N, C].
        tags: which classes each image has, bool [N, C].

    Example:
        >>> tags = torch.tensor([[True], [False], [True]])
        >>> round(tag_average_precision(torch.tensor([[3.0], [2.0], [1.0]]), tags).item(), 4)
        0.8333
    """
    if scores.shape != tags.shape or scores.ndim != 2:
        raise ValueError(f"scores {tuple(scores.shape)}, tags {tuple(tags.shape)}: expected [N, C]")
    found = [_of_class(scores[:, j].double(), tags[:, j].bool()) for j in range(scores.shape[1])]
    return torch.stack(found) if found else torch.zeros(0, dtype=torch.float64)


def mean_over_classes(average_precision: Tensor) -> float:
    """The mean over the classes that occur; NaN if none does."""
    return float(average_precision.nanmean())


def _of_class(scores: Tensor, tags: Tensor) -> Tensor:
    if not tags.any():
        return torch.tensor(torch.nan, dtype=torch.float64)
    ordered, order = scores.sort(descending=True, stable=True)
    hits = tags[order].double()
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    last = torch.searchsorted(-ordered, -ordered, right=True) - 1
    envelope = precision[last].flip(0).cummax(0).values.flip(0)
    return (envelope * hits).sum() / hits.sum()


CLASSIFIER_KIND = "classifier"


def write_classifier(
    path: str | Path, net: Classifier, made: Mapping[str, Any] | None = None
) -> None:
    """Write a classifier as .safetensors, whole or not at all; `made` says how it was trained."""
    write_network(path, net, CLASSIFIER_KIND, asdict(net.architecture), made)


def read_classifier(path: str | Path) -> Classifier:
    """Read what `write_classifier` wrote; anything else is an `InputError`."""

    def build(said: dict[str, Any]) -> Classifier:
        return Classifier(ClassifierArchitecture(**{**said, "classes": tuple(said["classes"])}))

    return read_network(path, CLASSIFIER_KIND, build, "annocoin seeds")


def check_made(path: Path, now: Mapping[str, Any]) -> None:
    """Raise unless what the file holds was trained in this way."""
    try:
        with safe_open(path, framework="pt") as file:
            made = json.loads((file.metadata() or {})[MADE])
    except Exception as error:  # as above
        raise InputError(f"{path}: damaged ({brief(str(error))}); delete it") from None
    for name, value in now.items():
        if made.get(name) != value:
            raise InputError(
                f"{path}: of a training with {name} {made.get(name)}, now it is {value}; "
                "give the same options or another --out, or delete it"
            )


@dataclass
class Checkpoint:
    """A training that can be interrupted: what changes, and what must not have override."""

    net: Classifier
    optimizer: torch.optim.Optimizer
    made: dict[str, Any]


def write_checkpoint(path: str | Path, state: Checkpoint, epochs: int) -> None:
    """Write the state after so many epochs, whole or not at all."""
    tensors = {f"net.{name}": value for name, value in state.net.state_dict().items()}
    for number, moments in state.optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer.{number}.{name}": v for name, v in moments.items()})
    kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    said = {MADE: json.dumps(state.made), "epochs": str(epochs)}
    files.write_bytes(Path(path), save(kept, said))


def read_checkpoint(path: str | Path, state: Checkpoint) -> int:
    """Bring a training to where the file is, if there is one; gives the epochs that are done."""
    path = Path(path)
    if not path.exists():
        return 0
    check_made(path, state.made)
    with safe_open(path, framework="pt") as file:
        epochs = int((file.metadata() or {})["epochs"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, number, name = key.split(".")
            moments.setdefault(int(number), {})[name] = value
    state.net.load_state_dict(
        {key[len("net.") :]: value for key, value in tensors.items() if key.startswith("net.")}
    )
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return epochs
