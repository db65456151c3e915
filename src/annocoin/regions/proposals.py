"""Region proposals: boundaries, superpixels, hierarchies, candidates, ranking and selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import cv2
import numpy as np
import numpy.typing as npt

from annocoin.backbones import Image, Precision
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
    Tree,
    average_linkage,
    candidate_regions,
    volume_watershed,
    watershed_superpixels,
)
from annocoin.regions.ranking import Ranker
from annocoin.regions.region_set import RegionSet
from annocoin.regions.superpixel_graph import BoundaryElements, SuperpixelGraph

Indices = Sequence[int] | npt.NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)

DEFAULT_LIMIT = 1000
"""Default maximum number of regions per image."""

GRADIENT_WEIGHT = 0.1
"""Weight of the Lab gradient that is added to the boundaries for the superpixels."""

SELECTION_ROUNDS = ((100, 0.65), (300, 0.75), (600, 0.8), (1_000_000, 0.85), (1_000_000, 0.95))
"""(number of regions up to which a round selects, greatest IoU of two of them). The first rounds
cover the image, later ones refine; the last one is for images with few candidates."""

SELECTION_BLOCK = 256


@dataclass(frozen=True)
class RegionOptions:
    """How the regions of a dataset are computed.

    Args:
        boundaries: the boundary detector.
        limit: maximum number of regions per image; default 1,000, or all imported ones.
        source: "mcg:DIR" or "coco:FILE" to import proposals of other programs.
        precision: of the boundary detector; "bf16" uses bfloat16 autocast.
    """

    boundaries: DetectorKind = "network"
    limit: int | None = None
    source: str | None = None
    precision: Precision = "32"

    def __post_init__(self) -> None:
        check_choice("boundary detector", self.boundaries, KINDS)
        check_choice("precision", self.precision, get_args(Precision))
        if self.limit is not None:
            check_positive("limit", self.limit)

    def provenance(self) -> dict[str, Any]:
        """The options on which regions depend, and the state of their source.

        Without the precision where it is full, as in folders of versions that had none.
        """
        options = asdict(self) | {"source": _source_state(self.source)}
        if self.precision == "32":
            del options["precision"]
        return options


def _source_state(source: str | None) -> str | None:
    """A source by its full path and, if it is one file, its modification time."""
    if source is None:
        return None
    kind, _, path = source.partition(":")
    written = "" if Path(path).is_dir() else f" of {Path(path).stat().st_mtime_ns}"
    return f"{kind}:{Path(path).resolve()}{written}"


@dataclass(frozen=True)
class Analysis:
    """Boundaries, superpixels and hierarchies of an image, at the size they were computed.

    Args:
        edges: the mean boundary probability over the scales, float32 [H, W].
        graph: the superpixels.
        trees: hierarchies of the superpixels; the contour map of the first is that of `edges`.
    """

    edges: npt.NDArray[np.float32]
    graph: SuperpixelGraph
    trees: list[Tree]


@dataclass(frozen=True)
class RegionProposer:
    """Image to `RegionSet`.

    Args:
        detector: the boundary detector.
        ranker: scores the candidates.
        limit: maximum number of regions per image.
        superpixels: maximum number of superpixels per image.
        candidates: maximum number of candidates that are ranked per image.

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
    limit: int = DEFAULT_LIMIT
    superpixels: int = 600
    candidates: int = 9000

    def __post_init__(self) -> None:
        for name in ("limit", "superpixels", "candidates"):
            check_positive(name, getattr(self, name))

    def __call__(self, image: Image) -> RegionSet:
        """The regions of an RGB image, uint8 [H, W, 3], best first, the whole image last."""
        return self.select(self.analyse(image), image.shape[:2])

    def analyse(self, image: Image) -> Analysis:
        """Boundaries, superpixels and hierarchies of the image, reduced to 800 pixels if larger."""
        check_image(image)
        small = limit_size(image)
        maps = self.detector(small)
        graph = build_graph(small, maps, self.superpixels)
        return Analysis(maps.mean(axis=0), graph, build_trees(graph))

    def select(self, analysis: Analysis, size: Sequence[int]) -> RegionSet:
        """The best candidates that differ enough, as regions of an image of `size`."""
        graph = analysis.graph
        candidates = candidate_regions(analysis.trees, graph, self.candidates)
        scores = self.ranker(graph, candidates)
        order = np.argsort(-scores[:-1], kind="stable")  # the last candidate is the whole image
        best = order[select_diverse(candidates.members[order], graph.areas, self.limit - 1)]
        selected = np.append(best, len(scores) - 1)
        return RegionSet.of(
            upsample(graph.ids, size),
            candidates.members[selected],
            # Later rounds may select better candidates: falling scores keep the order of selection.
            scores=np.clip(np.minimum.accumulate(scores[selected]), 0, 1),
            edges=upsample(analysis.edges, size),
        )


