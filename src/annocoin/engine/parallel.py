"""Work on many images with all cores: one thread a process, bad images reported, Ctrl-C at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import cv2
import torch

from annocoin.errors import InputError, Problems
from annocoin.progress import track

FORMS = "64"
"""So many compiled operations a worker keeps. oneDNN's own limit, 1024, lets images of many sizes
fill gigabytes: a worker that made regions of VOC had 2.5 after 900 of them."""

Worker = Callable[..., Any]
"""Does one task and gives its result, or a `BadItem` where the fault is the item's own."""


@dataclass(frozen=True)
class BadItem:
    """An item that cannot be worked on, and why, in one line; what is raised stops all work."""

    reason: str


def work_through(
    tasks: Sequence[tuple[Any, ...]],
    start: Callable[[], Worker],
    doing: str,
    *,
    jobs: int,
    problems: Problems,
) -> list[Any]:
    """Call a worker with each task, in `jobs` processes, with 1 in this one; gives the results.

    A last task that is left of many is done in this process too, with one thread as in the others:
    results may depend on the number of threads, and must not on interruptions.

    Args:
        tasks: arguments of the worker's calls.
        start: makes a process's worker, with the tools that many tasks need; can be pickled.
        doing: what the progress bar says.
    """
    if not tasks:
        return []
    if jobs == 1 or len(tasks) == 1:
        with nullcontext() if jobs == 1 else _one_thread():
            work = start()
            return _collect([partial(work, *task) for task in tasks], doing, problems)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), context, _start, (start,)) as pool:
        try:
            with _interrupts_ignored():
                futures = [pool.submit(_work, *task) for task in tasks]
            return _collect([future.result for future in futures], doing, problems)
        except BrokenProcessPool:
            raise InputError(
                "a worker process died: for want of memory (try fewer --jobs), or because a script "
                'calls this without `if __name__ == "__main__":`'
            ) from None
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()  # a task may take hours; `_stop` is what it does there
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not everywhere
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _collect(pending: list[Callable[[], Any]], doing: str, problems: Problems) -> list[Any]:
    results = []
    for result_of in track(pending, doing):
        result = result_of()
        if isinstance(result, BadItem):
            with problems.caught():
                raise InputError(result.reason)
        else:
            results.append(result)
    return results


@contextmanager
def _one_thread() -> Iterator[None]:
    of_torch, of_cv2 = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    try:
        yield
    finally:
        torch.set_num_threads(of_torch)
        cv2.setNumThreads(of_cv2)


_worker: Worker | InputError


def _start(start: Callable[[], Worker]) -> None:
    global _worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, _stop)
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", FORMS)
    try:
        _worker = start()
    except InputError as error:  # raised here, it would look like a worker's death
        _worker = error


def _stop(*_: Any) -> None:
    """Break off the task, which tidies up, and refuse those that wait."""
    global _worker
    _worker = InputError("stopped")
    raise SystemExit(1)


def _end_with_parent() -> None:
    """End this process when the one that gives the work is killed: its task may take hours."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _work(*task: Any) -> Any:
    if isinstance(_worker, InputError):
        raise _worker
    return _worker(*task)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes started in the block never see Ctrl-C: it is for the one that gives the work."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
