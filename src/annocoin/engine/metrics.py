"""Metrics of a training: JSON lines for programs, TensorBoard for eyes. No times, so that a run
that was interrupted has the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from annocoin import files


class Log(Protocol):
    """Where the figures of a training go."""

    def start(self, step: int) -> None: ...
    def note(self, figures: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class MemoryLogger:
    """Figures kept in memory, a dict a step."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def start(self, step: int) -> None:
        del self.lines[step:]

    def note(self, figures: Mapping[str, Any]) -> None:
        self.lines.append(dict(figures))

    def close(self) -> None:
        pass


class Metrics:
    """The figures of one stage, a line a step.

    Args:
        path: the .jsonl file.
        events: TensorBoard's folder for them, or None.
    """

    def __init__(self, path: Path, events: Path | None = None) -> None:
        self.path, self.events = path, events
        self._file: IO[str] | None = None
        self._writer: Any = None

    def start(self, step: int) -> None:
        """Forget what was noted after this step, by a process that did not get further."""
        if self._file is not None:
            raise ValueError("a stage's metrics start once")
        lines = self.path.read_bytes().splitlines() if self.path.exists() else []
        kept = [line for line in lines if 0 < _step(line) <= step]
        files.write_bytes(self.path, b"".join(line + b"\n" for line in kept))
        self._file = self.path.open("a", encoding="utf-8")
        if self.events is not None:
            from torch.utils.tensorboard import SummaryWriter  # takes seconds

            self._writer = SummaryWriter(str(self.events), purge_step=step + 1)

    def note(self, figures: Mapping[str, Any]) -> None:
        """Add a line; "step" says where, numbers are drawn."""
        if self._file is None:
            self.start(0)
        assert self._file is not None
        self._file.write(json.dumps(dict(figures)) + "\n")
        self._file.flush()
        if self._writer is not None:
            for name, value in figures.items():
                if name != "step" and isinstance(value, int | float):
                    self._writer.add_scalar(name, value, figures["step"])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        if self._writer is not None:
            self._writer.close()
        self._file = self._writer = None


def _step(line: bytes) -> int:
    """The step of a line, from 1; 0 of one that was cut off."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return 0
