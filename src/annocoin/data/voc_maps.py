"""VOC's segmentation maps: PNGs that give every pixel its object and its class."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from annocoin import masks
from annocoin.data.conversion_loss import ConversionLoss
from annocoin.data.images import read_index_map
from annocoin.errors import InputError
from annocoin.masks import RLE, Size
from annocoin.types import Annotation, Mark

VOID = 255
"""Pixels of nobody."""


def read_maps(
    root: Path, name: str, size: Size, number_of_classes: int
) -> tuple[dict[int, RLE], dict[int, int]]:
    """The mask of every object id, and its class by the class map where there is one."""
    object_path, class_path = (
        root / folder / f"{name}.png" for folder in ("SegmentationObject", "SegmentationClass")
    )
    ids = _read_map(object_path, size)
    counts = np.bincount(ids.ravel(), minlength=VOID + 1)
    found = [int(k) for k in np.flatnonzero(counts) if k not in (0, VOID)]
    rles = {k: masks.encode((ids == k)[None])[0] for k in found}
    if not class_path.is_file():
        return rles, {}
    classes = _read_map(class_path, size)
    labels = {k: int(classes[ids == k].min()) for k in found}
    for k, label in labels.items():
        if not 1 <= label <= number_of_classes:
            raise InputError(
                f"{class_path}: class {label} under object {k}; expected 1 to {number_of_classes}"
            )
    return rles, labels


def join_masks(
    marks: list[Mark], rles: dict[int, RLE], labels: dict[int, int], where: str
) -> tuple[list[Mark], tuple[int, ...]]:
    """Object k of the XML has id k in the map. Some objects have no pixels, and the reverse.

    The pixels' class wins; the second result is the class by the XML's list.
    """
    joined, listed = [], []
    for k in range(1, max([len(marks), *rles]) + 1):
        said = marks[k - 1] if k <= len(marks) else None
        label = labels.get(k) or (said.label if said else None)
        if label is None:
            if k in rles:
                raise InputError(f"{where}: object {k} has no class, in the XML or the class map")
            continue
        joined.append(replace(said or Mark(label), label=label, mask=rles.get(k)))
        listed.append(said.label if said else label)
    return joined, tuple(listed)


def write_maps(root: Path, stem: str, annotation: Annotation, loss: ConversionLoss) -> None:
    """Paint the masks, large ones first, so that the smaller of two that overlap stays whole."""
    numbered = enumerate(annotation, start=1)
    marks = {k: (mark.label, mark.mask) for k, mark in numbered if mark.mask is not None}
    if not marks:
        return
    if max(marks) >= VOID:
        raise InputError(
            f"image {stem}: {len(annotation)} objects; VOC's maps hold at most {VOID - 1}"
        )
    ids = np.zeros(annotation.size, dtype=np.uint8)
    classes = np.zeros(annotation.size, dtype=np.uint8)
    areas = {k: float(masks.areas([rle])[0]) for k, (_, rle) in marks.items()}
    for k in sorted(marks, key=lambda k: -areas[k]):
        label, rle = marks[k]
        painted = masks.decode([rle], annotation.size)[0]
        ids[painted] = k
        classes[painted] = label
    left = np.bincount(ids.ravel(), minlength=VOID + 1)
    for k, area in areas.items():
        loss.mask(left[k] / area if area else 0.0)
    for folder, values in (("SegmentationObject", ids), ("SegmentationClass", classes)):
        picture = Image.fromarray(values, mode="P")
        picture.putpalette(_palette().tobytes())
        picture.save(root / folder / f"{stem}.png")


def _read_map(path: Path, size: Size) -> npt.NDArray[np.uint8]:
    values = read_index_map(path)
    if values.shape != size:
        raise InputError(f"{path}: size {list(values.shape)}; the image has {list(size)}")
    return values


@cache
def _palette() -> npt.NDArray[np.uint8]:
    """VOC's colours [256, 3]: the bits of the index, dealt out to red, green and blue in turn."""
    index = np.arange(256)
    colours = np.zeros((256, 3), dtype=np.uint8)
    for bit in range(8):
        for channel in range(3):
            if 3 * bit + channel < 8:
                colours[:, channel] |= (((index >> (3 * bit + channel)) & 1) << (7 - bit)).astype(
                    np.uint8
                )
    return colours
