"""Seeds on disk: one compressed file an image, versioned, checked when it is read."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from annocoin.data import arrays
from annocoin.data.arrays import Arrays, Fields
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation

VERSION = 1
FIELDS: Fields = {
    "size": ((2,), ("int64",)),
    "labels": ((None,), ("int64",)),
    "points": ((None, 2), ("float32",)),
    "scores": ((None,), ("float32",)),
    "marks": ((None,), ("int64",)),
    "responses": ((None, None, None), ("uint8",)),
    "maps": ((None, None, None), ("float32",)),
}
"""What a file holds: responses as the square root of their share of the greatest, in 255 steps."""


def write_seeds(path: str | Path, seeds: Seeds, annotation: Annotation | None = None) -> None:
    """Write seeds as .npz, whole or not at all. Some 10 kB a seed for a photograph.

    Args:
        annotation: what they were made for, so that `is_current` can tell whether it has changed.
    """
    content: Arrays = {
        "annotation": np.asarray(_digest(annotation)),
        "size": np.asarray(seeds.size, dtype=np.int64),
        "labels": seeds.labels.numpy(),
        "points": seeds.points.numpy(),
        "scores": seeds.scores.numpy(),
        "marks": seeds.marks.numpy(),
        "responses": _in_steps(seeds.responses).numpy(),
        "maps": seeds.maps.numpy(),
    }
    arrays.write_arrays(Path(path), VERSION, content)


def read_seeds(path: str | Path) -> Seeds:
    """Read what `write_seeds` wrote; anything else is an `InputError`."""
    return arrays.read_arrays(
        Path(path), VERSION, FIELDS, _decode, what="seeds", made="annocoin seeds"
    )


def is_current(path: Path, annotation: Annotation) -> bool:
    """Whether a file is there, of this version, and made for this annotation."""
    if not arrays.is_current(path, VERSION):
        return False
    with np.load(path, allow_pickle=False) as file:
        return "annotation" in file and str(file["annotation"]) == _digest(annotation)


def _digest(annotation: Annotation | None) -> str:
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
    if outside or (fields["labels"] < 1).any() or (fields["marks"] < 0).any():
        raise ValueError("points outside of the image, or labels or marks below the first")
    return Seeds(
        size=(height, width),
        labels=torch.from_numpy(fields["labels"]),
        points=torch.from_numpy(points),
        scores=torch.from_numpy(fields["scores"]),
        marks=torch.from_numpy(fields["marks"]),
        responses=share / mass,
        maps=torch.from_numpy(fields["maps"]),
    )
