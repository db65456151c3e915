"""Datasets: what files say (`LabelledImages`), what training may see, what evaluation may see.

`WeakDataset` and `EvaluationDataset` are different types on purpose. Training receives the first,
which holds no mask but those that a user gave as labels (supervision "mixed"), unless full
supervision ("mask") is asked for by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Literal, get_args, overload

import numpy as np
import numpy.typing as npt

from annocoin import masks
from annocoin.data.images import read_image
from annocoin.data.parsing import unique
from annocoin.errors import InputError, Problems, brief, check_choice
from annocoin.types import Annotation, Box, ImageId, Instances, WeakLabel

Masks = Literal["never", "optional", "required"]
"""Whether a reader gives masks: not even opened, where there are any, or for every image."""

Supervision = Literal["image", "box", "point", "mixed", "mask"]


@dataclass(frozen=True)
class LabelledImage:
    """An image and all that its files say about it.

    Args:
        image_id: the file's stem, or COCO's own id.
        file_name: where the image lies in its dataset, with "/" between folders.
        path: the image file; None if a COCO file came without its images.
        annotation: the weak_labels, in the order of the file.
        listed_labels: the class of each weak_label by VOC's object list, where masks came with it:
            the pixels' classes, in `annotation`, differ from it in a few images.
    """

    image_id: ImageId
    file_name: str
    path: Path | None
    annotation: Annotation
    listed_labels: tuple[int, ...] | None = None

    def image_path(self) -> Path:
        """The image file, for those who cannot do without."""
        if self.path is None:
            raise InputError(f"{self.file_name}: no images; say where they are with --images DIR")
        return self.path


@dataclass(frozen=True)
class LabelledImages(Sequence[LabelledImage]):
    """A dataset as its files have it; readers make it, writers take it.

    Args:
        classes: the names of classes 1..C.
        category_ids: the number each class has in result files; 1..C but for COCO.
        images: the images.
        split: the name of the list they came from, if one was asked for.
        splits: else the lists that they came from, by name.
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
        """A dataset, which must have an image; the classes count from 1 if not said otherwise."""
        if not images:
            raise InputError(f"{source}: no usable image{f' in split {split!r}' if split else ''}")
        for name in classes:
            if not name or name != name.strip() or not name.isprintable():
                raise InputError(f"{source}: class name {name!r}; expected plain text")
        numbers = range(1, len(classes) + 1) if category_ids is None else category_ids
        lists = _of_these(splits or {}, images)
        return cls(tuple(classes), tuple(numbers), tuple(images), split, lists, source)

    def stems(self) -> list[str]:
        """A file name without ending for every image, all different.

        Folders are dropped; if names would be the same without them, they become "__".
        """
        paths = [PurePosixPath(image.file_name).with_suffix("") for image in self]
        names = [path.name for path in paths]
        if len(set(names)) < len(names):
            names = [path.as_posix().replace("/", "__") for path in paths]
        return unique(names, f"{self.source}: image file names")

    def unused_classes(self) -> int:
        """How many classes no image has; formats that infer the classes lose them."""
        used = {label for image in self for label in image.annotation.distinct_labels}
        return len(self.classes) - len(used)

    def __len__(self) -> int:
        return len(self.images)

    @overload
    def __getitem__(self, index: int) -> LabelledImage: ...
    @overload
    def __getitem__(self, index: slice) -> LabelledImages: ...
    def __getitem__(self, index: int | slice) -> LabelledImage | LabelledImages:
        if isinstance(index, slice):
            images = self.images[index]
            return replace(self, images=images, splits=_of_these(self.splits, images))
        return self.images[index]


@dataclass(frozen=True)
class WeakImage:
    """One image for training, with what a person said about it."""

    image_id: ImageId
    path: Path
    annotation: Annotation
    file_name: str = ""  # where it lies in its dataset, with "/" between folders

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
class WeakDataset(Sequence[WeakImage]):
    """Images with cheap labels: all that training ever sees.

    Args:
        classes: the names of classes 1..C.
        category_ids: the number each class has in result files.
        supervision: what the annotations hold.
        images: the images.
    """

    classes: tuple[str, ...]
    category_ids: tuple[int, ...]
    supervision: Supervision
    images: tuple[WeakImage, ...]

    def __post_init__(self) -> None:
        allowed = {"image": {"tag"}, "box": {"tag", "box"}, "point": {"tag", "point"}}
        for image in self.images if self.supervision in allowed else ():
            extra = set(image.annotation.kinds) - allowed[self.supervision]
            if extra:
                raise ValueError(f"{image.image_id}: {extra} under supervision {self.supervision}")

    @property
    def fully_masked(self) -> bool:
        """Whether there are weak_labels, and each has a mask: nothing is left to be found out."""
        weak_labels = [weak_label for image in self.images for weak_label in image.annotation]
        return bool(weak_labels) and all(weak_label.mask is not None for weak_label in weak_labels)

    def with_classes(self, classes: tuple[str, ...], source: str) -> WeakDataset:
        """The same with the numbers that these classes have, which hold all of its own.

        Args:
            source: whose classes they are, for messages.
        """
        if classes == self.classes:
            return self
        unknown = [name for name in self.classes if name not in classes]
        if unknown:
            raise InputError(f"{source}: has no class {unknown[0]!r}; it has {brief(classes)}")
        images = []
        for image in self.images:
            weak_labels = tuple(
                replace(weak_label, label=classes.index(self.classes[weak_label.label - 1]) + 1)
                for weak_label in image.annotation
            )
            images.append(
                replace(image, annotation=replace(image.annotation, weak_labels=weak_labels))
            )
        numbers = tuple(range(1, len(classes) + 1))
        return WeakDataset(classes, numbers, self.supervision, tuple(images))

    def __len__(self) -> int:
        return len(self.images)

    @overload
    def __getitem__(self, index: int) -> WeakImage: ...
    @overload
    def __getitem__(self, index: slice) -> WeakDataset: ...
    def __getitem__(self, index: int | slice) -> WeakImage | WeakDataset:
        if isinstance(index, slice):
            return replace(self, images=self.images[index])
        return self.images[index]


