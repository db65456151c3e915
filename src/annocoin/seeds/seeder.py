"""From an image and its annotation to seeds: select peaks, propagate them back, refine points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from annocoin import masks as rle
from annocoin.backbones import Image, Precision, resize_longest_side
from annocoin.data.dataset import MAX_COUNT
from annocoin.errors import InputError, check_choice, check_positive
from annocoin.seeds.back_propagation import PeakBackPropagation, RuleName
from annocoin.seeds.class_maps import ClassMapper
from annocoin.seeds.classifier import Classifier, find_peaks
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation, Box, Point, WeakLabel

Responses = Literal["peaks", "maps"]

SEED_SCALE = 1.4
"""Image size for seeds relative to training: larger images show smaller objects and more detail."""

MAX_SEEDS = 200
"""Of the tags of an image: a classifier that has learned nothing has hundreds of equal peaks."""

MAX_LABELS = 1000
"""Of an image, each of which has a seed."""

BLUR = 0.024
"""Standard deviation of the blur of responses, relative to the longer side of the image."""


@dataclass(frozen=True)
class SeedOptions:
    """Options of `Seeder`.

    Args:
        size: the longer side of the network's input; default `SEED_SCALE` times the size that the
            classifier was trained with.
        threshold: peaks of a tag need at least this share of the probability of the best peak of
            their class in the image.
        responses: of the seeds: "peaks", peak response maps by back-propagation; or "maps", the
            positive part of the class map, in which then the peaks are found too (with shares of
            its maximum instead of probabilities). Back-propagation costs several passes of the
            network. "maps" needs `map_scales`.
        rule: of the back-propagation, see `PeakBackPropagation`.
        map_scales: sizes of the inputs for the class maps, relative to the size that the classifier
            was trained with; empty for the maps in which the peaks are found.
        mirror, dense: of those maps, see `ClassMapper`; without effect if `map_scales` is empty.
        precision: of those maps; "bf16" uses bfloat16 autocast.
        cell: responses are stored as means over cells of this many input pixels a side.
    """

    size: int | None = None
    threshold: float = 0.7
    responses: Responses = "peaks"
    rule: RuleName = "conserving"
    map_scales: tuple[float, ...] = ()
    mirror: bool = True
    dense: bool = True
    precision: Precision = "32"
    cell: int = 4

    def __post_init__(self) -> None:
        check_choice("rule", self.rule, get_args(RuleName))
        check_choice("responses", self.responses, get_args(Responses))
        if self.responses == "maps" and not self.map_scales:
            raise InputError("responses maps without map_scales; expected scales, such as [1, 1.5]")
        check_positive("cell", self.cell)
        check_choice("precision", self.precision, get_args(Precision))
        if not all(0.1 <= scale <= 10 for scale in self.map_scales):
            raise InputError(f"map_scales {self.map_scales}; expected factors of 0.1 to 10")
        if not 0 <= self.threshold <= 1:
            raise InputError(f"threshold {self.threshold}; expected 0 to 1")
        if self.size is not None and not 32 <= self.size <= 4096:
            raise InputError(f"size {self.size}; expected 32 to 4096 pixels")


class Seeder:
    """Computes the seeds of an image; constructed once for many images."""

    def __init__(
        self,
        classifier: Classifier,
        options: SeedOptions | None = None,
        *,
        device: str | torch.device = "cpu",
    ) -> None:
        self.options = options or SeedOptions()
        self.size = self.options.size or round(SEED_SCALE * classifier.architecture.size)
        self.device = torch.device(device)
        self.classes = classifier.architecture.classes
        net = classifier.eval().to(self.device)
        self.back_propagation = PeakBackPropagation(net, self.options.rule)
        self.class_mapper: ClassMapper | None = None
        if self.options.map_scales:
            training_size = classifier.architecture.size
            self.class_mapper = ClassMapper(
                net,
                [max(32, round(scale * training_size)) for scale in self.options.map_scales],
                mirror=self.options.mirror,
                dense=self.options.dense,
                bfloat16=self.options.precision == "bf16",
            )

    def __call__(self, image: Image, annotation: Annotation) -> Seeds:
        """The seeds of an RGB image, uint8 [H, W, 3], at least one for every weak label."""
        highest = max(annotation.distinct_labels, default=0)
        if highest > len(self.classes):
            raise InputError(f"class {highest}; the classifier has {len(self.classes)}")
        if len(annotation) > MAX_LABELS:
            raise InputError(f"{len(annotation)} labels in an image; expected at most {MAX_LABELS}")
        if self.class_mapper is not None and self.options.responses == "maps":
            return _seeds_of_maps(self.class_mapper(image), annotation, self.options.threshold)
        pixels = resize_longest_side(image, self.size)
        size = pixels.shape[1:]
        forward_pass = self.back_propagation(pixels.to(self.device))
        maps = forward_pass.maps.cpu()
        scale = (image.shape[0] / size[0], image.shape[1] / size[1])
        centres = self.back_propagation.centres
        peaks, points, annotation_index = select_peaks(
            maps, centres.in_image(maps.shape[1:], scale), annotation, self.options.threshold
        )
        responses = forward_pass.responses(peaks.to(self.device)).cpu()
        cells = points.flip(1) / torch.tensor(annotation.size) * torch.tensor(size)
        _cut_to_boxes(responses, cells.long(), annotation_index, annotation)
        classes, rows, columns = peaks.T
        if self.class_mapper is None:
            class_maps = centres.resample(maps, size)
        else:
            class_maps = self.class_mapper(image)
        return Seeds(
            size=annotation.size,
            labels=classes + 1,
            points=refine_peaks(points, responses, annotation_index, annotation),
            scores=maps[classes, rows, columns],
            annotation_index=annotation_index,
            responses=_downsample(responses, self.options.cell),
            maps=class_maps[classes],
        )


def _seeds_of_maps(maps: Tensor, annotation: Annotation, threshold: float) -> Seeds:
    """Seeds of class maps [C, h, w] alone: the response of a peak is the map's positive part."""
    positive = maps.clamp(min=0)
    shares = positive / positive.amax(dim=(1, 2), keepdim=True).clamp(min=1e-6)
    # a map without positive values still has an order of its cells
    log_odds = torch.logit(shares, eps=1e-6) + 1e-3 * maps.clamp(max=0)
    cells = zip(maps.shape[1:], annotation.size, strict=True)
    down, across = ((torch.arange(n) + 0.5) * (length / n) for n, length in cells)
    peaks, points, annotation_index = select_peaks(log_odds, (down, across), annotation, threshold)
    classes, rows, columns = peaks.T
    responses = positive[classes]
    _cut_to_boxes(responses, peaks[:, 1:], annotation_index, annotation)
    return Seeds(
        size=annotation.size,
        labels=classes + 1,
        points=points,
        scores=maps[classes, rows, columns],
        annotation_index=annotation_index,
        responses=responses / responses.sum(dim=(1, 2), keepdim=True),
        maps=maps[classes],
    )


