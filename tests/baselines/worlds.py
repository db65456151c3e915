"""Images of coloured discs on a textured ground, with regions and seeds made by hand.

Every disc is one region among its parts, unions with its surroundings, and random rectangles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from annocoin import masks
from annocoin.baselines.peer import PeerInputs
from annocoin.baselines.runs import PEERS
from annocoin.data.dataset import (
    LabelledImage,
    LabelledImages,
    Supervision,
    WeakDataset,
    weak_dataset,
)
from annocoin.engine.methods import METHODS
from annocoin.engine.presets import configure
from annocoin.regions.region_set import regions_of_masks
from annocoin.regions.storage import RegionFolder, write_regions
from annocoin.seeds.seed_set import SeedFolder, Seeds, write_seeds
from annocoin.types import Annotation, ImageId, Instances, WeakLabel

SIDE, CELL = 64, 4
SMALL = {"classifier.size": "64", "baseline.steps": "40", "baseline.batch_size": "2"}
CLASSES = ("red", "blue")
COLOURS = ((200, 60, 50), (50, 80, 200))

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class World:
    """Images with true masks, and the artefacts of their tags."""

    labelled: LabelledImages
    regions: RegionFolder
    seeds: SeedFolder

    def weak(self, supervision: Supervision = "image") -> WeakDataset:
        return weak_dataset(self.labelled, supervision)

    def inputs(self, method: str, **files: Any) -> PeerInputs:
        """What a peer with few training steps gets; `files` are of networks."""
        config = configure("synthetic", CLASSES, SMALL, method=method)
        return PeerInputs(config, self.regions, self.seeds, **files)

    def truth(self, image_id: ImageId) -> Instances:
        (image,) = (image for image in self.labelled if image.image_id == image_id)
        return image.annotation.instances()


def make_world(root: Path, images: int = 6) -> World:
    """Write the images, their regions and their seeds."""
    rng = np.random.default_rng(0)
    labelled, names, region_sets, seed_sets = [], [], [], []
    for number in range(images):
        discs, labels = _discs(rng), rng.integers(1, 3, 2).tolist()
        path = root / "images" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(_picture(rng, discs, labels)).save(path)
        weak = [
            WeakLabel(label, mask=masks.encode(disc[None])[0])
            for label, disc in zip(labels, discs, strict=True)
        ]
        annotation = Annotation((SIDE, SIDE), tuple(weak))
        labelled.append(LabelledImage(path.stem, path.name, path, annotation))
        names.append((path.stem, f"{path.name}.npz"))
        region_sets.append(_regions(rng, discs))
        seed_sets.append(_seeds(discs, labels))
    world = LabelledImages.of(CLASSES, labelled, source=root)
    tags = weak_dataset(world, "image")
    with RegionFolder.writing(root / "regions", {}, names) as paths:
        for (name, _), regions in zip(names, region_sets, strict=True):
            write_regions(paths[name], regions)
    with SeedFolder.writing(root / "seeds", {}, names) as paths:
        for image, seeds in zip(tags, seed_sets, strict=True):
            index = [image.annotation.distinct_labels.index(c) for c in seeds.labels.tolist()]
            annotated = Seeds(**{**vars(seeds), "annotation_index": torch.tensor(index)})
            write_seeds(paths[image.image_id], annotated, image.annotation)
    return World(world, RegionFolder(root / "regions"), SeedFolder(root / "seeds"))


def mean_best_iou(labels: Instances, truth: Instances) -> float:
    """The mean over true instances of the best IoU with a label of its class."""
    iou = masks.iou(truth.masks, labels.masks)
    same = truth.labels[:, None].numpy() == labels.labels[None].numpy()
    return float((iou * same).max(axis=1, initial=0).mean())


def labels_of(
    world: World, method: str, count: int | None = None, **files: Any
) -> dict[ImageId, Instances]:
    """The labels of a peer for the first `count` images, default all."""
    label = PEERS[method].labeller(world.inputs(method, **files))
    weak = world.weak(METHODS[method].supervision[0])[:count]
    return {image.image_id: label(image) for image in weak}


def quality(world: World, labels: Mapping[ImageId, Instances]) -> float:
    """`mean_best_iou`, averaged over the labelled images."""
    return fmean(mean_best_iou(each, world.truth(image_id)) for image_id, each in labels.items())


def random_quality(world: World, draws: int = 20) -> float:
    """The quality of as many random regions as there are instances, with the true classes."""
    rng, values = np.random.default_rng(0), []
    for image in world.labelled:
        truth, regions = world.truth(image.image_id), world.regions[image.image_id]
        for _ in range(draws):
            chosen = regions[rng.integers(0, len(regions), len(truth)).tolist()].rles()
            labels = Instances(size=truth.size, masks=chosen, labels=truth.labels)
            values.append(mean_best_iou(labels, truth))
    return fmean(values)


def _discs(rng: np.random.Generator) -> list[Mask]:
    """Two discs, left and right."""
    discs = []
    for centre in (16, 48):
        canvas = np.zeros((SIDE, SIDE), dtype=np.uint8)
        at = (centre, int(rng.integers(18, 46)))
        cv2.circle(canvas, at, int(rng.integers(9, 13)), 1, -1)
        discs.append(canvas.astype(bool))
    return discs


def _picture(
    rng: np.random.Generator, discs: list[Mask], labels: list[int]
) -> npt.NDArray[np.uint8]:
    pixels = np.full((SIDE, SIDE, 3), 120.0)
    for disc, label in zip(discs, labels, strict=True):
        pixels[disc] = COLOURS[label - 1]
    noise = rng.normal(0, 12, pixels.shape)
    return np.clip(pixels + noise, 0, 255).astype(np.uint8)


def _regions(rng: np.random.Generator, discs: list[Mask]) -> object:
    """The discs with a high score; halves, unions, and rectangles with lower ones."""
    members, scores = [*discs], [0.8] * len(discs)
    for disc in discs:
        half = disc.copy()
        half[: int(np.argwhere(disc)[:, 0].mean())] = False
        grown = cv2.dilate(disc.astype(np.uint8), np.ones((13, 13), np.uint8)).astype(bool)
        members += [half, grown]
        scores += [0.5, 0.5]
    for _ in range(12):
        canvas = np.zeros((SIDE, SIDE), dtype=bool)
        (top, bottom), (left, right) = (np.sort(rng.integers(0, SIDE - 4, 2)) for _ in range(2))
        canvas[top : bottom + 4, left : right + 4] = True
        members.append(canvas)
        scores.append(float(rng.uniform(0.05, 0.4)))
    order = np.argsort(-np.array(scores), kind="stable")
    # a central difference at a step is a half
    edges = sum(2 * np.abs(np.gradient(d.astype(float))).max(axis=0) for d in discs)
    return regions_of_masks(
        np.stack(members)[order], (SIDE, SIDE), scores=np.array(scores)[order], edges=edges
    )


def _seeds(discs: list[Mask], labels: list[int]) -> Seeds:
    """A peak in each disc, with a response all over the disc, most at its middle."""
    small = [cv2.resize(d.astype(np.float32), (SIDE // CELL,) * 2) for d in discs]
    responses = [cv2.GaussianBlur(s, (3, 3), 0) * s + 1e-6 for s in small]
    points = [np.argwhere(d).mean(axis=0)[::-1].copy() for d in discs]
    maps = {label: np.full_like(small[0], -2.0) for label in labels}
    for label, part in zip(labels, small, strict=True):
        maps[label] = np.maximum(maps[label], 4 * part - 2)
    return Seeds(
        size=(SIDE, SIDE),
        labels=torch.tensor(labels),
        points=torch.tensor(np.stack(points)).float(),
        scores=torch.full((len(labels),), 2.0),
        annotation_index=torch.zeros(len(labels), dtype=torch.int64),
        responses=torch.from_numpy(np.stack([r / r.sum() for r in responses])).float(),
        maps=torch.from_numpy(np.stack([maps[label] for label in labels])).float(),
    )
