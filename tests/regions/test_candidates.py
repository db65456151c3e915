from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from annocoin.regions.hierarchy import Tree, average_linkage, candidate_regions
from annocoin.regions.proposals import select_diverse
from annocoin.regions.superpixel_graph import BoundaryElements, SuperpixelGraph


def graph_of(ids: np.ndarray) -> SuperpixelGraph:
    elements = BoundaryElements.of(ids)
    strengths = np.zeros((2, len(elements.pairs)))
    return SuperpixelGraph(
        np.zeros((*ids.shape, 3), np.uint8), ids.astype(np.int32), elements, strengths
    )


def row_of_superpixels(count: int, side: int = 10) -> SuperpixelGraph:
    return graph_of(np.repeat(np.arange(count), side)[None].repeat(side, axis=0))


def tree_of(graph: SuperpixelGraph, *strengths: float) -> Tree:
    return average_linkage(graph.elements, np.array(strengths), graph.areas)


def sets(members: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(np.flatnonzero(row).tolist()) for row in members]


def test_nodes_pairs_and_triples_of_a_row() -> None:
    graph = row_of_superpixels(4)
    # Merges 0+1, then 2+3, then all.
    candidates = candidate_regions([tree_of(graph, 0.1, 0.9, 0.2)], graph, 100)
    kinds = {count: set() for count in (1, 2, 3)}
    for members, count in zip(sets(candidates.members), candidates.num_nodes.tolist(), strict=True):
        kinds[count].add(members)
    assert kinds[1] == {(0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 1, 2, 3)}
    assert kinds[2] == {(1, 2), (0, 1, 2), (1, 2, 3)}  # connected, and no node itself
    assert kinds[3] == set()  # no further connected sets
    assert sets(candidates.members)[-1] == (0, 1, 2, 3)
    assert sets(candidates.members)[0] in ((0, 1), (2, 3))  # the highest survival


def test_unions_are_connected_and_ranked_by_their_lowest_survival() -> None:
    """All unions of two and three nodes in a row of eight, against an exhaustive search."""
    graph = row_of_superpixels(8)
    tree = tree_of(graph, 0.1, 0.5, 0.2, 0.9, 0.3, 0.6, 0.4)
    candidates = candidate_regions([tree], graph, 10_000)
    survival = tree.altitudes[tree.parents]
    nodes = {tuple(np.flatnonzero(row)): survival[i] for i, row in enumerate(tree.members()[:-1])}
    smaller = {*nodes, tuple(range(8))}
    for count in (2, 3):
        unions = [
            m
            for m, n in zip(sets(candidates.members), candidates.num_nodes, strict=True)
            if n == count
        ]
        possible: dict[tuple[int, ...], float] = {}
        for chosen in itertools.combinations(nodes, count):
            union = tuple(sorted(sum(chosen, ())))
            disjoint = len(set(union)) == len(union)
            if disjoint and union[-1] - union[0] == len(union) - 1:  # connected
                lowest = min(nodes[c] for c in chosen)
                possible[union] = max(lowest, possible.get(union, 0))
        assert set(unions) == set(possible) - smaller
        ranking = [possible[union] for union in unions]
        assert ranking == sorted(ranking, reverse=True)
        smaller |= set(unions)


def test_candidates_are_distinct_and_bounded() -> None:
    rng = np.random.default_rng(0)
    ids = np.arange(100).reshape(10, 10).repeat(8, axis=0).repeat(8, axis=1)
    graph = graph_of(ids)
    trees = [tree_of(graph, *rng.random(len(graph.elements.pairs))) for _ in range(3)]
    for limit in (1, 2, 50, 1000):
        candidates = candidate_regions(trees, graph, limit)
        assert len(candidates.members) <= limit
        assert len(set(sets(candidates.members))) == len(candidates.members)
        assert candidates.members[-1].all()
        assert candidates.members.any(axis=1).all()
    assert set(candidates.num_nodes.tolist()) == {1, 2, 3}
    assert (candidates.ranks >= 0).all()


def test_small_nodes_are_no_candidates_except_in_tiny_images() -> None:
    ids = np.zeros((100, 100), int)
    ids[50, 50] = 1
    speck = graph_of(ids)
    assert sets(candidate_regions([tree_of(speck, 1.0)], speck, 9).members) == [(0,), (0, 1)]
    tiny = row_of_superpixels(2, side=2)
    assert sets(candidate_regions([tree_of(tiny, 1.0)], tiny, 9).members) == [(0,), (1,), (0, 1)]


def test_a_ring_with_its_hole_filled_is_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("annocoin.regions.hierarchy.MAX_PAIRS", 0)  # else a pair is the filled ring
    ids = np.zeros((40, 40), int)
    ids[8:-8, 8:-8] = 1
    ids[14:-14, 14:-14] = 2
    graph = graph_of(ids)
    # The ring merges with the background first: no node is the filled ring.
    regions = sets(candidate_regions([tree_of(graph, 0.1, 0.9)], graph, 20).members)
    assert (1,) in regions
    assert (1, 2) in regions


def naive_select(
    members: np.ndarray, areas: np.ndarray, limit: int, rounds: list[tuple[int, float]]
) -> list[int]:
    selected: list[int] = []

    def iou(i: int, j: int) -> float:
        both, either = members[i] & members[j], members[i] | members[j]
        return float(areas[both].sum() / areas[either].sum())

    for until, max_iou in rounds:
        for i in range(len(members)):
            if len(selected) >= min(until, limit):
                break
            if i not in selected and all(iou(i, j) <= max_iou for j in selected):
                selected.append(i)
    return selected


@given(
    st.integers(1, 60),
    st.integers(1, 8),
    st.integers(1, 40),
    st.sampled_from([2, 5, 256]),
    st.integers(0, 10**6),
)
def test_selection_equals_a_plain_loop(
    count: int, superpixels: int, limit: int, block: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    members = rng.random((count, superpixels)) < 0.5
    members[np.arange(count), rng.integers(0, superpixels, count)] = True
    areas = rng.integers(1, 50, superpixels)
    rounds = [(3, 0.3), (8, 0.55), (20, 0.8), (10**6, 0.93)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("annocoin.regions.proposals.SELECTION_BLOCK", block)
        selected = select_diverse(members, areas, limit, rounds)
    assert selected.tolist() == naive_select(members, areas, limit, rounds)


def test_selection_of_nothing() -> None:
    assert select_diverse(np.zeros((0, 3), bool), np.ones(3, int), 5).tolist() == []
    assert select_diverse(np.ones((2, 3), bool), np.ones(3, int), 0).tolist() == []
