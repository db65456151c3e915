"""Small prediction networks, and images with soft targets of differing samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.ops import FrozenBatchNorm2d

from annocoin.prediction.networks import PredictionArchitecture, build_network
from annocoin.prediction.soft_targets import SoftTargets

CLASSES = ("cat", "dog", "cow")


def small(**changes: Any) -> PredictionArchitecture:
    """A network that runs in milliseconds."""
    options: dict[str, Any] = {
        "backbone": "tiny",
        "min_size": 64,
        "max_size": 128,
        "fpn_channels": 16,
        "representation_size": 32,
        "mask_layers": 1,
        "anchor_size": 12,
        "rpn_top_n": 60,
    }
    return PredictionArchitecture(CLASSES, **options | changes)


def network(seed: int = 0, **changes: Any) -> MaskRCNN:
    """A small network whose outputs vary over the image, as those of a trained one do."""
    torch.manual_seed(seed)
    net = build_network(small(**changes))
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear | nn.ConvTranspose2d):
            nn.init.xavier_normal_(module.weight)
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, FrozenBatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.1, 0.4)
    nn.init.normal_(net.roi_heads.mask_predictor.mask_fcn_logits.weight)
    return net


def ellipse(box: Tensor, size: tuple[int, int]) -> Tensor:
    """The pixels whose centre is inside a box's ellipse: bool [H, W]."""
    height, width = size
    x = (torch.arange(width) + 0.5 - (box[0] + box[2]) / 2) / (box[2] - box[0]) * 2
    y = (torch.arange(height) + 0.5 - (box[1] + box[3]) / 2) / (box[3] - box[1]) * 2
    return x.square()[None] + y.square()[:, None] <= 1


def random_targets(
    seed: int,
    size: tuple[int, int] = (64, 96),
    *,
    objects: int = 3,
    variants: int = 3,
    samples: int = 5,
    moved: float = 0.3,
    present: float = 0.8,
) -> SoftTargets:
    """Samples in which each object has one of a few boxes and masks, or is missing.

    Args:
        variants: boxes of each object, each with a class.
        moved: standard deviation of their corners, as a fraction of their sides.
        present: the fraction of samples that contain an object.
    """
    generator = torch.Generator().manual_seed(seed)
    height, width = size
    sides = (0.3 + 0.3 * torch.rand(objects, 1, 2, generator=generator)) * min(size)
    limit = torch.tensor([width, height])
    corners = torch.rand(objects, 1, 2, generator=generator) * (limit - sides)
    noise = torch.randn(2, objects, variants, 2, generator=generator) * moved * sides
    first = (corners + noise[0]).clamp(min=torch.zeros(2), max=limit - 6.0)
    last = torch.maximum(corners + sides + noise[1], first + 6).clamp(max=limit)
    boxes = torch.cat([first, last], dim=2).view(-1, 4)
    variant = torch.randint(0, variants, (samples, objects), generator=generator)
    is_present = torch.rand(samples, objects, generator=generator) < present
    members = torch.zeros(samples, objects, variants, dtype=torch.bool)
    members.scatter_(2, variant[:, :, None], is_present[:, :, None])
    counts = torch.randint(1, 4, (samples,), generator=generator).float()
    return SoftTargets(
        boxes,
        torch.randint(1, len(CLASSES) + 1, (len(boxes),), generator=generator),
        torch.stack([ellipse(box, size) for box in boxes]),
        members.flatten(1),
        counts / counts.sum(),
    )


def single_labelling(boxes: Tensor, labels: Tensor, masks: Tensor) -> SoftTargets:
    """One sample with all of these instances, as in ordinary training."""
    members = torch.ones(1, len(labels), dtype=torch.bool)
    return SoftTargets(boxes, labels, masks, members, torch.ones(1))


def one_sample(targets: SoftTargets, sample: int) -> SoftTargets:
    """One of the samples by itself."""
    members = targets.members[sample]
    return single_labelling(targets.boxes[members], targets.labels[members], targets.masks[members])


def no_instances(size: tuple[int, int] = (64, 96)) -> SoftTargets:
    """One sample without an instance."""
    labels = torch.zeros(0, dtype=torch.int64)
    return single_labelling(torch.zeros(0, 4), labels, torch.zeros(0, *size, dtype=torch.bool))


def random_image(seed: int, size: tuple[int, int] = (64, 96)) -> Tensor:
    """Random pixels in 0..1 with structure at all levels of a feature pyramid: [3, H, W]."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(1, 3, 6, 8, generator=generator)
    fine = torch.rand(1, 3, *size, generator=generator)
    return (0.7 * nn.functional.interpolate(coarse, size, mode="bilinear") + 0.3 * fine)[0]
