"""Metrics of a training: JSON lines for programs, TensorBoard for people.

They hold no times, so that a run that was resumed has the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Protocol

from annocoin import files


class MetricsLogger(Protocol):
    """Receives the figures of the steps of a training."""

    def start(self, step: int) -> None:
        """Begin after so many steps; figures of later ones are dropped."""

    def log(self, figures: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


class MemoryLogger:
    """Keeps the figures in memory, a dict per step."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def start(self, step: int) -> None:
        del self.lines[step:]

    def log(self, figures: Mapping[str, Any]) -> None:
        self.lines.append(dict(figures))

    def close(self) -> None:
        pass


class FileLogger:
    """Writes a JSON line per step, and TensorBoard scalars.

    Args:
        path: the .jsonl file.
        tensorboard: folder of the event files, or None.
    """

    def __init__(self, path: Path, tensorboard: Path | None = None) -> None:
        self.path, self.tensorboard = path, tensorboard
        self._file: IO[str] | None = None
        self._writer: Any = None

    def start(self, step: int) -> None:
        """Open the files; lines of later steps, by a process that was killed, are dropped."""
        lines = read_metrics(self.path) if self.path.exists() else []
        kept = [line for line in lines if 0 < _step_of(line) <= step]
        text = "".join(json.dumps(line) + "\n" for line in kept)
        files.write_bytes(self.path, text.encode())
        self._file = self.path.open("a", encoding="utf-8")
        if self.tensorboard is not None:
            from torch.utils.tensorboard import SummaryWriter  # takes seconds

            self._writer = SummaryWriter(str(self.tensorboard), purge_step=step + 1)

    def log(self, figures: Mapping[str, Any]) -> None:
        """Add a line with its "step"; numbers are drawn."""
        if self._file is None:
            self.start(0)
        assert self._file is not None
        with files.reported(self.path):
            self._file.write(json.dumps(dict(figures)) + "\n")
            self._file.flush()
            for name, value in figures.items() if self._writer is not None else ():
                if name != "step" and isinstance(value, int | float):
                    self._writer.add_scalar(name, value, figures["step"])

    def close(self) -> None:
        with files.reported(self.path):
            if self._file is not None:
                self._file.close()
            if self._writer is not None:
                self._writer.close()
        self._file = self._writer = None


def write_scalars(tensorboard: Path, step: int, figures: Mapping[str, float]) -> None:
    """Add one step to TensorBoard's curves in a folder; later steps there are dropped."""
    from torch.utils.tensorboard import SummaryWriter  # takes seconds

    writer: Any = SummaryWriter(str(tensorboard), purge_step=step)
    for name, value in figures.items():
        writer.add_scalar(name, value, step)
    writer.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The figures of each line; lines that were cut off or damaged are left out."""
    lines = []
    for line in files.read_bytes(path, files.MAX_JSON_BYTES).splitlines():
        try:
            figures = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(figures, dict):
            lines.append(figures)
    return lines


def _step_of(figures: Mapping[str, Any]) -> int:
    """The step of a line, from 1; 0 without one."""
    step = figures.get("step")
    return step if isinstance(step, int) else 0
