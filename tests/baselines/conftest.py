from __future__ import annotations

from pathlib import Path

import pytest

from annocoin.engine.classifier_training import train_classifier
from annocoin.engine.presets import classifier_options
from annocoin.seeds.classifier import write_classifier
from baselines.worlds import World, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Six images of two discs; tests must not change them."""
    return make_world(tmp_path_factory.mktemp("discs"))


@pytest.fixture(scope="session")
def larger_world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Twelve such images, to train networks on."""
    return make_world(tmp_path_factory.mktemp("discs"), 12)


@pytest.fixture(scope="session")
def classifier(larger_world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of their tags."""
    options = classifier_options("tiny", size=64, epochs=10, batch_size=8)
    path = tmp_path_factory.mktemp("classifier") / "classifier.safetensors"
    write_classifier(path, train_classifier(larger_world.weak(), options))
    return path
