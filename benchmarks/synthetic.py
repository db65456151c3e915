"""Measure the synthetic scenes: class evidence, outlines, objects and rendering time.

    python benchmarks/synthetic.py --images 1500 --json synthetic.json

Reported are the accuracy of a small classifier on the whole object, its emblem, or its body without
the emblem; how much of the outlines is weak; the distribution of objects; and the time per scene.
"""

import argparse
import itertools
import time
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from annocoin.files import write_json
from annocoin.synthetic.creatures import CLASSES
from annocoin.synthetic.dataset import Scene, render_scene

CROP = 40  # pixels: every object is resized to this square
GREY = 128
VERSIONS = ("whole", "part", "body")
WEAK = 10.0  # Lab distance across an edge below which the edge is weak
HELD_OUT = 0.25  # share of the scenes kept for testing

Bytes = npt.NDArray[np.uint8]
Numbers = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=1500, help="scenes at 128 x 128")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=14, help="of the small network")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    arguments = parser.parse_args()
    cv2.setNumThreads(1)
    torch.set_num_threads(1)

    scenes = [render_scene(arguments.seed, index) for index in range(arguments.images)]
    results = {
        "accuracy": separability(scenes, arguments.epochs, arguments.seed),
        "edges": edges(scenes[:300]),
        "objects": distribution(scenes),
        "milliseconds": speed(arguments.seed),
    }
    for section, numbers in results.items():
        print(section)
        for name, value in numbers.items():
            print(f"  {name:<28}{value:10.3f}")
    if arguments.json:
        write_json(arguments.json, results, indent=2)


def separability(scenes: Sequence[Scene], epochs: int, seed: int) -> Numbers:
    """Accuracy on held-out objects: whole, emblem only, or body without the emblem.

    One network is trained on all three versions.
    """
    split = int(len(scenes) * (1 - HELD_OUT))
    train, truth = _crops(scenes[:split])
    test, test_truth = _crops(scenes[split:])
    network = _train(train, truth, epochs, seed)
    numbers = {"chance": 1 / len(CLASSES), "held-out objects": float(len(test_truth))}
    with torch.no_grad():
        for position, version in enumerate(VERSIONS):
            predicted = network(test[:, position]).argmax(1)
            numbers[version] = float((predicted == test_truth).float().mean())
    return numbers


def edges(scenes: Sequence[Scene]) -> Numbers:
    """Strength of the outlines, and the share of edges inside the bodies.

    Strength is the Lab distance between the mean colours just inside and just outside.
    """
    strengths: list[npt.NDArray[np.float32]] = []
    faintest: list[float] = []
    inner, outer = 0, 0
    for scene in scenes:
        scaled = scene.image.astype(np.float32) / 255
        lab = cv2.cvtColor(scaled, cv2.COLOR_RGB2Lab).astype(np.float32)
        strong = _gradient(lab) > WEAK
        for number in range(1, len(scene.labels) + 1):
            mask = (scene.ids == number).astype(np.uint8)
            across = _across(lab, mask)
            strengths.append(across)
            faintest.append(float(np.median(across)))
            core = cv2.erode(mask, np.ones((5, 5), np.uint8)) > 0
            emblem = cv2.dilate((scene.parts == number).astype(np.uint8), np.ones((5, 5), np.uint8))
            band = (cv2.dilate(mask, np.ones((5, 5), np.uint8)) > 0) & ~core
            inner += np.count_nonzero(strong & core & (emblem == 0))
            outer += np.count_nonzero(strong & band & (emblem == 0))
    every = np.concatenate(strengths)
    medians = np.array(faintest)
    return {
        f"weak outline (below {WEAK:.0f})": float((every < WEAK).mean()),
        "median outline strength": float(np.median(every)),
        "objects mostly weak": float((medians < WEAK).mean()),
        "objects nearly invisible": float((medians < WEAK / 3).mean()),
        "inner share of strong edges": inner / max(inner + outer, 1),
    }


def distribution(scenes: Sequence[Scene]) -> Numbers:
    """Counts, sizes and overlaps of the visible objects."""
    counts = np.array([len(scene.labels) for scene in scenes])
    areas: list[float] = []
    shares: list[float] = []
    occluded: list[bool] = []
    for scene in scenes:
        visible = np.bincount(scene.ids.ravel(), minlength=len(scene.labels) + 1)[1:]
        visible_part = np.bincount(scene.parts.ravel(), minlength=len(scene.labels) + 1)[1:]
        areas.extend(visible / scene.ids.size)
        shares.extend(visible_part / visible)
        occluded.extend(_touches_front(scene, k) for k in range(1, len(scene.labels) + 1))
    small, middle, large = np.quantile(areas, (0.1, 0.5, 0.9))
    numbers = {f"images with {n} objects": float((counts == n).mean()) for n in range(1, 5)}
    return numbers | {
        "images with a repeated class": float(
            np.mean([len(set(scene.labels)) < len(scene.labels) for scene in scenes])
        ),
        "objects behind another": float(np.mean(occluded)),
        "area share, 10th percentile": float(small),
        "area share, median": float(middle),
        "area share, 90th percentile": float(large),
        "part share, mean": float(np.mean(shares)),
        "part share, 5th percentile": float(np.quantile(shares, 0.05)),
        "part share, 95th percentile": float(np.quantile(shares, 0.95)),
    }


