"""Evidence, votes and soft labels, by hand and by loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annocoin.regions.region_set import RegionSet
from annocoin.seeds.retrieval import retrieve
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.votes import (
    first_nonempty,
    log_objectness,
    probability_inside,
    response_inside,
    soft_labels,
    vote,
)
from annocoin.types import Annotation, WeakLabel
from regions.worlds import World, worlds
from seeds.test_retrieval import seeds_at, stripes


def random_seeds(world: World, seed: int) -> Seeds:
    height, width = world.ids.shape
    generator = torch.Generator().manual_seed(seed)
    count = int(torch.randint(1, 4, (1,), generator=generator))
    responses = torch.rand(count, height, width, generator=generator)
    return Seeds(
        size=(height, width),
        labels=torch.randint(1, 3, (count,), generator=generator),
        points=torch.rand(count, 2, generator=generator) * torch.tensor([width, height]),
        scores=torch.zeros(count),
        annotation_index=torch.zeros(count, dtype=torch.int64),
        responses=responses / responses.sum(dim=(1, 2), keepdim=True),
        maps=torch.randn(count, height, width, generator=generator),
    )


@given(worlds(), st.integers(0, 1000))
def test_evidence_equals_that_of_pixels(world: World, seed: int) -> None:
    seeds = random_seeds(world, seed)
    inside = response_inside(world.regions, seeds)
    probability = probability_inside(world.regions, seeds)
    for n in range(len(seeds)):
        for u, mask in enumerate(world.masks):
            pixels = torch.from_numpy(mask)
            assert float(inside[n, u]) == pytest.approx(
                float(seeds.responses[n][pixels].sum()), abs=1e-5
            )
            assert float(probability[n, u]) == pytest.approx(
                float(seeds.maps[n].sigmoid()[pixels].mean()), abs=1e-5
            )


@given(worlds(), st.integers(0, 1000))
def test_votes_equal_those_of_loops(world: World, seed: int) -> None:
    regions, seeds = world.regions, random_seeds(world, seed)
    votes = vote(regions, seeds, sharpness=2.0)
    height, width = world.ids.shape

    def contains(u: int, n: int) -> bool:
        x, y = seeds.points[n].floor().long().tolist()
        return bool(world.masks[u, min(y, height - 1), min(x, width - 1)])

    evidence = response_inside(regions, seeds) + probability_inside(regions, seeds)
    objectness = log_objectness(regions)
    for n in range(len(seeds)):
        around = [u for u in range(len(regions)) if contains(u, n)]
        others = [m for m in range(len(seeds)) if seeds.labels[m] != seeds.labels[n]]
        pure = [u for u in around if not any(contains(u, m) for m in others)]
        candidates = pure or around or list(range(len(regions)))
        weights = {u: math.exp(2 * float(objectness[u] + evidence[n, u])) for u in candidates}
        for u in range(len(regions)):
            expected = weights.get(u, 0) / sum(weights.values())
            assert float(votes[n, u]) == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_objectness_favours_strong_outlines_but_not_the_whole_image() -> None:
    ids = np.zeros((10, 10), dtype=int)
    ids[2:6, 2:6] = 1
    ids[8:, 8:] = 2
    edges = np.zeros((10, 10))
    edges[1:7, 1:7] = 1
    edges[3:5, 3:5] = 0
    regions = RegionSet.of(
        ids, [[0, 1, 0], [0, 0, 1], [1, 1, 1]], edges=edges, scores=np.full(3, 0.5)
    )
    square, corner, everything = log_objectness(regions).tolist()
    assert square > corner > everything


def test_only_compatible_regions_get_votes() -> None:
    regions = stripes([[0], [0, 1], [0, 1, 2]], [0.9, 0.5, 0.5])
    seeds = seeds_at([(0.5, 3)], [1], [1.0])
    assert int(vote(regions, seeds).argmax()) == 0
    assert vote(regions, seeds, torch.tensor([[False, False, True]])).tolist() == [[0, 0, 1]]
    assert vote(regions, seeds, torch.zeros(1, 3, dtype=torch.bool)).tolist() == [[0, 0, 0]]


def test_regions_that_agree_outvote_the_one_with_the_best_score() -> None:
    """Three regions around the peak share most of their pixels; a part has the best score."""
    members = [[0], [0, 1, 2], [0, 1, 2], [0, 1, 2, 3]]
    ids = np.repeat([np.arange(12)], 6, axis=0).repeat(2, axis=1)
    regions = RegionSet.of(
        ids,
        [[stripe in region for stripe in range(12)] for region in members],
        scores=[0.5, 0.45, 0.45, 0.45],
        edges=np.full(ids.shape, 0.5),
    )
    seeds = seeds_at([(0.5, 3)], [1], [1.0], size=(6, 24))
    annotation = Annotation((6, 24), (WeakLabel(1),))
    assert retrieve(regions, seeds, annotation, "objectness").regions.tolist() == [0]
    assert retrieve(regions, seeds, annotation, "votes").regions.tolist() in ([1], [2])


@given(worlds(), st.integers(0, 1000))
def test_soft_labels_are_distributions(world: World, seed: int) -> None:
    regions, seeds = world.regions, random_seeds(world, seed)
    labels = soft_labels(regions, seeds, vote(regions, seeds), (1, 2))
    assert labels.shape == (3, regions.membership.shape[1])
    assert bool((labels >= 0).all())
    torch.testing.assert_close(labels.sum(dim=0), torch.ones(labels.shape[1]))


def test_soft_labels_by_hand() -> None:
    regions = stripes([[0], [0, 1], [3]], [0.5, 0.5, 0.5])
    seeds = seeds_at([(0.5, 3), (7.5, 3)], [1, 2], [1.0, 1.0])
    votes = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]])
    labels = soft_labels(regions, seeds, votes, (1, 2, 3))
    expected = [[0, 0.25, 1, 0], [1, 0.75, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    torch.testing.assert_close(labels, torch.tensor(expected))


def test_no_seeds() -> None:
    regions = stripes([[0], [1]], [0.5, 0.5])
    none = seeds_at([], [], [])
    assert vote(regions, none).shape == (0, 2)
    labels = soft_labels(regions, none, vote(regions, none), (1,))
    assert labels.tolist() == [[1] * 4, [0] * 4]
    assert soft_labels(regions, none, vote(regions, none), ()).tolist() == [[1] * 4]


def test_the_first_nonempty_selection() -> None:
    empty, some = torch.tensor([False, False]), torch.tensor([False, True])
    assert first_nonempty(empty, some, ~empty) is some
    assert first_nonempty(~some & some, empty) is empty
