"""Hierarchies: superpixels, and the trees that merge them along their weakest borders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import higra as hg
import numpy as np
import numpy.typing as npt

from annocoin.regions.superpixel_graph import Elements, SuperpixelGraph

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]
Areas = npt.NDArray[np.int64]

SPECK = 400
"""Pixels from which on the size of a superpixel no longer helps it to survive the cut."""


@dataclass(frozen=True)
class Tree:
    """A tree of merges with N nodes: first the S superpixels, and parents after their children.

    Args:
        parents: the parent of each node, [N]; the last one is the root, its own parent.
        altitudes: the strength of the border at which a node was merged, [N]; leaves have 0.
        leaves: S.
    """

    parents: npt.NDArray[np.int64]
    altitudes: Floats
    leaves: int

    def members(self) -> npt.NDArray[np.bool_]:
        """The superpixels of every node, [N, S]."""
        inside = np.zeros((len(self.parents), self.leaves), dtype=bool)
        np.fill_diagonal(inside, True)
        for node, parent in enumerate(self.parents[:-1].tolist()):
            inside[parent] |= inside[node]
        return inside


def superpixels(edges: npt.NDArray[np.floating], limit: int) -> Ids:
    """Cut an image into at most `limit` pieces along its edges [H, W]: ids 0..S-1, int32 [H, W].

    The basins of a watershed are merged, weakest border first, until few enough are left. What
    counts is the border's strength times the root of the smaller piece's area: a cut by strength
    alone leaves specks.
    """
    height, width = edges.shape
    if height * width == 1:
        return np.zeros((1, 1), dtype=np.int32)
    graph = hg.get_4_adjacency_graph((height, width))
    sides = hg.weight_graph(graph, edges.astype(np.float64), hg.WeightFunction.max)
    basins = (hg.labelisation_watershed(graph, sides) - 1).astype(np.int32).reshape(edges.shape)
    count = int(basins.max()) + 1
    if count <= limit:
        return basins
    elements = Elements.of(basins)
    areas = np.bincount(basins.ravel())
    tree = average_linkage(elements, elements.masses(edges) / elements.lengths, areas)
    return _cut(tree, areas, limit)[basins]


def average_linkage(elements: Elements, strengths: Floats, areas: Areas) -> Tree:
    """Merge superpixels of `areas` [S] by the mean strength of their borders, weakest first."""
    tree, altitudes = hg.binary_partition_tree_average_linkage(
        _graph(elements, areas), strengths.astype(np.float64), elements.lengths
    )
    return Tree(tree.parents(), altitudes, len(areas))


def volume_watershed(elements: Elements, strengths: Floats, areas: Areas) -> Tree:
    """Merge superpixels of `areas` [S] by the volume of the basins that their borders close in.

    A watershed hierarchy: a piece that is small or weakly bounded goes first.
    """
    if len(areas) == 1:  # higra would crash
        return Tree(np.zeros(1, dtype=np.int64), np.zeros(1), 1)
    tree, altitudes = hg.watershed_hierarchy_by_volume(
        _graph(elements, areas), strengths.astype(np.float64), areas.astype(np.float64)
    )
    return Tree(tree.parents(), altitudes, len(areas))


def contours(tree: Tree, ids: Ids, elements: Elements) -> npt.NDArray[np.float32]:
    """The ultrametric contour map [H, W]: at every border, the altitude at which it vanishes."""
    lowest = _lowest_common(tree, elements.pairs)
    heights = tree.altitudes[lowest].astype(np.float32)[elements.owner]
    drawn = np.zeros(ids.size, dtype=np.float32)
    for end in elements.pixels.T:
        np.maximum.at(drawn, end, heights)
    return drawn.reshape(ids.shape)


def _graph(elements: Elements, areas: Areas) -> hg.UndirectedGraph:
    graph = hg.UndirectedGraph(len(areas))
    graph.add_edges(elements.pairs[:, 0], elements.pairs[:, 1])
    return graph


def _cut(tree: Tree, areas: Areas, limit: int) -> Ids:
    """The piece 0..n-1, n <= limit, that each leaf of the tree falls into: int32 [S]."""
    leaves = len(areas)
    hierarchy = hg.Tree(tree.parents)
    sizes = hg.accumulate_sequential(hierarchy, areas.astype(np.float64), hg.Accumulators.sum)
    smaller = hg.accumulate_parallel(hierarchy, sizes, hg.Accumulators.min)
    smaller[:leaves] = 0
    worth = tree.altitudes * np.sqrt(np.minimum(smaller, SPECK))
    rising = hg.accumulate_and_max_sequential(
        hierarchy, worth, np.zeros(leaves), hg.Accumulators.max
    )
    explorer = hg.HorizontalCutExplorer(hierarchy, rising)
    height = explorer.horizontal_cut_from_num_regions(limit, at_least=False).altitude()
    merged = rising[tree.parents] <= height
    merged[-1] = False
    owner = hg.propagate_sequential(hierarchy, np.arange(len(merged)), merged)
    return np.unique(owner[:leaves], return_inverse=True)[1].astype(np.int32)


def _lowest_common(tree: Tree, pairs: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    found = hg.Tree(tree.parents).lowest_common_ancestor(pairs[:, 0], pairs[:, 1])
    return np.asarray(found, dtype=np.int64)


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
class RegionGroups:
    """N distinct candidate regions, the promising ones first.

    Args:
        members: their superpixels, [N, S].
        parts: how many nodes each is the union of, 1..3, [N].
        places: the place in the list of its kind, from 0 on, [N].
    """

    members: Members
    parts: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]


def group(trees: Sequence[Tree], graph: SuperpixelGraph, limit: int) -> RegionGroups:
    """At most `limit` candidates from trees of a graph's superpixels; the whole image is last."""
    areas, elements = graph.areas, graph.elements
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
    filled = without_holes(members[:FILLED], elements, rim_of(graph.ids))
    override = np.flatnonzero((filled != members[:FILLED]).any(axis=1))
    members = np.concatenate([members, filled[override]])
    parts, places = np.append(parts, parts[override]), np.append(places, places[override])
    fresh = _first_of_each(members)
    fresh = fresh[~members[fresh].all(axis=1)][: limit - 1]
    return RegionGroups(
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


Words = npt.NDArray[np.uint64]


def without_holes(members: Members, elements: Elements, rim: npt.NDArray[np.bool_]) -> Members:
    """The regions [N, S] with their holes filled.

    A superpixel lies in a hole if no path outside of the region leads from it to the rim of the
    image. All regions are flooded from the rim at once, 64 of them in every machine word.

    Args:
        rim: whether a superpixel touches a side of the image, [S].
    """
    free = _packed(~members)
    reached = free * rim[:, None]
    ends = np.concatenate([elements.pairs, elements.pairs[:, ::-1]])
    ends = ends[np.argsort(ends[:, 1], kind="stable")]
    targets, starts = np.unique(ends[:, 1], return_index=True)
    while len(targets):
        arriving = np.bitwise_or.reduceat(reached[ends[:, 0]], starts, axis=0)
        fresh = reached[targets] | (arriving & free[targets])
        if (fresh == reached[targets]).all():
            break
        reached[targets] = fresh
    outside = np.unpackbits(reached.view(np.uint8), axis=1, count=len(members)).T
    return outside == 0


def rim_of(ids: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Which superpixels of a map [H, W] touch a side of the image, [S]."""
    rim = np.zeros(int(ids.max()) + 1, dtype=bool)
    for side in (ids[0], ids[-1], ids[:, 0], ids[:, -1]):
        rim[side] = True
    return rim


def _packed(members: Members) -> Words:
    """M [N, S] as bits, [S, ceil(N / 64)]: one row a superpixel."""
    count = -(-len(members) // 64) * 64
    rows = np.zeros((members.shape[1], count), dtype=bool)
    rows[:, : len(members)] = members.T
    return np.packbits(rows, axis=1).view(np.uint64)
