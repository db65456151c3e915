"""A progress bar for long work, on the terminal only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track as rich_track

T = TypeVar("T")


def track(items: Sequence[T], doing: str) -> Iterable[T]:
    """Iterate over `items`, showing how far it is and how long it will take.

    The bar goes to stderr and vanishes at the end; without a terminal nothing is printed.
    """
    console = Console(stderr=True)
    return rich_track(
        items, doing, console=console, transient=True, disable=not console.is_terminal
    )
