"""Small prediction networks, and images with samples that differ."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.ops import FrozenBatchNorm2d

from annocoin.prediction.networks import PredictionArchitecture, build_network, mask_layer
from annocoin.prediction.soft_targets import SoftTargets

CLASSES = ("cat", "dog", "cow")


def small(**changes: Any) -> PredictionArchitecture:
    """A network of milliseconds."""
    options: dict[str, Any] = {
        "backbone": "tiny",
        "size": 64,
        "longest": 128,
        "channels": 16,
        "hidden": 32,
        "mask_layers": 1,
        "smallest": 12,
        "proposals": 60,
    }
    return PredictionArchitecture(CLASSES, **options | changes)


def network(seed: int = 0, **changes: Any) -> MaskRCNN:
    """A small network whose outputs differ from place to place, as a trained one's do."""
    torch.manual_seed(seed)
    return stirred(build_network(small(**changes)))


def stirred(net: MaskRCNN) -> MaskRCNN:
    """The network with other weights: at the start torchvision's say nearly the same everywhere."""
    for part in net.modules():
        if isinstance(part, nn.Conv2d | nn.Linear | nn.ConvTranspose2d):
            nn.init.xavier_normal_(part.weight)
            if part.bias is not None:
                nn.init.normal_(part.bias, std=0.1)
        elif isinstance(part, FrozenBatchNorm2d):
            part.running_mean.normal_(std=0.1)
            part.running_var.uniform_(0.1, 0.4)
    nn.init.normal_(mask_layer(net).weight)
    return net


def ellipse(box: Tensor, size: tuple[int, int]) -> Tensor:
    """The pixels whose middle lies in a box's ellipse: bool [H, W]."""
    height, width = size
    x = (torch.arange(width) + 0.5 - (box[0] + box[2]) / 2) / (box[2] - box[0]) * 2
    y = (torch.arange(height) + 0.5 - (box[1] + box[3]) / 2) / (box[3] - box[1]) * 2
    return x.square()[None] + y.square()[:, None] <= 1


def samples_of(
    seed: int,
    size: tuple[int, int] = (64, 96),
    *,
    objects: int = 3,
    forms: int = 3,
    samples: int = 5,
    moved: float = 0.3,
    present: float = 0.8,
) -> SoftTargets:
    """Samples in which each object has one of a few boxes and masks, or is not there at all.

    Args:
        forms: boxes of each object; with their box the class changes.
        moved: how far they lie apart, as a share of their sides.
        present: the share of samples that have an object.
    """
    generator = torch.Generator().manual_seed(seed)
    height, width = size
    sides = (0.3 + 0.3 * torch.rand(objects, 1, 2, generator=generator)) * min(size)
    limit = torch.tensor([width, height])
    corners = torch.rand(objects, 1, 2, generator=generator) * (limit - sides)
    noise = torch.randn(2, objects, forms, 2, generator=generator) * moved * sides
    first = (corners + noise[0]).clamp(min=torch.zeros(2), max=limit - 6.0)
    last = torch.maximum(corners + sides + noise[1], first + 6).clamp(max=limit)
    boxes = torch.cat([first, last], dim=2).view(-1, 4)
    form = torch.randint(0, forms, (samples, objects), generator=generator)
    there = torch.rand(samples, objects, generator=generator) < present
    members = torch.zeros(samples, objects, forms, dtype=torch.bool)
    members.scatter_(2, form[:, :, None], there[:, :, None])
    counts = torch.randint(1, 4, (samples,), generator=generator).float()
    return SoftTargets(
        boxes,
        torch.randint(1, len(CLASSES) + 1, (len(boxes),), generator=generator),
        torch.stack([ellipse(box, size) for box in boxes]),
        members.flatten(1),
        counts / counts.sum(),
    )


def one_of(targets: SoftTargets, sample: int) -> SoftTargets:
    """One sample by itself."""
    own = targets.members[sample]
    return SoftTargets.certain(targets.boxes[own], targets.labels[own], targets.masks[own])


def nothing(size: tuple[int, int] = (64, 96)) -> SoftTargets:
    """One sample without an instance."""
    labels = torch.zeros(0, dtype=torch.int64)
    return SoftTargets.certain(torch.zeros(0, 4), labels, torch.zeros(0, *size, dtype=torch.bool))


def picture(seed: int, size: tuple[int, int] = (64, 96)) -> Tensor:
    """Random pixels in 0..1, coarse enough to be seen at all levels of a pyramid: [3, H, W]."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 6, 8, generator=generator)
    fine = torch.rand(1, 3, *size, generator=generator)
    return (0.7 * nn.functional.interpolate(coarse, size, mode="bilinear") + 0.3 * fine)[0]
