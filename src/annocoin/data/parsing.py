"""Checks that every reader makes on numbers, names and lists: right, or one clear line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

from annocoin.errors import InputError, brief
from annocoin.masks import Size
from annocoin.types import Box, Point, clip_box

T = TypeVar("T")


def field(entry: Any, key: str, kind: type[T], where: str) -> T:
    """`entry[key]`, which must be there and of that kind."""
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


def numbers(
    entry: dict[str, Any], key: str, count: int, expected: str, where: str
) -> list[float] | None:
    """The `count` finite numbers of the list `entry[key]`; None if it is not there."""
    if entry.get(key) is None:
        return None
    found = [finite(value, f"{where}: {key}") for value in field(entry, key, list, where)]
    if len(found) != count:
        raise InputError(f"{where}: {key} is {brief(entry[key])}; expected {expected}")
    return found


def clipped_box(box: Sequence[float], size: Size, where: str) -> Box:
    """The part of the box that lies in the image; none is an error."""
    clipped = clip_box(box, size)
    if clipped is None:
        raise InputError(
            f"{where}: box {[round(float(v), 2) for v in box]} (x0, y0, x1, y1) is empty or "
            f"outside the image of {size[1]} x {size[0]}"
        )
    return clipped


def checked_point(point: Sequence[float], size: Size, where: str) -> Point:
    """A point in the image; one outside is an error."""
    x, y = point
    if not (0 <= x <= size[1] and 0 <= y <= size[0]):
        raise InputError(f"{where}: point {x:g}, {y:g} is outside the image {size[1]} x {size[0]}")
    return x, y


def checked_size(height: Any, width: Any, limit: int, where: str) -> Size:
    """An image size from a file: positive whole numbers, not beyond what we would decode."""
    whole = all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in (height, width))
    if not whole or height * width > limit:
        raise InputError(
            f"{where}: size {brief(height)} x {brief(width)}; expected whole numbers of pixels, "
            f"{limit:,} at most in all"
        )
    return height, width


def label_of(name: str, classes: Sequence[str], where: str) -> int:
    """The class 1..C of that name."""
    if name not in classes:
        raise InputError(f"{where}: unknown class {name!r}; expected one of {brief(list(classes))}")
    return classes.index(name) + 1


def unique(names: list[T], where: str) -> list[T]:
    """The same list, if nothing stands in it twice."""
    seen: set[T] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{where}: {name!r} occurs twice")
        seen.add(name)
    return names
