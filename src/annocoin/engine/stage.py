"""A stage of a run: its folder, what it cost, and whether its files are as they were written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from annocoin.data.images import safe_join
from annocoin.data.parsing import field as checked
from annocoin.errors import InputError
from annocoin.files import file_digest, read_json, read_record

DONE = "done.json"
CHECKPOINT = "checkpoint.pt"
METRICS = "metrics.jsonl"
COSTS = "costs.json"
"""Apart from DONE, because equal runs do not take equally long."""

AGAIN = "run `annocoin train` again with the same options, it makes what is missing"


@dataclass(frozen=True)
class StageCosts:
    """Wall-clock time and peak memory of a stage, None where unknown."""

    seconds: float | None
    memory: int | None


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
        """Whether it was done; see `damage` for what happened to its files since."""
        return (self.folder / DONE).is_file()

    @property
    def record(self) -> dict[str, Any]:
        """Figures, and digests of the files, of a stage that is done."""
        return read_record(self.folder / DONE)

    def damage(self) -> list[str]:
        """Files of a stage that is done which are missing, or not as they were written."""
        try:
            record = self.record
            checked(record, "stage", str, DONE)
            figures = checked({"figures": {}, **record}, "figures", dict, DONE)
            if not all(isinstance(value, int | float) for value in figures.values()):
                return [DONE]
            listed = record.get("files", {})  # runs of earlier versions have no digests
            return [name for name in listed if not _has_digest(self.folder, name, listed[name])]
        except (InputError, TypeError):
            return [DONE]

    @property
    def figures(self) -> dict[str, float]:
        """The figures of a stage that is done."""
        figures: dict[str, float] = self.record.get("figures", {})
        return figures

    @property
    def costs(self) -> StageCosts:
        """Time and memory of a stage that is done, as far as they are known."""
        try:
            content = read_json(self.folder / COSTS)
            seconds = checked(content, "seconds", float, COSTS)
            return StageCosts(seconds, checked(content, "memory", int, COSTS))
        except InputError:  # a run of an earlier version
            record = self.record
            return StageCosts(record.get("seconds"), record.get("memory"))


class DamagedFile(InputError):
    """A file of a run that is not as it was written."""


def check_stage_files(folder: Path) -> None:
    """Raise if the folder of a stage, or one inside it, is not as it was written."""
    for place in (folder, folder.parent):
        if (place / DONE).is_file():
            damage = Stage(place.name, "", place).damage()
            if damage and damage != [METRICS]:
                raise DamagedFile(f"{place / damage[0]}: missing, or changed; {AGAIN}")


def stage_files(folder: Path) -> list[str]:
    """The names of a stage's files, but of those that come and go, or differ between equal runs."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    others = {DONE, CHECKPOINT, COSTS}
    return sorted(n for n in names if n not in others and not Path(n).name.startswith("."))


def _has_digest(folder: Path, name: str, digest: str) -> bool:
    try:
        return file_digest(safe_join(folder, name, DONE)) == digest
    except InputError:
        return False
