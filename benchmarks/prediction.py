"""Measure the prediction network: what soft targets cost.

    python benchmarks/prediction.py speed
    python benchmarks/prediction.py speed --rois 512 --threads 2 --json speed.json

`speed` has a Mask R-CNN with MobileNetV2-FPN of 96 channels, random weights, and a batch of four
random images of 256 x 341 pixels with four objects each. A training step (forward, backward,
optimizer) is timed in two ways: (a) torchvision's own, with one labelling; (b) soft targets, with
K = 10 samples in which every object has one of a few boxes, masks and, rarely, classes. Both look
at the same number of anchors and RoIs. They take turns on one network, after some steps that are
not timed, in which proposals come to the objects. The medians, their ratio, and how many RoIs the
mask head had, for that is most of a step: at most a quarter of all, and those that stand for an
object in any sample are more than those that do in one.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.models.detection import MaskRCNN

from annocoin.engine.randomness import generator_at
from annocoin.files import write_json
from annocoin.prediction.networks import (
    PredictionArchitecture,
    ResizedImage,
    batch_of,
    build_network,
)
from annocoin.prediction.soft_losses import LossOptions, SoftLosses
from annocoin.prediction.soft_targets import SoftTargets

CLASSES, CHANNELS = 20, 96
BATCH, SIZE = 4, (256, 341)
SAMPLES, OBJECTS, FORMS = 10, 4, 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("speed",))
    parser.add_argument("--backbone", default="mobilenet_v2")
    parser.add_argument("--rois", type=int, default=128, help="of an image, at most")
    parser.add_argument("--steps", type=int, default=15, help="that are timed, of each kind")
    parser.add_argument("--warm", type=int, default=10, help="steps of each kind before these")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = speed(options)
    for name, value in results.items():
        print(f"{name:58s} {value:.4f}" if isinstance(value, float) else f"{name:58s} {value}")
    if options.json is not None:
        write_json(options.json, results, indent=1)


def speed(options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(0)
    names = tuple(f"class {c + 1}" for c in range(CLASSES))
    net = build_network(
        PredictionArchitecture(
            names, options.backbone, size=SIZE[0], longest=SIZE[1], channels=CHANNELS
        )
    ).train()
    looked_at = LossOptions(rois=options.rois)
    net.rpn.fg_bg_sampler.batch_size_per_image = looked_at.anchors
    net.roi_heads.fg_bg_sampler.batch_size_per_image = looked_at.rois
    soft = SoftLosses(net, looked_at)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    images = [torch.rand(3, *SIZE, generator=generator_at(i)) for i in range(BATCH)]
    samples = [samples_of(i) for i in range(BATCH)]
    for image, own in zip(images, samples, strict=True):
        paint(image, own)
    views = [ResizedImage(image, SIZE) for image in images]
    scales = [own.scale for own in views]
    labellings = [one_of(own) for own in samples]

    def hard_losses(step: int) -> dict[str, Tensor]:
        torch.manual_seed(step)
        losses: dict[str, Tensor] = net(images, labellings)
        return losses

    def soft_losses(step: int) -> dict[str, Tensor]:
        generators = [generator_at(step, i) for i in range(BATCH)]
        losses: dict[str, Tensor] = soft(batch_of(views), samples, scales, generators)
        return losses

    def train(losses_at: Callable[[int], dict[str, Tensor]], step: int) -> float:
        started = time.perf_counter()
        loss = torch.stack(list(losses_at(step).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.perf_counter() - started

    kinds = {"one labelling, torchvision": hard_losses, "ten samples, soft targets": soft_losses}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    masks: dict[str, list[int]] = {name: [] for name in kinds}
    seen = count_masks(net)
    for step in range(options.warm + options.steps):
        for name, losses_at in kinds.items():
            took = train(losses_at, step)
            if step >= options.warm:
                seconds[name].append(took)
                masks[name].append(seen.pop())
    medians = {name: statistics.median(own) for name, own in seconds.items()}
    results: dict[str, Any] = {f"{name}: seconds a step": own for name, own in medians.items()}
    hard, soft_ones = medians.values()
    results["soft / torchvision"] = soft_ones / hard
    results |= {f"{name}: RoIs of the mask head": statistics.mean(masks[name]) for name in kinds}
    results["different instances an image"] = statistics.mean(len(own) for own in samples)
    results["different samples an image"] = statistics.mean(len(own.members) for own in samples)
    return results


def count_masks(net: MaskRCNN) -> list[int]:
    """A list that gets the number of RoIs whenever the mask head runs."""
    seen: list[int] = []
    net.roi_heads.mask_head.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    return seen


def samples_of(seed: int) -> SoftTargets:
    """K samples of an image: ellipses of about a third of its height, in one of a few forms."""
    generator = generator_at(seed, "samples")
    height, width = SIZE
    sides = (0.25 + 0.2 * torch.rand(OBJECTS, 1, 2, generator=generator)) * height
    limit = torch.tensor([width, height])
    corners = torch.rand(OBJECTS, 1, 2, generator=generator) * (limit - sides)
    noise = 0.1 * sides * torch.randn(2, OBJECTS, FORMS, 2, generator=generator)
    first = (corners + noise[0]).clamp(min=torch.zeros(2), max=limit - 20)
    last = torch.maximum(corners + sides + noise[1], first + 20).clamp(max=limit)
    boxes = torch.cat([first, last], dim=2).flatten(0, 1)
    labels = torch.randint(1, CLASSES + 1, (OBJECTS, 1), generator=generator).repeat(1, FORMS)
    labels[0, -1] = labels[1, 0]  # a doubtful one
    form = torch.randint(0, FORMS, (SAMPLES, OBJECTS), generator=generator)
    members = torch.nn.functional.one_hot(form, FORMS).bool().flatten(1)
    used = members.any(dim=0)
    different, counts = torch.unique(members[:, used], dim=0, return_counts=True)
    return SoftTargets(
        boxes[used],
        labels.flatten()[used],
        torch.stack([ellipse(box) for box in boxes[used]]),
        different,
        counts / SAMPLES,
    )


def ellipse(box: Tensor) -> Tensor:
    x = (torch.arange(SIZE[1]) + 0.5 - (box[0] + box[2]) / 2) / (box[2] - box[0]) * 2
    y = (torch.arange(SIZE[0]) + 0.5 - (box[1] + box[3]) / 2) / (box[3] - box[1]) * 2
    return x.square()[None] + y.square()[:, None] <= 1


def paint(image: Tensor, samples: SoftTargets) -> None:
    """Give the objects of the first sample a brightness of their class."""
    for place in samples.members[0].nonzero()[:, 0].tolist():
        image[:, samples.masks[place]] = samples.labels[place] / CLASSES


def one_of(samples: SoftTargets) -> dict[str, Tensor]:
    """The first sample, as torchvision takes it."""
    own = samples.members[0]
    return {
        "boxes": samples.boxes[own],
        "labels": samples.labels[own],
        "masks": samples.masks[own].byte(),
    }


if __name__ == "__main__":
    main()
