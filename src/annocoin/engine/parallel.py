"""Work on many items with all cores: one thread per process, bad items reported, Ctrl-C at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.connection import wait
from typing import Any

import cv2
import torch
from threadpoolctl import ThreadpoolController, threadpool_limits

from annocoin.errors import InputError, Problems
from annocoin.progress import track

ONEDNN_CACHE = "64"
"""Compiled operations that a worker keeps. With oneDNN's default of 1024, images of many sizes
fill gigabytes: a worker that computed regions of VOC had 2.5 after 900 of them."""

Worker = Callable[..., Any]
"""Does one task and returns its result, or a `BadItem`."""


@dataclass(frozen=True)
class BadItem:
    """An item that cannot be used, and the reason, in one line; exceptions stop all work."""

    reason: str
    item: Hashable = None


def work_through(
    tasks: Sequence[tuple[Any, ...]],
    start: Callable[[], Worker],
    description: str,
    *,
    jobs: int,
    problems: Problems,
    on_result: Callable[[Any], None] = lambda _: None,
) -> list[Any]:
    """Call a worker with each task, in `jobs` processes, with 1 in this one; gives the results.

    A single task that is left of many is done in this process, with one thread as in the others:
    results may depend on the number of threads, and must not depend on interruptions.

    Args:
        tasks: arguments of the worker's calls.
        start: makes the worker of a process; can be pickled.
        description: of the progress bar.
        on_result: called in this process with each result, in the order of the tasks.
    """
    if not tasks:
        return []
    if jobs == 1 or len(tasks) == 1:
        with nullcontext() if jobs == 1 else single_thread():
            worker = start()
            return _collect(
                [partial(worker, *task) for task in tasks], description, problems, on_result
            )
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(tasks)), context, _initialise, (start,)) as pool:
        try:
            with _interrupts_ignored():
                futures = [pool.submit(_call_worker, *task) for task in tasks]
            return _collect([future.result for future in futures], description, problems, on_result)
        except BrokenProcessPool:
            raise InputError(
                "a worker process died: for lack of memory (try fewer --jobs), or because a script "
                'calls this without `if __name__ == "__main__":`'
            ) from None
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()  # a task may take hours; `_stop` is its signal handler
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _collect(
    pending: list[Callable[[], Any]],
    description: str,
    problems: Problems,
    on_result: Callable[[Any], None],
) -> list[Any]:
    results = []
    for call in track(pending, description):
        result = call()
        if isinstance(result, BadItem):
            with problems.caught(result.item):
                raise InputError(result.reason)
        else:
            results.append(result)
            on_result(result)
    return results


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute with one thread in the block, as worker processes do."""
    threads = torch.get_num_threads(), cv2.getNumThreads()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    try:
        with _libraries().limit(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(threads[0])
        cv2.setNumThreads(threads[1])


@cache
def _libraries() -> ThreadpoolController:
    """The loaded libraries that have threads of their own; finding them takes milliseconds."""
    return ThreadpoolController()


_worker: Worker | InputError


def _initialise(start: Callable[[], Worker]) -> None:
    global _worker
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, _stop)
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", ONEDNN_CACHE)
    try:
        _worker = start()
    except InputError as error:  # raised here, it would look like the death of a worker
        _worker = error
    threadpool_limits(1)  # numpy's matrix products, of all that has been imported by now


def _stop(*_: Any) -> None:
    """Break off the task, which cleans up, and refuse those that wait."""
    global _worker
    _worker = InputError("stopped")
    raise SystemExit(1)


def _exit_with_parent() -> None:
    """End this process when its parent is killed: its task may take hours."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)


def _call_worker(*task: Any) -> Any:
    if isinstance(_worker, InputError):
        raise _worker
    return _worker(*task)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes started in the block ignore Ctrl-C: their parent handles it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
