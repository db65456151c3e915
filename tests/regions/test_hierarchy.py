from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from annocoin.regions.hierarchy import (
    Tree,
    average_linkage,
    contours,
    volume_watershed,
    watershed_superpixels,
)
from annocoin.regions.superpixel_graph import BoundaryElements


def row_of_squares(count: int, side: int, borders: dict[int, float]) -> np.ndarray:
    """Edges [side, count * side]: 0 except on the borders between squares."""
    edges = np.zeros((side, count * side))
    for position, strength in borders.items():
        edges[:, position * side - 1] = strength
    return edges


def naive_linkage(
    elements: BoundaryElements, strengths: np.ndarray, count: int
) -> list[frozenset[int]]:
    """Merge the two clusters with the weakest mean border until one is left."""
    clusters = [frozenset([i]) for i in range(count)]
    merged: list[frozenset[int]] = []
    while len(clusters) > 1:
        best: tuple[float, frozenset[int], frozenset[int]] | None = None
        for i, first in enumerate(clusters):
            for second in clusters[i + 1 :]:
                between = [
                    (s, n)
                    for (a, b), s, n in zip(
                        elements.pairs.tolist(), strengths, elements.lengths, strict=True
                    )
                    if (a in first and b in second) or (b in first and a in second)
                ]
                if between:
                    mean = sum(s * n for s, n in between) / sum(n for _, n in between)
                    if best is None or mean < best[0]:
                        best = (mean, first, second)
        assert best is not None
        clusters = [c for c in clusters if c not in best[1:]] + [best[1] | best[2]]
        merged.append(best[1] | best[2])
    return merged


@given(st.integers(0, 10**6))
def test_average_linkage_merges_the_weakest_mean_border_first(seed: int) -> None:
    rng = np.random.default_rng(seed)
    raw = np.repeat(np.repeat(rng.integers(0, 9, (4, 5)), 2, 0), 2, 1)
    ids = np.unique(raw, return_inverse=True)[1].reshape(raw.shape)
    elements = BoundaryElements.of(ids)
    strengths = rng.random(len(elements.pairs))
    areas = np.bincount(ids.ravel())
    tree = average_linkage(elements, strengths, areas)
    nodes = [frozenset(np.flatnonzero(row).tolist()) for row in tree.members()[len(areas) :]]
    assert nodes == naive_linkage(elements, strengths, len(areas))


def test_members_are_unions_of_their_children() -> None:
    tree = Tree(np.array([3, 3, 4, 4, 4]), np.array([0, 0, 0, 0.1, 0.2]), leaves=3)
    assert tree.members().astype(int).tolist() == [
        [1, 0, 0],
        [0, 1, 0],
        [0, 0, 1],
        [1, 1, 0],
        [1, 1, 1],
    ]


def test_volume_merges_the_small_basin_first() -> None:
    """Three basins of two superpixels each; the first is small, with the stronger border."""
    ids = np.repeat(np.arange(6), [1, 1, 9, 9, 9, 9])[None].repeat(9, axis=0)
    elements, areas = BoundaryElements.of(ids), np.bincount(ids.ravel())
    strengths = np.array([0.1, 0.5, 0.1, 0.4, 0.1])
    by_volume = volume_watershed(elements, strengths, areas).members().astype(int).tolist()
    by_strength = average_linkage(elements, strengths, areas).members().astype(int).tolist()
    small_first, weak_first = [1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1]
    assert small_first in by_volume
    assert weak_first not in by_volume
    assert weak_first in by_strength
    assert by_volume[-1] == [1] * 6


def test_superpixels_follow_the_edges() -> None:
    edges = row_of_squares(4, 12, {1: 0.9, 2: 0.5, 3: 0.7})
    ids = watershed_superpixels(edges, limit=100)
    assert ids.max() + 1 == 4
    assert [len(np.unique(ids[:, x])) for x in (0, 20, 30, 45)] == [1, 1, 1, 1]
    assert len({ids[0, x] for x in (0, 20, 30, 45)}) == 4
    fewer = watershed_superpixels(edges, limit=3)  # without the weakest border
    assert fewer.max() + 1 == 3
    assert fewer[0, 20] == fewer[0, 30]
    assert fewer[0, 0] != fewer[0, 20] != fewer[0, 45]


def test_a_tiny_superpixel_is_merged_before_a_large_one_with_a_weaker_border() -> None:
    edges = row_of_squares(2, 30, {1: 0.3})
    edges[10:13, 10:13] = 0.6
    edges[11, 11] = 0.0  # one pixel within a strong border
    ids = watershed_superpixels(edges, limit=2)
    assert ids[0, 0] != ids[0, 59]
    assert ids[11, 11] == ids[0, 0]


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 40), st.integers(0, 10**6))
def test_superpixels_are_connected_limited_and_numbered(
    h: int, w: int, limit: int, seed: int
) -> None:
    ids = watershed_superpixels(np.random.default_rng(seed).random((h, w)), limit)
    assert ids.shape == (h, w)
    assert ids.dtype == np.int32
    count = int(ids.max()) + 1
    assert count <= limit
    assert np.bincount(ids.ravel(), minlength=count).all()
    assert all(ndimage.label(ids == i)[1] == 1 for i in range(count))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_flat_map_is_one_superpixel(value: float) -> None:
    assert (watershed_superpixels(np.full((7, 9), value), 5) == 0).all()


def test_contours_are_the_altitudes_at_which_borders_disappear() -> None:
    ids = np.array([[0, 0, 1, 1, 2, 2]] * 2, dtype=np.int32)
    elements = BoundaryElements.of(ids)
    strengths = np.array([0.25, 0.75])
    tree = average_linkage(elements, strengths, np.bincount(ids.ravel()))
    contour_map = contours(tree, ids, elements)
    assert contour_map[0].tolist() == [0, 0.25, 0.25, 0.75, 0.75, 0]


@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 10**6))
def test_elements_count_every_pixel_side(h: int, w: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    ids = np.unique(rng.integers(0, 6, (h, w)), return_inverse=True)[1].reshape(h, w)
    edges = rng.random((h, w))
    expected: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for y in range(h):
        for x in range(w):
            for other in ((y, x + 1), (y + 1, x)):
                if other[0] < h and other[1] < w and ids[y, x] != ids[other]:
                    pair = tuple(sorted((int(ids[y, x]), int(ids[other]))))
                    values = edges[y, x], edges[other]
                    expected.setdefault(pair, []).append(values)  # type: ignore[arg-type]
    elements = BoundaryElements.of(ids)
    assert [tuple(pair) for pair in elements.pairs.tolist()] == sorted(expected)
    assert elements.lengths.tolist() == [len(expected[pair]) for pair in sorted(expected)]
    greatest = [sum(max(values) for values in expected[pair]) for pair in sorted(expected)]
    means = [sum(sum(values) / 2 for values in expected[pair]) for pair in sorted(expected)]
    assert elements.edge_strength(edges).tolist() == pytest.approx(greatest)
    assert elements.line_integral(edges).tolist() == pytest.approx(means)
