"""Datasets: the content of files (`LabelledImages`), of training and of evaluation.

`WeakDataset` and `EvaluationDataset` are different types on purpose. Training receives the first,
which holds only the masks that a user gave as labels (supervision "mixed"), unless full supervision
("mask") is requested by name.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar, get_args, overload

import numpy as np
import numpy.typing as npt

from annocoin import masks
from annocoin.data.images import check_file_name, read_image
from annocoin.data.parsing import unique
from annocoin.errors import InputError, Problems, brief, check_choice
from annocoin.types import Annotation, Box, ImageId, Instances, WeakLabel

MaskPolicy = Literal["never", "optional", "required"]
"""Whether a reader reads masks: none, those that exist, or one file of masks for every image."""

Supervision = Literal["image", "count", "box", "point", "mixed", "mask"]

MAX_COUNT = 4
"""Greater numbers of objects of a class in an image are only known to be greater (subitizing)."""


ImageT = TypeVar("ImageT")
DatasetT = TypeVar("DatasetT", bound="_Images[Any]")


@dataclass(frozen=True)
class LabelledImage:
    """An image and all its labels.

    Args:
        image_id: the file's stem, or COCO's own id.
        file_name: path of the image in its dataset, with "/" as separator.
        path: the image file; None for a COCO file without images.
        annotation: the weak labels, in the order of the file.
        listed_labels: the class of each weak label in VOC's object list, if it was read with masks:
            the classes of the pixels, in `annotation`, differ from it in a few images.
    """

    image_id: ImageId
    file_name: str
    path: Path | None
    annotation: Annotation
    listed_labels: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_file_name(self.file_name, f"image {brief(self.image_id)}")

    def image_path(self) -> Path:
        """The image file; raises if there is none."""
        if self.path is None:
            raise InputError(f"{self.file_name}: no images; say where they are with --images DIR")
        return self.path


class _Images(Sequence[ImageT]):
    """A dataclass with images as their sequence; a slice is of the same class."""

    images: tuple[ImageT, ...]

    def __len__(self) -> int:
        return len(self.images)

    @overload
    def __getitem__(self, index: int) -> ImageT: ...
    @overload
    def __getitem__(self: DatasetT, index: slice) -> DatasetT: ...
    def __getitem__(self: Any, index: int | slice) -> Any:
        if isinstance(index, slice):
            return replace(self, images=self.images[index])
        return self.images[index]


@dataclass(frozen=True)
class LabelledImages(_Images[LabelledImage]):
    """A dataset as its files hold it, for readers and writers.

    Args:
        classes: the names of classes 1..C.
        category_ids: the number of each class in result files; 1..C except for COCO.
        images: the images.
        split: the name of the list of images that was read, if one was selected.
        splits: the lists of images by name, if none was selected.
        source: the path it was read from, for messages.
    """

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    images: tuple[LabelledImage, ...]
    split: str | None = None
    splits: Mapping[str, tuple[ImageId, ...]] = field(default_factory=dict)
    source: Path | None = None

    @classmethod
    def of(
        cls,
        classes: Sequence[str],
        images: Sequence[LabelledImage],
        *,
        category_ids: Sequence[int] | None = None,
        split: str | None = None,
        splits: Mapping[str, Sequence[ImageId]] | None = None,
        source: Path | None = None,
    ) -> LabelledImages:
        """A dataset with at least one image; `category_ids` defaults to 1..C."""
        if not images:
            raise InputError(f"{source}: no usable image{f' in split {split!r}' if split else ''}")
        for name in classes:
            if not name or name != name.strip() or not name.isprintable():
                raise InputError(f"{source}: class name {name!r}; expected plain text")
        category_ids = category_ids or range(1, len(classes) + 1)
        lists = {name: tuple(ids) for name, ids in (splits or {}).items()}
        return cls(tuple(classes), tuple(category_ids), tuple(images), split, lists, source)

    def __post_init__(self) -> None:
        present = {image.image_id for image in self.images}
        splits = {name: tuple(i for i in ids if i in present) for name, ids in self.splits.items()}
        object.__setattr__(self, "splits", splits)

    def with_stems(self) -> list[tuple[LabelledImage, str]]:
        """The images, each with a file name without suffix, all different.

        Folders are dropped, unless names would then be equal: they are joined with "__".
        """
        paths = [PurePosixPath(image.file_name).with_suffix("") for image in self]
        names = [path.name for path in paths]
        if len(set(names)) < len(names):
            names = [path.as_posix().replace("/", "__") for path in paths]
        unique(names, f"{self.source}: image file names")
        return list(zip(self.images, names, strict=True))

    def unused_classes(self) -> int:
        """Number of classes without a label; formats without a list of classes lose them."""
        used = {label for image in self for label in image.annotation.distinct_labels}
        return len(self.classes) - len(used)


@dataclass(frozen=True)
class WeakImage:
    """One image for training, with its weak labels."""

    image_id: ImageId
    path: Path
    annotation: Annotation
    file_name: str = ""  # path of the image in its dataset, with "/" as separator

    def __post_init__(self) -> None:
        if not self.file_name:
            object.__setattr__(self, "file_name", self.path.name)

    def image_path(self) -> Path:
        """The image file, as `LabelledImage` has it."""
        return self.path

    def pixels(self) -> npt.NDArray[np.uint8]:
        """The image as RGB, uint8 [H, W, 3]."""
        return read_image(self.path)


@dataclass(frozen=True)
class WeakDataset(_Images[WeakImage]):
    """Images with weak labels: all that training reads.

    Args:
        classes: the names of classes 1..C.
        category_ids: the number of each class in result files.
        supervision: the kind of weak labels.
        images: the images.
        source: the path it was read from, for messages.
    """

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    supervision: Supervision
    images: tuple[WeakImage, ...]
    source: Path | None = None

    def __post_init__(self) -> None:
        for image in () if self.supervision in ("mixed", "mask") else self.images:
            extra = set(image.annotation.kinds) - {"tag", self.supervision}
            if extra:
                raise ValueError(f"{image.image_id}: {extra} under supervision {self.supervision}")
            if self.supervision != "count" and any(label.count for label in image.annotation):
                raise ValueError(f"{image.image_id}: counts under supervision {self.supervision}")

    @property
    def fully_masked(self) -> bool:
        """Whether there are weak labels, and all have a mask."""
        kinds = {kind for image in self for kind in image.annotation.kinds}
        return kinds == {"mask"}

    def subset(self, image_ids: Collection[ImageId]) -> WeakDataset:
        """The images with these ids."""
        return replace(self, images=tuple(i for i in self.images if i.image_id in image_ids))

    def digest(self) -> str:
        """A digest of the annotations, and of the images by name and size."""
        digest = hashlib.sha256(repr((self.classes, self.supervision)).encode())
        for image in self.images:
            size = image.path.stat().st_size
            digest.update(repr((image.image_id, image.file_name, size, image.annotation)).encode())
            if self.supervision == "count":
                digest.update(repr([label.count for label in image.annotation]).encode())
        return digest.hexdigest()

    def with_classes(self, classes: tuple[str, ...], source: str) -> WeakDataset:
        """The same images with labels numbered by another list of classes.

        Weak labels of classes that are not in the list are left out, with a note on stderr; if none
        is left, that is an error.

        Args:
            source: where the list of classes comes from, for messages.
        """
        if classes == self.classes:
            return self
        new_label = {
            label: classes.index(name) + 1
            for label, name in enumerate(self.classes, start=1)
            if name in classes
        }
        images, left_out = [], []
        for image in self.images:
            known = [label for label in image.annotation if label.label in new_label]
            left_out += [label for label in image.annotation if label.label not in new_label]
            weak_labels = tuple(replace(label, label=new_label[label.label]) for label in known)
            annotation = replace(image.annotation, weak_labels=weak_labels)
            images.append(replace(image, annotation=annotation))
        where = "" if self.source is None else f" in {self.source}"
        if not new_label or (left_out and not any(image.annotation for image in images)):
            raise InputError(
                f"{source}: knows none of the dataset's classes {brief(self.classes)}{where}; "
                f"it knows {brief(classes)}"
            )
        if left_out:
            unknown = ", ".join(sorted({self.classes[label.label - 1] for label in left_out}))
            print(
                f"note: {source}: {len(left_out)} labels of unknown classes{where} left out: "
                f"{unknown}",
                file=sys.stderr,
            )
        category_ids = tuple(range(1, len(classes) + 1))
        return replace(self, classes=classes, category_ids=category_ids, images=tuple(images))


class EvaluationDataset:
    """Images with ground truth masks, for evaluation only.

    Iterating gives the image ids; `truth` gives the instances of one. Labels without a mask are not
    part of the ground truth; `without_mask` is their number.
    """

    def __init__(self, labelled: LabelledImages) -> None:
        kinds = [kind for image in labelled for kind in image.annotation.kinds]
        if "mask" not in kinds:
            raise InputError(
                f"{labelled.source}: no masks in it; evaluation needs a dataset with true masks"
            )
        self.labelled = labelled
        self.without_mask = len(kinds) - kinds.count("mask")
        self._images = {image.image_id: image for image in labelled}

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of classes 1..C."""
        return self.labelled.classes

    def __len__(self) -> int:
        return len(self._images)

    def __iter__(self) -> Iterator[ImageId]:
        return iter(self._images)

    def truth(
        self, image_id: ImageId, classes_from: Literal["pixels", "objects"] = "pixels"
    ) -> Instances:
        """The ground truth instances of one image.

        `classes_from` selects VOC's class map or the object list of its XML; in other formats they
        are the same.
        """
        image = self._images[image_id]
        annotation = image.annotation
        if classes_from == "objects" and image.listed_labels is not None:
            pairs = zip(annotation, image.listed_labels, strict=True)
            weak_labels = tuple(replace(label, label=listed) for label, listed in pairs)
            annotation = replace(annotation, weak_labels=weak_labels)
        return annotation.instances()


