"""Seeds: the first guess of where the objects of one image are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from annocoin.errors import InputError, brief
from annocoin.masks import Size
from annocoin.types import Annotation


@dataclass(frozen=True, eq=False)
class Seeds:
    """N seeds of one image, each a peak of its class's map and where that peak comes from.

    Equal-length, indexable fields. Every mark of the annotation has at least one seed.

    Args:
        size: (height, width) of the image.
        labels: classes 1..C, int64 [N].
        points: where the peaks' responses are densest, or the point that a person gave: x, y in
            the image, float32 [N, 2].
        scores: the class map's value at the peak, a logit, float32 [N].
        marks: which mark of the annotation each seed is for, int64 [N].
        responses: the peak response maps, each summing to 1, float32 [N, h, w].
        maps: the maps of the seeds' classes, logits, float32 [N, h', w'].
    """

    size: Size
    labels: Tensor
    points: Tensor
    scores: Tensor
    marks: Tensor
    responses: Tensor
    maps: Tensor

    def __post_init__(self) -> None:
        count = len(self.labels)
        shapes = {
            "labels": (self.labels, 1),
            "points": (self.points, 2),
            "scores": (self.scores, 1),
            "marks": (self.marks, 1),
            "responses": (self.responses, 3),
            "maps": (self.maps, 3),
        }
        for name, (value, dimensions) in shapes.items():
            if value.ndim != dimensions or len(value) != count:
                raise ValueError(f"{name} of shape {tuple(value.shape)} for {count} seeds")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Seeds:
        """The chosen seeds: a position, a slice, positions, or a bool tensor [N]."""
        positions = torch.arange(len(self))[index].reshape(-1)
        return replace(
            self,
            labels=self.labels[positions],
            points=self.points[positions],
            scores=self.scores[positions],
            marks=self.marks[positions],
            responses=self.responses[positions],
            maps=self.maps[positions],
        )

    def __iter__(self) -> Iterator[Seeds]:
        """The seeds one by one."""
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Seeds({len(self)} in {self.size[0]}x{self.size[1]})"

    def check_for(self, annotation: Annotation) -> None:
        """Raise unless these are seeds for this annotation: each of the class of its mark."""
        fits = self.size == annotation.size
        if fits and len(self):
            fits = int(self.marks.max()) < len(annotation) and torch.equal(
                annotation.labels[self.marks], self.labels
            )
        if not fits:
            raise InputError(
                f"seeds of another image or annotation: {self.size} and classes "
                f"{brief(self.labels.tolist())}, expected {annotation.size} and the classes of "
                f"{brief(annotation.labels.tolist())}; run `annocoin seeds` again"
            )

    def responses_in_image(self) -> Tensor:
        """The responses at the image's resolution, each summing to 1: float32 [N, H, W]."""
        if len(self) == 0:
            return torch.zeros(0, *self.size)
        large = _enlarged(self.responses, self.size)
        return large / large.sum(dim=(1, 2), keepdim=True).clamp(min=1e-12)

    def maps_in_image(self) -> Tensor:
        """The class maps at the image's resolution: float32 [N, H, W]."""
        return _enlarged(self.maps, self.size) if len(self) else torch.zeros(0, *self.size)


def _enlarged(values: Tensor, size: Size) -> Tensor:
    return F.interpolate(values[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]
