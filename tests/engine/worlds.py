"""Small images of coloured squares with regions and seeds; results of stages for the scenes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from annocoin.conditional.requirements import Requirements, requirements_of
from annocoin.conditional.scoring import seed_prior, seed_votes
from annocoin.data.dataset import WeakDataset
from annocoin.engine.conditional_dataset import ConditionalExample, PreparedImage
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.seed_set import SeedFolder, Seeds
from annocoin.seeds.votes import soft_labels
from annocoin.types import Annotation, WeakLabel

CELL, CELLS = 8, 8
COLOURS = {1: (0.9, 0.1, 0.1), 2: (0.1, 0.2, 0.9)}
OBJECT, PART = 0, 1
"""The numbers of the true region and of the part with the peak among the regions."""


@dataclass(frozen=True)
class Artefacts:
    """Datasets, regions and seeds of the eight scenes; the classifier is not trained."""

    weak: dict[str, WeakDataset]
    regions: RegionFolder
    seeds: dict[str, SeedFolder]
    classifier: Path


def square_example(number: int) -> ConditionalExample:
    """A square in the colour of its class on grey.

    Its first region is the square, the next a part of it, the others random rectangles.
    """
    rng = np.random.default_rng(number)
    label = 1 + number % 2
    side = CELL * CELLS
    ids = np.arange(CELLS * CELLS).reshape(CELLS, CELLS)
    row, column = rng.integers(0, CELLS - 3, 2)
    inside = np.zeros((CELLS, CELLS), dtype=bool)
    inside[row : row + 3, column : column + 3] = True
    part = np.zeros_like(inside)
    part[row, column] = True
    members = [inside, part]
    for _ in range(12):
        height, width = rng.integers(1, 6, 2)
        top, left = rng.integers(0, CELLS - height + 1), rng.integers(0, CELLS - width + 1)
        other = np.zeros_like(inside)
        other[top : top + height, left : left + width] = True
        other[row, column] |= rng.random() < 0.5
        members.append(other)
    dense = np.kron(inside, np.ones((CELL, CELL), dtype=bool))
    pixels = 0.5 + 0.05 * rng.standard_normal((3, side, side))
    pixels = np.where(dense, np.array(COLOURS[label])[:, None, None], pixels)
    edges = np.abs(np.gradient(dense.astype(float))).max(axis=0)
    regions = RegionSet.of(
        np.kron(ids, np.ones((CELL, CELL), dtype=int)),
        np.stack(members).reshape(len(members), -1),
        edges=edges,
        scores=np.full(len(members), 0.5),
    )
    point = torch.tensor([[column * CELL + 3.0, row * CELL + 3.0]])
    response = torch.zeros(1, CELLS, CELLS)
    response[0, row, column] = 1
    seeds = Seeds(
        size=(side, side),
        labels=torch.tensor([label]),
        points=point,
        scores=torch.ones(1),
        annotation_index=torch.tensor([0]),
        responses=response,
        maps=torch.from_numpy(np.where(inside, 2.0, -2.0)).float()[None],
    )
    annotation = Annotation((side, side), (WeakLabel(label),))
    requirements = requirements_of(annotation, regions, seeds=seeds)
    return ConditionalExample(
        number, torch.from_numpy(pixels).float().clamp(0, 1), prepared(requirements, seeds)
    )


def prepared(requirements: Requirements, seeds: Seeds) -> PreparedImage:
    """The regions as they are, none is filtered, with the votes of the seeds as targets."""
    votes = seed_votes(requirements, seeds)
    targets = soft_labels(requirements.regions, seeds, votes, requirements.labels)
    return PreparedImage(requirements, seed_prior(requirements, seeds, votes), targets)


def no_seeds(size: tuple[int, int]) -> Seeds:
    """The seeds of an image without labels."""
    numbers = torch.zeros(0, dtype=torch.int64)
    points, scores, maps = torch.zeros(0, 2), torch.zeros(0), torch.zeros(0, 2, 2)
    return Seeds(size, numbers, points, scores, numbers, maps, maps)
