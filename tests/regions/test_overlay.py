from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annocoin import masks as rle
from annocoin.regions.region_set import RegionSet, regions_of_masks, with_masks
from regions.worlds import World, worlds


def random_masks(rng: np.random.Generator, count: int, shape: tuple[int, ...]) -> torch.Tensor:
    masks = rng.random((count, *shape)) < rng.random()
    masks[:, 0, 0] = True  # none is empty
    return torch.from_numpy(masks)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.integers(0, 10**6))
def test_masks_become_regions_pixel_by_pixel(h: int, w: int, count: int, seed: int) -> None:
    masks = random_masks(np.random.default_rng(seed), count, (h, w))
    regions = regions_of_masks(rle.encode(masks.numpy()), (h, w))
    assert torch.equal(regions.masks(), masks)
    patterns = masks.reshape(count, -1).T.unique(dim=0)
    assert regions.membership.shape[1] == len(patterns)  # no superpixel is split without need


@given(worlds(), st.integers(1, 3), st.integers(0, 10**6))
def test_masks_are_appended_to_a_region_set(world: World, count: int, seed: int) -> None:
    old = world.regions
    masks = random_masks(np.random.default_rng(seed), count, old.size)
    extended = with_masks(old, rle.encode(masks.numpy()), score=0.25)
    assert torch.equal(with_masks(old, masks).masks(), extended.masks())
    assert torch.equal(extended.masks(), torch.cat([old.masks(), masks]))
    assert extended.scores.tolist() == old.scores.tolist() + [0.25] * count
    # The parts of an old border have its strength together.
    torch.testing.assert_close(
        extended[: len(old)].edge_strength_between(),
        old.edge_strength_between(),
        rtol=1e-4,
        atol=1e-4,
    )


def test_edge_strength_where_a_superpixel_is_split() -> None:
    old = RegionSet.of(np.array([[0, 0, 1]] * 2), np.eye(2), edges=np.full((2, 3), 0.25))
    left = np.array([[[1, 0, 0]] * 2])
    extended = with_masks(old, rle.encode(left), strength=0.75)
    between = {
        tuple(pair): m
        for pair, m in zip(extended.elements.tolist(), extended.edge_strength.tolist(), strict=True)
    }
    assert sorted(between.values()) == [0.5, 1.5]  # two pixel sides each: old border, new split
    assert extended.edge_strength_between()[0, 2] == 1.5  # the inner outline of the new region
    assert extended.edge_strength_between()[0, 1] == 0.5


def test_empty_or_misshapen_masks_are_refused() -> None:
    with pytest.raises(ValueError, match="empty region"):
        regions_of_masks(rle.encode(np.zeros((1, 3, 3))), (3, 3))
    with pytest.raises(ValueError, match="mask of size"):
        regions_of_masks(rle.encode(np.ones((1, 1, 3))), (3, 3))
