"""From an image and what was said about it to its seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, get_args

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from annocoin import masks as rle
from annocoin.backbones import Image, resize_longest_side
from annocoin.errors import InputError, check_choice, check_positive
from annocoin.masks import Size
from annocoin.seeds.back_propagation import PeakBackPropagation, RuleName
from annocoin.seeds.classifier import Classifier, find_peaks
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation, WeakLabel

CLOSER = 1.4
"""Looking closer than in training finds smaller objects, and shows more of their outlines."""


@dataclass(frozen=True)
class SeedOptions:
    """How seeds are found.

    Args:
        size: the length of the image's longer side when it is looked at; default `CLOSER` times
            that of the classifier's training.
        threshold: a peak counts if its probability is at least this share of that of the class's
            best peak in the image.
        rule: how peaks are traced back, see `PeakBackPropagation`.
        cell: response maps are kept at a resolution of so many pixels of what the network saw.
    """

    size: int | None = None
    threshold: float = 0.7
    rule: RuleName = "conserving"
    cell: int = 4

    def __post_init__(self) -> None:
        check_choice("rule", self.rule, get_args(RuleName))
        check_positive("cell", self.cell)
        if not 0 <= self.threshold <= 1:
            raise InputError(f"threshold {self.threshold}; expected 0 to 1")
        if self.size is not None and not 32 <= self.size <= 4096:
            raise InputError(f"size {self.size}; expected 32 to 4096 pixels")


class Seeder:
    """Image and annotation to seeds. Made once, called for many images."""

    def __init__(
        self,
        classifier: Classifier,
        options: SeedOptions | None = None,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        self.options = options or SeedOptions()
        self.size = self.options.size or round(CLOSER * classifier.architecture.size)
        self.device = torch.device(device)
        self.classes = classifier.architecture.classes
        self.back = PeakBackPropagation(classifier.eval().to(self.device), self.options.rule)

    def __call__(self, image: Image, annotation: Annotation) -> Seeds:
        """The seeds of an RGB image, uint8 [H, W, 3], at least one for every weak_label."""
        if annotation.distinct_labels and annotation.distinct_labels[-1] > len(self.classes):
            raise InputError(
                f"class {annotation.distinct_labels[-1]}; the classifier has {len(self.classes)}"
            )
        seen = resize_longest_side(image, self.size)
        passed = self.back(seen.to(self.device))
        maps = passed.maps.cpu()
        size = (seen.shape[1], seen.shape[2])
        scale = (image.shape[0] / size[0], image.shape[1] / size[1])
        cells = self.back.cells.points((maps.shape[1], maps.shape[2]), scale)
        peaks, points, weak_labels = choose_seeds(maps, cells, annotation, self.options.threshold)
        responses = passed.responses(peaks.to(self.device)).cpu()
        classes, rows, columns = peaks.T
        return Seeds(
            size=annotation.size,
            labels=classes + 1,
            points=refine_peaks(points, responses, weak_labels, annotation),
            scores=maps[classes, rows, columns],
            annotation_index=weak_labels,
            responses=_coarser(responses, self.options.cell),
            maps=self.back.cells.evenly(maps, size)[classes],
        )


def _coarser(responses: torch.Tensor, cell: int) -> torch.Tensor:
    """Maps [N, H, W] as means over about cell x cell pixels, each again summing to 1."""
    if len(responses) == 0:
        return responses
    size = (-(-responses.shape[1] // cell), -(-responses.shape[2] // cell))
    coarse = F.adaptive_avg_pool2d(responses, size)
    return coarse / coarse.sum(dim=(1, 2), keepdim=True)


class Choice(NamedTuple):
    """N seeds: where they are in the maps, in the image, and what for.

    Args:
        peaks: class 0..C-1, row and column of the map, int64 [N, 3].
        points: x, y in the image, float32 [N, 2].
        annotation_index: the weak_label that each is for, int64 [N].
    """

    peaks: Tensor
    points: Tensor
    annotation_index: Tensor


def choose_seeds(
    maps: Tensor, cells: tuple[Tensor, Tensor], annotation: Annotation, threshold: float
) -> Choice:
    """Seeds for every weak_label of an image, at least one each.

    A tag gets the peaks of its class that are near its best one. A box gets the best peak that lies
    in it, or else the best place there; a point and a mask get the place that they show.

    Args:
        maps: class maps, logits [C, h, w].
        cells: the middles of the maps' rows [h] and columns [w] in the image.
        threshold: a peak counts if its probability is at least this share of the best one's.
    """
    grid = _Grid(cells, annotation.size)
    found: list[tuple[tuple[int, int, int], tuple[float, float], int]] = []
    peaks = find_peaks(maps)
    for number, weak_label in enumerate(annotation):
        of_class, is_peak = maps[weak_label.label - 1], peaks[weak_label.label - 1]
        for row, column, point in _places(of_class, is_peak, weak_label, grid, threshold):
            found.append(((weak_label.label - 1, row, column), point, number))
    return Choice(
        peaks=torch.tensor([peak for peak, _, _ in found], dtype=torch.int64).view(-1, 3),
        points=torch.tensor([point for _, point, _ in found], dtype=torch.float32).view(-1, 2),
        annotation_index=torch.tensor([number for _, _, number in found], dtype=torch.int64),
    )


Place = tuple[int, int, tuple[float, float]]


class _Grid:
    """The cells of a class map in the image."""

    def __init__(self, cells: tuple[Tensor, Tensor], image: Size) -> None:
        self.rows = cells[0].clamp(0, image[0])
        self.columns = cells[1].clamp(0, image[1])

    def centre(self, row: int, column: int) -> tuple[float, float]:
        return float(self.columns[column]), float(self.rows[row])

    def under(self, point: tuple[float, float]) -> Place:
        row = int((self.rows - point[1]).abs().argmin())
        column = int((self.columns - point[0]).abs().argmin())
        return row, column, point

    def inside(self, box: tuple[float, float, float, float]) -> Tensor:
        """Cells whose centre lies in the box: bool [h, w]."""
        x0, y0, x1, y1 = box
        across = (self.columns >= x0) & (self.columns < x1)
        return across[None, :] & ((self.rows >= y0) & (self.rows < y1))[:, None]


def _places(
    of_class: Tensor, is_peak: Tensor, weak_label: WeakLabel, grid: _Grid, threshold: float
) -> list[Place]:
    if weak_label.mask is not None and rle.areas([weak_label.mask])[0] > 0:
        return [grid.under(rle.interior_point(weak_label.mask))]
    if weak_label.point is not None:
        return [grid.under(weak_label.point)]
    if weak_label.box is None:
        return _near_the_best(of_class, is_peak, grid, threshold)
    cells = grid.inside(weak_label.box)
    if not cells.any():  # smaller than a cell
        x0, y0, x1, y1 = weak_label.box
        return [grid.under(((x0 + x1) / 2, (y0 + y1) / 2))]
    allowed = cells & is_peak if (cells & is_peak).any() else cells
    return _near_the_best(of_class, allowed, grid, threshold)[:1]


def _near_the_best(of_class: Tensor, allowed: Tensor, grid: _Grid, threshold: float) -> list[Place]:
    """The allowed cells whose probability is near that of the best one, by falling value."""
    values = torch.where(allowed, of_class, -torch.inf).flatten()
    ordered, order = values.sort(descending=True, stable=True)
    # Probabilities in float64: a float32 sigmoid is 1 from a logit of 17 on.
    near = ordered.double().sigmoid() >= threshold * ordered[0].double().sigmoid()
    near[0] = True
    width = of_class.shape[1]
    places = [(int(i) // width, int(i) % width) for i in order[near & ordered.isfinite()]]
    return [(row, column, grid.centre(row, column)) for row, column in places]


BLUR = 0.024
"""The deviation of the blur, as a share of the image's longer side: single pixels say little."""


