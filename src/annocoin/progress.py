"""Progress of long loops: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from multiprocessing import parent_process
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

MEMORY_SECONDS = 1.0
"""Between two readings of `PeakMemory`."""

MIN_ITEMS, MIN_SECONDS = 4, 5.0
"""Items and seconds to measure before the total time is estimated."""

LINE_SECONDS = 300.0
"""Between the lines of long work, without a terminal."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class SizedIterable(Protocol[T_co]):
    """Anything with a length that can be iterated over."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T_co]: ...


def track(
    items: SizedIterable[T], description: str, status: Callable[[], str] | None = None
) -> Iterable[T]:
    """Iterate over `items` with progress, remaining time and memory in use on stderr.

    On a terminal this is a bar that vanishes at the end, elsewhere one line with the estimated
    total time, if that is more than a minute, and further ones every few minutes. A worker process
    has no bar: its parent has one.

    Args:
        status: describes the state of the work, such as the loss of a training.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        return _with_lines(items, description, status)
    if parent_process() is not None:
        return items
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        _MemoryColumn(),
        *(() if status is None else (_StatusColumn(status),)),
    )
    return _with_bar(items, description, Progress(*columns, console=console, transient=True))


def format_duration(seconds: float) -> str:
    """A time for people: "8 s", "2 min 5 s", "40 min", "2 h 20 min" or "3 days 4 h"."""
    whole = round(seconds)
    minutes = round(seconds / 60)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
    hours = round(seconds / 3600)
    return f"{hours // 24} days" + (f" {hours % 24} h" if hours % 24 else "")


def time_left(estimated: Mapping[str, float], measured: Mapping[str, float]) -> str:
    """The time of the stages that are not done, by the speed of those that are; "" if unknown.

    Args:
        estimated: seconds of all stages.
        measured: seconds of those that are done.
    """
    done = [name for name in measured if name in estimated]
    left = sum(seconds for name, seconds in estimated.items() if name not in measured)
    expected = sum(estimated[name] for name in done)
    if not left or not expected:
        return ""
    return f"about {format_duration(left * sum(measured[name] for name in done) / expected)} left"


def memory_in_use() -> int:
    """Bytes of memory that this process holds."""
    return int(psutil.Process().memory_info().rss)


class PeakMemory:
    """The most memory that this process and those it started hold, while the block runs.

    Read once a second, at the beginning and at the end: a short peak may be missed. Pages that
    processes share count for each of them.

    Example:
        >>> with PeakMemory() as memory:
        ...     content = bytearray(1 << 20)
        >>> memory.bytes > 1 << 20
        True
    """

    def __enter__(self) -> PeakMemory:
        self.bytes = _memory_with_children()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.bytes = max(self.bytes, _memory_with_children())

    def _watch(self) -> None:
        while not self._ended.wait(MEMORY_SECONDS):
            self.bytes = max(self.bytes, _memory_with_children())


def _memory_with_children() -> int:
    total = memory_in_use()
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it may have ended
            total += int(child.memory_info().rss)
    return total


def _with_bar(items: SizedIterable[T], description: str, progress: Progress) -> Iterator[T]:
    with progress:
        yield from progress.track(items, total=len(items), description=description)


def _with_lines(
    items: SizedIterable[T], description: str, status: Callable[[], str] | None
) -> Iterator[T]:
    """Print the estimated time; the first item is not counted, it includes start-up."""
    started, due, total = time.monotonic(), MIN_SECONDS, len(items)
    for done, item in enumerate(items):
        if done == 1:
            started = time.monotonic()
        elapsed = time.monotonic() - started
        if done > MIN_ITEMS and elapsed > due:
            left = elapsed / (done - 1) * (total - done)
            if due > MIN_SECONDS:
                state = "" if status is None else f"{status()}, "
                shown = f"{done} of {total}, {state}{format_duration(left)} left"
                print(f"{description}: {shown}", file=sys.stderr, flush=True)
            elif elapsed + left > 60:
                seconds = elapsed / (done - 1) * total
                shown = f"{total} to do, about {format_duration(seconds)}"
                print(f"{description}: {shown}", file=sys.stderr, flush=True)
            due = elapsed + LINE_SECONDS
        yield item


class _StatusColumn(ProgressColumn):
    max_refresh = 1.0

    def __init__(self, status: Callable[[], str]) -> None:
        super().__init__()
        self.status = status

    def render(self, task: Task) -> Text:
        return Text(self.status())


class _MemoryColumn(ProgressColumn):
    max_refresh = 1.0

    def render(self, task: Task) -> Text:
        return Text(f"{memory_in_use() / 2**30:.1f} GB")