def limit_size(image: Image) -> Image:
    """The image, reduced to a longest side of 800 pixels if it is larger."""
    height, width = image.shape[:2]
    scale = MAX_SIDE / max(height, width)
    if scale >= 1:
        return image
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def upsample(values: npt.NDArray[Number], size: Sequence[int]) -> npt.NDArray[Number]:
    """A map [h, w] enlarged to `size` by repeating its values."""
    if values.shape == tuple(size):
        return values
    rows, columns = (
        (np.arange(large) * small) // large for large, small in zip(size, values.shape, strict=True)
    )
    return values[rows[:, None], columns[None, :]]


def build_graph(image: Image, maps: Maps, limit: int) -> SuperpixelGraph:
    """At most `limit` superpixels and their borders, from boundary maps [K, H, W]."""
    average = maps.mean(axis=0)
    ids = watershed_superpixels(average + GRADIENT_WEIGHT * lab_gradient(image), limit)
    elements = BoundaryElements.of(ids)
    strengths = [elements.edge_strength(edges) / elements.lengths for edges in (average, *maps)]
    return SuperpixelGraph(image, ids, elements, np.stack(strengths))


def build_trees(graph: SuperpixelGraph) -> list[Tree]:
    """Hierarchies with different merging orders, which contain different objects.

    Average linkage by the border strength of the average map, of each scale but the coarsest, and
    of the average map combined with colour; and a watershed hierarchy by volume.
    """
    average, fine_scales = graph.mean_strength[0], graph.mean_strength[2:]
    weights = [average, *fine_scales, (average + graph.colour_differences) / 2]
    trees = [average_linkage(graph.elements, weight, graph.areas) for weight in weights]
    return [*trees, volume_watershed(graph.elements, average, graph.areas)]


def select_diverse(
    members: npt.NDArray[np.bool_],
    areas: npt.NDArray[np.int64],
    limit: int,
    rounds: Sequence[tuple[int, float]] = SELECTION_ROUNDS,
) -> npt.NDArray[np.int64]:
    """Indices of at most `limit` candidates, in the order of selection.

    Each round is a greedy non-maximum suppression: it goes through the remaining candidates, best
    first, and selects those whose IoU with every selected one is at most that of the round.

    Args:
        members: candidates by falling score, [N, S].
        areas: pixels of each superpixel, [S].
    """
    inside, weights = members.astype(np.float32), areas.astype(np.float32)
    sizes = inside @ weights
    greatest = np.zeros(len(members), dtype=np.float32)  # known IoU with a selected candidate
    compared = np.zeros(len(members), dtype=np.int64)  # with how many of the selected ones
    selected: list[int] = []

    def iou(rows: Indices, columns: Indices) -> npt.NDArray[np.float32]:
        common = inside[rows] @ (inside[columns] * weights).T
        return np.asarray(common / (sizes[rows][:, None] + sizes[columns] - common))

    for until, max_iou in rounds:
        until = min(until, limit)
        remaining = np.flatnonzero(greatest <= max_iou)
        for start in range(0, len(remaining), SELECTION_BLOCK):
            if len(selected) >= until:
                break
            block = remaining[start : start + SELECTION_BLOCK]
            if new := selected[compared[block].min() :]:
                greatest[block] = np.maximum(greatest[block], iou(block, new).max(axis=1))
                compared[block] = len(selected)
            block = block[greatest[block] <= max_iou]
            within = iou(block, block)
            for i, candidate in enumerate(block.tolist()):
                if greatest[candidate] <= max_iou and len(selected) < until:
                    selected.append(candidate)
                    # Its IoU with itself is 1, so that it is not selected again.
                    greatest[block] = np.maximum(greatest[block], within[i])
    return np.asarray(selected, dtype=np.int64)
