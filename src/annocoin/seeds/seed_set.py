"""Seeds: peaks of the class maps that mark where the objects of an image may be; their files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from annocoin.data.artefacts import ArrayFormat, Arrays, ArtefactFolder
from annocoin.errors import InputError, brief
from annocoin.masks import Size
from annocoin.types import Annotation, ImageId

FORMAT = ArrayFormat(
    "seeds",
    "annocoin seeds",
    version=2,
    fields={
        "size": ((2,), ("int64",)),
        "labels": ((None,), ("int64",)),
        "points": ((None, 2), ("float32",)),
        "scores": ((None,), ("float32",)),
        "annotation_index": ((None,), ("int64",)),
        "responses": ((None, None, None), ("uint8",)),  # 255 times the root of value / maximum
        "maps": ((None, None, None), ("float32",)),
    },
)
DIGEST = replace(FORMAT, fields={"annotation": ((), ("str512",))})  # 16 characters
PER_SEED = tuple(name for name in FORMAT.fields if name != "size")


@dataclass(frozen=True, eq=False)
class Seeds:
    """N seeds of one image: peaks of class maps, each with its peak response map.

    Equal-length, indexable fields. Every weak label of the annotation has at least one seed.

    Args:
        size: (height, width) of the image.
        labels: classes 1..C, int64 [N].
        points: where the response is densest, or the annotated point: x, y in the image,
            float32 [N, 2].
        scores: the value of the class map at the peak, a logit, float32 [N].
        annotation_index: the weak label that each seed belongs to, int64 [N].
        responses: the peak response maps, each summing to 1, float32 [N, h, w].
        maps: the class maps of the seeds' classes, logits, float32 [N, h', w'].
    """

    size: Size
    labels: Tensor
    points: Tensor
    scores: Tensor
    annotation_index: Tensor
    responses: Tensor
    maps: Tensor

    def __post_init__(self) -> None:
        for name in PER_SEED:
            shape = tuple(getattr(self, name).shape)
            if len(shape) != len(FORMAT.fields[name][0]) or shape[0] != len(self.labels):
                raise ValueError(f"{name} of shape {shape} for {len(self.labels)} seeds")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Seeds:
        """Some of the seeds, by a position, a slice, positions, or a bool tensor [N]."""
        positions = torch.arange(len(self))[index].reshape(-1)
        selected: Any = {name: getattr(self, name)[positions] for name in PER_SEED}
        return replace(self, **selected)

    def __iter__(self) -> Iterator[Seeds]:
        """The seeds one by one."""
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        return f"Seeds({len(self)} in {self.size[0]}x{self.size[1]})"

    def check_for(self, annotation: Annotation) -> None:
        """Raise unless each seed has the class of its weak label in this annotation."""
        index, labels = self.annotation_index, annotation.labels
        fits = self.size == annotation.size and bool((index < len(labels)).all())
        if not fits or not torch.equal(labels[index], self.labels):
            raise InputError(
                f"seeds of another image or annotation: {self.size} and classes "
                f"{brief(self.labels.tolist())}, expected {annotation.size} and the classes of "
                f"{brief(labels.tolist())}; run `annocoin seeds` again"
            )

    def responses_in_image(self) -> Tensor:
        """The responses at the image's resolution, each summing to 1: float32 [N, H, W]."""
        responses = self._resized(self.responses)
        return responses / responses.sum(dim=(1, 2), keepdim=True).clamp(min=1e-12)

    def maps_in_image(self) -> Tensor:
        """The class maps at the image's resolution: float32 [N, H, W]."""
        return self._resized(self.maps)

    def _resized(self, maps: Tensor) -> Tensor:
        if len(self) == 0:
            return torch.zeros(0, *self.size)
        return F.interpolate(maps[:, None], self.size, mode="bilinear", align_corners=False)[:, 0]


class SeedFolder(ArtefactFolder[Seeds]):
    """The seeds in a folder that `make_seeds` wrote, by image id; read on access."""

    index_name = "seeds.json"
    companions = frozenset({"classifier.safetensors", "classifier.jsonl"})
    command = "`annocoin seeds`"

    def read(self, path: Path) -> Seeds:
        return read_seeds(path)

    def check(self, image_id: ImageId, annotation: Annotation) -> None:
        """Raise unless the image's seeds were made for this annotation; reads only its digest."""
        if _stored_digest(self.files[image_id]) != annotation_digest(annotation):
            raise InputError(
                f"{self.path}: the seeds of image {image_id!r} were made for another annotation or "
                f"supervision; run {self.command} with the same --supervision"
            )


def write_seeds(path: str | Path, seeds: Seeds, annotation: Annotation) -> None:
    """Write the seeds made for an annotation as .npz, atomically. About 10 kB per seed."""
    maximum = seeds.responses.amax(dim=(1, 2), keepdim=True) if len(seeds) else 1
    roots = (seeds.responses / maximum).clamp(0, 1).sqrt()
    content: Arrays = {name: getattr(seeds, name).numpy() for name in PER_SEED}
    content["annotation"] = np.asarray(annotation_digest(annotation))
    content["size"] = np.asarray(seeds.size, dtype=np.int64)
    content["responses"] = (255 * roots).round().to(torch.uint8).numpy()
    FORMAT.write(Path(path), content)


def read_seeds(path: str | Path) -> Seeds:
    """Read a file of `write_seeds`; anything else is an `InputError`."""
    return FORMAT.read(Path(path), _decode)


def seeds_are_current(path: Path, annotation: Annotation) -> bool:
    """Whether the file exists, has this version, is whole, and was made for this annotation."""
    try:
        made_for = _stored_digest(path) == annotation_digest(annotation)
        return made_for and FORMAT.is_current(path)
    except InputError:
        return False


def annotation_digest(annotation: Annotation) -> str:
    """A digest of the image size and of the class, location and count of every weak label."""
    fields = [
        (label.label, label.box, label.point, label.mask and label.mask["counts"], label.crowd)
        + (() if label.count is None else (label.count,))  # seeds without counts stay valid
        for label in annotation
    ]
    return hashlib.sha256(repr((annotation.size, fields)).encode()).hexdigest()[:16]


def _stored_digest(path: Path) -> str:
    return DIGEST.read(path, lambda arrays: str(arrays["annotation"]))


def _decode(arrays: Arrays) -> Seeds:
    height, width = arrays["size"].tolist()
    if height < 1 or width < 1:
        raise ValueError(f"image size {height} x {width}")
    if not all(np.isfinite(arrays[name]).all() for name in ("points", "scores", "maps")):
        raise ValueError("points, scores or maps are not finite")
    points = arrays["points"]
    if (points < 0).any() or (points > np.asarray([width, height])).any():
        raise ValueError("points outside of the image")
    if (arrays["labels"] < 1).any() or (arrays["annotation_index"] < 0).any():
        raise ValueError("labels below 1 or annotation indices below 0")
    fields: Any = {name: torch.from_numpy(arrays[name]) for name in PER_SEED}
    responses = fields["responses"].float().div_(255).square_()
    total = responses.sum(dim=(1, 2), keepdim=True)
    if (total <= 0).any():
        raise ValueError("an empty response")
    return Seeds((height, width), **{**fields, "responses": responses.div_(total)})
