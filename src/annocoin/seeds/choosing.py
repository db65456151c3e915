"""Which places of the class maps become seeds: peaks for a tag, one place for any other mark."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from annocoin import masks as rle
from annocoin.masks import Size
from annocoin.seeds.peaks import find_peaks
from annocoin.types import Annotation, Mark


class Choice(NamedTuple):
    """N seeds: where they are in the maps, in the image, and what for.

    Args:
        peaks: class 0..C-1, row and column of the map, int64 [N, 3].
        points: x, y in the image, float32 [N, 2].
        marks: the mark that each is for, int64 [N].
    """

    peaks: Tensor
    points: Tensor
    marks: Tensor


def choose_seeds(
    maps: Tensor, cells: tuple[Tensor, Tensor], annotation: Annotation, threshold: float
) -> Choice:
    """Seeds for every mark of an image, at least one each.

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
    for number, mark in enumerate(annotation):
        of_class, is_peak = maps[mark.label - 1], peaks[mark.label - 1]
        for row, column, point in _places(of_class, is_peak, mark, grid, threshold):
            found.append(((mark.label - 1, row, column), point, number))
    return Choice(
        peaks=torch.tensor([peak for peak, _, _ in found], dtype=torch.int64).view(-1, 3),
        points=torch.tensor([point for _, point, _ in found], dtype=torch.float32).view(-1, 2),
        marks=torch.tensor([number for _, _, number in found], dtype=torch.int64),
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
    of_class: Tensor, is_peak: Tensor, mark: Mark, grid: _Grid, threshold: float
) -> list[Place]:
    if mark.mask is not None and rle.areas([mark.mask])[0] > 0:
        return [grid.under(rle.interior_point(mark.mask))]
    if mark.point is not None:
        return [grid.under(mark.point)]
    if mark.box is None:
        return _near_the_best(of_class, is_peak, grid, threshold)
    cells = grid.inside(mark.box)
    if not cells.any():  # smaller than a cell
        x0, y0, x1, y1 = mark.box
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
