"""Checks of values from files, shared by all readers: a valid value, or one clear line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeVar

from annocoin.data.images import MAX_PIXELS
from annocoin.errors import InputError, brief
from annocoin.masks import Size
from annocoin.types import WeakLabel, box_area, clip_box

T = TypeVar("T")


def field(entry: Any, key: str, kind: type[T], where: str) -> T:
    """`entry[key]`, which must exist and be of that type."""
    if not isinstance(entry, dict):
        raise InputError(f"{where}: found {brief(entry)}; expected an object with {key!r}")
    if key not in entry:
        raise InputError(f"{where}: no {key!r}; found the keys {brief(list(entry))}")
    value = entry[key]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{where}: {key} is {brief(value)}; expected {kind.__name__}")
    return value


def finite(value: Any, where: str) -> float:
    """A number that is neither NaN nor infinite, from a number or from text."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{where} is {brief(value)}; expected a finite number")
    return number


def optional_number(entry: dict[str, Any], key: str, where: str) -> float | None:
    """The finite number `entry[key]`; None if it is missing."""
    return None if entry.get(key) is None else finite(entry[key], f"{where}: {key}")


def numbers(entry: dict[str, Any], key: str, names: str, where: str) -> list[float] | None:
    """The finite numbers of the list `entry[key]`, as many as `names`; None without any."""
    if entry.get(key) is None or entry[key] == []:
        return None
    values = [finite(value, f"{where}: {key}") for value in field(entry, key, list, where)]
    if len(values) != len(names.split(", ")):
        raise InputError(f"{where}: {key} is {brief(entry[key])}; expected {names}")
    return values


def xywh_box(entry: dict[str, Any], where: str) -> list[float] | None:
    """COCO's `entry["bbox"]` as x0, y0, x1, y1; None if it is missing."""
    box = numbers(entry, "bbox", "x, y, width, height", where)
    return None if box is None else [*box[:2], box[0] + box[2], box[1] + box[3]]


def located_label(
    label: int,
    size: Size,
    where: str,
    *,
    box: Sequence[float] | None = None,
    point: Sequence[float] | None = None,
    **fields: Any,
) -> WeakLabel:
    """A weak label with its box clipped to the image; outside boxes and points are an error."""
    clipped = None if box is None else clip_box(box, size)
    if box is not None and clipped is None:
        raise InputError(
            f"{where}: box {[round(float(v), 2) for v in box]} (x0, y0, x1, y1) is empty or "
            f"outside the image of {size[1]} x {size[0]}"
        )
    x, y = point or (0, 0)
    if not (0 <= x <= size[1] and 0 <= y <= size[0]):
        raise InputError(f"{where}: point {x:g}, {y:g} is outside the image {size[1]} x {size[0]}")
    lost = 0.0 if clipped is None or box is None else 1 - box_area(clipped) / box_area(box)
    return WeakLabel(
        label, box=clipped, point=None if point is None else (x, y), clipped=lost, **fields
    )


def checked_size(height: Any, width: Any, where: str) -> Size:
    """An image size from a file: positive whole numbers, at most `MAX_PIXELS` pixels."""
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in (height, width))
    if not whole or height * width > MAX_PIXELS:
        raise InputError(
            f"{where}: size {brief(height)} x {brief(width)}; expected whole numbers of pixels, "
            f"{MAX_PIXELS:,} at most in all"
        )
    return height, width


def label_of(name: str, classes: Sequence[str], where: str) -> int:
    """The class 1..C of that name."""
    if name not in classes:
        raise InputError(f"{where}: unknown class {name!r}; expected one of {brief(list(classes))}")
    return classes.index(name) + 1


def unique(names: list[T], where: str) -> list[T]:
    """The same list; a value that occurs twice is an error."""
    for name, count in Counter(names).items():
        if count > 1:
            raise InputError(f"{where}: {name!r} occurs twice")
    return names
