"""Processes for tests that press Ctrl-C, or that look whether others have ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def interruptible(words: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that hears Ctrl-C even where this one, a background job, does not; it is ended."""
    if sys.platform != "win32":
        options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def within(seconds: float, true: Callable[[], bool]) -> None:
    """Wait until something is true; it must be in so many seconds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(process: int) -> bool:
    """Whether a process is there and not only waiting to be buried."""
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
