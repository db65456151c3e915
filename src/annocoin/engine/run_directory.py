"""A run's directory: its stages, each in a folder of its own that is done or goes on.

A stage is known by its options and by the stages it stands on. A change makes another folder, so
that what was made before is never lost, and is used again when the change is taken back.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision

from annocoin import files
from annocoin.engine.distribution import ProcessGroup
from annocoin.engine.metrics import Metrics
from annocoin.engine.trainer import EVERY, Checkpointer, Support
from annocoin.errors import InputError, one_line
from annocoin.files import read_json

RUN = "run.json"
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
COSTS = "costs.json"
STAGES = "stages"
EVENTS = "tensorboard"
DONE = "done.json"
FIGURES = "figures"
CHECKPOINT = "checkpoint.pt"
LOCK = ".lock"
PUBLISHED = ("prediction.safetensors", "conditional.safetensors", "classifier.safetensors")

METHOD = 3
"""Raised when the same options give other results than before."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Stage:
    """One piece of a run's work.

    Args:
        name: such as "round 1, prediction".
        key: of all that its result depends on.
        folder: where the result is, or will be.
    """

    name: str
    key: str
    folder: Path

    @property
    def is_done(self) -> bool:
        return (self.folder / DONE).is_file()

    @property
    def record(self) -> dict[str, Any]:
        """What was noted when it was done."""
        found: dict[str, Any] = read_json(self.folder / DONE)
        return found


@dataclass
class Run:
    """A run directory, held by one process.

    Args:
        path: the directory.
        group: the processes that work on it.
        say: prints a line.
        every: seconds between checkpoints.
    """

    path: Path
    group: ProcessGroup
    say: Say = print
    every: float = EVERY
    stages: list[Stage] = field(default_factory=list)

    def stage(self, name: str, made: Mapping[str, Any], *inputs: Stage) -> Stage:
        """The next stage: its options, and the stages that it stands on."""
        said = [METHOD, name, dict(made), [own.key for own in inputs]]
        key = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:12]
        slug = name.replace(",", "").replace(" ", "-")
        stage = Stage(name, key, self.path / STAGES / f"{slug}-{key}")
        self.stages.append(stage)
        return stage

    def do(self, stage: Stage, work: Callable[[], None]) -> None:
        """Do a stage's work unless that is done; all processes go on together.

        The work must bear to be cut off anywhere and done again.
        """
        if stage.is_done:
            self.say(f"{stage.name}: done before")
        else:
            self.group.barrier()  # or one could find it done, and another not
            started = time.monotonic()
            stage.folder.mkdir(parents=True, exist_ok=True)
            if self.group.is_main:
                for left in stage.folder.glob(f".{CHECKPOINT}.*"):  # cut off in the middle
                    left.unlink()
            work()
            self.group.barrier()
            if self.group.is_main:
                seconds = round(time.monotonic() - started, 1)
                record = {"stage": stage.name, "seconds": seconds}
                files.write_json(stage.folder / DONE, record, indent=1)
                (stage.folder / CHECKPOINT).unlink(missing_ok=True)
                self.say(f"{stage.name}: {seconds:.0f} s")
                self._gather_metrics()
            self.group.barrier()

    def note(self, stage: Stage, figures: Callable[[], Mapping[str, float]]) -> None:
        """Keep figures of a stage that is done, if there are none yet."""
        if self.group.is_main and FIGURES not in (record := stage.record):
            found = dict(figures())
            files.write_json(stage.folder / DONE, {**record, FIGURES: found}, indent=1)
            self.say(f"{stage.name}: {', '.join(f'{k} {v:.3g}' for k, v in found.items())}")
            self._gather_metrics()
        self.group.barrier()

    def support(self, stage: Stage) -> Support:
        """What a training in this stage stands on."""
        events = self.path / EVENTS / stage.folder.name
        return Support(
            self.group,
            Checkpointer(stage.folder / CHECKPOINT, self.every),
            Metrics(stage.folder / METRICS, events),
        )

    def publish(self, file: Path, name: str) -> None:
        """Put a stage's file beside the stages, under a name that users look for."""
        if self.group.is_main:
            files.write_bytes(self.path / name, file.read_bytes())
        self.group.barrier()

    def place(self, path: Path) -> str:
        """A path as the run notes it: what lies in its directory moves with it."""
        path, own = path.resolve(), self.path.resolve()
        return (path.relative_to(own) if path.is_relative_to(own) else path).as_posix()

    def finish(self, **facts: Any) -> None:
        """Note which stages the run's result stands on, and what others need to know of it."""
        if self.group.is_main:
            self._gather_metrics()
            listed = [{"stage": own.name, "folder": self.place(own.folder)} for own in self.stages]
            files.write_json(self.path / RUN, {**facts, "stages": listed}, indent=1)
        self.group.barrier()

    def _gather_metrics(self) -> None:
        """All stages' metrics and costs as one file each."""
        lines, costs = [], {}
        for stage in self.stages:
            if not stage.is_done:
                continue
            record = stage.record
            costs[stage.name] = record["seconds"]
            file = stage.folder / METRICS
            for line in file.read_text().splitlines() if file.exists() else ():
                lines.append(json.dumps({"stage": stage.name, **json.loads(line)}))
            if FIGURES in record:
                lines.append(json.dumps({"stage": stage.name, **record[FIGURES]}))
        files.write_bytes(self.path / METRICS, "".join(f"{own}\n" for own in lines).encode())
        files.write_json(self.path / COSTS, costs, indent=1)


@contextmanager
def open_run(
    path: str | Path,
    config: Mapping[str, Any],
    group: ProcessGroup,
    *,
    say: Say = print,
    every: float = EVERY,
) -> Iterator[Run]:
    """Hold a run's directory, new or one that was interrupted; a second process is refused."""
    path, problem = Path(path), None
    with ExitStack() as held:
        if group.is_main:
            try:
                held.enter_context(_claimed(path, config, group))
            except (InputError, OSError) as error:
                problem = one_line(error)
        group.raise_on_all_ranks(problem)
        yield Run(path, group, say if group.is_main else lambda _: None, every)


@contextmanager
def _claimed(path: Path, config: Mapping[str, Any], group: ProcessGroup) -> Iterator[None]:
    """Hold a directory, and note in it what is about to be done."""
    if path.exists() and not (path.is_dir() and _is_ours(path)):
        raise InputError(f"{path}: exists and is no run of annocoin; give a new or empty folder")
    with files.only_one(path / LOCK):
        for name in (RUN, *PUBLISHED):  # of an earlier run with other options
            (path / name).unlink(missing_ok=True)
        files.write_json(path / ENVIRONMENT, environment(group), indent=1)
        files.write_json(path / CONFIG, config, indent=1)
        yield


def environment(group: ProcessGroup) -> dict[str, Any]:
    """What a run was computed with."""
    return {
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": np.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "annocoin": version("annocoin"),
        "device": str(group.device),
        "precision": group.precision,
        "processes": group.world_size,
    }


def is_run(path: Path) -> bool:
    """Whether this is a run's directory, finished or not."""
    return (path / CONFIG).is_file() and (path / ENVIRONMENT).is_file()


def _is_ours(folder: Path) -> bool:
    """Whether a run may be there: one is, one was about to be, or nothing is."""
    names = {path.name for path in folder.iterdir()}
    seen = {name for name in names if not name.startswith(".")}
    return is_run(folder) or not seen or (LOCK in names and seen == {ENVIRONMENT})
