"""From an image to its regions: boundaries, superpixels, trees, candidates, ranking, selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from annocoin.errors import check_choice, check_positive
from annocoin.regions.boundaries import (
    KINDS,
    MAX_SIDE,
    BoundaryDetector,
    DetectorKind,
    Maps,
    check_image,
    lab_gradient,
)
from annocoin.regions.hierarchy import (
    RegionGroups,
    Tree,
    average_linkage,
    group,
    superpixels,
    volume_watershed,
)
from annocoin.regions.ranking import Ranker
from annocoin.regions.region_set import RegionSet
from annocoin.regions.superpixel_graph import Elements, SuperpixelGraph

Image = npt.NDArray[np.uint8]
Number = TypeVar("Number", bound=np.generic)

LIMIT = 1000
"""The most regions of an image, if not said otherwise."""

COLOUR_IN_CUT = 0.1
"""How much of the Lab gradient is added to the boundaries before superpixels are cut."""


@dataclass(frozen=True)
class RegionOptions:
    """How the regions of a folder are made.

    Args:
        boundaries: the boundary detector.
        limit: the most regions of an image; default 1,000 of our own, and all that others made.
        source: "mcg:DIR" or "coco:FILE" if they are somebody else's.
    """

    boundaries: DetectorKind = "network"
    limit: int | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        check_choice("boundary detector", self.boundaries, KINDS)
        if self.limit is not None:
            check_positive("limit", self.limit)


@dataclass(frozen=True)
class Analysis:
    """An image taken apart, before regions are chosen.

    Args:
        edges: the probability of a boundary, on average over the scales, float32 [H, W].
        graph: its superpixels.
        trees: how they merge; the first tree is the ultrametric contour map of `edges`.
    """

    edges: npt.NDArray[np.float32]
    graph: SuperpixelGraph
    trees: list[Tree]


@dataclass(frozen=True)
class RegionProposer:
    """Image to `RegionSet`. Made once, called for many images.

    Args:
        detector: finds the boundaries.
        ranker: orders the regions.
        limit: the most regions of an image.
        superpixels: the most superpixels of an image.
        candidates: the most regions that are looked at, before duplicates go, to choose from.

    Example:
        >>> propose = RegionProposer(BoundaryDetector("gradient"), limit=20)
        >>> disc = np.zeros((60, 80, 3), np.uint8)
        >>> disc = cv2.circle(disc, (30, 30), 20, (250, 200, 0), -1)
        >>> regions = propose(disc)
        >>> import torch
        >>> bool(regions.iou_with(torch.from_numpy(disc[None, :, :, 0] > 0)).max() > 0.9)
        True
    """

    detector: BoundaryDetector = field(default_factory=BoundaryDetector)
    ranker: Ranker = field(default_factory=Ranker)
    limit: int = LIMIT
    superpixels: int = 600
    candidates: int = 9000

    def __post_init__(self) -> None:
        for name in ("limit", "superpixels", "candidates"):
            check_positive(name, getattr(self, name))

    def __call__(self, image: Image) -> RegionSet:
        """The regions of an RGB image, uint8 [H, W, 3], the best first, the whole image last."""
        return self.choose(self.analyse(image), image.shape[:2])

    def analyse(self, image: Image) -> Analysis:
        """Boundaries, superpixels and trees. Long images are first reduced to 800 pixels."""
        check_image(image)
        small = shrunk(image)
        maps = self.detector(small)
        graph = superpixel_graph(small, maps, self.superpixels)
        return Analysis(maps.mean(axis=0), graph, make_trees(graph))

    def choose(self, analysis: Analysis, size: Sequence[int]) -> RegionSet:
        """RegionGroups, ranked and selected, as regions of an image of `size`."""
        graph = analysis.graph
        candidates = group(analysis.trees, graph, self.candidates)
        scores = self.ranker(graph, candidates)
        chosen = best_and_whole(graph, candidates, scores, self.limit)
        return RegionSet.of(
            enlarged(graph.ids, size),
            candidates.members[chosen],
            # The order counts, also for those who sort by score.
            scores=np.clip(np.minimum.accumulate(scores[chosen]), 0, 1),
            edges=enlarged(analysis.edges, size),
        )


def shrunk(image: Image) -> Image:
    """The image, no longer than 800 pixels."""
    height, width = image.shape[:2]
    fit = MAX_SIDE / max(height, width)
    if fit >= 1:
        return image
    size = (max(1, round(width * fit)), max(1, round(height * fit)))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def enlarged(values: npt.NDArray[Number], size: Sequence[int]) -> npt.NDArray[Number]:
    """A map [h, w] at a larger size, each value repeated."""
    if values.shape == tuple(size):
        return values
    rows, columns = (
        (np.arange(large) * small) // large for large, small in zip(size, values.shape, strict=True)
    )
    return values[rows[:, None], columns[None, :]]


def superpixel_graph(image: Image, maps: Maps, limit: int) -> SuperpixelGraph:
    """Superpixels and what is known about their borders, from boundary maps [K, H, W]."""
    average = maps.mean(axis=0)
    ids = superpixels(average + COLOUR_IN_CUT * lab_gradient(image), limit)
    elements = Elements.of(ids)
    strengths = [elements.masses(edges) / elements.lengths for edges in (average, *maps)]
    return SuperpixelGraph(image, ids, elements, np.stack(strengths))


def make_trees(graph: SuperpixelGraph) -> list[Tree]:
    """Trees that merge the superpixels in different orders; different ones find different objects.

    By the mean strength of borders: on average over the scales, at each but the coarsest, and half
    by colour. By volume, a watershed hierarchy: small and faint pieces merge first.
    """
    average, scales = graph.strengths[0], graph.strengths[2:]
    weights = [average, *scales, (average + graph.colour_differences) / 2]
    trees = [average_linkage(graph.elements, weight, graph.areas) for weight in weights]
    return [*trees, volume_watershed(graph.elements, average, graph.areas)]


def best_and_whole(
    graph: SuperpixelGraph, candidates: RegionGroups, scores: npt.NDArray[np.float32], limit: int
) -> npt.NDArray[np.int64]:
    """Positions of the regions to keep: the best that differ enough, and the whole image last."""
    order = np.argsort(-scores, kind="stable")
    whole = len(scores) - 1
    order = order[order != whole]
    kept = order[select(candidates.members[order], graph.areas, limit - 1)]
    return np.append(kept, whole)


ROUNDS = ((100, 0.65), (300, 0.75), (600, 0.8), (1_000_000, 0.85), (1_000_000, 0.95))
"""(until so many are chosen, the IoU that two of them may have). The first ones cover the image,
those after them refine; the last round is for images with few candidates."""

SELECTION_BLOCK = 256


def select(
    members: npt.NDArray[np.bool_],
    areas: npt.NDArray[np.int64],
    limit: int,
    rounds: Sequence[tuple[int, float]] = ROUNDS,
) -> npt.NDArray[np.int64]:
    """Positions of at most `limit` candidates, in the order in which they were chosen.

    Each round walks through the candidates that are left, best first, and takes those whose IoU
    with everything taken before is at most the round's.

    Args:
        members: candidates by falling worth, [N, S].
        areas: pixels of each superpixel, [S].
    """
    chosen = _Chosen(members, areas, limit)
    for until, most in rounds:
        rest = np.flatnonzero(chosen.worst <= most)
        for start in range(0, len(rest), SELECTION_BLOCK):
            if len(chosen) >= min(until, limit):
                break
            chosen.take(rest[start : start + SELECTION_BLOCK], most, min(until, limit))
    return np.asarray(chosen.positions, dtype=np.int64)


class _Chosen:
    """What was taken so far, and for each candidate the greatest IoU with it that is known."""

    def __init__(
        self, members: npt.NDArray[np.bool_], areas: npt.NDArray[np.int64], limit: int
    ) -> None:
        self.members = members.astype(np.float32)
        self.weights = areas.astype(np.float32)
        self.sizes = self.members @ self.weights
        self.worst = np.zeros(len(members), dtype=np.float32)
        self.compared = np.zeros(len(members), dtype=np.int64)  # with so many of the taken ones
        self.positions: list[int] = []
        self._weighted = np.empty((min(limit, len(members)), members.shape[1]), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, block: npt.NDArray[np.int64], most: float, until: int) -> None:
        """Take from the candidates of `block`, in their order, what differs enough."""
        begin = int(self.compared[block].min())
        if begin < len(self):
            overlap = self._iou(block, np.asarray(self.positions[begin:]), begin)
            self.worst[block] = np.maximum(self.worst[block], overlap.max(axis=1))
            self.compared[block] = len(self)
        block = block[self.worst[block] <= most]
        weighted = self.members[block] * self.weights
        common = weighted @ self.members[block].T
        sizes = self.sizes[block]
        among = common / (sizes[:, None] + sizes[None, :] - common)
        worst = self.worst[block]
        for i, position in enumerate(block.tolist()):
            if worst[i] > most:
                continue
            self._weighted[len(self)] = weighted[i]
            self.positions.append(position)
            np.maximum(worst, among[i], out=worst)  # with itself 1: never taken again
            if len(self) >= until:
                break
        self.worst[block] = worst

    def _iou(
        self, block: npt.NDArray[np.int64], taken: npt.NDArray[np.int64], begin: int
    ) -> npt.NDArray[np.float32]:
        common = self.members[block] @ self._weighted[begin : begin + len(taken)].T
        union = self.sizes[block][:, None] + self.sizes[taken][None, :] - common
        return np.asarray(common / union, dtype=np.float32)
