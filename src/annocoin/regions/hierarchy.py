"""Superpixels, the trees that merge them, and candidate regions from the nodes of the trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import higra as hg
import numpy as np
import numpy.typing as npt

from annocoin.regions.superpixel_graph import BoundaryElements, SuperpixelGraph

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]
Members = npt.NDArray[np.bool_]

AREA_CAP = 400
"""Pixels above which a larger area no longer protects a superpixel from being merged."""

MIN_NODE_AREA = 30
"""Nodes with fewer pixels are no candidates."""

NODES_TO_COMBINE = 150
"""The longest-surviving nodes of each tree that are combined to pairs and triples."""

MAX_PAIRS = 1200
MAX_TRIPLES = 600
"""Unions of two and of three nodes kept for each tree."""

PAIRS_TO_EXTEND = 250
"""The best pairs of each tree that are extended to triples."""

CANDIDATES_TO_FILL = 4000
"""The best candidates whose holes are filled."""

KIND_SHARES = (0.65, 0.25, 0.10)
"""Shares of single nodes, pairs and triples among the candidates."""


@dataclass(frozen=True)
class Tree:
    """A merge tree with N nodes: first the S superpixels, parents after their children.

    Args:
        parents: the parent of each node, [N]; the last node is the root, its own parent.
        altitudes: the border strength at which a node was merged, [N]; 0 for leaves.
        leaves: S.
    """

    parents: Indices
    altitudes: Floats
    leaves: int

    def members(self) -> Members:
        """The superpixels of every node, [N, S]."""
        inside = np.zeros((len(self.parents), self.leaves), dtype=bool)
        np.fill_diagonal(inside, True)
        for node, parent in enumerate(self.parents[:-1].tolist()):
            inside[parent] |= inside[node]
        return inside


@dataclass(frozen=True)
class CandidateRegions:
    """N distinct candidate regions, roughly the best first.

    Args:
        members: their superpixels, [N, S].
        num_nodes: how many tree nodes each is the union of, 1..3, [N].
        ranks: the rank among the candidates with as many nodes, from 0, [N].
    """

    members: Members
    num_nodes: Indices
    ranks: Indices


def watershed_superpixels(edges: npt.NDArray[np.floating], limit: int) -> Ids:
    """Partition an image along its edges [H, W] into at most `limit` superpixels: int32 [H, W].

    The basins of a watershed are merged until at most `limit` are left, in the order of the
    border's mean strength times the square root of the smaller area: strength alone would keep
    tiny basins.
    """
    height, width = edges.shape
    if height * width == 1:
        return np.zeros((1, 1), dtype=np.int32)
    graph = hg.get_4_adjacency_graph((height, width))
    sides = hg.weight_graph(graph, edges.astype(np.float64), hg.WeightFunction.max)
    basins = (hg.labelisation_watershed(graph, sides) - 1).astype(np.int32).reshape(edges.shape)
    if basins.max() < limit:
        return basins
    elements = BoundaryElements.of(basins)
    areas = np.bincount(basins.ravel())
    tree = average_linkage(elements, elements.edge_strength(edges) / elements.lengths, areas)
    return _cut(tree, areas, limit)[basins]


def average_linkage(elements: BoundaryElements, strengths: Floats, areas: Indices) -> Tree:
    """Merge superpixels of `areas` [S] by the mean strength [E] of their borders, weakest first."""
    tree, altitudes = hg.binary_partition_tree_average_linkage(
        _higra_graph(elements, len(areas)), strengths.astype(np.float64), elements.lengths
    )
    return Tree(tree.parents(), altitudes, len(areas))


def volume_watershed(elements: BoundaryElements, strengths: Floats, areas: Indices) -> Tree:
    """Merge superpixels of `areas` [S] by the volume of the basins between borders [E].

    A watershed hierarchy: small and weakly bounded regions merge first.
    """
    if len(areas) == 1:  # higra would crash
        return Tree(np.zeros(1, dtype=np.int64), np.zeros(1), 1)
    tree, altitudes = hg.watershed_hierarchy_by_volume(
        _higra_graph(elements, len(areas)), strengths.astype(np.float64), areas.astype(np.float64)
    )
    return Tree(tree.parents(), altitudes, len(areas))


def contours(tree: Tree, ids: Ids, elements: BoundaryElements) -> npt.NDArray[np.float32]:
    """The ultrametric contour map [H, W]: the altitude at which each border disappears."""
    merging_node = hg.Tree(tree.parents).lowest_common_ancestor(*elements.pairs.T)
    heights = tree.altitudes[merging_node].astype(np.float32)[elements.side_elements]
    contour_map = np.zeros(ids.size, dtype=np.float32)
    for pixels in elements.side_pixels.T:
        np.maximum.at(contour_map, pixels, heights)
    return contour_map.reshape(ids.shape)


def candidate_regions(
    trees: Sequence[Tree], graph: SuperpixelGraph, limit: int
) -> CandidateRegions:
    """At most `limit` candidates: nodes of the trees and their unions; the whole image is last."""
    count = len(graph.areas)
    adjacent = np.zeros((count, count), dtype=np.float32)
    adjacent[tuple(graph.elements.pairs.T)] = 1
    adjacent += adjacent.T
    of_trees = [_combine_nodes(tree, adjacent, graph.areas) for tree in trees]
    kinds = [_interleave(lists, limit) for lists in zip(*of_trees, strict=True)]
    turns = [
        (np.arange(len(kind)) + 0.5) / share for kind, share in zip(kinds, KIND_SHARES, strict=True)
    ]
    order = np.argsort(np.concatenate(turns), kind="stable")[: limit - 1]
    members = np.concatenate(kinds)[order]
    num_nodes = np.repeat([1, 2, 3], [len(kind) for kind in kinds])[order]
    ranks = np.concatenate([np.arange(len(kind)) for kind in kinds])[order]
    filled = fill_holes(members[:CANDIDATES_TO_FILL], graph.ids, graph.elements)
    changed = np.flatnonzero((filled != members[:CANDIDATES_TO_FILL]).any(axis=1))
    members = np.concatenate([members, filled[changed]])
    distinct = _first_occurrences(members)
    distinct = distinct[~members[distinct].all(axis=1)][: limit - 1]
    return CandidateRegions(
        np.append(members[distinct], np.ones((1, count), dtype=bool), axis=0),
        np.append(np.append(num_nodes, num_nodes[changed])[distinct], 1),
        np.append(np.append(ranks, ranks[changed])[distinct], len(kinds[0])),
    )


def fill_holes(
    members: Members, ids: npt.NDArray[np.integer], elements: BoundaryElements
) -> Members:
    """The regions [N, S] with their holes filled.

    A superpixel lies in a hole if no path outside of the region connects it to the image border.
    All regions are flooded from the border at once, 64 of them in every machine word.
    """
    outside = np.ascontiguousarray(~members.T)
    free = np.packbits(np.pad(outside, ((0, 0), (0, -len(members) % 64))), axis=1).view(np.uint64)
    at_border = np.concatenate([ids[0], ids[-1], ids[:, 0], ids[:, -1]])
    reached = free * np.isin(np.arange(len(free)), at_border)[:, None]
    steps = np.concatenate([elements.pairs, elements.pairs[:, ::-1]])
    steps = steps[np.argsort(steps[:, 1], kind="stable")]
    targets, starts = np.unique(steps[:, 1], return_index=True)
    while len(targets):
        arriving = np.bitwise_or.reduceat(reached[steps[:, 0]], starts, axis=0)
        extended = reached[targets] | (arriving & free[targets])
        if (extended == reached[targets]).all():
            break
        reached[targets] = extended
    return np.unpackbits(reached.view(np.uint8), axis=1, count=len(members)).T == 0


def _higra_graph(elements: BoundaryElements, count: int) -> hg.UndirectedGraph:
    graph = hg.UndirectedGraph(count)
    graph.add_edges(elements.pairs[:, 0], elements.pairs[:, 1])
    return graph


def _cut(tree: Tree, areas: Indices, limit: int) -> Ids:
    """Cut the tree into at most `limit` parts: the part of each leaf, int32 [S]."""
    leaves = len(areas)
    hierarchy = hg.Tree(tree.parents)
    sizes = hg.accumulate_sequential(hierarchy, areas.astype(np.float64), hg.Accumulators.sum)
    smaller = hg.accumulate_parallel(hierarchy, sizes, hg.Accumulators.min)
    smaller[:leaves] = 0
    cost = tree.altitudes * np.sqrt(np.minimum(smaller, AREA_CAP))
    rising = hg.accumulate_and_max_sequential(
        hierarchy, cost, np.zeros(leaves), hg.Accumulators.max
    )
    explorer = hg.HorizontalCutExplorer(hierarchy, rising)
    height = explorer.horizontal_cut_from_num_regions(limit, at_least=False).altitude()
    merged = rising[tree.parents] <= height
    merged[-1] = False
    root = hg.propagate_sequential(hierarchy, np.arange(len(merged)), merged)
    return np.unique(root[:leaves], return_inverse=True)[1].astype(np.int32)


def _combine_nodes(
    tree: Tree, adjacent: npt.NDArray[np.float32], areas: Indices
) -> tuple[Members, Members, Members]:
    """Single nodes, pairs and triples of one tree, each by falling survival.

    The survival of a node is the altitude at which it is merged with another; that of a union is
    the lowest of its nodes.
    """
    members = tree.members()
    survival = tree.altitudes[tree.parents]
    large = np.flatnonzero(members[:-1] @ areas >= min(MIN_NODE_AREA, areas.sum() / 100))
    nodes = large[np.argsort(-survival[large], kind="stable")]
    top = nodes[:NODES_TO_COMBINE]
    inside = members[top].astype(np.float32)
    disjoint = inside @ inside.T == 0
    near = (inside @ adjacent @ inside.T > 0) & disjoint
    parents = np.where(np.bincount(tree.parents)[tree.parents] == 2, tree.parents, -1)[top]
    make_parent = (parents[:, None] == parents[None, :]) & (parents >= 0)
    first, second = np.nonzero(np.triu(near & ~make_parent))
    # Nodes are sorted by falling survival: the later node of a union determines its survival.
    best = np.argsort(second, kind="stable")[:MAX_PAIRS]
    first, second = first[best], second[best]
    pairs = members[top[first]] | members[top[second]]
    first, second = first[:PAIRS_TO_EXTEND], second[:PAIRS_TO_EXTEND]
    extends = (near[first] | near[second]) & disjoint[first] & disjoint[second]
    extends &= np.arange(len(top)) > second[:, None]
    pair, third = np.nonzero(extends)
    best = np.argsort(third, kind="stable")[:MAX_TRIPLES]
    return members[nodes], pairs, pairs[pair[best]] | members[top[third[best]]]


def _interleave(lists: Sequence[Members], limit: int) -> Members:
    """The first row of each list, then the second of each, and so on; at most `limit`."""
    turn = np.concatenate([np.arange(len(rows)) for rows in lists])
    return np.concatenate(lists)[np.argsort(turn, kind="stable")[:limit]]


def _first_occurrences(members: Members) -> Indices:
    """The positions of the rows that equal no earlier row, rising."""
    packed = np.packbits(members, axis=1)
    keys = np.ascontiguousarray(packed).view(f"V{packed.shape[1]}").ravel()
    return np.sort(np.unique(keys, return_index=True)[1])
