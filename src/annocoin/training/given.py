"""What a run is given and need not make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from annocoin.regions import RegionFolder
from annocoin.seeds import SeedFolder
from annocoin.seeds.making import CLASSIFIER
from annocoin.training.identity import content_of, digest


@dataclass(frozen=True)
class Given:
    """What need not be made: what `annocoin regions` and `annocoin seeds` made."""

    regions: RegionFolder | None = None
    seeds: SeedFolder | None = None
    classifier: Path | None = None

    @property
    def own_classifier(self) -> Path | None:
        """The classifier that is given, by itself or with the seeds."""
        beside = None if self.seeds is None else self.seeds.path / CLASSIFIER
        if self.classifier is not None or beside is None or not beside.is_file():
            return self.classifier
        return beside

    @property
    def made(self) -> set[str]:
        """The stages that have nothing to do."""
        found = {"regions": self.regions, "seeds": self.seeds, "classifier": self.own_classifier}
        return {name for name, own in found.items() if own is not None}

    def identity(self) -> dict[str, Any]:
        """What it is, for the keys of stages and folders."""
        return {
            "regions": None if self.regions is None else content_of(self.regions),
            "seeds": None if self.seeds is None else content_of(self.seeds),
            "classifier": None if self.own_classifier is None else digest(self.own_classifier),
        }
