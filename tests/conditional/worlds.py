"""Random images with random annotations of every kind."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from annocoin import masks
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation, WeakLabel
from regions.worlds import worlds


@st.composite
def annotated(draw: st.DrawFn, most: int = 7, weak_labels: int = 4) -> tuple[RegionSet, Annotation]:
    """A region set, and up to `weak_labels` tags, points, boxes and masks of up to three classes."""
    regions = draw(worlds(most)).regions
    height, width = regions.size
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    said = []
    for _ in range(draw(st.integers(0, weak_labels))):
        label = int(rng.integers(1, 4))
        x, y = rng.random(2) * (width, height)
        x0, y0 = rng.integers(0, width), rng.integers(0, height)
        x1, y1 = rng.integers(x0 + 1, width + 1), rng.integers(y0 + 1, height + 1)
        box = (float(x0), float(y0), float(x1), float(y1))
        dense = np.zeros((1, height, width), dtype=bool)
        dense[:, y0:y1, x0:x1] = True
        kind = draw(st.sampled_from(["tag", "point", "box", "mask", "crowd"]))
        said.append(
            {
                "tag": WeakLabel(label),
                "point": WeakLabel(label, point=(float(x), float(y))),
                "box": WeakLabel(label, box=box),
                "mask": WeakLabel(label, mask=masks.encode(dense)[0]),
                "crowd": WeakLabel(label, box=box, crowd=True),
            }[kind]
        )
    return regions, Annotation((height, width), tuple(said))


def random_seeds(annotation: Annotation, seed: int) -> Seeds:
    """One or two seeds for every weak_label, anywhere."""
    generator = torch.Generator().manual_seed(seed)
    repeats = torch.randint(1, 3, (len(annotation),), generator=generator)
    weak_labels = torch.arange(len(annotation)).repeat_interleave(repeats)
    count, (height, width) = len(weak_labels), annotation.size
    responses = torch.rand(count, 3, 3, generator=generator)
    return Seeds(
        size=annotation.size,
        labels=annotation.labels[weak_labels],
        points=torch.rand(count, 2, generator=generator) * torch.tensor([width, height]),
        scores=torch.rand(count, generator=generator),
        weak_labels=weak_labels,
        responses=responses / responses.sum(dim=(1, 2), keepdim=True),
        maps=torch.randn(count, 3, 3, generator=generator),
    )
