"""Measure the cost of soft targets in the training of the prediction network.

    python benchmarks/prediction.py speed
    python benchmarks/prediction.py speed --rois 512 --threads 2 --json speed.json

`speed` times training steps (forward, backward, optimizer) of a Mask R-CNN with MobileNetV2-FPN of
96 channels and random weights, on a batch of four random images of 256 x 341 pixels with four
objects each: (a) torchvision's losses with one labelling; (b) soft targets of K = 10 samples, in
which every object has one of a few boxes and masks and, rarely, classes. Both use the same number
of anchors and RoIs and alternate on one network, after warm-up steps in which proposals converge
to the objects. Prints the medians, their ratio, and the number of RoIs in the mask head, which is
most of the cost of a step: at most a quarter of all RoIs, and more of them are matched in any of
the samples than in one.
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
    batch_images,
    build_network,
)
from annocoin.prediction.soft_losses import LossOptions, SoftLosses
from annocoin.prediction.soft_targets import SoftTargets

CLASSES, CHANNELS = 20, 96
BATCH, SIZE = 4, (256, 341)
SAMPLES, OBJECTS, VARIANTS = 10, 4, 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("speed",))
    parser.add_argument("--backbone", default="mobilenet_v2")
    parser.add_argument("--rois", type=int, default=128, help="maximum number of RoIs per image")
    parser.add_argument("--steps", type=int, default=15, help="timed steps of each kind")
    parser.add_argument("--warm", type=int, default=10, help="warm-up steps of each kind")
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
            names, options.backbone, min_size=SIZE[0], max_size=SIZE[1], fpn_channels=CHANNELS
        )
    ).train()
    loss_options = LossOptions(rois_per_image=options.rois)
    net.rpn.fg_bg_sampler.batch_size_per_image = loss_options.anchors_per_image
    net.roi_heads.fg_bg_sampler.batch_size_per_image = loss_options.rois_per_image
    soft = SoftLosses(net, loss_options)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    images = [torch.rand(3, *SIZE, generator=generator_at(i)) for i in range(BATCH)]
    targets = [random_targets(i) for i in range(BATCH)]
    for image, target in zip(images, targets, strict=True):
        paint(image, target)
    resized = [ResizedImage(image, SIZE) for image in images]
    scales = [image.scale for image in resized]
    labellings = [first_sample(target) for target in targets]

    def hard_losses(step: int) -> dict[str, Tensor]:
        torch.manual_seed(step)
        losses: dict[str, Tensor] = net(images, labellings)
        return losses

    def soft_losses(step: int) -> dict[str, Tensor]:
        generators = [generator_at(step, i) for i in range(BATCH)]
        losses: dict[str, Tensor] = soft(batch_images(resized), targets, scales, generators)
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
    mask_rois = count_mask_rois(net)
    for step in range(options.warm + options.steps):
        for name, losses_at in kinds.items():
            took = train(losses_at, step)
            if step >= options.warm:
                seconds[name].append(took)
                masks[name].append(mask_rois.pop())
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    results: dict[str, Any] = {
        f"{name}: seconds a step": median for name, median in medians.items()
    }
    hard, soft_ones = medians.values()
    results["soft / torchvision"] = soft_ones / hard
    results |= {f"{name}: RoIs of the mask head": statistics.mean(masks[name]) for name in kinds}
    results["different instances an image"] = statistics.mean(len(t) for t in targets)
    results["different samples an image"] = statistics.mean(len(t.members) for t in targets)
    return results


def count_mask_rois(net: MaskRCNN) -> list[int]:
    """A list to which every run of the mask head appends its number of RoIs."""
    counts: list[int] = []
    net.roi_heads.mask_head.register_forward_pre_hook(lambda _, args: counts.append(len(args[0])))
    return counts


def random_targets(seed: int) -> SoftTargets:
    """K samples of an image: ellipses of about a third of its height, in one of a few variants."""
    generator = generator_at(seed, "samples")
    height, width = SIZE
    sides = (0.25 + 0.2 * torch.rand(OBJECTS, 1, 2, generator=generator)) * height
    limit = torch.tensor([width, height])
    corners = torch.rand(OBJECTS, 1, 2, generator=generator) * (limit - sides)
    noise = 0.1 * sides * torch.randn(2, OBJECTS, VARIANTS, 2, generator=generator)
    first = (corners + noise[0]).clamp(min=torch.zeros(2), max=limit - 20)
    last = torch.maximum(corners + sides + noise[1], first + 20).clamp(max=limit)
    boxes = torch.cat([first, last], dim=2).flatten(0, 1)
    labels = torch.randint(1, CLASSES + 1, (OBJECTS, 1), generator=generator).repeat(1, VARIANTS)
    labels[0, -1] = labels[1, 0]  # one of uncertain class
    variant = torch.randint(0, VARIANTS, (SAMPLES, OBJECTS), generator=generator)
    members = torch.nn.functional.one_hot(variant, VARIANTS).bool().flatten(1)
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


def paint(image: Tensor, targets: SoftTargets) -> None:
    """Fill the objects of the first sample with a brightness that depends on their class."""
    for i in targets.members[0].nonzero()[:, 0].tolist():
        image[:, targets.masks[i]] = targets.labels[i] / CLASSES


def first_sample(targets: SoftTargets) -> dict[str, Tensor]:
    """The first sample as torchvision's target."""
    members = targets.members[0]
    return {
        "boxes": targets.boxes[members],
        "labels": targets.labels[members],
        "masks": targets.masks[members].byte(),
    }


if __name__ == "__main__":
    main()