def weak_dataset(
    labelled: LabelledImages, supervision: Supervision, problems: Problems | None = None
) -> WeakDataset:
    """The dataset reduced to one kind of supervision."""
    problems = problems or Problems()
    images = []
    for image in labelled:
        with problems.caught():
            annotation = weaken(image.annotation, supervision)
            if len(image.annotation) and not len(annotation):
                raise InputError(
                    f"{labelled.source}: image {image.image_id!r} has labels but none with a mask; "
                    "use --supervision mixed"
                )
            images.append(
                WeakImage(image.image_id, image.image_path(), annotation, image.file_name)
            )
    needed = {"box": "boxes", "point": "points"}.get(supervision)
    if needed and not any(supervision in image.annotation.kinds for image in images):
        raise InputError(f"{labelled.source}: no {needed} in it; use --supervision image, or mixed")
    counts = [label.count for image in images for label in image.annotation]
    if supervision == "count" and not any(counts):
        raise InputError(f"{labelled.source}: no objects to count in it; use --supervision image")
    return WeakDataset(
        labelled.classes, labelled.category_ids, supervision, tuple(images), labelled.source
    )


def concatenate(first: WeakDataset, *others: WeakDataset) -> WeakDataset:
    """The images of several datasets of the same supervision, with the classes of the first.

    Classes are matched by name, see `WeakDataset.with_classes`. An image id that occurs twice is an
    error.
    """
    images = {image.image_id: image for image in first}
    for other in others:
        if other.supervision != first.supervision:
            raise InputError(
                f"{other.source}: supervision {other.supervision}; expected {first.supervision}, "
                f"that of {first.source}"
            )
        for image in other.with_classes(first.classes, str(first.source)):
            twin = images.setdefault(image.image_id, image)
            if twin is not image:
                raise InputError(
                    f"image {image.image_id!r} is {twin.path} and {image.path}; expected every "
                    "image id once, leave one of them out"
                )
    return replace(first, images=tuple(images.values()))


