"""The directory of a run: its stages, each in a folder of its own, and the result.

A stage is identified by its options and the stages that it depends on. A change of options makes
another folder: earlier results are never lost, and are used again when the change is undone.
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
from annocoin.engine.metrics import FileLogger
from annocoin.engine.trainer import CHECKPOINT_SECONDS, Trainer
from annocoin.errors import InputError, Problems, brief, one_line
from annocoin.files import read_json

RUN_FORMAT = 2
"""Of the directory; runs of another one are refused."""

METHOD_VERSION = 4
"""Raised when the same options give other results than before."""

RESULT = "run.json"
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
COSTS = "costs.json"
STAGES = "stages"
TENSORBOARD = "tensorboard"
DONE = "done.json"
CHECKPOINT = "checkpoint.pt"
LOCK = ".lock"
SHOWN_CHANGES = 4

Log = Callable[[str], None]


@dataclass(frozen=True)
class Stage:
    """One piece of a run's work.

    Args:
        name: such as "round 1, prediction".
        key: digest of all that its result depends on.
        folder: of its result.
    """

    name: str
    key: str
    folder: Path

    @property
    def is_done(self) -> bool:
        return (self.folder / DONE).is_file()

    @property
    def record(self) -> dict[str, Any]:
        """Time and figures of a stage that is done."""
        record: dict[str, Any] = read_json(self.folder / DONE)
        return record

    @property
    def figures(self) -> dict[str, float]:
        """The figures of a stage that is done."""
        figures: dict[str, float] = self.record.get("figures", {})
        return figures


@dataclass
class Run:
    """A run directory that this process has locked.

    Args:
        path: the directory.
        group: the processes that work on it.
        log: prints a line.
        checkpoint_seconds: time between checkpoints.
    """

    path: Path
    group: ProcessGroup
    log: Log = print
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    stages: list[Stage] = field(default_factory=list)

    def stage(self, name: str, options: Mapping[str, Any], *inputs: Stage) -> Stage:
        """The next stage, with its options and the stages that it depends on."""
        content = [METHOD_VERSION, name, dict(options), [stage.key for stage in inputs]]
        key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
        slug = name.replace(",", "").replace(" ", "-")
        stage = Stage(name, key, self.path / STAGES / f"{slug}-{key}")
        self.stages.append(stage)
        return stage

    def do(self, stage: Stage, work: Callable[[], Any]) -> None:
        """Do a stage's work, unless it is done; `work` may return a dict of figures.

        Work can be interrupted at any point, and is then done again or resumed.
        """
        if stage.is_done:
            self.log(f"{stage.name}: done before")
            return
        self.group.barrier()  # or one process could find it done, and another not
        started = time.monotonic()
        stage.folder.mkdir(parents=True, exist_ok=True)
        if self.group.is_main:
            for temporary in stage.folder.glob(f".{CHECKPOINT}.*"):  # of a process that was killed
                temporary.unlink()
        result = work()
        figures: dict[str, float] = result if isinstance(result, dict) else {}
        self.group.barrier()
        if self.group.is_main:
            seconds = round(time.monotonic() - started, 1)
            record: dict[str, Any] = {"stage": stage.name, "seconds": seconds}
            if figures:
                record["figures"] = figures
            files.write_json(stage.folder / DONE, record, indent=1)
            (stage.folder / CHECKPOINT).unlink(missing_ok=True)
            shown = f"; {_listed(figures)}" if figures else ""
            self.log(f"{stage.name}: {seconds:.0f} s{shown}")
            self._collect_metrics()
        self.group.barrier()

    def measure(
        self, stage: Stage, figures: Callable[[], Mapping[str, float]], digest: str
    ) -> None:
        """Record figures of a stage that is done, unless they were measured already.

        Args:
            digest: of what they are measured with; another one measures again.
        """
        if self.group.is_main and (record := stage.record).get("measured with") != digest:
            record |= {"figures": dict(figures()), "measured with": digest}
            files.write_json(stage.folder / DONE, record, indent=1)
            self.log(f"{stage.name}: {_listed(record['figures'])}")
            self._collect_metrics()
        self.group.barrier()

    def trainer(self, stage: Stage, problems: Problems, workers: int | None = None) -> Trainer:
        """A trainer with checkpoint and metrics in the stage's folder."""
        return Trainer(
            self.group,
            checkpoint=stage.folder / CHECKPOINT,
            checkpoint_seconds=self.checkpoint_seconds,
            logger=FileLogger(stage.folder / METRICS, self.path / TENSORBOARD / stage.folder.name),
            problems=problems,
            workers=workers,
        )

    def relative(self, path: Path) -> str:
        """A path as it is recorded: relative to the directory if it is inside."""
        path, root = path.resolve(), self.path.resolve()
        return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()

    def finish(self, networks: Mapping[str, Path], **facts: Any) -> None:
        """Record the result, which replaces an earlier one, and copy its networks.

        Args:
            networks: files of stages by the name of their copy.
            facts: whatever users of the run need to know.
        """
        if self.group.is_main:
            self._collect_metrics()
            stages = [{"stage": s.name, "folder": self.relative(s.folder)} for s in self.stages]
            paths = {name: self.relative(path) for name, path in networks.items()}
            content = {**facts, "networks": paths, "stages": stages}
            files.write_json(self.path / RESULT, content, indent=1)
            for name, path in networks.items():
                files.write_bytes(self.path / f"{name}.safetensors", path.read_bytes())
        self.group.barrier()

    def _collect_metrics(self) -> None:
        """The metrics and times of all stages as one file each."""
        lines, costs = [], {}
        for stage in self.stages:
            if not stage.is_done:
                continue
            record, file = stage.record, stage.folder / METRICS
            costs[stage.name] = record["seconds"]
            for line in file.read_text().splitlines() if file.exists() else ():
                lines.append(json.dumps({"stage": stage.name, **json.loads(line)}))
            if "figures" in record:
                lines.append(json.dumps({"stage": stage.name, **record["figures"]}))
        files.write_bytes(self.path / METRICS, "".join(f"{line}\n" for line in lines).encode())
        files.write_json(self.path / COSTS, costs, indent=1)


