"""Names for what a run depends on: a dataset, a folder of artefacts, a file, by their content."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from annocoin.data.artefacts import ArtefactFolder
from annocoin.data.dataset import WeakDataset


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
