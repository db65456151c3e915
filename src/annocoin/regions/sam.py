"""Regions from SAM: prompts from a grid and weak labels, and the masks that are worth keeping.

SAM learned from masks: labels and networks that use its regions are not purely weakly supervised.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from annocoin import masks
from annocoin.backbones import Image
from annocoin.errors import InputError, check_choice, check_positive
from annocoin.masks import RLE
from annocoin.regions.boundaries import KINDS, BoundaryDetector, DetectorKind, check_image
from annocoin.regions.proposals import DEFAULT_LIMIT
from annocoin.regions.region_set import RegionSet, regions_of_masks
from annocoin.regions.sam_model import (
    BOX_END,
    BOX_START,
    PADDING,
    POINT,
    EmbeddedImage,
    Logits,
    SamModel,
)
from annocoin.types import Annotation

STABILITY_OFFSET = 1.0
"""Shift of the logit threshold up and down that a stable mask survives, as in SAM."""

MAX_SUPERPIXELS = 8000
"""Of an overlay of masks: training computes with matrices of so many rows and columns."""


@dataclass(frozen=True)
class SamOptions:
    """Regions from SAM.

    Args:
        encoder, decoder: ONNX files, see `sam_model.py`.
        points_per_side: of the grid of prompts, along the longer side of the image.
        pred_iou_thresh: least predicted IoU of a mask.
        stability_thresh: least IoU of the masks at a higher and a lower threshold of the logits.
        nms_thresh: greatest IoU of two masks.
        limit: maximum number of regions per image.
        boundaries: the detector for the edge strength between regions.
    """

    encoder: Path
    decoder: Path
    points_per_side: int = 8
    pred_iou_thresh: float = 0.7
    stability_thresh: float = 0.6
    nms_thresh: float = 0.9
    limit: int = DEFAULT_LIMIT
    boundaries: DetectorKind = "network"

    def __post_init__(self) -> None:
        for name in ("points_per_side", "limit"):
            check_positive(name.replace("_", "-"), getattr(self, name))
        for name in ("pred_iou_thresh", "stability_thresh", "nms_thresh"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InputError(f"{name.replace('_', '-')} {value}; expected 0 to 1")
        check_choice("boundary detector", self.boundaries, KINDS)


@dataclass(frozen=True)
class Prompts:
    """Q prompts of two points each: a point and padding, or the corners of a box.

    Args:
        points: x, y in the image, float64 [Q, 2, 2].
        labels: POINT, BOX_START, BOX_END or PADDING, int64 [Q, 2].
        labelled: whether a prompt is from a weak label, bool [Q].
    """

    points: npt.NDArray[np.float64]
    labels: npt.NDArray[np.int64]
    labelled: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ScoredMask:
    """A mask of SAM.

    Args:
        logits: in the frame of the network, [n, n].
        rle: their positive part on the image, at the same resolution.
        score: predicted IoU.
        stability: IoU of the masks at a higher and a lower threshold.
        required: whether it is the best mask of a weak label, which is kept in any case.
    """

    logits: Logits
    rle: RLE
    score: float
    stability: float
    required: bool = False


class SamProposer:
    """Image and weak labels to `RegionSet`; its regions are exactly the masks that are kept."""

    def __init__(self, options: SamOptions) -> None:
        self.options = options
        self.model = SamModel(options.encoder, options.decoder)
        self.detector = BoundaryDetector(options.boundaries)

    def __call__(
        self, image: Image, annotation: Annotation | None = None, name: str = "an image"
    ) -> RegionSet:
        """The regions of an RGB image, uint8 [H, W, 3], by falling predicted IoU.

        Args:
            annotation: its boxes and points are prompts, its masks are not read.
            name: of the image, for messages.
        """
        check_image(image)
        size = image.shape[0], image.shape[1]
        if annotation is not None and annotation.size != size:
            raise InputError(f"{name}: {size} pixels; its annotation is for {annotation.size}")
        prompts = sam_prompts(annotation or Annotation(size), self.options.points_per_side)
        embedded = self.model.embed(image)
        kept = self._select(self._masks(embedded, prompts))
        dense = (embedded.frame.image_logits(mask.logits) > 0 for mask in kept)
        # Masks that differ in the frame may be empty or equal in a small image.
        rles = [masks.encode(mask[None])[0] for mask in dense]
        first = {rle["counts"]: i for i, rle in reversed(list(enumerate(rles)))}
        kept_indices = [i for i in sorted(first.values()) if masks.areas([rles[i]])[0]]
        if not kept_indices:
            raise InputError(f"{name}: SAM gives no mask; leave the image out with --skip-bad")
        scores = [min(max(kept[i].score, 0.0), 1.0) for i in kept_indices]
        edges = self.detector(image).mean(axis=0)
        return _bounded_regions([rles[i] for i in kept_indices], scores, edges, name)

    def _masks(self, image: EmbeddedImage, prompts: Prompts) -> list[ScoredMask]:
        """All masks of all prompts that are not empty."""
        found: list[ScoredMask] = []
        results = self.model.decode(image, prompts.points, prompts.labels)
        for labelled, (logits, scores) in zip(prompts.labelled, results, strict=True):
            of_prompt = []
            for mask, score in zip(logits, scores.tolist(), strict=True):
                inside = image.frame.crop(mask)
                if (inside > 0).any() and np.isfinite(inside).all() and math.isfinite(score):
                    rle = masks.encode(inside[None] > 0)[0]
                    of_prompt.append(ScoredMask(mask, rle, score, stability_score(inside)))
            of_prompt.sort(key=lambda mask: -mask.score)
            if labelled and of_prompt:
                of_prompt[0] = replace(of_prompt[0], required=True)
            found += of_prompt
        return found

    def _select(self, candidates: Sequence[ScoredMask]) -> list[ScoredMask]:
        """The masks worth keeping, by falling score; the best one if none passes the thresholds."""
        options = self.options
        good = [
            mask
            for mask in candidates
            if mask.required
            or (
                mask.score >= options.pred_iou_thresh and mask.stability >= options.stability_thresh
            )
        ] or sorted(candidates, key=lambda mask: -mask.score)[:1]
        return suppress_duplicates(good, options.nms_thresh, options.limit)


def sam_prompts(annotation: Annotation, points_per_side: int) -> Prompts:
    """The prompts of an image: boxes and points of its weak labels, and a grid of points.

    A grid point is the centre of a cell; cells are about square, `points_per_side` of them along
    the longer side. Crowds are no single objects and tags have no location: they give no prompts.
    """
    rows: list[tuple[tuple[float, ...], tuple[int, int], bool]] = []
    for label in annotation:
        if label.box is not None and not label.crowd:
            rows.append((label.box, (BOX_START, BOX_END), True))
        if label.point is not None and not label.crowd:
            rows.append(((*label.point, 0.0, 0.0), (POINT, PADDING), True))
    height, width = annotation.size
    cell = max(height, width) / points_per_side
    down, across = max(1, round(height / cell)), max(1, round(width / cell))
    for j in range(down):
        for i in range(across):
            point = ((i + 0.5) * width / across, (j + 0.5) * height / down, 0.0, 0.0)
            rows.append((point, (POINT, PADDING), False))
    points, labels, labelled = zip(*rows, strict=True)
    return Prompts(
        np.asarray(points, dtype=np.float64).reshape(-1, 2, 2),
        np.asarray(labels, dtype=np.int64),
        np.asarray(labelled, dtype=bool),
    )


def stability_score(logits: Logits) -> float:
    """IoU of the masks [H, W] at a higher and a lower threshold, which contains the former."""
    larger = int((logits > -STABILITY_OFFSET).sum())
    return int((logits > STABILITY_OFFSET).sum()) / larger if larger else 0.0


def suppress_duplicates(
    candidates: Sequence[ScoredMask], nms_thresh: float, limit: int
) -> list[ScoredMask]:
    """At most `limit` masks, no two with a greater IoU, by falling score.

    Greedy non-maximum suppression by score; the best masks of weak labels come first.
    """
    kept: list[ScoredMask] = []
    for mask in sorted(candidates, key=lambda mask: (not mask.required, -mask.score)):
        if len(kept) == limit:
            break
        overlaps = masks.iou([mask.rle], [other.rle for other in kept])
        if not kept or overlaps.max() <= nms_thresh:
            kept.append(mask)
    return sorted(kept, key=lambda mask: -mask.score)


def _bounded_regions(
    rles: Sequence[RLE], scores: Sequence[float], edges: npt.NDArray[np.floating], name: str
) -> RegionSet:
    """The region set of the masks; of the best ones, if they have too many superpixels."""

    def regions(count: int) -> RegionSet:
        size = edges.shape[0], edges.shape[1]
        return regions_of_masks(rles[:count], size, scores=scores[:count], edges=edges)

    result = regions(len(rles))
    if (superpixels := result.membership.shape[1]) <= MAX_SUPERPIXELS:
        return result
    fits, too_many = 1, len(rles)  # the number of superpixels grows with that of the masks
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if regions(middle).membership.shape[1] <= MAX_SUPERPIXELS:
            fits = middle
        else:
            too_many = middle
    print(
        f"note: {name}: the overlay of {len(rles)} masks has {superpixels} superpixels, more than "
        f"{MAX_SUPERPIXELS}; the best {fits} masks are kept",
        file=sys.stderr,
    )
    return regions(fits)
