"""Hierarchies: superpixels, and the trees that merge them along their weakest borders."""

from __future__ import annotations

from dataclasses import dataclass

import higra as hg
import numpy as np
import numpy.typing as npt

from annocoin.regions.elements import Elements

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
