"""Regions and seeds of the small scenes, for all tests of the engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from annocoin.data.loading import load_weak
from annocoin.engine.image_stages import Execution, make_regions, make_seeds
from annocoin.regions.proposals import RegionOptions
from annocoin.seeds.classifier import Classifier, ClassifierArchitecture, write_classifier
from engine.worlds import Artefacts

SUPERVISION = ("image", "box", "point", "mixed")


@pytest.fixture(scope="session")
def artefacts(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Artefacts:
    """Tests must not change them."""
    root, serial = tmp_path_factory.mktemp("artefacts"), Execution(jobs=1)
    weak = {kind: load_weak(scenes, kind) for kind in SUPERVISION}  # type: ignore[arg-type]
    torch.manual_seed(0)
    classifier = root / "c.safetensors"
    architecture = ClassifierArchitecture(weak["image"].classes, "tiny", size=64)
    write_classifier(classifier, Classifier(architecture))
    regions = make_regions(weak["image"], root / "r", RegionOptions("gradient", 60), serial)
    seeds = {
        kind: make_seeds(dataset, regions, root / kind, classifier=classifier, execution=serial)
        for kind, dataset in weak.items()
    }
    return Artefacts(weak, regions, seeds, classifier)
