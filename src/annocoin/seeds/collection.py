"""The seeds of a whole dataset in a folder: one file an image, and a list of them."""

from __future__ import annotations

from pathlib import Path

from annocoin.data.artefacts import ArtefactFolder
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.storage import read_seeds


class SeedFolder(ArtefactFolder[Seeds]):
    """The seeds in a folder that `make_seeds` wrote, by image id; read when asked for."""

    index_name = "seeds.json"
    command = "`annocoin seeds`"

    def read(self, path: Path) -> Seeds:
        return read_seeds(path)
