"""Results that a run takes over instead of computing them, and digests of what it depends on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from annocoin.data.artefacts import ArtefactFolder
from annocoin.data.dataset import WeakDataset
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.seed_set import SeedFolder

CLASSIFIER_FILE = "classifier.safetensors"


@dataclass(frozen=True)
class Precomputed:
    """Regions, seeds and classifier of `annocoin regions` and `annocoin seeds`."""

    regions: RegionFolder | None = None
    seeds: SeedFolder | None = None
    classifier: Path | None = None

    @property
    def classifier_file(self) -> Path | None:
        """The classifier, given by itself or with the seeds."""
        if self.classifier is not None or self.seeds is None:
            return self.classifier
        beside = self.seeds.path / CLASSIFIER_FILE
        return beside if beside.is_file() else None

    def __bool__(self) -> bool:
        return any(part is not None for part in (self.regions, self.seeds, self.classifier))

    def digests(self) -> dict[str, Any]:
        """Digests of all parts, None for those that are missing."""
        return {
            "regions": None if self.regions is None else folder_digest(self.regions),
            "seeds": None if self.seeds is None else folder_digest(self.seeds),
            "classifier": None
            if self.classifier_file is None
            else file_digest(self.classifier_file),
        }


def dataset_digest(dataset: WeakDataset) -> str:
    """A digest of the annotations, and of the images by name and size."""
    digest = hashlib.sha256(repr((dataset.classes, dataset.supervision)).encode())
    for image in dataset:
        size = image.path.stat().st_size
        digest.update(repr((image.image_id, image.file_name, size, image.annotation)).encode())
    return digest.hexdigest()


def folder_digest(folder: ArtefactFolder[Any]) -> dict[str, Any]:
    """The provenance of a folder, and a digest of its files by name and size."""
    sizes = [(i, folder.name(i), path.stat().st_size) for i, path in folder.files.items()]
    digest = hashlib.sha256(repr(sizes).encode()).hexdigest()
    return {"provenance": folder.provenance, "files": digest}


def file_digest(path: Path) -> str:
    """A digest of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
