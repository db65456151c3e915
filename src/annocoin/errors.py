"""Bad input: one clear line for a person, and the choice to stop at it or to skip it."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class InputError(ValueError):
    """Something a user gave cannot be used.

    The message is one line: which file, what was found, what was expected.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Problems:
    """Decides what happens to bad items: by default the first one stops the work.

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

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Run one item's work; if bad items are skipped, an `InputError` in it is noted, once."""
        try:
            yield
        except (InputError, OSError) as error:
            if not self.skip:
                raise
            line = one_line(error)
            if line not in self.skipped:
                self.skipped.append(line)


def check_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """Raise unless `value` is one of the choices that a user has."""
    known = list(choices)
    if value not in known:
        raise InputError(f"{what} {value!r}; expected one of {', '.join(known)}")


def check_positive(what: str, value: int) -> None:
    """Raise unless a number that a user gave is at least 1."""
    if value < 1:
        raise InputError(f"{what} {value}; expected at least 1")


def one_line(error: InputError | OSError) -> str:
    """The error as a line for a user."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def brief(value: Any) -> str:
    """A value for a message, cut if long; the whole of it is never written out."""
    shortener = reprlib.Repr()
    shortener.maxlist = shortener.maxdict = 8
    shortener.maxstring = shortener.maxother = shortener.maxlong = 60
    shortener.maxlevel = 2
    text = shortener.repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
