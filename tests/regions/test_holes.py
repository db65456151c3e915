from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from annocoin.regions.hierarchy import fill_holes, watershed_superpixels
from annocoin.regions.superpixel_graph import BoundaryElements


@given(st.integers(1, 14), st.integers(1, 14), st.integers(1, 150), st.integers(0, 10**6))
def test_holes_are_filled_as_in_the_mask(h: int, w: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = watershed_superpixels(rng.random((h, w)), 60)
    members = rng.random((count, int(ids.max()) + 1)) < rng.uniform(0.3, 0.9)
    filled = fill_holes(members, ids, BoundaryElements.of(ids))
    for before, after in zip(members, filled, strict=True):
        assert (after[ids] == ndimage.binary_fill_holes(before[ids])).all()


def test_a_ring_in_a_ring() -> None:
    ids = np.zeros((9, 9), int)
    for i in range(1, 5):
        ids[i:-i, i:-i] = i
    members = np.array([[0, 1, 0, 1, 0], [0, 0, 1, 0, 0], [1, 0, 0, 0, 0]], bool)
    filled = fill_holes(members, ids, BoundaryElements.of(ids))
    assert filled.astype(int).tolist() == [[0, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]
