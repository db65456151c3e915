"""A progress bar for long work, on the terminal only."""

from __future__ import annotations

import sys
import time
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

FIRST, PATIENCE = 4, 5.0
"""So many items, and seconds, are waited for before the whole is estimated."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Items(Protocol[T_co]):
    """Things to go through, whose number is known."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T_co]: ...


def track(items: Items[T], doing: str) -> Iterable[T]:
    """Iterate over `items`, showing how far it is, how long it will take, and the memory in use.

    The bar goes to stderr and vanishes at the end. Without a terminal it is one line, for work that
    takes longer than a minute: how long, estimated after the first items.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        return _announced(items, doing)
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


def _announced(items: Items[T], doing: str) -> Iterator[T]:
    """Yield the items; print once how long all will take, judged by those after the first.

    The first one waits for processes and networks to start.
    """
    started, said = time.monotonic(), False
    for done, item in enumerate(items):
        if done == 1:
            started = time.monotonic()
        spent = time.monotonic() - started
        if not said and done > FIRST and spent > PATIENCE:
            said = True
            minutes = spent / (done - 1) * len(items) / 60
            if minutes > 1:
                print(f"{doing}: {len(items)} to do, about {minutes:.0f} min", file=sys.stderr)
        yield item


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
