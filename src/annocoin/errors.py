"""Bad input: one clear line for a person, and the choice to stop at it or to skip it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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
        """Run one item's work; an `InputError` in it is recorded if bad items are skipped."""
        try:
            yield
        except InputError as error:
            if not self.skip:
                raise
            self.skipped.append(str(error))
