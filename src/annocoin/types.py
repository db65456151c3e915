"""The data types of all modules: the annotation of an image, and the instance masks in it.

Conventions of the whole project: a class is its position 1..C in the list of class names (0 is the
background, as in the paper); a size is (height, width); a box is x0, y0, x1, y1 in pixels from the
image's upper left corner, right and lower edge exclusive; a point is x, y.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

import numpy as np
import torch
from torch import Tensor

from annocoin import masks as rle
from annocoin.errors import InputError
from annocoin.masks import RLE, Size

Box = tuple[float, float, float, float]
Point = tuple[float, float]
ImageId = str | int
LabelKind = Literal["tag", "point", "box", "mask"]


@dataclass(frozen=True)
class WeakLabel:
    """A class and, if known, the location of one object of it.

    Without location it is a tag: the image shows at least one object of that class. With a point, a
    box or a mask (any combination) it describes one object.
    """

    label: int
    box: Box | None = None
    point: Point | None = None
    mask: RLE | None = None
    crowd: bool = False  # COCO's "iscrowd": the location covers several objects
    difficult: bool = False  # VOC's flag; no protocol here treats it specially
    score: float | None = None  # of predictions and pseudo labels
    confidence: float | None = None  # of pseudo labels: agreement of the samples, in [0, 1]
    # of a tag: number of objects of its class; not in digests of datasets without counts
    count: int | None = field(default=None, repr=False)
    # share of the annotated box that was outside the image, and was clipped
    clipped: float = field(default=0.0, repr=False, compare=False)

    @property
    def kind(self) -> LabelKind:
        """The most detailed location: mask, box or point; tag if there is none."""
        if self.mask is not None:
            return "mask"
        if self.box is not None:
            return "box"
        return "tag" if self.point is None else "point"


@dataclass(frozen=True)
class Annotation(Sequence[WeakLabel]):
    """The N weak labels of one image: tags, points, boxes and masks in any mixture.

    A sequence of weak labels; the properties give the same as equal-length fields.

    Example:
        >>> annotation = Annotation((480, 640), (WeakLabel(1), WeakLabel(2, box=(10, 20, 90, 80))))
        >>> annotation.kinds, annotation.labels.tolist()
        (('tag', 'box'), [1, 2])
    """

    size: Size
    weak_labels: tuple[WeakLabel, ...] = ()

    def __post_init__(self) -> None:
        height, width = self.size
        for label in self:
            if label.label < 1:
                raise ValueError(f"label {label.label}: classes count from 1, 0 is the background")
            if label.mask is not None and tuple(label.mask["size"]) != self.size:
                raise ValueError(f"mask of size {label.mask['size']} in an image of {self.size}")
            if label.box is not None:
                x0, y0, x1, y1 = label.box
                if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
                    raise ValueError(f"box {label.box} is empty or outside the image {self.size}")
            if label.point is not None:
                x, y = label.point
                if not (0 <= x <= width and 0 <= y <= height):
                    raise ValueError(f"point {label.point} is outside the image {self.size}")

    def __len__(self) -> int:
        return len(self.weak_labels)

    @overload
    def __getitem__(self, index: int) -> WeakLabel: ...
    @overload
    def __getitem__(self, index: slice) -> Annotation: ...
    def __getitem__(self, index: int | slice) -> WeakLabel | Annotation:
        if isinstance(index, slice):
            return replace(self, weak_labels=self.weak_labels[index])
        return self.weak_labels[index]

    def only(self, kind: LabelKind) -> Annotation:
        """The weak labels of one kind: `only("box").labels` lines up with `only("box").boxes`."""
        return replace(self, weak_labels=tuple(label for label in self if label.kind == kind))

    @property
    def distinct_labels(self) -> tuple[int, ...]:
        """The classes of the weak labels, each once, in ascending order."""
        return tuple(sorted({label.label for label in self}))

    @property
    def kinds(self) -> tuple[LabelKind, ...]:
        """Kind of each weak label: tag, point, box or mask."""
        return tuple(label.kind for label in self)

    @property
    def labels(self) -> Tensor:
        """Classes: int64 [N]."""
        return torch.tensor([label.label for label in self], dtype=torch.int64)

    @property
    def boxes(self) -> Tensor:
        """Boxes: float64 [N, 4], NaN for a weak label without box."""
        return _rows([label.box for label in self], 4)

    @property
    def points(self) -> Tensor:
        """Points: float64 [N, 2], NaN for a weak label without point."""
        return _rows([label.point for label in self], 2)

    @property
    def masks(self) -> tuple[RLE | None, ...]:
        """Masks, None for a weak label without mask."""
        return tuple(label.mask for label in self)

    @property
    def crowd(self) -> Tensor:
        """Whether a weak label covers several objects: bool [N]."""
        return torch.tensor([label.crowd for label in self], dtype=torch.bool)

    def instances(self) -> Instances:
        """The weak labels with a mask as `Instances`; a missing score becomes 1."""
        masked = [(label, label.mask) for label in self if label.mask is not None]
        labels = [label for label, _ in masked]
        return Instances(
            size=self.size,
            masks=[mask for _, mask in masked],
            labels=[label.label for label in labels],
            scores=[1.0 if label.score is None else label.score for label in labels],
            confidence=[
                math.nan if label.confidence is None else label.confidence for label in labels
            ],
            crowd=[label.crowd for label in labels],
        )


class Instances:
    """N instances in one image: ground truth, predictions or pseudo labels.

    Args:
        size: (height, width) of the image.
        masks: N RLEs, or a tensor or array [N, H, W] of 0 and 1.
        labels: classes 1..C, int64 [N].
        scores: ranking of the instances, float64 [N]; default 1.
        boxes: float64 [N, 4]; default the masks' tight boxes.
        confidence: agreement of the samples of a pseudo label, float64 [N] in [0, 1]; default NaN.
        crowd: whether the mask covers several objects, bool [N]; default False.

    Example:
        >>> square = torch.zeros(1, 8, 8)
        >>> square[0, 2:4, 1:6] = 1
        >>> instances = Instances(size=(8, 8), masks=square, labels=[3], scores=[0.9])
        >>> instances.boxes.tolist(), instances.areas.tolist()
        ([[1.0, 2.0, 6.0, 4.0]], [10.0])
    """

    _fields = ("labels", "scores", "boxes", "confidence", "crowd")

    def __init__(
        self,
        *,
        size: Size,
        masks: Sequence[RLE] | Tensor | np.ndarray[Any, Any],
        labels: Sequence[int] | Tensor,
        scores: Sequence[float] | Tensor | None = None,
        boxes: Sequence[Sequence[float]] | Tensor | None = None,
        confidence: Sequence[float] | Tensor | None = None,
        crowd: Sequence[bool] | Tensor | None = None,
    ) -> None:
        self.size: Size = (int(size[0]), int(size[1]))
        self.masks = as_rles(masks, self.size)
        n = len(self.masks)
        self.labels = _field("labels", labels, torch.int64, (n,))
        self.scores = _field("scores", scores, torch.float64, (n,), 1.0)
        self.confidence = _field("confidence", confidence, torch.float64, (n,), math.nan)
        self.crowd = _field("crowd", crowd, torch.bool, (n,), False)
        if boxes is None:
            boxes = torch.from_numpy(rle.boxes(self.masks))
        self.boxes = _field("boxes", boxes, torch.float64, (n, 4))
        if n and int(self.labels.min()) < 1:
            raise ValueError("labels: classes count from 1, 0 is the background")
        if not bool(self.scores.isfinite().all()):
            raise ValueError("scores: NaN or infinite; expected finite numbers")

    def __len__(self) -> int:
        return len(self.masks)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> Instances:
        """The instances at an index, a slice, a list of indices, or a bool tensor [N]."""
        if isinstance(index, Tensor):
            index = index.tolist()
        elif isinstance(index, Sequence):
            index = list(index)
        indices = torch.from_numpy(np.atleast_1d(np.arange(len(self))[index]))
        fields = {name: getattr(self, name)[indices] for name in self._fields}
        return Instances(size=self.size, masks=[self.masks[i] for i in indices.tolist()], **fields)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Instances):
            return NotImplemented
        return (
            self.size == other.size
            and self.masks == other.masks
            and all(
                np.array_equal(getattr(self, name), getattr(other, name), equal_nan=True)
                for name in self._fields
            )
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Instances({len(self)} in {self.size[0]}x{self.size[1]})"

    @property
    def areas(self) -> Tensor:
        """Pixels of each mask: float64 [N]."""
        return torch.from_numpy(rle.areas(self.masks))

    def dense(self) -> Tensor:
        """The masks as a bool tensor [N, H, W]."""
        return torch.from_numpy(rle.decode(self.masks, self.size))

    def to_supervision(self, classes: Sequence[str] | None = None) -> Any:
        """The same as `supervision.Detections`, for its annotators and metrics.

        `class_id` counts from 0, as in supervision's datasets. With names of classes, `data` has a
        "class_name" for each; if there are confidences of pseudo labels, also "label_confidence".
        """
        try:
            import supervision
        except ImportError:
            raise InputError(
                "supervision is not installed; install it with `pip install supervision`"
            ) from None
        data: dict[str, Any] = {}
        if classes is not None:
            data["class_name"] = np.asarray([classes[i - 1] for i in self.labels.tolist()])
        if not bool(self.confidence.isnan().all()):
            data["label_confidence"] = self.confidence.numpy()
        return supervision.Detections(
            xyxy=self.boxes.numpy().astype(np.float32),
            mask=self.dense().numpy(),
            confidence=self.scores.numpy().astype(np.float32),
            class_id=self.labels.numpy() - 1,
            data=data,
        )

    def annotation(self) -> Annotation:
        """The same as weak labels with mask, box, score and confidence, for dataset writers."""
        weak_labels = tuple(
            WeakLabel(
                label=int(self.labels[i]),
                box=clip_box(self.boxes[i].tolist(), self.size),
                mask=self.masks[i],
                crowd=bool(self.crowd[i]),
                score=float(self.scores[i]),
                confidence=None if self.confidence[i].isnan() else float(self.confidence[i]),
            )
            for i in range(len(self))
        )
        return Annotation(self.size, weak_labels)


def clip_box(box: Sequence[float], size: Size) -> Box | None:
    """The part of a box that lies in the image; None if there is none."""
    x0, y0, x1, y1 = (float(value) for value in box)
    x0, y0, x1, y1 = max(x0, 0.0), max(y0, 0.0), min(x1, float(size[1])), min(y1, float(size[0]))
    return (x0, y0, x1, y1) if x0 < x1 and y0 < y1 else None


def box_area(box: Sequence[float]) -> float:
    """Width times height of a box."""
    x0, y0, x1, y1 = box
    return (x1 - x0) * (y1 - y0)


def as_rles(masks: Sequence[RLE] | Tensor | np.ndarray[Any, Any], size: Size) -> tuple[RLE, ...]:
    """Masks as RLEs of `size`, from RLEs or from a tensor or array [N, H, W] of 0 and 1."""
    if isinstance(masks, Tensor):
        masks = masks.detach().cpu().numpy()
    if isinstance(masks, np.ndarray):
        if masks.ndim != 3 or masks.shape[1:] != size:
            raise ValueError(f"masks of shape {masks.shape}; expected (N, {size[0]}, {size[1]})")
        return tuple(rle.encode(masks))
    for mask in masks:
        if tuple(mask["size"]) != size:
            raise ValueError(f"mask of size {mask['size']} in an image of {size}")
    return tuple(masks)


def _field(
    name: str, value: Any, dtype: torch.dtype, shape: tuple[int, ...], default: Any = None
) -> Tensor:
    if value is None:
        return torch.full(shape, default, dtype=dtype)
    field = value.detach().cpu() if isinstance(value, Tensor) else torch.tensor(value, dtype=dtype)
    field = field.to(dtype, copy=True)
    if field.numel() == 0:
        field = field.reshape((0, *shape[1:]))
    if field.shape != shape:
        raise ValueError(f"{name} of shape {tuple(field.shape)}; expected {shape}")
    return field


def _rows(rows: Sequence[tuple[float, ...] | None], width: int) -> Tensor:
    missing = (math.nan,) * width
    values = [missing if row is None else row for row in rows]
    return torch.tensor(values, dtype=torch.float64).reshape(len(values), width)