def with_more_tags(dataset: WeakDataset, more: WeakDataset | None) -> WeakDataset:
    """The images of both datasets with their tags, to train an image classifier."""
    return dataset if more is None else concatenate(_tags_only(dataset), _tags_only(more))


def weaken(annotation: Annotation, supervision: Supervision) -> Annotation:
    """Keep only what the supervision allows.

    image: each class once, as a tag. count: the same with the number of its objects, up to
    `MAX_COUNT`, None if it is not known. box: boxes (of a mask, its tight box). point: points (of a
    mask, its interior point). A weak label without box or point, and a crowd, which is not a single
    object, becomes a tag. mixed: everything. mask: the weak labels with masks.
    """
    check_choice("supervision", supervision, get_args(Supervision))
    if supervision == "mixed":
        return annotation
    if supervision == "mask":
        return annotation.only("mask")
    if supervision == "image":
        weak_labels = [WeakLabel(label) for label in annotation.distinct_labels]
    elif supervision == "count":
        labels = annotation.distinct_labels
        weak_labels = [WeakLabel(label, count=_count(annotation, label)) for label in labels]
    else:
        location = _box_only if supervision == "box" else _point_only
        weak_labels = [
            WeakLabel(label.label) if label.crowd else location(label) for label in annotation
        ]
    return Annotation(annotation.size, tuple(weak_labels))


def tight_box(label: WeakLabel) -> Box | None:
    """The weak label's box, or else its mask's; None if it has neither."""
    if label.box is not None or label.mask is None:
        return label.box
    x0, y0, x1, y1 = masks.boxes([label.mask])[0].tolist()
    return (x0, y0, x1, y1) if x1 > x0 else None


def _count(annotation: Annotation, label: int) -> int | None:
    """The number of objects of a class, at most `MAX_COUNT` + 1; None of a class with only tags."""
    objects = [each for each in annotation if each.label == label and each.kind != "tag"]
    crowded = any(each.crowd for each in objects)
    return MAX_COUNT + 1 if crowded else min(len(objects), MAX_COUNT + 1) or None


def _tags_only(dataset: WeakDataset) -> WeakDataset:
    images = tuple(
        replace(image, annotation=weaken(image.annotation, "image")) for image in dataset
    )
    return replace(dataset, supervision="image", images=images)


def _box_only(label: WeakLabel) -> WeakLabel:
    box = tight_box(label)
    return WeakLabel(label.label, box=box, difficult=label.difficult, clipped=label.clipped)


def _point_only(label: WeakLabel) -> WeakLabel:
    point = label.point
    if point is None and label.mask is not None and masks.areas([label.mask])[0]:
        point = masks.interior_point(label.mask)
    return WeakLabel(label.label, point=point, difficult=label.difficult)
