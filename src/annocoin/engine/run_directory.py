"""The directory of a run: its stages, each in a folder of its own, and the result.

A stage is identified by its options and the stages that it depends on. A change of options makes
another folder: earlier results are never lost, and are used again when the change is undone. A
stage is used again only if its files have the digests that were recorded when it was done.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision

from annocoin import files
from annocoin.data.images import safe_join
from annocoin.data.parsing import field as checked
from annocoin.engine.checkpoint import CHECKPOINT_SECONDS
from annocoin.engine.distribution import ProcessGroup
from annocoin.engine.metrics import FileLogger, read_metrics
from annocoin.engine.stage import (
    AGAIN,
    CHECKPOINT,
    COSTS,
    DONE,
    METRICS,
    DamagedFile,
    Stage,
    stage_files,
)
from annocoin.engine.trainer import Trainer
from annocoin.errors import InputError, Problems, brief, one_line
from annocoin.files import file_digest, read_record, write_record
from annocoin.progress import PeakMemory, format_duration, time_left

RUN_FORMAT = 2
"""Of the directory; runs of another one are refused."""

METHOD_VERSION = 6
"""Raised when the same options give other results than before."""

RESULT = "run.json"
CONFIG = "config.json"
ENVIRONMENT = "environment.json"
STAGES = "stages"
TENSORBOARD = "tensorboard"
LOCK = ".lock"
SHOWN_CHANGES = 4

Log = Callable[[str], None]


@dataclass
class Run:
    """A run directory that this process has locked.

    Args:
        path: the directory.
        group: the processes that work on it.
        log: prints a line.
        checkpoint_seconds: time between checkpoints.
        stages: the stages so far.
        estimated: seconds of all stages, if they are known, for the time that is left.
    """

    path: Path
    group: ProcessGroup
    log: Log = print
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    stages: list[Stage] = field(default_factory=list)
    estimated: Mapping[str, float] = field(default_factory=dict)

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
        if self.group.broadcast(self._is_usable(stage) if self.group.is_main else True):
            shown = f"; {_listed(stage.figures)}" if stage.figures else ""
            self.log(f"{stage.name}: done before{shown}")
            return
        started = time.monotonic()
        stage.folder.mkdir(parents=True, exist_ok=True)
        with PeakMemory() as memory:
            result = work()
        figures: dict[str, float] = result if isinstance(result, dict) else {}
        self.group.barrier()
        if self.group.is_main:
            seconds = round(time.monotonic() - started, 1)
            record: dict[str, Any] = {"stage": stage.name}
            if figures:
                record["figures"] = figures
            names = stage_files(stage.folder)
            record["files"] = {name: file_digest(stage.folder / name) for name in names}
            files.write_json(stage.folder / COSTS, {"seconds": seconds, "memory": memory.bytes})
            write_record(stage.folder / DONE, record)
            (stage.folder / CHECKPOINT).unlink(missing_ok=True)
            shown = f"; {_listed(figures)}" if figures else ""
            done = {each.name: each.costs.seconds or 0 for each in self.stages if each.is_done}
            left = time_left(self.estimated, done)
            left = f"; {left}" if left else ""
            self.log(f"{stage.name}: {format_duration(seconds)}{shown}{left}")
            self._collect_metrics()
        self.group.barrier()

    def _is_usable(self, stage: Stage) -> bool:
        """Whether a stage is done and as it was written; otherwise remove what is not."""
        if not stage.is_done:
            return False
        (stage.folder / CHECKPOINT).unlink(missing_ok=True)  # if killed before this was done
        damage = stage.damage()
        if not damage:
            return True
        names = f"{damage[0]} and {len(damage) - 1} more" if len(damage) > 1 else damage[0]
        cause = f"{stage.name}: {names} missing or changed since the stage was done"
        if damage == [METRICS]:  # not worth a training of hours
            self.log(f"{cause}; its result is not affected, its metrics are left out")
            return True
        self.log(f"{cause}; it is done again")
        if damage == [DONE]:  # arrays have checksums of their own, and are checked
            damage = [name for name in stage_files(stage.folder) if not name.endswith(".npz")]
        for name in damage:
            path = safe_join(stage.folder, name, DONE)
            if path.suffix == ".json" and name != DONE:  # an index: the arrays that fit are kept
                write_record(path, {"provenance": {}, "images": []})
            else:
                path.unlink(missing_ok=True)
        (stage.folder / DONE).unlink()  # last: until then, the stage is known to be damaged
        return False

    def measure(
        self, stage: Stage, figures: Callable[[], Mapping[str, float]], digest: str
    ) -> None:
        """Record figures of a stage that is done, unless they were measured already.

        Args:
            digest: of what they are measured with; another one measures again.
        """
        if self.group.is_main and (record := stage.record).get("measured with") != digest:
            record |= {"figures": dict(figures()), "measured with": digest}
            write_record(stage.folder / DONE, record)
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
            stages = [
                {"stage": s.name, "folder": self.relative(s.folder), "done": s.is_done}
                for s in self.stages
            ]
            paths = {name: self.relative(path) for name, path in networks.items()}
            digests = {METRICS: file_digest(self.path / METRICS)}
            content = {**facts, "networks": paths, "stages": stages, "files": digests}
            write_record(self.path / RESULT, content)
            for name, path in networks.items():
                files.write_bytes(self.path / f"{name}.safetensors", files.read_bytes(path))
        self.group.barrier()

    def _collect_metrics(self) -> None:
        """The metrics and times of all stages as one file each."""
        lines, costs = [], {}
        for stage in self.stages:
            if not stage.is_done:
                continue
            record, file = stage.record, stage.folder / METRICS
            costs[stage.name] = stage.costs.seconds
            for figures in read_metrics(file) if file.is_file() else ():
                lines.append(json.dumps({"stage": stage.name, **figures}))
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
    if (path / ENVIRONMENT).is_file():
        with suppress(DamagedFile):  # below; a run of another version is not touched
            check_format(path)
    with files.exclusive_lock(path / LOCK):
        files.remove_unfinished(path)
        for name, check in ((ENVIRONMENT, check_format), (RESULT, read_result)):
            try:
                if (path / name).is_file():
                    check(path)
            except DamagedFile:
                log(f"{path / name}: damaged; it is written again")
                (path / name).unlink()
        if (path / RESULT).is_file():
            before = read_result(path).get("config", {})
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
        write_record(path / ENVIRONMENT, environment(group))
        files.write_json(path / CONFIG, config, indent=1)
        yield


def environment(group: ProcessGroup) -> dict[str, Any]:
    """Versions, machine and command of a run."""
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
        "command": _command(),
    }


def _command() -> str:
    """The command line of this process."""
    name = Path(sys.argv[0]).name
    return shlex.join(["annocoin" if name == "__main__.py" else name, *sys.argv[1:]])


def is_run(path: Path) -> bool:
    """Whether this is the directory of a run, finished or not."""
    return (path / CONFIG).is_file() and (path / ENVIRONMENT).is_file()


def check_format(path: Path) -> None:
    """Raise if a run was made by another version of annocoin."""
    environment = _read(path / ENVIRONMENT)
    if environment.get("run_format") != RUN_FORMAT:
        other = environment.get("annocoin", "(no version)")
        raise InputError(
            f"{path}: a run of annocoin {other}, which this version cannot use; train anew in "
            "another folder"
        )


def read_result(path: Path) -> dict[str, Any]:
    """The result of a finished run, which `Run.finish` recorded."""
    file = path / RESULT
    result = _read(file)
    try:
        checked(result, "config", dict, str(file))
        for key in ("supervision", "dataset"):
            checked(result, key, str, str(file))
        for key in ("networks", "folders"):
            for name in {**checked(result, key, dict, str(file)), "prediction": ""}:
                if (key, name) != ("folders", "prediction"):
                    checked(result[key], name, str, f"{file}: {key}")
        for stage in checked({"stages": [], **result}, "stages", list, str(file)):
            checked(stage, "folder", str, f"{file}: stages")
        for name in checked({"files": {}, **result}, "files", dict, str(file)):
            safe_join(path, name, str(file))
    except InputError as error:
        raise DamagedFile(f"{error}; {AGAIN}") from None
    return result


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_record(path)
    except InputError as error:
        raise DamagedFile(f"{error}; {AGAIN}") from None


def _is_usable(folder: Path) -> bool:
    """Whether a run may be there: one is, one was about to be, or nothing is."""
    names = {path.name for path in folder.iterdir()}
    visible = {name for name in names if not name.startswith(".")}
    begun = LOCK in names and (STAGES in names or visible == {ENVIRONMENT})
    return is_run(folder) or not visible or begun


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
    names = {"tag_map": "tag mAP", "validation_tag_map": "tag mAP of the validation images"}
    shown = {name: value for name, value in figures.items() if name != "round"}  # the stage says it
    return ", ".join(f"{names.get(name, name)} {value:.3g}" for name, value in shown.items())
