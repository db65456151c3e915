"""Seeds: the first guess of where the objects of one image are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from annocoin.data.artefacts import (
    Arrays,
    ArtefactFolder,
    Fields,
    has_version,
    read_arrays,
    write_arrays,
)
from annocoin.errors import InputError, brief
from annocoin.masks import Size
from annocoin.types import Annotation


@dataclass(frozen=True, eq=False)
class Seeds:
    """N seeds of one image, each a peak of its class's map and where that peak comes from.

    Equal-length, indexable fields. Every weak_label of the annotation has at least one seed.

    Args:
        size: (height, width) of the image.
        labels: classes 1..C, int64 [N].
        points: where the peaks' responses are densest, or the point that a person gave: x, y in
            the image, float32 [N, 2].
        scores: the class map's value at the peak, a logit, float32 [N].
        annotation_index: which weak_label of the annotation each seed is for, int64 [N].
        responses: the peak response maps, each summing to 1, float32 [N, h, w].
        maps: the maps of the seeds' classes, logits, float32 [N, h', w'].
    """

    size: Size
    labels: Tensor
    points: Tensor
    scores: Tensor
    annotation_index: Tensor
    responses: Tensor
    maps: Tensor

    def __post_init__(self) -> None:
        count = len(self.labels)
        shapes = {
            "labels": (self.labels, 1),
            "points": (self.points, 2),
            "scores": (self.scores, 1),
            "annotation_index": (self.annotation_index, 1),
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
            annotation_index=self.annotation_index[positions],
            responses=self.responses[positions],
            maps=self.maps[positions],
        )

    def __iter__(self) -> Iterator[Seeds]:
        """The seeds one by one."""
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Seeds({len(self)} in {self.size[0]}x{self.size[1]})"

    def check_for(self, annotation: Annotation) -> None:
        """Raise unless these are seeds for this annotation: each of the class of its weak_label."""
        fits = self.size == annotation.size
        if fits and len(self):
            fits = int(self.annotation_index.max()) < len(annotation) and torch.equal(
                annotation.labels[self.annotation_index], self.labels
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


VERSION = 1
FIELDS: Fields = {
    "size": ((2,), ("int64",)),
    "labels": ((None,), ("int64",)),
    "points": ((None, 2), ("float32",)),
    "scores": ((None,), ("float32",)),
    "annotation_index": ((None,), ("int64",)),
    "responses": ((None, None, None), ("uint8",)),
    "maps": ((None, None, None), ("float32",)),
}
"""What a file holds: responses as the square root of their share of the greatest, in 255 steps."""


def write_seeds(path: str | Path, seeds: Seeds, annotation: Annotation | None = None) -> None:
    """Write seeds as .npz, whole or not at all. Some 10 kB a seed for a photograph.

    Args:
        annotation: what they were made for, so that `seeds_are_current` can tell whether it has override.
    """
    content: Arrays = {
        "annotation": np.asarray(_annotation_digest(annotation)),
        "size": np.asarray(seeds.size, dtype=np.int64),
        "labels": seeds.labels.numpy(),
        "points": seeds.points.numpy(),
        "scores": seeds.scores.numpy(),
        "annotation_index": seeds.annotation_index.numpy(),
        "responses": _in_steps(seeds.responses).numpy(),
        "maps": seeds.maps.numpy(),
    }
    write_arrays(Path(path), VERSION, content)


def read_seeds(path: str | Path) -> Seeds:
    """Read what `write_seeds` wrote; anything else is an `InputError`."""
    return read_arrays(Path(path), VERSION, FIELDS, _decode, what="seeds", made="annocoin seeds")


def seeds_are_current(path: Path, annotation: Annotation) -> bool:
    """Whether a file is there, of this version, and made for this annotation."""
    if not has_version(path, VERSION):
        return False
    with np.load(path, allow_pickle=False) as file:
        return "annotation" in file and str(file["annotation"]) == _annotation_digest(annotation)


def _annotation_digest(annotation: Annotation | None) -> str:
    """A short name of all that an annotation says."""
    return hashlib.sha256(repr(annotation).encode()).hexdigest()[:16]


def _in_steps(responses: Tensor) -> Tensor:
    greatest = responses.flatten(1).amax(dim=1) if len(responses) else responses.new_zeros(0)
    share = responses / greatest[:, None, None]
    return (255 * share.clamp(0, 1).sqrt()).round().to(torch.uint8)


def _decode(fields: Arrays) -> Seeds:
    height, width = (int(value) for value in fields["size"])
    share = (torch.from_numpy(fields["responses"]).float() / 255) ** 2
    mass = share.sum(dim=(1, 2), keepdim=True)
    numbers = all(np.isfinite(fields[name]).all() for name in ("points", "scores", "maps"))
    if not numbers or bool((mass <= 0).any()) or height < 1 or width < 1:
        raise ValueError("numbers that no seeds have")
    points = fields["points"]
    outside = (points < 0).any() or (points > np.asarray([width, height])).any()
    if outside or (fields["labels"] < 1).any() or (fields["annotation_index"] < 0).any():
        raise ValueError("points outside of the image, or labels or weak_labels below the first")
    return Seeds(
        size=(height, width),
        labels=torch.from_numpy(fields["labels"]),
        points=torch.from_numpy(points),
        scores=torch.from_numpy(fields["scores"]),
        annotation_index=torch.from_numpy(fields["annotation_index"]),
        responses=share / mass,
        maps=torch.from_numpy(fields["maps"]),
    )


class SeedFolder(ArtefactFolder[Seeds]):
    """The seeds in a folder that `make_seeds` wrote, by image id; read when asked for."""

    index_name = "seeds.json"
    command = "`annocoin seeds`"

    def read(self, path: Path) -> Seeds:
        return read_seeds(path)
