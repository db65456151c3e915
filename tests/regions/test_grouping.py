from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from annocoin.regions.elements import Elements
from annocoin.regions.grouping import group
from annocoin.regions.hierarchy import average_linkage
from annocoin.regions.selection import select


def row_of_pieces(count: int, side: int = 10) -> tuple[np.ndarray, Elements, np.ndarray]:
    ids = np.repeat(np.arange(count), side)[None].repeat(side, axis=0)
    return ids, Elements.of(ids), np.bincount(ids.ravel())


def sets(members: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(np.flatnonzero(row).tolist()) for row in members]


def test_nodes_pairs_and_triples_of_a_row() -> None:
    _, elements, areas = row_of_pieces(4)
    # Merges 0+1, then 2+3, then all.
    tree = average_linkage(elements, np.array([0.1, 0.9, 0.2]), areas)
    found = group([tree], elements, areas, limit=100)
    kinds = {parts: set() for parts in (1, 2, 3)}
    for members, parts in zip(sets(found.members), found.parts.tolist(), strict=True):
        kinds[parts].add(members)
    assert kinds[1] == {(0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 1, 2, 3)}
    assert kinds[2] == {(1, 2), (0, 1, 2), (1, 2, 3)}  # what is no node yet, and hangs together
    assert sets(found.members)[-1] == (0, 1, 2, 3)
    assert sets(found.members)[0] in ((0, 1), (2, 3))  # survives longest


def test_candidates_are_distinct_and_bounded() -> None:
    rng = np.random.default_rng(0)
    ids = np.arange(100).reshape(10, 10).repeat(8, axis=0).repeat(8, axis=1)
    elements, areas = Elements.of(ids), np.full(100, 64)
    trees = [average_linkage(elements, rng.random(len(elements.pairs)), areas) for _ in range(3)]
    for limit in (1, 2, 50, 1000):
        found = group(trees, elements, areas, limit=limit)
        assert len(found.members) <= limit
        assert len(set(sets(found.members))) == len(found.members)
        assert found.members[-1].all()
        assert found.members.any(axis=1).all()
    assert set(found.parts.tolist()) == {1, 2, 3}
    assert (found.places >= 0).all()


def test_specks_are_no_candidates_but_tiny_images_have_some() -> None:
    ids = np.zeros((100, 100), int)
    ids[50, 50] = 1
    elements, areas = Elements.of(ids), np.bincount(ids.ravel())
    tree = average_linkage(elements, np.ones(1), areas)
    assert sets(group([tree], elements, areas, limit=9).members) == [(0,), (0, 1)]
    _, elements, areas = row_of_pieces(2, side=2)
    tree = average_linkage(elements, np.ones(1), areas)
    assert sets(group([tree], elements, areas, limit=9).members) == [(0,), (1,), (0, 1)]


def naive_select(
    members: np.ndarray, areas: np.ndarray, limit: int, rounds: list[tuple[int, float]]
) -> list[int]:
    taken: list[int] = []

    def iou(i: int, j: int) -> float:
        both, either = members[i] & members[j], members[i] | members[j]
        return float(areas[both].sum() / areas[either].sum())

    for until, most in rounds:
        for i in range(len(members)):
            if len(taken) >= min(until, limit):
                break
            if i not in taken and all(iou(i, j) <= most for j in taken):
                taken.append(i)
    return taken


@given(
    st.integers(1, 60),
    st.integers(1, 8),
    st.integers(1, 40),
    st.sampled_from([2, 5, 256]),
    st.integers(0, 10**6),
)
def test_selection_takes_what_the_plain_loop_takes(
    count: int, superpixels: int, limit: int, block: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    members = rng.random((count, superpixels)) < 0.5
    members[np.arange(count), rng.integers(0, superpixels, count)] = True
    areas = rng.integers(1, 50, superpixels)
    rounds = [(3, 0.3), (8, 0.55), (20, 0.8), (10**6, 0.93)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("annocoin.regions.selection.BLOCK", block)
        found = select(members, areas, limit, rounds)
    assert found.tolist() == naive_select(members, areas, limit, rounds)


def test_nothing_to_choose_from() -> None:
    assert select(np.zeros((0, 3), bool), np.ones(3, int), 5).tolist() == []
    assert select(np.ones((2, 3), bool), np.ones(3, int), 0).tolist() == []