def labelling_network_name(number: int) -> str:
    """The name of a round's prediction network in the result, where tables are averaged."""
    return f"round-{number}"


@contextmanager
def open_run(
    path: str | Path,
    config: Mapping[str, Any],
    group: ProcessGroup,
    *,
    log: Log = print,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
) -> Iterator[Run]:
    """Lock the directory of a new or an interrupted run; a second process is refused."""
    path, problem = Path(path), None
    with ExitStack() as stack:
        if group.is_main:
            try:
                stack.enter_context(_locked(path, config, group, log))
            except (InputError, OSError) as error:
                problem = one_line(error)
        group.raise_on_all_ranks(problem)
        yield Run(path, group, log if group.is_main else lambda _: None, checkpoint_seconds)


@contextmanager
def _locked(path: Path, config: Mapping[str, Any], group: ProcessGroup, log: Log) -> Iterator[None]:
    """Lock a directory and write the configuration into it."""
    if path.exists() and not (path.is_dir() and _is_usable(path)):
        raise InputError(f"{path}: exists and is not a run of annocoin; give a new or empty folder")
    if is_run(path):
        check_format(path)
    with files.exclusive_lock(path / LOCK):
        if (path / RESULT).is_file():
            before = read_json(path / RESULT).get("config", {})
            if changes := _differences(before, json.loads(json.dumps(config))):
                more = (
                    f" and {len(changes) - SHOWN_CHANGES} more"
                    if len(changes) > SHOWN_CHANGES
                    else ""
                )
                log(
                    f"{path}: holds a finished run with other options "
                    f"({', '.join(changes[:SHOWN_CHANGES])}{more}); its result stays until this "
                    "one replaces it"
                )
        files.write_json(path / ENVIRONMENT, environment(group), indent=1)
        files.write_json(path / CONFIG, config, indent=1)
        yield


def environment(group: ProcessGroup) -> dict[str, Any]:
    """Versions and machine of a run."""
    return {
        "run_format": RUN_FORMAT,
        "annocoin": version("annocoin"),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "numpy": np.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(group.device),
        "precision": group.precision,
        "processes": group.world_size,
    }


def is_run(path: Path) -> bool:
    """Whether this is the directory of a run, finished or not."""
    return (path / CONFIG).is_file() and (path / ENVIRONMENT).is_file()


def check_format(path: Path) -> None:
    """Raise if a run was made by another version of annocoin."""
    environment = read_json(path / ENVIRONMENT)
    if environment.get("run_format") != RUN_FORMAT:
        raise InputError(
            f"{path}: a run of annocoin {environment.get('annocoin')}, which this version cannot "
            "use; train anew in another folder"
        )


def _is_usable(folder: Path) -> bool:
    """Whether a run may be there: one is, one was about to be, or nothing is."""
    names = {path.name for path in folder.iterdir()}
    visible = {name for name in names if not name.startswith(".")}
    return is_run(folder) or not visible or (LOCK in names and visible == {ENVIRONMENT})


def _differences(before: Any, after: Any, prefix: str = "") -> list[str]:
    """The options that differ, as "name old -> new"."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [f"{prefix} {brief(before)} -> {brief(after)}"]
    changes = []
    for name in {**before, **after}:
        dotted = f"{prefix}.{name}" if prefix else name
        changes += _differences(before.get(name), after.get(name), dotted)
    return changes


def _listed(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
