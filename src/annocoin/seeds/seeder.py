"""From an image and what was said about it to its seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import torch
from torch.nn import functional as F

from annocoin.errors import InputError, check_choice, check_positive
from annocoin.seeds.back_propagation import PeakBackPropagation, RuleName
from annocoin.seeds.choosing import choose_seeds
from annocoin.seeds.classifier import Classifier, Image, look_at
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.settling import settled
from annocoin.types import Annotation

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
        """The seeds of an RGB image, uint8 [H, W, 3], at least one for every mark."""
        if annotation.distinct_labels and annotation.distinct_labels[-1] > len(self.classes):
            raise InputError(
                f"class {annotation.distinct_labels[-1]}; the classifier has {len(self.classes)}"
            )
        seen = look_at(image, self.size)
        passed = self.back(seen.to(self.device))
        maps = passed.maps.cpu()
        size = (seen.shape[1], seen.shape[2])
        scale = (image.shape[0] / size[0], image.shape[1] / size[1])
        cells = self.back.cells.points((maps.shape[1], maps.shape[2]), scale)
        peaks, points, marks = choose_seeds(maps, cells, annotation, self.options.threshold)
        responses = passed.responses(peaks.to(self.device)).cpu()
        classes, rows, columns = peaks.T
        return Seeds(
            size=annotation.size,
            labels=classes + 1,
            points=settled(points, responses, marks, annotation),
            scores=maps[classes, rows, columns],
            marks=marks,
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
