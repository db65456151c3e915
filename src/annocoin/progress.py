"""A progress bar for long work, on the terminal only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Items(Protocol[T_co]):
    """Things to go through, whose number is known."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T_co]: ...


def track(items: Items[T], doing: str) -> Iterable[T]:
    """Iterate over `items`, showing how far it is, how long it will take, and the memory in use.

    The bar goes to stderr and vanishes at the end; without a terminal nothing is printed.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        return items
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        _Memory(),
    )
    return _tracked(items, doing, Progress(*columns, console=console, transient=True))


def _tracked(items: Items[T], doing: str, progress: Progress) -> Iterator[T]:
    with progress:
        yield from progress.track(items, total=len(items), description=doing)


class _Memory(ProgressColumn):
    max_refresh = 1.0

    def render(self, task: Task) -> Text:
        found = memory_in_use()
        return Text("" if found is None else f"{found / 2**30:.1f} GB")


def memory_in_use() -> int | None:
    """Bytes of memory that this process holds, where the system tells."""
    if not sys.platform.startswith("linux"):
        return None
    with open("/proc/self/statm", encoding="ascii") as file:
        pages = int(file.read().split()[1])
    import resource

    return pages * resource.getpagesize()
