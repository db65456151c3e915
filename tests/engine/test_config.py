"""The configuration of a run: presets, changes, files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from annocoin.engine.config import (
    FROM_CLASSIFIER,
    Config,
    check_weights,
    override,
    read_config,
    with_classifier,
    with_weights,
)
from annocoin.engine.presets import PRESETS, configured, preset
from annocoin.errors import InputError

CLASSES = ("cat", "dog")


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_survives_json(name: str, tmp_path: Path) -> None:
    config = preset(name, CLASSES)
    (tmp_path / "c.json").write_text(json.dumps(config.to_json()))
    assert read_config(tmp_path / "c.json") == config
    assert config.classes == CLASSES
    assert config.conditional.architecture.classes == CLASSES


def test_the_papers_presets_have_the_papers_numbers() -> None:
    for name, backbone in (("voc-r50", "resnet50"), ("voc-r101", "resnet101")):
        config = preset(name, CLASSES)
        learning = config.conditional.learning
        assert (config.rounds, learning.samples) == (4, 10)
        assert (learning.gamma, abs(learning.epsilon)) == (0.5, 1)
        assert config.prediction.architecture.backbone == backbone
        assert not config.prediction.losses.pointwise


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rounds", "7", 7),
        ("prediction.learning.rate", "1e-2", 0.01),
        ("prediction.learning.rate", "1", 1.0),
        ("prediction.learning.scales", "[0.5, 2]", (0.5, 2)),
        ("prediction.losses.class_agnostic_masks", "true", True),
        ("conditional.weights", "none", "none"),
        ("conditional.weights", "7", "7"),
        ("seeds.size", "null", None),
        ("seeds.size", "96", 96),
        ("regions.source", "null", None),
        ("regions.source", "mcg:folder", "mcg:folder"),
        ("conditional.learning.scoring.terms", "U+P", "U+P"),
    ],
)
def test_values_at_dotted_names(name: str, text: str, value: object) -> None:
    config = override(preset("synthetic", CLASSES), {name: text})
    found: object = config
    for part in name.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("round", "1", "no 'round' here; there are regions, classifier"),
        ("rounds", "1.5", "expected int"),
        ("rounds", "true", "expected int"),
        ("rounds", "-1", "expected 0 or more"),
        ("prediction", "1", "say which part of it: architecture, learning"),
        ("rounds.x", "1", "has no parts"),
        ("conditional.learning.scoring.terms", "U+X", "expected one of"),
        ("prediction.losses.class_agnostic_masks", "1", "expected bool"),
        ("prediction.learning.scales", "[1]", "expected"),
        ("prediction.learning.scales", '["a", "b"]', "expected"),
        ("prediction.learning.rate", "NaN", "expected float"),
        ("prediction.learning.optimizer", "magic", "expected one of adamw, sgd"),
        ("conditional.learning.targets", "vote", "expected one of"),
    ],
)
def test_bad_values_are_one_line(name: str, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("+", r"\+")):
        override(preset("synthetic", CLASSES), {name: text})


@pytest.mark.parametrize("turned", [False, True])
def test_options_that_must_agree_change_together(turned: bool) -> None:
    said = {
        "classifier.backbone": "resnet50",
        "conditional.architecture.trunk": "unet-resnet50",
        "prediction.architecture.backbone": "resnet50",
        "prediction.architecture.min_size": "1600",
        "prediction.architecture.max_size": "2000",
    }
    names = reversed(said) if turned else said
    config = override(preset("voc-cpu", CLASSES), {name: said[name] for name in names})
    assert config.conditional.weights == FROM_CLASSIFIER
    assert config.prediction.architecture.backbone == config.classifier.backbone == "resnet50"
    assert config.prediction.architecture.max_size == 2000
    with pytest.raises(InputError, match=r"prediction\.weights classifier"):
        override(preset("voc-cpu", CLASSES), {"prediction.architecture.backbone": "resnet50"})


@pytest.mark.parametrize(
    "name", ["classifier.backbone_weights", "conditional.weights", "prediction.weights"]
)
def test_weights_that_are_not_there_are_missed_at_once(name: str, tmp_path: Path) -> None:
    config = preset("voc-r50", CLASSES)
    check_weights(config)
    (tmp_path / "w.pth").touch()
    check_weights(override(config, {name: str(tmp_path / "w.pth")}))
    with pytest.raises(InputError, match=f"{name} nowhere.pth: no such file"):
        check_weights(override(config, {name: "nowhere.pth"}))


def test_the_runs_seed_is_every_stages() -> None:
    config = dataclasses.replace(preset("synthetic", CLASSES), seed=5).seeded()
    assert config.classifier.seed == 5
    assert config.conditional.learning.seed == 5
    assert config.prediction.learning.seed == 5


def test_without_rounds_the_steps_are_the_same() -> None:
    config = preset("synthetic", CLASSES)
    alone = config.without_rounds()
    assert alone.rounds == 0
    assert alone.prediction_steps == config.prediction_steps
    learning = config.prediction.learning
    assert config.prediction_steps == config.rounds * learning.steps + learning.final_steps


def test_the_literal_preset_is_the_papers_words() -> None:
    ours, literal = preset("voc-r50", CLASSES), preset("voc-r50-literal", CLASSES)
    assert literal.conditional.architecture.trunk == "unet"
    learning = literal.conditional.learning
    assert (learning.epsilon, learning.gamma, learning.samples) == (1, 0.5, 10)
    assert learning.scoring.pairwise == "literal"
    assert literal.prediction.learning.optimizer == "sgd"
    assert literal.prediction_steps == ours.prediction_steps
    assert learning.steps == ours.conditional.learning.steps


def test_weights_are_those_of_the_backbones_that_changes_say(tmp_path: Path) -> None:
    (tmp_path / "resnet50-1.pth").touch()
    (tmp_path / "resnet101-1.pth").touch()
    trunk = "conditional.architecture.trunk"
    plain = configured("voc-r50", CLASSES, {trunk: "unet"}, tmp_path)
    assert plain.conditional.weights == "imagenet"
    assert plain.prediction.weights == str(tmp_path / "resnet50-1.pth")
    other = configured("voc-r50", CLASSES, {trunk: "resnet101"}, tmp_path)
    assert other.conditional.weights == str(tmp_path / "resnet101-1.pth")
    own = configured("voc-r50", CLASSES, {"conditional.weights": "none"}, tmp_path)
    assert own.conditional.weights == "none"


def test_weights_are_found_by_their_names(tmp_path: Path) -> None:
    for name in ("resnet50-stride1x1.pth", "mobilenet_v2-b0.pth", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    config = with_weights(preset("voc-cpu-r50", CLASSES), tmp_path)
    assert config.classifier.backbone_weights == str(tmp_path / "resnet50-stride1x1.pth")
    assert config.classifier.stride_in_1x1
    assert config.conditional.weights == str(tmp_path / "mobilenet_v2-b0.pth")
    assert config.prediction.weights == FROM_CLASSIFIER
    assert config.prediction.architecture.stride_in_1x1
    with pytest.raises(InputError, match="no such folder"):
        with_weights(config, tmp_path / "none")


def test_the_small_preset_starts_both_networks_from_its_classifier(tmp_path: Path) -> None:
    (tmp_path / "mobilenet_v2-b0.pth").touch()
    config = with_weights(preset("voc-cpu", CLASSES), tmp_path)
    assert config.classifier.backbone_weights == str(tmp_path / "mobilenet_v2-b0.pth")
    assert config.conditional.weights == config.prediction.weights == FROM_CLASSIFIER


def test_other_files_are_no_configuration(tmp_path: Path) -> None:
    for content in ("[]", "{}", '{"rounds": 1}', '{"regions": 3}', "nonsense"):
        (tmp_path / "c.json").write_text(content)
        with pytest.raises(InputError):
            read_config(tmp_path / "c.json")


def test_every_preset_is_a_plain_config() -> None:
    assert all(isinstance(preset(name, CLASSES), Config) for name in PRESETS)
    with pytest.raises(InputError, match="expected one of synthetic"):
        preset("magic", CLASSES)


def test_networks_that_start_from_the_classifier_have_its_backbone(tmp_path: Path) -> None:
    config = preset("voc-cpu-r50", CLASSES)
    assert config.prediction.weights == FROM_CLASSIFIER
    assert config.from_classifier
    with pytest.raises(InputError, match=r"resnet50.*resnet101.*expected the same"):
        override(config, {"prediction.architecture.backbone": "resnet101"})
    older = with_classifier(config, "resnet50", stride_in_1x1=True)
    assert older.prediction.architecture.stride_in_1x1
    assert older.classifier.stride_in_1x1
    assert not older.conditional.architecture.stride_in_1x1  # that starts elsewhere
    with pytest.raises(InputError, match="tiny"):
        with_classifier(config, "tiny", stride_in_1x1=False)
    (tmp_path / "resnet50-stride1x1.pth").touch()
    files = with_weights(config, tmp_path)
    assert files.prediction.weights == FROM_CLASSIFIER
    assert files.prediction.architecture.stride_in_1x1


def test_the_conditional_network_may_start_from_the_classifier_too() -> None:
    config = override(
        preset("voc-cpu-r50", CLASSES), {"conditional.architecture.trunk": "unet-resnet50"}
    )
    config = override(config, {"conditional.weights": "classifier", "prediction.weights": "none"})
    assert config.from_classifier
    assert not dataclasses.replace(config, rounds=0).from_classifier
