"""Processes for tests that press Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
