"""Whether a run is as it was written: every stage, the result, and the copies of its networks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from annocoin.engine.checkpoint import read_checkpoint
from annocoin.engine.run_directory import (
    CONFIG,
    ENVIRONMENT,
    RESULT,
    STAGES,
    check_format,
    is_run,
    read_result,
)
from annocoin.engine.stage import AGAIN, CHECKPOINT, DONE, METRICS, DamagedFile, Stage
from annocoin.errors import InputError
from annocoin.files import file_digest, read_json
from annocoin.network_files import check_network

COPY = "a copy that differs from the network of its stage"


def verify_run(path: str | Path) -> list[str]:
    """What is missing or damaged in the directory of a run, a line each with what to do.

    Networks are compared with their digests, checkpoints too, and all files of stages with those
    that were recorded when the stage was done. Nothing is changed.
    """
    path = Path(path)
    if not (is_run(path) or (path / STAGES).is_dir() or (path / RESULT).is_file()):
        raise InputError(f"{path}: not the directory of a run; `annocoin train` makes one")
    problems = [
        f"{path / name}: missing; {AGAIN}"
        for name in (ENVIRONMENT, CONFIG)
        if not (path / name).is_file()
    ]
    if (path / ENVIRONMENT).is_file():
        problems += _caught(partial(check_format, path))
    for folder in sorted((path / STAGES).glob("*")):
        problems += _verify_stage(folder) if folder.is_dir() else []
    if (path / RESULT).is_file():
        problems += _verify_result(path)
    elif any(path.glob("*.safetensors")):
        problems.append(f"{path / RESULT}: missing; {AGAIN}")
    return problems


def _verify_stage(folder: Path) -> list[str]:
    stage, checkpoint = Stage(folder.name, "", folder), folder / CHECKPOINT
    if stage.is_done:
        damage = stage.damage()
        if DONE not in damage and "files" not in stage.record:
            return [f"{folder / DONE}: has no digests, by an earlier version; cannot be verified"]
        lines = [f"{folder / name}: missing, or changed; {AGAIN}" for name in damage]
        if METRICS in damage:  # which `train` does not make again
            lines[damage.index(METRICS)] = (
                f"{folder / METRICS}: missing, or changed; results are not affected, to get it "
                f"back delete {folder} and {AGAIN}"
            )
        return lines
    if not checkpoint.is_file():
        return []
    try:
        read_checkpoint(checkpoint)
    except Exception as error:  # a damaged file raises many kinds
        return [f"{checkpoint}: damaged ({error}); delete it, and the training starts anew"]
    return []


def _verify_result(path: Path) -> list[str]:
    try:
        result = read_result(path)
    except DamagedFile as error:
        return [str(error)]
    problems = []
    for name, digest in result.get("files", {}).items():
        file = path / name
        if not file.is_file() or file_digest(file) != digest:
            problems.append(f"{file}: missing, or changed; {AGAIN}")
    for stage in result.get("stages", []):
        if stage.get("done") and not (path / stage["folder"] / DONE).is_file():
            problems.append(f"{path / stage['folder'] / DONE}: missing; {AGAIN}")
    for name, relative in result["networks"].items():
        network, copy = path / relative, path / f"{name}.safetensors"
        damaged = _caught(partial(check_network, network))
        problems += [f"{line}; {AGAIN}" for line in damaged]
        if not copy.is_file():
            problems.append(f"{copy}: missing; {AGAIN}")
        elif not damaged and file_digest(copy) != file_digest(network):
            problems.append(f"{copy}: {COPY}; {AGAIN}")
    for folder in result["folders"].values():
        if not (path / folder).is_dir():
            problems.append(f"{path / folder}: missing; {AGAIN}")
    if (path / CONFIG).is_file():
        try:
            if read_json(path / CONFIG) != result["config"]:
                problems.append(
                    f"{path / CONFIG}: not the options of the result: damaged, or of a training "
                    f"that is not finished; {AGAIN}"
                )
        except InputError as error:
            problems.append(f"{error}; {AGAIN}")
    return problems


def _caught(check: Callable[[], None]) -> list[str]:
    try:
        check()
    except InputError as error:
        return [str(error)]
    return []
