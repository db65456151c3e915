"""Progress of long loops: a bar on a terminal, one line elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

import psutil
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

MIN_ITEMS, MIN_SECONDS = 4, 5.0
"""Items and seconds to measure before the total time is estimated."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class SizedIterable(Protocol[T_co]):
    """Anything with a length that can be iterated over."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T_co]: ...


def track(items: SizedIterable[T], description: str) -> Iterable[T]:
    """Iterate over `items` with progress, remaining time and memory in use on stderr.

    On a terminal this is a bar that vanishes at the end, elsewhere one line with the estimated
    total time, if that is more than a minute.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        return _with_estimate(items, description)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        _MemoryColumn(),
    )
    return _with_bar(items, description, Progress(*columns, console=console, transient=True))


def memory_in_use() -> int:
    """Bytes of memory that this process holds."""
    return int(psutil.Process().memory_info().rss)


def _with_bar(items: SizedIterable[T], description: str, progress: Progress) -> Iterator[T]:
    with progress:
        yield from progress.track(items, total=len(items), description=description)


def _with_estimate(items: SizedIterable[T], description: str) -> Iterator[T]:
    """Print the estimated time once; the first item is not counted, it includes start-up."""
    started, estimated = time.monotonic(), False
    for done, item in enumerate(items):
        if done == 1:
            started = time.monotonic()
        elapsed = time.monotonic() - started
        if not estimated and done > MIN_ITEMS and elapsed > MIN_SECONDS:
            estimated = True
            minutes = elapsed / (done - 1) * len(items) / 60
            if minutes > 1:
                total = f"{len(items)} to do, about {minutes:.0f} min"
                print(f"{description}: {total}", file=sys.stderr)
        yield item


class _MemoryColumn(ProgressColumn):
    max_refresh = 1.0

    def render(self, task: Task) -> Text:
        return Text(f"{memory_in_use() / 2**30:.1f} GB")
