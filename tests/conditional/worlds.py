"""Small images with regions, annotations and seeds, by hand and at random."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from annocoin import masks
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation, WeakLabel
from regions.worlds import worlds

STRIPES = np.repeat([[0, 0, 1, 1, 2, 2, 3, 3]], 6, axis=0)  # four stripes of 6 x 2 pixels


def stripes(*members: list[int]) -> RegionSet:
    """Regions that are unions of the stripes 0..3."""
    return RegionSet.of(STRIPES, [[s in region for s in range(4)] for region in members])


def annotation(*weak_labels: WeakLabel) -> Annotation:
    """An annotation of the image of stripes."""
    return Annotation((6, 8), weak_labels)


def seeds_at(
    points: list[tuple[float, float]], labels: list[int], annotation_index: list[int] | None = None
) -> Seeds:
    """Seeds in the image of stripes; by default, of one weak label per class in ascending order."""
    count = len(points)
    if annotation_index is None:
        annotation_index = [sorted(set(labels)).index(label) for label in labels]
    return Seeds(
        size=(6, 8),
        labels=torch.tensor(labels),
        points=torch.tensor(points),
        scores=torch.ones(count),
        annotation_index=torch.tensor(annotation_index),
        responses=torch.full((count, 2, 2), 0.25),
        maps=torch.zeros(count, 2, 2),
    )


@st.composite
def annotated(
    draw: st.DrawFn, max_regions: int = 7, max_labels: int = 4
) -> tuple[RegionSet, Annotation]:
    """Regions, and up to `max_labels` tags, points, boxes, masks and crowds of three classes."""
    regions = draw(worlds(max_regions)).regions
    height, width = regions.size
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    weak_labels = []
    for _ in range(draw(st.integers(0, max_labels))):
        label = int(rng.integers(1, 4))
        x, y = rng.random(2) * (width, height)
        x0, y0 = rng.integers(0, width), rng.integers(0, height)
        x1, y1 = rng.integers(x0 + 1, width + 1), rng.integers(y0 + 1, height + 1)
        box = (float(x0), float(y0), float(x1), float(y1))
        dense = np.zeros((1, height, width), dtype=bool)
        dense[:, y0:y1, x0:x1] = True
        kind = draw(st.sampled_from(["tag", "point", "box", "mask", "crowd"]))
        weak_labels.append(
            {
                "tag": WeakLabel(label),
                "point": WeakLabel(label, point=(float(x), float(y))),
                "box": WeakLabel(label, box=box),
                "mask": WeakLabel(label, mask=masks.encode(dense)[0]),
                "crowd": WeakLabel(label, box=box, crowd=True),
            }[kind]
        )
    return regions, Annotation((height, width), tuple(weak_labels))


def random_seeds(annotation: Annotation, seed: int) -> Seeds:
    """One or two seeds for every weak label, anywhere in the image."""
    generator = torch.Generator().manual_seed(seed)
    repeats = torch.randint(1, 3, (len(annotation),), generator=generator)
    index = torch.arange(len(annotation)).repeat_interleave(repeats)
    count, (height, width) = len(index), annotation.size
    responses = torch.rand(count, 3, 3, generator=generator)
    return Seeds(
        size=annotation.size,
        labels=annotation.labels[index],
        points=torch.rand(count, 2, generator=generator) * torch.tensor([width, height]),
        scores=torch.rand(count, generator=generator),
        annotation_index=index,
        responses=responses / responses.sum(dim=(1, 2), keepdim=True),
        maps=torch.randn(count, 3, 3, generator=generator),
    )
