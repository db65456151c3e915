"""Class shares of superpixels and the evidence for regions, by hand and by loops."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annocoin.regions.region_set import RegionSet
from annocoin.seeds.evidence import (
    AREA_THRESHOLD,
    CONTRAST_WEIGHT,
    EXTENT_WEIGHT,
    class_shares,
    diffuse,
    region_evidence,
    share_labels,
)
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.votes import log_objectness
from conditional.worlds import seeds_at, stripes
from regions.worlds import World, worlds
from seeds.test_votes import random_seeds

LABELS = (1, 2, 3)
"""Random seeds are of classes 1 and 2."""


def with_maps(seeds: Seeds, *maps: list[float]) -> Seeds:
    """Seeds in the image of stripes whose map has a value for each stripe."""
    dense = [torch.tensor(values).repeat_interleave(2).repeat(6, 1) for values in maps]
    return replace(seeds, maps=torch.stack(dense))


@given(worlds(), st.integers(0, 1000))
def test_class_shares_step_by_step(world: World, seed: int) -> None:
    regions, seeds = world.regions, random_seeds(world, seed)
    seeds = replace(seeds, maps=seeds.maps[:1].expand_as(seeds.maps) + seeds.labels[:, None, None])
    shares = class_shares(regions, seeds, LABELS)
    assert shares.shape == (3, regions.membership.shape[1])
    for j, label in enumerate(LABELS):
        of_class = [n for n in range(len(seeds)) if seeds.labels[n] == label]
        if not of_class:
            assert shares[j].tolist() == [0] * shares.shape[1]
            continue
        means = []
        for s in range(shares.shape[1]):
            pixels = seeds.maps[of_class[0]][torch.from_numpy(world.ids == s)]
            means.append(max(0.0, float(pixels.mean())))
        if max(means) < 1e-3:
            continue
        relative = torch.tensor([[math.sqrt(mean / max(means)) for mean in means]])
        diffused = diffuse(regions, relative)[0]
        torch.testing.assert_close(shares[j], diffused / diffused.max(), rtol=1e-3, atol=1e-4)


@given(worlds(), st.integers(0, 1000))
def test_class_shares_are_in_range_and_1_at_the_maximum(world: World, seed: int) -> None:
    regions, seeds = world.regions, random_seeds(world, seed)
    shares = class_shares(regions, seeds, LABELS)
    assert bool(((shares >= 0) & (shares <= 1)).all())
    for row, label in zip(shares, LABELS, strict=True):
        of_class = (seeds.labels == label).nonzero()[:1, 0]
        if not len(of_class):
            assert float(row.max()) == 0
        elif regions.superpixel_means(seeds.maps[of_class]).max() > 1e-3:
            assert float(row.max()) == 1


def test_a_map_that_is_nowhere_positive_has_no_share() -> None:
    seeds = with_maps(seeds_at([(0.5, 3.0)], [2]), [-1.0, -2.0, -0.5, -3.0])
    assert class_shares(stripes([0]), seeds, (1, 2)).tolist() == [[0] * 4] * 2


def test_shares_spread_up_to_the_boundary() -> None:
    """The class map is positive on one of two stripes without a border; an edge is to the right."""
    edges = np.zeros((6, 8))
    edges[:, 3:5] = 1
    regions = RegionSet.of(stripes([0]).superpixels, [[1, 1, 0, 0]], edges=edges)
    seeds = with_maps(seeds_at([(0.5, 3.0)], [1]), [4.0, 0.0, 0.0, -3.0])
    shares = class_shares(regions, seeds, (1,))[0]
    assert shares[:2].tolist() == pytest.approx([1, 1], abs=0.02)
    assert shares[2:].tolist() == pytest.approx([0.2, 0.2], abs=0.2)
    assert shares[1] > 2 * shares[2]


def random_shares(world: World, seed: int, classes: int = 2) -> torch.Tensor:
    """Also equal ones, and classes with a large area."""
    generator = torch.Generator().manual_seed(seed)
    shares = torch.rand(classes, world.members.shape[1], generator=generator)
    return (shares * 4).round() / 4 if seed % 2 else shares


@given(worlds(), st.integers(0, 1000))
def test_evidence_by_loops_over_superpixels(world: World, seed: int) -> None:
    regions, shares = world.regions, random_shares(world, seed)
    evidence = region_evidence(regions, shares)
    assert evidence.shape == (len(regions), 2)
    areas = [int((world.ids == s).sum()) for s in range(shares.shape[1])]
    rings, objectness = regions.rings(), log_objectness(regions)

    def mean_share(j: int, superpixels: list[int]) -> float:
        total = sum(areas[s] for s in superpixels)
        return sum(areas[s] * float(shares[j, s]) for s in superpixels) / max(1, total)

    for u in range(len(regions)):
        inside = [s for s in range(len(areas)) if world.members[u, s]]
        around = [s for s in range(len(areas)) if rings[u, s]]
        for j in range(2):
            of_class = [
                s
                for s in range(len(areas))
                if shares[j, s] > AREA_THRESHOLD and shares[j, s] >= shares[1 - j, s]
            ]
            common = sum(areas[s] for s in of_class if s in inside)
            union = sum(areas[s] for s in {*of_class, *inside})
            expected = float(objectness[u])
            expected += CONTRAST_WEIGHT * (mean_share(j, inside) - mean_share(j, around))
            expected += EXTENT_WEIGHT * common / union
            assert float(evidence[u, j]) == pytest.approx(expected, abs=1e-4)


def test_the_region_that_equals_the_area_of_a_class_has_the_best_evidence() -> None:
    """Not a part of it, which has the same contrast, nor a region that also has background."""
    parts = [[0, 1], [0], [0, 1, 2], [2, 3], [0, 1, 2, 3]]
    regions = replace(stripes(*parts), scores=torch.full((5,), 0.5))
    shares = torch.tensor([[1.0, 0.9, 0.1, 0.0], [0.0, 0.0, 0.8, 1.0]])
    evidence = region_evidence(regions, shares)
    assert evidence.argmax(dim=0).tolist() == [0, 3]


def test_the_area_of_a_class_excludes_that_of_a_stronger_one() -> None:
    regions = stripes([0], [1])
    objectness = log_objectness(regions)
    shares = torch.tensor([[0.9, 0.6, 0.0, 0.0], [0.0, 0.7, 0.0, 0.0]])
    extent = (region_evidence(regions, shares) - objectness[:, None]) / EXTENT_WEIGHT
    contrast = CONTRAST_WEIGHT / EXTENT_WEIGHT
    assert float(extent[0, 0]) == pytest.approx(contrast * (0.9 - 0.6) + 1)
    assert float(extent[1, 0]) == pytest.approx(contrast * (0.6 - 0.45))
    assert float(extent[1, 1]) == pytest.approx(contrast * 0.7 + 1)


@given(worlds(), st.integers(0, 1000))
def test_share_labels_by_loops(world: World, seed: int) -> None:
    shares = random_shares(world, seed, classes=3)
    labels = share_labels(shares)
    torch.testing.assert_close(labels.sum(dim=0), torch.ones(shares.shape[1]))
    for s, values in enumerate(shares.T.tolist()):
        background = 1 - max(values)
        total = background + sum(values)
        expected = [background / total, *(value / total for value in values)]
        assert labels[:, s].tolist() == pytest.approx(expected, abs=1e-6)


def test_share_labels_by_hand() -> None:
    labels = share_labels(torch.tensor([[1.0, 0.5, 0.0, 1.0], [0.0, 0.0, 0.0, 1.0]]))
    expected = [[0, 0.5, 1, 0], [1, 0.5, 0, 0.5], [0, 0, 0, 0.5]]
    torch.testing.assert_close(labels, torch.tensor(expected))


def test_no_seeds_no_classes_and_no_regions() -> None:
    regions, none = stripes([0], [1, 2]), seeds_at([(0.5, 3.0)], [1])[[]]
    assert class_shares(regions, none, (1, 2)).tolist() == [[0] * 4] * 2
    assert class_shares(regions, none, ()).shape == (0, 4)
    assert share_labels(torch.zeros(0, 4)).tolist() == [[1] * 4]
    without_share = region_evidence(regions, torch.zeros(2, 4))
    torch.testing.assert_close(without_share, log_objectness(regions)[:, None].expand(2, 2))
    assert region_evidence(regions[[]], torch.zeros(2, 4)).shape == (0, 2)
    assert region_evidence(regions, torch.zeros(0, 4)).shape == (2, 0)
