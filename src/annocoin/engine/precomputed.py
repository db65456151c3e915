"""What a run is given and need not make."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from annocoin.data.artefacts import ArtefactFolder
from annocoin.data.dataset import WeakDataset
from annocoin.engine.dataset_stages import CLASSIFIER
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.seed_set import SeedFolder


@dataclass(frozen=True)
class Precomputed:
    """What need not be made: what `annocoin regions` and `annocoin seeds` made."""

    regions: RegionFolder | None = None
    seeds: SeedFolder | None = None
    classifier: Path | None = None

    @property
    def classifier_file(self) -> Path | None:
        """The classifier that is given, by itself or with the seeds."""
        beside = None if self.seeds is None else self.seeds.path / CLASSIFIER
        if self.classifier is not None or beside is None or not beside.is_file():
            return self.classifier
        return beside

    @property
    def made(self) -> set[str]:
        """The stages that have nothing to do."""
        found = {"regions": self.regions, "seeds": self.seeds, "classifier": self.classifier_file}
        return {name for name, own in found.items() if own is not None}

    def identity(self) -> dict[str, Any]:
        """What it is, for the keys of stages and folders."""
        return {
            "regions": None if self.regions is None else content_of(self.regions),
            "seeds": None if self.seeds is None else content_of(self.seeds),
            "classifier": None if self.classifier_file is None else digest(self.classifier_file),
        }


def fingerprint(dataset: WeakDataset) -> str:
    """A name for what a dataset says, and for its images."""
    found = hashlib.sha256(repr((dataset.classes, dataset.supervision)).encode())
    for image in dataset:
        size = image.path.stat().st_size
        found.update(repr((image.image_id, image.file_name, size, image.annotation)).encode())
    return found.hexdigest()


def content_of(folder: ArtefactFolder[Any]) -> dict[str, Any]:
    """What a folder holds: how it was made, and its files by name and size."""
    files = [(i, folder.name(i), path.stat().st_size) for i, path in folder.files.items()]
    return {"made": folder.made, "files": hashlib.sha256(repr(files).encode()).hexdigest()}


def digest(path: Path) -> str:
    """A name for a file's content."""
    with path.open("rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def by_content(made: dict[str, Any], name: str) -> dict[str, Any]:
    """The same with a file's content in the place of its path, if that is what a name says."""
    path = Path(str(made[name]))
    return {**made, name: digest(path)} if path.is_file() else made