def refine_peaks(
    points: Tensor, responses: Tensor, annotation_index: Tensor, annotation: Annotation
) -> Tensor:
    """Points moved to where their responses are densest: float32 [N, 2], x, y.

    The seeds of a box stay in it; a point or a mask that a person gave stays where it is.

    Args:
        points: float32 [N, 2], in the image.
        responses: [N, h, w], at any resolution.
        annotation_index: the weak_label that each is for, int64 [N].
    """
    moved = points.clone()
    height, width = responses.shape[1:]
    across, down = annotation.size[1] / width, annotation.size[0] / height
    columns = (np.arange(width) + 0.5) * across
    rows = (np.arange(height) + 0.5) * down
    for i, number in enumerate(annotation_index.tolist()):
        weak_label = annotation[number]
        if weak_label.point is not None or weak_label.mask is not None:
            continue
        dense = cv2.GaussianBlur(
            responses[i].numpy(), (0, 0), BLUR * max(height, width), borderType=cv2.BORDER_CONSTANT
        )
        if weak_label.box is not None:
            x0, y0, x1, y1 = weak_label.box
            inside = ((rows >= y0) & (rows < y1))[:, None] & ((columns >= x0) & (columns < x1))
            if not inside.any():  # smaller than a pixel of the response
                continue
            dense = np.where(inside, dense, -1)
        row, column = np.unravel_index(int(dense.argmax()), dense.shape)
        moved[i] = torch.tensor([columns[column], rows[row]])
    return moved