def _cut_to_boxes(
    responses: Tensor, peaks: Tensor, annotation_index: Tensor, annotation: Annotation
) -> None:
    """Set responses [N, h, w] of boxes to 0 outside their box, in place (paper, 6.2).

    A response of which nothing is left is 1 at its peak.

    Args:
        peaks: row and column of each, int64 [N, 2].
    """
    height, width = responses.shape[1:]
    rows = (torch.arange(height) + 0.5) * (annotation.size[0] / height)
    columns = (torch.arange(width) + 0.5) * (annotation.size[1] / width)
    parts = zip(responses, peaks.tolist(), annotation_index.tolist(), strict=True)
    for response, (row, column), index in parts:
        box = annotation[index].box
        if box is not None:
            response *= _inside(box, rows, columns)
        if not response.any():
            response[min(row, height - 1), min(column, width - 1)] = 1


class SelectedPeaks(NamedTuple):
    """N peaks of class maps."""

    peaks: Tensor  # class 0..C-1, row and column of the map, int64 [N, 3]
    points: Tensor  # x, y in the image, float32 [N, 2]
    annotation_index: Tensor  # the weak label that each belongs to, int64 [N]


def select_peaks(
    maps: Tensor, centres: tuple[Tensor, Tensor], annotation: Annotation, threshold: float
) -> SelectedPeaks:
    """Peaks for every weak label of an image, at least one each.

    A tag gets the peaks of its class whose probability is near that of the best one; all tags
    together at most `MAX_SEEDS`, each the same number of the best ones. A tag with a count gets as
    many peaks, one with a count of more than `MAX_COUNT` at least as many. A box gets
    the best peak inside it, or its best cell if it has no peak; a point or a mask gets the cell at
    its location.

    Args:
        maps: class maps, logits [C, h, w].
        centres: of the maps' rows [h] and columns [w] in the image.
        threshold: the least ratio of a peak's probability to that of the best peak.
    """
    rows, columns = centres[0].clamp(0, annotation.size[0]), centres[1].clamp(0, annotation.size[1])
    is_peak = find_peaks(maps)
    most = max(1, MAX_SEEDS // max(1, sum(label.kind == "tag" for label in annotation)))
    peaks: list[tuple[int, int, int]] = []
    points: list[Point] = []
    annotation_index: list[int] = []
    for index, weak_label in enumerate(annotation):
        channel = weak_label.label - 1
        location = _location(weak_label, rows, columns)
        if location is not None:
            x, y = location
            cells = [(int((rows - y).abs().argmin()), int((columns - x).abs().argmin()))]
        elif weak_label.box is None:
            least, limit = _number_of_peaks(weak_label.count, most)
            cells = _best_cells(maps[channel], is_peak[channel], threshold, least)[:limit]
        else:
            inside = _inside(weak_label.box, rows, columns)
            peaks_inside = inside & is_peak[channel]
            candidates = peaks_inside if peaks_inside.any() else inside
            cells = _best_cells(maps[channel], candidates, threshold)[:1]
        cell_centres = [(float(columns[column]), float(rows[row])) for row, column in cells]
        points += cell_centres if location is None else [location]
        peaks += [(channel, *cell) for cell in cells]
        annotation_index += [index] * len(cells)
    return SelectedPeaks(
        peaks=torch.tensor(peaks, dtype=torch.int64).view(-1, 3),
        points=torch.tensor(points, dtype=torch.float32).view(-1, 2),
        annotation_index=torch.tensor(annotation_index, dtype=torch.int64),
    )


def refine_peaks(
    points: Tensor, responses: Tensor, annotation_index: Tensor, annotation: Annotation
) -> Tensor:
    """Points moved to where their blurred responses are maximal: float32 [N, 2], x, y.

    Points of a box stay inside it; those of an annotated point or mask are not moved.

    Args:
        points: float32 [N, 2], in the image.
        responses: [N, h, w], at any resolution.
        annotation_index: the weak label that each belongs to, int64 [N].
    """
    refined = points.clone()
    height, width = responses.shape[1:]
    rows = (torch.arange(height, dtype=torch.float64) + 0.5) * (annotation.size[0] / height)
    columns = (torch.arange(width, dtype=torch.float64) + 0.5) * (annotation.size[1] / width)
    for i, index in enumerate(annotation_index.tolist()):
        weak_label = annotation[index]
        if weak_label.point is not None or weak_label.mask is not None:
            continue
        density = cv2.GaussianBlur(
            responses[i].numpy(), (0, 0), BLUR * max(height, width), borderType=cv2.BORDER_CONSTANT
        )
        if weak_label.box is not None:
            inside = _inside(weak_label.box, rows, columns)
            if not inside.any():  # smaller than a pixel of the response
                continue
            density = np.where(inside.numpy(), density, -1)
        row, column = divmod(int(density.argmax()), width)
        refined[i] = torch.stack([columns[column], rows[row]])
    return refined


def _location(weak_label: WeakLabel, rows: Tensor, columns: Tensor) -> Point | None:
    """The location of a mask, a point, or a box smaller than a cell; otherwise None."""
    if weak_label.mask is not None and rle.areas([weak_label.mask])[0] > 0:
        return rle.interior_point(weak_label.mask)
    if weak_label.box is None or weak_label.point is not None:
        return weak_label.point
    x0, y0, x1, y1 = weak_label.box
    has_cell = _inside(weak_label.box, rows, columns).any()
    return None if has_cell else ((x0 + x1) / 2, (y0 + y1) / 2)


def _inside(box: Box, rows: Tensor, columns: Tensor) -> Tensor:
    """Cells with their centre in the box: bool [h, w], from rows [h] and columns [w]."""
    x0, y0, x1, y1 = box
    return ((rows >= y0) & (rows < y1))[:, None] & (columns >= x0) & (columns < x1)


def _number_of_peaks(count: int | None, most: int) -> tuple[int, int]:
    """The least and the greatest number of peaks of a tag."""
    if count is None:
        return 1, most
    return (count, count) if count <= MAX_COUNT else (count, max(count, most))


def _best_cells(
    values: Tensor, candidates: Tensor, threshold: float, least: int = 1
) -> list[tuple[int, int]]:
    """Rows and columns of the candidates near the best one, by falling value; maps are [h, w].

    Args:
        least: number of candidates to take even if they are not near it, where there are as many.
    """
    ordered, order = (
        torch.where(candidates, values, -torch.inf).flatten().sort(descending=True, stable=True)
    )
    # Probabilities in float64: a float32 sigmoid is 1 for logits of 17 and more.
    near = ordered.double().sigmoid() >= threshold * ordered[0].double().sigmoid()
    near[:least] = True
    width = values.shape[1]
    return [divmod(position, width) for position in order[near & ordered.isfinite()].tolist()]


def _downsample(responses: Tensor, cell: int) -> Tensor:
    """Maps [N, H, W] as means over about cell x cell pixels, rescaled to sum to 1."""
    if len(responses) == 0:
        return responses
    size = (-(-responses.shape[1] // cell), -(-responses.shape[2] // cell))
    means = F.adaptive_avg_pool2d(responses, size)
    return means / means.sum(dim=(1, 2), keepdim=True)
