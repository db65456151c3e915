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


def row_of_pieces(count: int, side: int = 10) -> SuperpixelGraph:
    return graph_of(np.repeat(np.arange(count), side)[None].repeat(side, axis=0))


def tree_of(graph: SuperpixelGraph, *strengths: float) -> Tree:
    return average_linkage(graph.elements, np.array(strengths), graph.areas)


def sets(members: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(np.flatnonzero(row).tolist()) for row in members]


def test_nodes_pairs_and_triples_of_a_row() -> None:
    graph = row_of_pieces(4)
    # Merges 0+1, then 2+3, then all.
    found = candidate_regions([tree_of(graph, 0.1, 0.9, 0.2)], graph, 100)
    kinds = {parts: set() for parts in (1, 2, 3)}
    for members, parts in zip(sets(found.members), found.num_nodes.tolist(), strict=True):
        kinds[parts].add(members)
    assert kinds[1] == {(0,), (1,), (2,), (3,), (0, 1), (2, 3), (0, 1, 2, 3)}
    assert kinds[2] == {(1, 2), (0, 1, 2), (1, 2, 3)}  # what is no node yet, and hangs together
    assert kinds[3] == set()  # a row of four has no more
    assert sets(found.members)[-1] == (0, 1, 2, 3)
    assert sets(found.members)[0] in ((0, 1), (2, 3))  # survives longest


def test_unions_are_disjoint_neighbours_and_the_weakest_part_ranks_them() -> None:
    """A row of eight, cut in the middle of each half: every union against a plain search."""
    graph = row_of_pieces(8)
    tree = tree_of(graph, 0.1, 0.5, 0.2, 0.9, 0.3, 0.6, 0.4)
    found = candidate_regions([tree], graph, 10_000)
    survival = tree.altitudes[tree.parents]
    nodes = {tuple(np.flatnonzero(row)): survival[i] for i, row in enumerate(tree.members()[:-1])}
    smaller = {*nodes, tuple(range(8))}
    for parts in (2, 3):
        own = [m for m, p in zip(sets(found.members), found.num_nodes, strict=True) if p == parts]
        possible: dict[tuple[int, ...], float] = {}
        for chosen in itertools.combinations(nodes, parts):
            union = tuple(sorted(sum(chosen, ())))
            disjoint = len(set(union)) == len(union)
            if disjoint and union[-1] - union[0] == len(union) - 1:  # hangs together
                worth = min(nodes[c] for c in chosen)
                possible[union] = max(worth, possible.get(union, 0))
        assert set(own) == set(possible) - smaller
        worths = [possible[union] for union in own]
        assert worths == sorted(worths, reverse=True)
        smaller |= set(own)


def test_candidates_are_distinct_and_bounded() -> None:
    rng = np.random.default_rng(0)
    ids = np.arange(100).reshape(10, 10).repeat(8, axis=0).repeat(8, axis=1)
    graph = graph_of(ids)
    trees = [tree_of(graph, *rng.random(len(graph.elements.pairs))) for _ in range(3)]
    for limit in (1, 2, 50, 1000):
        found = candidate_regions(trees, graph, limit)
        assert len(found.members) <= limit
        assert len(set(sets(found.members))) == len(found.members)
        assert found.members[-1].all()
        assert found.members.any(axis=1).all()
    assert set(found.num_nodes.tolist()) == {1, 2, 3}
    assert (found.ranks >= 0).all()


def test_specks_are_no_candidates_but_tiny_images_have_some() -> None:
    ids = np.zeros((100, 100), int)
    ids[50, 50] = 1
    speck = graph_of(ids)
    assert sets(candidate_regions([tree_of(speck, 1.0)], speck, 9).members) == [(0,), (0, 1)]
    tiny = row_of_pieces(2, side=2)
    assert sets(candidate_regions([tree_of(tiny, 1.0)], tiny, 9).members) == [(0,), (1,), (0, 1)]


def test_a_ring_comes_with_its_hole_filled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("annocoin.regions.hierarchy.MAX_PAIRS", 0)  # a pair would be the same
    ids = np.zeros((40, 40), int)
    ids[8:-8, 8:-8] = 1
    ids[14:-14, 14:-14] = 2
    graph = graph_of(ids)
    # The ring merges with the background first: no node is the ring and its inside.
    found = sets(candidate_regions([tree_of(graph, 0.1, 0.9)], graph, 20).members)
    assert (1,) in found
    assert (1, 2) in found


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
        patch.setattr("annocoin.regions.proposals.SELECTION_BLOCK", block)
        found = select_diverse(members, areas, limit, rounds)
    assert found.tolist() == naive_select(members, areas, limit, rounds)


def test_nothing_to_choose_from() -> None:
    assert select_diverse(np.zeros((0, 3), bool), np.ones(3, int), 5).tolist() == []
    assert select_diverse(np.ones((2, 3), bool), np.ones(3, int), 0).tolist() == []
