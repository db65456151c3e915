"""Bad input: one clear line for the user, and the choice to stop at it or to skip it."""

from __future__ import annotations

import reprlib
import unicodedata
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

BIDIRECTIONAL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that reorder the text around them."""

MAX_LINE = 1000
"""Characters of a message: names and values of files can have any length."""


class InputError(ValueError):
    """Input that cannot be used.

    The message is one line: which file, what was found, what was expected, what to do.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_as_line(message))


class Problems:
    """Stops at the first bad item, or with `skip=True` collects the messages of all.

    Example:
        >>> problems = Problems(skip=True)
        >>> for number in ("1", "two"):
        ...     with problems.caught():
        ...         if not number.isdigit():
        ...             raise InputError(f"found {number!r}, expected a number")
        >>> problems.skipped
        ["found 'two', expected a number"]
    """

    def __init__(self, skip: bool = False) -> None:
        self.skip = skip
        self.skipped: list[str] = []
        self._items: set[Hashable] = set()

    @contextmanager
    def caught(self, item: Hashable = None) -> Iterator[None]:
        """Process one item; if bad items are skipped, its `InputError` is recorded, once.

        Args:
            item: such as an image id; only the first problem of an item is recorded.
        """
        try:
            yield
        except (InputError, OSError) as error:
            if not self.skip:
                raise
            if item not in self._items:
                self.add([one_line(error)])
            if item is not None:
                self._items.add(item)

    def add(self, lines: Iterable[str]) -> None:
        """Record the messages of another process, each once."""
        self.skipped += [line for line in dict.fromkeys(lines) if line not in self.skipped]


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of `choices`."""
    known = list(choices)
    if value not in known:
        raise InputError(f"{name} {value!r}; expected one of {', '.join(known)}")


def check_positive(name: str, value: int) -> None:
    """Raise unless `value` is at least 1."""
    if value < 1:
        raise InputError(f"{name} {value}; expected at least 1")


def check_range(
    options: Any,
    *,
    above: tuple[str, ...] = (),
    least: tuple[str, ...] = (),
    fraction: tuple[str, ...] = (),
) -> None:
    """Raise unless fields are above 0, at least 0, or from 0 to 1."""
    for name in (*above, *least, *fraction):
        value = getattr(options, name)
        if value < 0 or (value == 0 and name in above) or (value > 1 and name in fraction):
            expected = (
                "0 to 1" if name in fraction else "above 0" if name in above else "at least 0"
            )
            raise InputError(f"{name} {value}; expected {expected}")


def one_line(error: InputError | OSError) -> str:
    """The error's message as one line."""
    if isinstance(error, OSError) and error.filename:
        return _as_line(f"{error.filename}: {error.strerror}")
    return _as_line(str(error))


def image_line(error: InputError | OSError, image_id: str | int) -> str:
    """The error as one line that names the image."""
    line = one_line(error)
    return line if str(image_id) in line else f"image {image_id!r}: {line}"


def plural(count: int, noun: str) -> str:
    """A number with its noun: "1 round", "2 rounds", "3 boxes"."""
    ending = "" if count == 1 else "es" if noun.endswith("x") else "s"
    return f"{count} {noun}{ending}"


def printable(text: str) -> str:
    """The text with escapes instead of control characters, which a terminal would obey."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if breaks_text(char) else char for char in text
    )


def _as_line(text: str) -> str:
    line = printable(" ".join(text.split()))
    if len(line) > MAX_LINE:
        line = f"{line[: MAX_LINE // 2]} ... {line[-MAX_LINE // 2 :]}"
    return line


def breaks_text(char: str) -> bool:
    """Whether a character ends a line, controls a terminal, or cannot be written in UTF-8."""
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in BIDIRECTIONAL


def brief(value: Any) -> str:
    """A value for a message, at most 100 characters; long values are never formatted whole."""
    shortener = reprlib.Repr()
    shortener.maxlist = shortener.maxdict = 8
    shortener.maxstring = shortener.maxother = shortener.maxlong = 60
    shortener.maxlevel = 2
    text = shortener.repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
