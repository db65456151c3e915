"""Grouping: candidate regions from the nodes of several trees, and unions of two or three of them.

A node that survives long, because the border at which it merges is strong, is a good candidate.
Objects that no single node holds are often two or three neighbouring ones. Candidates with holes
come a second time with the holes filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from annocoin.regions.hierarchy import Tree
from annocoin.regions.holes import rim_of, without_holes
from annocoin.regions.mosaic import Mosaic

Members = npt.NDArray[np.bool_]

SMALLEST = 30
"""Pixels below which a node is no candidate."""

COMBINED = 150
"""The best nodes of each tree that are combined."""

PAIRS = 1200
"""Unions of two nodes kept for each tree."""

PAIRS_GROWN = 250
"""The best pairs of each tree that grow into triples."""

TRIPLES = 600
"""Unions of three nodes kept for each tree."""

FILLED = 4000
"""The best candidates whose holes are filled."""

SHARES = (0.65, 0.25, 0.10)
"""How many of the candidates are single nodes, pairs and triples."""


@dataclass(frozen=True)
class Candidates:
    """N distinct candidate regions, the promising ones first.

    Args:
        members: their superpixels, [N, S].
        parts: how many nodes each is the union of, 1..3, [N].
        places: the place in the list of its kind, from 0 on, [N].
    """

    members: Members
    parts: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]


def group(trees: Sequence[Tree], mosaic: Mosaic, limit: int) -> Candidates:
    """At most `limit` candidates from trees of a mosaic's superpixels; the whole image is last."""
    areas, elements = mosaic.areas, mosaic.elements
    adjacent = np.zeros((len(areas), len(areas)), dtype=np.float32)
    adjacent[elements.pairs[:, 0], elements.pairs[:, 1]] = 1
    adjacent += adjacent.T
    kinds: tuple[list[Members], ...] = ([], [], [])
    for tree in trees:
        for kind, found in zip(kinds, _of_tree(tree, adjacent, areas), strict=True):
            kind.append(found)
    merged = [_round_robin(kind, limit) for kind in kinds]
    turn = [
        (np.arange(len(found)) + 0.5) / share for found, share in zip(merged, SHARES, strict=True)
    ]
    order = np.argsort(np.concatenate(turn), kind="stable")[: limit - 1]
    members = np.concatenate(merged)[order]
    parts = np.repeat([1, 2, 3], [len(found) for found in merged])[order]
    places = np.concatenate([np.arange(len(found)) for found in merged])[order]
    filled = without_holes(members[:FILLED], elements, rim_of(mosaic.ids))
    changed = np.flatnonzero((filled != members[:FILLED]).any(axis=1))
    members = np.concatenate([members, filled[changed]])
    parts, places = np.append(parts, parts[changed]), np.append(places, places[changed])
    fresh = _first_of_each(members)
    fresh = fresh[~members[fresh].all(axis=1)][: limit - 1]
    return Candidates(
        np.append(members[fresh], np.ones((1, len(areas)), dtype=bool), axis=0),
        np.append(parts[fresh], 1),
        np.append(places[fresh], len(merged[0])),
    )


def _of_tree(
    tree: Tree, adjacent: npt.NDArray[np.float32], areas: npt.NDArray[np.int64]
) -> tuple[Members, Members, Members]:
    """Single nodes, pairs and triples of one tree, each list by falling survival."""
    members = tree.members()
    survival = tree.altitudes[tree.parents]
    large = np.flatnonzero(members[:-1] @ areas >= min(SMALLEST, areas.sum() / 100))
    nodes = large[np.argsort(-survival[large], kind="stable")]
    top = nodes[:COMBINED]
    inside = members[top].astype(np.float32)
    disjoint = inside @ inside.T == 0
    near = (inside @ adjacent @ inside.T > 0) & disjoint
    parents = np.where(np.bincount(tree.parents)[tree.parents] == 2, tree.parents, -1)[top]
    make_parent = (parents[:, None] == parents[None, :]) & (parents >= 0)
    first, second = np.nonzero(np.triu(near & ~make_parent))
    # The nodes stand by falling survival: the later one of a pair is the one that says how good.
    by_weakest = np.argsort(second, kind="stable")[:PAIRS]
    first, second = first[by_weakest], second[by_weakest]
    pairs = members[top[first]] | members[top[second]]
    first, second = first[:PAIRS_GROWN], second[:PAIRS_GROWN]
    fits = (near[first] | near[second]) & disjoint[first] & disjoint[second]
    fits &= np.arange(len(top)) > second[:, None]
    pair, third = np.nonzero(fits)
    by_weakest = np.argsort(third, kind="stable")[:TRIPLES]
    pair, third = pair[by_weakest], third[by_weakest]
    return members[nodes], pairs, pairs[pair] | members[top[third]]


def _round_robin(lists: Sequence[Members], limit: int) -> Members:
    """The first of each list, then the second of each, and so on."""
    turn = np.concatenate([np.arange(len(found)) for found in lists])
    return np.concatenate(lists)[np.argsort(turn, kind="stable")[:limit]]


def _first_of_each(members: Members) -> npt.NDArray[np.int64]:
    """The positions of the rows that equal no earlier row, rising."""
    packed = np.packbits(members, axis=1)
    keys = np.ascontiguousarray(packed).view(f"V{packed.shape[1]}").ravel()
    _, first = np.unique(keys, return_index=True)
    return np.sort(first)