def speed(seed: int, repeats: int = 30) -> Numbers:
    """Mean milliseconds per scene."""
    numbers = {}
    for size in ((128, 128), (375, 500)):
        start = time.perf_counter()
        for index in range(repeats):
            render_scene(seed, index, size)
        numbers[f"{size[0]} x {size[1]}"] = (time.perf_counter() - start) / repeats * 1000
    return numbers


def _crops(scenes: Sequence[Scene]) -> tuple[torch.Tensor, torch.Tensor]:
    """Every object in three versions [N, 3, 3, CROP, CROP], and its 0-based class [N]."""
    crops, labels = [], []
    for scene in scenes:
        for number, label in enumerate(scene.labels, 1):
            crops.append(np.stack([_crop(scene, number, version) for version in VERSIONS]))
            labels.append(label - 1)
    stacked = torch.from_numpy(np.stack(crops)).permute(0, 1, 4, 2, 3).float()
    return (stacked - GREY) / 64, torch.tensor(labels)


def _crop(scene: Scene, number: int, version: str) -> Bytes:
    """One object on a grey background, [CROP, CROP, 3]."""
    body, part = scene.ids == number, scene.parts == number
    image = np.full_like(scene.image, GREY)
    keep = part if version == "part" else body
    image[keep] = scene.image[keep]
    if version == "body":
        # Without the emblem's soft rim as well, whose colours are those of the class.
        around = cv2.dilate(part.astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
        image[around & body] = scene.image[body & ~around].mean(0).astype(np.uint8)
    rows, cols = np.nonzero(body)
    centre = (rows.min() + rows.max()) / 2, (cols.min() + cols.max()) / 2
    side = max(np.ptp(rows), np.ptp(cols)) + 3
    scale = CROP / side
    shift = (CROP - 1) / 2 - scale * np.array(centre)
    matrix = np.array([[scale, 0, shift[1]], [0, scale, shift[0]]], np.float32)
    border = (GREY, GREY, GREY)
    return cv2.warpAffine(image, matrix, (CROP, CROP), borderValue=border).astype(np.uint8)


def _train(crops: torch.Tensor, labels: torch.Tensor, epochs: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    widths = (3, 24, 48, 96)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    layers += [nn.Conv2d(96, 96, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten()]
    network = nn.Sequential(*layers, nn.Dropout(0.2), nn.Linear(96, len(CLASSES)))
    batch = 64
    steps = epochs * (len(labels) // batch + 1)
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels)).split(batch):
            version = torch.randint(len(VERSIONS), (len(chosen),))
            inputs = crops[chosen, version]
            inputs = inputs.flip(3) if torch.rand(()) < 0.5 else inputs
            inputs = inputs.transpose(2, 3) if torch.rand(()) < 0.5 else inputs
            loss = nn.functional.cross_entropy(network(inputs), labels[chosen])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    return network.eval()


def _across(lab: npt.NDArray[np.float32], mask: Bytes) -> npt.NDArray[np.float32]:
    """Lab distance across the outline at each of its pixels, [L]."""
    weight = mask.astype(np.float32)
    sides = []
    for side in (weight, 1 - weight):
        total = cv2.blur(lab * side[..., None], (5, 5))
        sides.append(total / np.maximum(cv2.blur(side, (5, 5)), 1e-6)[..., None])
    inside = cv2.erode(mask, np.ones((3, 3), np.uint8), borderValue=1)
    outline = (mask > 0) & (inside == 0)
    distance = np.linalg.norm(sides[0] - sides[1], axis=2)
    return distance[outline].astype(np.float32)


def _gradient(lab: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Lab distance between the two sides of a pixel, in its steepest direction, [H, W]."""
    smooth = cv2.blur(lab, (3, 3))
    across = np.linalg.norm(np.roll(smooth, -2, 1) - np.roll(smooth, 2, 1), axis=2)
    down = np.linalg.norm(np.roll(smooth, -2, 0) - np.roll(smooth, 2, 0), axis=2)
    return np.maximum(across, down).astype(np.float32)


def _touches_front(scene: Scene, number: int) -> bool:
    """Whether a nearer object (a higher id) borders, and so occludes, this one."""
    mask = (scene.ids == number).astype(np.uint8)
    around = cv2.dilate(mask, np.ones((3, 3), np.uint8)) > 0
    return int(np.count_nonzero(scene.ids[around] > number)) > 3


if __name__ == "__main__":
    main()
