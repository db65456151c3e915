"""The region filter, by hand and by loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annocoin.errors import InputError
from annocoin.seeds.region_filter import (
    filter_regions,
    regions_in_boxes,
    regions_on_seeds,
    seed_pixels,
)
from annocoin.types import Annotation, WeakLabel
from regions.worlds import World, worlds
from seeds.test_retrieval import TAGS, seeds_at, stripes


@given(worlds(), st.integers(0, 1000), st.floats(0.05, 1))
def test_regions_on_seeds_are_those_of_pixels(world: World, seed: int, threshold: float) -> None:
    height, width = world.ids.shape
    rng = np.random.default_rng(seed)
    points = [(rng.uniform(0, width), rng.uniform(0, height)) for _ in range(2)]
    responses = torch.from_numpy(rng.random((2, height, width)).astype(np.float32))
    seeds = seeds_at(points, [1, 2], [0.0, 1.0], None, responses, (height, width))
    pixels = seed_pixels(seeds, threshold)
    for n, (x, y) in enumerate(points):
        expected = (responses[n] >= threshold * responses[n].max()).numpy()
        expected[int(y), int(x)] = True
        assert (pixels[n].numpy() == expected).mean() > 0.9  # rounding at the threshold
        assert pixels[n, int(y), int(x)]
    kept = regions_on_seeds(world.regions, seeds, threshold)
    on_seed = pixels.any(dim=0).numpy()
    assert kept.tolist() == [bool((mask & on_seed).any()) for mask in world.masks]
    # A peak is a pixel of its seed, so that the regions that contain it are kept.
    assert (kept | ~world.regions.contains(seeds.points).any(dim=1)).all()


def test_boxes_keep_matching_regions_and_at_least_the_best() -> None:
    regions = stripes([[0, 1, 2, 3], [0], [0, 1], [3]], [0.9, 0.8, 0.1, 0.05])
    annotation = Annotation(
        (6, 8), (WeakLabel(1, box=(0, 0, 4, 6)), WeakLabel(2, box=(7, 0, 8, 1)))
    )
    assert regions_in_boxes(regions, annotation, 0.6).tolist() == [False, False, True, True]
    assert regions_in_boxes(regions, annotation, 0.5).tolist() == [True, True, True, True]
    assert not regions_in_boxes(regions, TAGS, 0.5).any()
    seeds = seeds_at([(0.5, 3), (7.5, 0.5)], [1, 2], [2.0, 1.0], [0, 1])
    kept = filter_regions(regions, seeds, annotation, box_overlap=0.6)
    assert kept.tolist() == [False, False, True, True]
    mixed = Annotation((6, 8), (WeakLabel(1), WeakLabel(2, box=(7, 0, 8, 1))))
    kept = filter_regions(regions, seeds, mixed, box_overlap=0.6, top_regions=0)
    assert kept.tolist() == [True, True, True, True]
    near = seeds_at([(2.5, 3)], [1], [2.0])
    kept = filter_regions(regions, near, Annotation((6, 8), (WeakLabel(1),)), top_regions=0)
    assert kept.tolist() == [True, False, True, False]
    kept = filter_regions(regions, near, Annotation((6, 8), (WeakLabel(1),)), top_regions=2)
    assert kept.tolist() == [True, True, True, False]


def test_a_crowd_keeps_all_regions_inside_its_box() -> None:
    regions = stripes([[0, 1, 2, 3], [0, 1, 2], [0], [3]], [0.9, 0.8, 0.1, 0.05])
    one = WeakLabel(1, box=(0.0, 0.0, 6.0, 6.0))
    kept = regions_in_boxes(regions, Annotation((6, 8), (one,)), 0.9)
    assert kept.tolist() == [False, True, False, False]
    kept = regions_in_boxes(regions, Annotation((6, 8), (replace(one, crowd=True),)), 0.9)
    assert kept.tolist() == [False, True, True, False]


def test_filter_without_seeds_and_bad_thresholds() -> None:
    none = seeds_at([], [], [])
    assert not filter_regions(stripes([[0]], [0.5]), none, Annotation((6, 8))).any()
    with pytest.raises(InputError, match="response threshold 0; expected above 0"):
        seed_pixels(none, 0)
