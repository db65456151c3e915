"""A progress bar for long work, on the terminal only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import track as rich_track

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Items(Protocol[T_co]):
    """Things to go through, whose number is known."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T_co]: ...


def track(items: Items[T], doing: str) -> Iterable[T]:
    """Iterate over `items`, showing how far it is and how long it will take.

    The bar goes to stderr and vanishes at the end; without a terminal nothing is printed.
    """
    console = Console(stderr=True)
    return rich_track(
        items, doing, len(items), console=console, transient=True, disable=not console.is_terminal
    )
