"""Processes for tests that interrupt them, or that check whether others have ended."""

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
def interruptible(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that handles Ctrl-C, even if this one is a background job that ignores it."""
    if sys.platform != "win32":
        options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until a condition is true; fail after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not true after {seconds} s"
        time.sleep(0.02)


def is_running(process: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        os.kill(process, 0)
        state = Path(f"/proc/{process}/stat")
        return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
