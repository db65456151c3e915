"""Votes of seeds for regions, by hand and by loops."""

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
from annocoin.seeds.votes import likelihood_inside, response_inside, soft_labels, vote, wholeness
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
def test_evidence_pixel_by_pixel(world: World, seed: int) -> None:
    seeds = random_seeds(world, seed)
    inside = response_inside(world.regions, seeds)
    likely = likelihood_inside(world.regions, seeds)
    for n in range(len(seeds)):
        for u, mask in enumerate(world.masks):
            pixels = torch.from_numpy(mask)
            assert float(inside[n, u]) == pytest.approx(
                float(seeds.responses[n][pixels].sum()), abs=1e-5
            )
            assert float(likely[n, u]) == pytest.approx(
                float(seeds.maps[n].sigmoid()[pixels].mean()), abs=1e-5
            )


@given(worlds(), st.integers(0, 1000))
def test_votes_by_loops(world: World, seed: int) -> None:
    regions, seeds = world.regions, random_seeds(world, seed)
    found = vote(regions, seeds, sharpness=2.0)
    height, width = world.ids.shape

    def holds(u: int, n: int) -> bool:
        x, y = seeds.points[n].floor().long().tolist()
        return bool(world.masks[u, min(y, height - 1), min(x, width - 1)])

    evidence = response_inside(regions, seeds) + likelihood_inside(regions, seeds)
    whole = wholeness(regions)
    for n in range(len(seeds)):
        own = [u for u in range(len(regions)) if holds(u, n)]
        others = [m for m in range(len(seeds)) if seeds.labels[m] != seeds.labels[n]]
        alone = [u for u in own if not any(holds(u, m) for m in others)]
        heard = alone or own or list(range(len(regions)))
        weights = {u: math.exp(2 * float(whole[u] + evidence[n, u])) for u in heard}
        for u in range(len(regions)):
            expected = weights.get(u, 0) / sum(weights.values())
            assert float(found[n, u]) == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_wholeness_wants_a_strong_outline_and_not_the_whole_image() -> None:
    ids = np.zeros((10, 10), dtype=int)
    ids[2:6, 2:6] = 1
    ids[8:, 8:] = 2
    edges = np.zeros((10, 10))
    edges[1:7, 1:7] = 1
    edges[3:5, 3:5] = 0
    regions = RegionSet.of(
        ids, [[0, 1, 0], [0, 0, 1], [1, 1, 1]], edges=edges, scores=np.full(3, 0.5)
    )
    square, corner, everything = wholeness(regions).tolist()
    assert square > corner > everything


def test_only_admissible_regions_are_voted_for() -> None:
    regions = stripes([[0], [0, 1], [0, 1, 2]], [0.9, 0.5, 0.5])
    seeds = seeds_at([(0.5, 3)], [1], [1.0])
    assert int(vote(regions, seeds).argmax()) == 0
    found = vote(regions, seeds, torch.tensor([[False, False, True]]))
    assert found.tolist() == [[0, 0, 1]]


def test_many_that_agree_outvote_the_most_object_like() -> None:
    """Three regions around the peak share most of their pixels; the best one of all is a part."""
    members = [[0], [0, 1, 2], [0, 1, 2], [0, 1, 2, 3]]
    ids = np.repeat([np.arange(12)], 6, axis=0).repeat(2, axis=1)
    regions = RegionSet.of(
        ids,
        [[stripe in region for stripe in range(12)] for region in members],
        scores=[0.5, 0.45, 0.45, 0.45],
        edges=np.full(ids.shape, 0.5),
    )
    seeds = seeds_at([(0.5, 3)], [1], [1.0], size=(6, 24))
    said = Annotation((6, 24), (WeakLabel(1),))
    assert retrieve(regions, seeds, said, "objectness").regions.tolist() == [0]
    assert retrieve(regions, seeds, said, "votes").regions.tolist() in ([1], [2])


@given(worlds(), st.integers(0, 1000))
def test_soft_labels_are_shares(world: World, seed: int) -> None:
    regions, seeds = world.regions, random_seeds(world, seed)
    found = soft_labels(regions, seeds, vote(regions, seeds), (1, 2))
    assert found.shape == (3, regions.membership.shape[1])
    assert bool((found >= 0).all())
    torch.testing.assert_close(found.sum(dim=0), torch.ones(found.shape[1]))


def test_soft_labels_by_hand() -> None:
    regions = stripes([[0], [0, 1], [3]], [0.5, 0.5, 0.5])
    seeds = seeds_at([(0.5, 3), (7.5, 3)], [1, 2], [1.0, 1.0])
    votes = torch.tensor([[0.25, 0.75, 0.0], [0.0, 0.0, 1.0]])
    found = soft_labels(regions, seeds, votes, (1, 2, 3))
    expected = [[0, 0.25, 1, 0], [1, 0.75, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_no_seeds() -> None:
    regions = stripes([[0], [1]], [0.5, 0.5])
    none = seeds_at([], [], [])
    assert vote(regions, none).shape == (0, 2)
    found = soft_labels(regions, none, vote(regions, none), (1,))
    assert found.tolist() == [[1] * 4, [0] * 4]
    assert soft_labels(regions, none, vote(regions, none), ()).tolist() == [[1] * 4]