class EvaluationDataset:
    """Images with the true masks, for measuring only.

    Iterating gives the image ids; `truth` gives the instances of one. Labels without a mask are no
    truth; `without_mask` counts them.
    """

    def __init__(self, labelled: LabelledImages) -> None:
        if not any(
            weak_label.mask is not None for image in labelled for weak_label in image.annotation
        ):
            raise InputError(
                f"{labelled.source}: no masks in it; evaluation needs a dataset with true masks"
            )
        self.labelled = labelled
        self.without_mask = sum(
            weak_label.mask is None for image in labelled for weak_label in image.annotation
        )
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
        """The true instances of one image.

        `classes_from` chooses between VOC's class map and the object list of its XML; other
        formats say each class once.
        """
        image = self._images[image_id]
        annotation = image.annotation
        if classes_from == "objects" and image.listed_labels is not None:
            pairs = zip(annotation, image.listed_labels, strict=True)
            annotation = replace(
                annotation, weak_labels=tuple(replace(m, label=j) for m, j in pairs)
            )
        return annotation.instances()


def weak_dataset(
    labelled: LabelledImages, supervision: Supervision, problems: Problems | None = None
) -> WeakDataset:
    """What is left of a dataset under the given supervision."""
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
    wanted = {"box": "boxes", "point": "points"}.get(supervision)
    if wanted and not any(supervision in image.annotation.kinds for image in images):
        raise InputError(f"{labelled.source}: no {wanted} in it; use --supervision image, or mixed")
    return WeakDataset(labelled.classes, labelled.category_ids, supervision, tuple(images))


def weaken(annotation: Annotation, supervision: Supervision) -> Annotation:
    """Keep only what the supervision allows.

    image: each class once. box: boxes (of a mask, its tight box). point: points (of a mask, the
    point deepest inside). A weak_label that cannot say what is asked for, and a crowd, which is no single
    object, becomes a tag. mixed: every weak_label as it is. mask: those with masks, as in evaluation.
    """
    check_choice("supervision", supervision, get_args(Supervision))
    if supervision == "mixed":
        return annotation
    if supervision == "mask":
        masked = tuple(weak_label for weak_label in annotation if weak_label.mask is not None)
        return replace(annotation, weak_labels=masked)
    if supervision == "image":
        tags = tuple(WeakLabel(label) for label in annotation.distinct_labels)
        return Annotation(annotation.size, tags)
    place = _only_box if supervision == "box" else _only_point
    weak_labels = tuple(
        WeakLabel(weak_label.label) if weak_label.crowd else place(weak_label)
        for weak_label in annotation
    )
    return Annotation(annotation.size, weak_labels)


def _of_these(
    splits: Mapping[str, Sequence[ImageId]], images: Sequence[LabelledImage]
) -> dict[str, tuple[ImageId, ...]]:
    """The lists, without the images that are not there."""
    there = {image.image_id for image in images}
    return {name: tuple(i for i in ids if i in there) for name, ids in splits.items()}


def tight_box(weak_label: WeakLabel) -> Box | None:
    """The weak_label's box, else its mask's; None if it has neither."""
    if weak_label.box is not None or weak_label.mask is None:
        return weak_label.box
    x0, y0, x1, y1 = masks.boxes([weak_label.mask])[0].tolist()
    return (x0, y0, x1, y1) if x1 > x0 else None


def _only_box(weak_label: WeakLabel) -> WeakLabel:
    return WeakLabel(weak_label.label, box=tight_box(weak_label), difficult=weak_label.difficult)


def _only_point(weak_label: WeakLabel) -> WeakLabel:
    point = weak_label.point
    if point is None and weak_label.mask is not None and tight_box(weak_label) is not None:
        point = masks.interior_point(weak_label.mask)
    return WeakLabel(weak_label.label, point=point, difficult=weak_label.difficult)
