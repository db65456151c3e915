"""The configuration of a run: presets, changes at dotted names, weights from files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from annocoin.engine.config import Config
from annocoin.engine.network_config import (
    FROM_CLASSIFIER,
    ClassifierOptions,
    ConditionalTraining,
    PredictionTraining,
)
from annocoin.engine.overrides import (
    check_weight_files,
    override,
    use_classifier,
    weights_folder,
)
from annocoin.engine.presets import PRESETS, classifier_options, configure, preset
from annocoin.errors import InputError

CLASSES = ("cat", "dog")
TRUNK = "conditional.architecture.trunk"


@pytest.mark.parametrize("name", list(PRESETS))
def test_a_preset_survives_json(name: str) -> None:
    config = preset(name, CLASSES)
    assert Config.from_json(json.loads(json.dumps(config.to_json())), "c.json") == config
    assert config.classes == config.conditional.architecture.classes == CLASSES


def test_unknown_presets_are_refused() -> None:
    with pytest.raises(InputError, match="expected one of synthetic"):
        preset("magic", CLASSES)


@pytest.mark.parametrize("content", [[], {}, None, {"rounds": 1}, {"regions": 3}, {"seeds": {}}])
def test_other_content_is_not_a_configuration(content: Any) -> None:
    with pytest.raises(InputError, match=r"run\.json: not a configuration of this version"):
        Config.from_json(content, "run.json")


def test_the_papers_presets_have_the_papers_numbers() -> None:
    for name, backbone in (("voc-r50", "resnet50"), ("voc-r101", "resnet101")):
        config = preset(name, CLASSES)
        training = config.conditional.training
        assert (config.rounds, training.samples) == (4, 10)
        assert (config.gamma, abs(training.epsilon)) == (0.5, 1)
        assert config.prediction.architecture.backbone == backbone
        assert not config.prediction.losses.pointwise


def test_the_literal_preset_is_the_papers_text() -> None:
    ours, literal = preset("voc-r50", CLASSES), preset("voc-r50-literal", CLASSES)
    architecture, training = literal.conditional.architecture, literal.conditional.training
    assert (architecture.trunk, architecture.noise) == ("unet", "pixel")
    assert (training.epsilon, literal.gamma, training.samples) == (1, 0.5, 10)
    assert literal.conditional.scoring.pairwise == "literal"
    assert literal.prediction.training.optimizer == "sgd"
    assert literal.seeds.rule == "published"
    scoring, task_loss = literal.conditional.scoring, literal.conditional.task_loss
    assert (scoring.difference, scoring.share_regions) == ("neighbourhood", True)
    assert (task_loss.clamp, task_loss.mask_scored_regions) == (None, None)
    assert literal.conditional.best_fit_share == 0
    assert literal.prediction.training.final_steps == 0
    assert literal.prediction_steps == ours.prediction_steps
    assert training.steps == ours.conditional.training.steps


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("rounds", "7", 7),
        ("gamma", "0.25", 0.25),
        ("prediction.training.lr", "1e-2", 0.01),
        ("prediction.training.lr", "1", 1.0),
        ("prediction.training.scale_range", "[0.5, 2]", (0.5, 2)),
        ("prediction.losses.class_agnostic_masks", "true", True),
        ("conditional.weights", "none", "none"),
        ("conditional.weights", "7", "7"),
        ("seeds.size", "null", None),
        ("seeds.size", "96", 96),
        ("regions.source", "null", None),
        ("conditional.scoring.terms", "U+P", "U+P"),
        ("conditional.scoring.extra_margin", "1.5", 1.5),
        ("conditional.scoring.extra_margin", "null", None),
        ("conditional.task_loss.clamp", "null", None),
        ("conditional.task_loss.mask_scored_regions", "null", None),
        ("conditional.task_loss.mask_scored_regions", "9", 9),
        ("conditional.best_fit_share", "0", 0.0),
        ("prediction.training.final_steps", "0", 0),
        ("conditional.training.targets", "maps", "maps"),
        ("conditional.evidence", "maps", "maps"),
        ("conditional.tables", "detections", "detections"),
        ("prediction.training.continued", "false", False),
        ("seeds.map_scales", "[]", ()),
        ("seeds.map_scales", "[1.5]", (1.5,)),
        ("seeds.map_scales", "[1, 1.5, 2]", (1.0, 1.5, 2.0)),
    ],
)
def test_values_at_dotted_names(name: str, text: str, value: object) -> None:
    config: object = override(preset("synthetic", CLASSES), {name: text})
    for part in name.split("."):
        config = getattr(config, part)
    assert config == value
    assert type(config) is type(value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("round", "1", "no option 'round'; there are regions, classifier"),
        ("prediction.training.rate", "1", "prediction.training.rate: no option 'rate'"),
        ("rounds", "1.5", "expected int"),
        ("rounds", "true", "expected int"),
        ("rounds", "-1", "expected at least 0"),
        ("gamma", "2", "expected 0 to 1"),
        ("seed", "-1", "expected at least 0"),
        ("prediction", "1", "say which option of it: architecture, losses, training"),
        ("rounds.x", "1", "has no options of its own"),
        ("conditional.scoring.terms", "U+X", "expected one of"),
        ("prediction.losses.class_agnostic_masks", "1", "expected bool"),
        ("prediction.training.scale_range", "[1]", "expected"),
        ("prediction.training.scale_range", '["a", "b"]', "expected"),
        ("prediction.training.scale_range", "[2, 1]", "expected rising factors"),
        ("prediction.training.lr", "NaN", "expected float"),
        ("prediction.training.optimizer", "magic", "expected one of adam, adamw, sgd"),
        ("conditional.training.targets", "vote", "expected one of votes, maps, pixels"),
        ("conditional.evidence", "pixels", "expected one of votes, maps"),
        ("conditional.tables", "map", "expected one of detections, rois"),
        ("conditional.scoring.extra_margin", "-1", "expected 0 or more"),
        ("conditional.task_loss.clamp", "0", "expected above 0, or null"),
        ("conditional.task_loss.mask_scored_regions", "0", "expected at least 1"),
        ("conditional.best_fit_share", "2", "expected 0 to 1"),
        ("conditional.box_overlap", "-1", "expected 0 to 1"),
        ("conditional.detection_scales", "[]", "expected factors"),
        ("conditional.detection_scales", "[1, 9]", "expected factors"),
        ("prediction.training.precision", "16", "expected one of 32, bf16"),
        ("prediction.training.continued", "0", "expected bool"),
        ("seeds.map_scales", "[0.01]", "expected factors of 0.1 to 10"),
        ("seeds.map_scales", "1.5", "expected"),
        ("seeds.map_scales", '["a"]', "expected"),
        ("regions.source", "mcg:folder", "import the regions with `annocoin regions --from`"),
    ],
)
def test_bad_values_are_one_line(name: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        override(preset("synthetic", CLASSES), {name: text})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "change"),
    [
        *(
            (ConditionalTraining, change)
            for change in (
                {"steps": 0},
                {"batch_size": 0},
                {"lr": 0.0},
                {"epsilon": 0.0},
                {"samples": 0},
                {"noise_strength": -1.0},
            )
        ),
        *(
            (ClassifierOptions, change)
            for change in (
                {"epochs": 0},
                {"batch_size": 0},
                {"precision": "8"},
                {"peak_fraction": 2.0},
                {"head_lr": 0.0},
                {"frozen_layers": -1},
            )
        ),
        *(
            (PredictionTraining, change)
            for change in (
                {"final_steps": -1},
                {"backbone_lr_factor": 0.0},
                {"scale_range": (0.1, 1.0)},
                {"weight_decay": -1.0},
            )
        ),
    ],
)
def test_options_out_of_range(options: Any, change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        options(**change)


@pytest.mark.parametrize("is_reversed", [False, True])
def test_options_that_must_agree_change_together(is_reversed: bool) -> None:
    changes = {
        "classifier.backbone": "resnet101",
        TRUNK: "unet-resnet101",
        "conditional.weights": "classifier",
        "prediction.architecture.backbone": "resnet101",
        "prediction.weights": "classifier",
        "prediction.architecture.min_size": "1600",
        "prediction.architecture.max_size": "2000",
        "teacher.architecture.backbone": "resnet101",
    }
    names = reversed(changes) if is_reversed else changes
    config = override(preset("voc-cpu", CLASSES), {name: changes[name] for name in names})
    assert config.conditional.weights == FROM_CLASSIFIER
    assert config.prediction.architecture.backbone == config.classifier.backbone == "resnet101"
    assert config.prediction.architecture.max_size == 2000
    with pytest.raises(InputError, match=r"prediction\.weights classifier.*expected the same"):
        override(preset("voc-cpu", CLASSES), {"prediction.weights": "classifier"})


@pytest.fixture
def from_classifier(monkeypatch: pytest.MonkeyPatch) -> str:
    """A preset whose two networks start from a MobileNetV2, the classifier."""

    def build(classes: tuple[str, ...]) -> Config:
        config = preset("voc-cpu", classes)
        return dataclasses.replace(
            config,
            classifier=classifier_options("mobilenet_v2"),
            conditional=dataclasses.replace(config.conditional, weights=FROM_CLASSIFIER),
            prediction=dataclasses.replace(config.prediction, weights=FROM_CLASSIFIER),
            teacher=None,
        )

    monkeypatch.setitem(PRESETS, "from-classifier", build)
    return "from-classifier"


@pytest.mark.parametrize(
    ("trunk", "weights"),
    [("unet", "imagenet"), ("resnet50", "imagenet"), ("mobilenet_v2", "classifier")],
)
def test_a_trunk_with_another_backbone_does_not_start_from_the_classifier(
    from_classifier: str, trunk: str, weights: str
) -> None:
    config = configure(from_classifier, CLASSES, {TRUNK: trunk})
    assert config.conditional.weights == weights
    assert config.prediction.weights == FROM_CLASSIFIER


def test_weights_that_were_set_are_kept_and_must_fit(from_classifier: str) -> None:
    changes = {TRUNK: "unet-resnet50", "conditional.weights": "none"}
    assert configure(from_classifier, CLASSES, changes).conditional.weights == "none"
    with pytest.raises(InputError, match=r"conditional\.weights classifier"):
        configure(from_classifier, CLASSES, {**changes, "conditional.weights": "classifier"})
    other = configure(from_classifier, CLASSES, {"classifier.backbone": "resnet18"})
    assert other.conditional.weights == other.prediction.weights == "imagenet"


@pytest.mark.parametrize(
    "name", ["classifier.weights", "conditional.weights", "prediction.weights"]
)
def test_missing_files_of_weights(name: str, tmp_path: Path) -> None:
    config = preset("voc-r50", CLASSES)
    check_weight_files(config)
    (tmp_path / "w.pth").touch()
    check_weight_files(override(config, {name: str(tmp_path / "w.pth")}))
    with pytest.raises(InputError, match=rf"{name} nowhere\.pth: no such file"):
        check_weight_files(override(config, {name: "nowhere.pth"}))


def test_without_rounds_the_number_of_steps_is_the_same() -> None:
    config = preset("synthetic", CLASSES)
    training = config.prediction.training
    assert config.prediction_steps == config.rounds * training.steps + training.final_steps
    for single in (config.without_rounds(), configure("synthetic", CLASSES, rounds=0)):
        assert single.rounds == 0
        assert single.prediction_steps == config.prediction_steps
    with pytest.raises(InputError, match="keeps the number of steps"):
        configure("synthetic", CLASSES, {"rounds": "0"})
    config = configure("synthetic", CLASSES, rounds=3, seed=5)
    assert (config.rounds, config.seed) == (3, 5)


def test_without_continuation_only_the_last_training_counts() -> None:
    changes = {"prediction.training.continued": "false", "rounds": "3"}
    config = configure("synthetic", CLASSES, changes)
    training = config.prediction.training
    assert config.prediction_steps == training.final_steps
    single = configure("synthetic", CLASSES, {"prediction.training.continued": "false"}, rounds=0)
    assert (single.rounds, single.prediction_steps) == (0, training.final_steps)
    continued = override(config, {"prediction.training.continued": "true"})
    assert continued.prediction_steps == 3 * training.steps + training.final_steps


def test_without_a_last_training_the_last_round_is_the_result() -> None:
    changes = {"prediction.training.final_steps": "0", "rounds": "3"}
    config = configure("synthetic", CLASSES, changes)
    steps = config.prediction.training.steps
    assert config.prediction_steps == 3 * steps
    assert config.without_rounds().prediction_steps == 3 * steps
    fresh = override(config, {"prediction.training.continued": "false"})
    assert fresh.prediction_steps == fresh.without_rounds().prediction_steps == steps
    with pytest.raises(InputError, match="final_steps 0; with a teacher"):
        configure("voc-cpu", CLASSES, changes)


@pytest.mark.parametrize("change", [{"evidence": "peaks"}, {"tables": "votes"}, {"evidence": None}])
def test_bad_choices_of_the_conditional_network(change: dict[str, Any]) -> None:
    conditional = preset("synthetic", CLASSES).conditional
    with pytest.raises(InputError, match=f"{next(iter(change))} .*expected one of"):
        dataclasses.replace(conditional, **change)


def test_files_of_weights_belong_to_backbones_by_name(tmp_path: Path) -> None:
    for name in ("resnet50-stride1x1.pth", "mobilenet_v2-b0.pth", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    config = override(preset("voc-cpu-r50", CLASSES), {"prediction.weights": "classifier"})
    config = weights_folder(config, tmp_path)
    assert config.classifier.weights == str(tmp_path / "resnet50-stride1x1.pth")
    assert config.classifier.stride_in_1x1
    assert config.conditional.weights == str(tmp_path / "mobilenet_v2-b0.pth")
    assert config.prediction.weights == FROM_CLASSIFIER
    assert config.prediction.architecture.stride_in_1x1
    small = weights_folder(preset("voc-cpu", CLASSES), tmp_path)
    assert small.classifier.weights == str(tmp_path / "resnet50-stride1x1.pth")
    assert small.classifier.stride_in_1x1
    assert small.conditional.weights == str(tmp_path / "mobilenet_v2-b0.pth")
    assert small.prediction.weights == str(tmp_path / "mobilenet_v2-b0.pth")
    assert not small.conditional.architecture.stride_in_1x1
    assert not small.prediction.architecture.stride_in_1x1


def test_the_resnet_of_the_cpu_preset_starts_from_the_classifier() -> None:
    """So docs/decisions.md says; both have a ResNet-50."""
    config = preset("voc-cpu-r50", CLASSES)
    assert config.prediction.architecture.backbone == config.classifier.backbone == "resnet50"
    assert config.prediction.weights == FROM_CLASSIFIER
    assert config.needs_classifier
    small = preset("voc-cpu", CLASSES).in_bfloat16()
    assert config.prediction == small.teacher, "the same rounds"
    assert config.conditional == small.conditional


def test_a_teacher_is_an_option() -> None:
    config = preset("voc-cpu", CLASSES)
    assert config.teacher is not None
    assert config.teacher.architecture.backbone == "resnet50"
    assert config.trained_networks == ("conditional", "prediction", "teacher")
    assert override(config, {"teacher.training.steps": "7"}).teacher.training.steps == 7
    for without in (configure("voc-cpu", CLASSES, {"teacher": "null"}), config.without_rounds()):
        assert without.teacher is None
        assert without.trained_networks == ("conditional", "prediction")
        assert Config.from_json(json.loads(json.dumps(without.to_json())), "c.json") == without
    with pytest.raises(InputError, match="teacher has no options of its own"):
        override(preset("voc-r50", CLASSES), {"teacher.training.steps": "7"})
    with pytest.raises(InputError, match="say which option of it"):
        override(config, {"prediction": "null"})


def test_bad_teachers() -> None:
    config = preset("voc-cpu", CLASSES)
    for name in ("prediction", "teacher"):
        with pytest.raises(InputError, match=rf"{name}.training.continued true; with a teacher"):
            override(config, {f"{name}.training.continued": "true"})
    other = preset("voc-cpu", ("sheep",)).teacher
    with pytest.raises(InputError, match="other classes"):
        dataclasses.replace(config, teacher=other)


def test_only_networks_that_are_trained_need_weights(tmp_path: Path) -> None:
    (tmp_path / "resnet50.pth").touch()
    with pytest.raises(InputError, match="prediction network's backbone resnet101"):
        configure("voc-r101", CLASSES, weights=tmp_path)
    config = configure("voc-r101", CLASSES, weights=tmp_path, networks=("classifier",))
    assert config.classifier.weights == str(tmp_path / "resnet50.pth")
    assert config.prediction.weights == "imagenet"


def test_a_folder_has_weights_for_the_backbones_of_the_changes(tmp_path: Path) -> None:
    (tmp_path / "resnet50-1.pth").touch()
    (tmp_path / "resnet101-1.pth").touch()
    plain = configure("voc-r50", CLASSES, {TRUNK: "unet"}, weights=tmp_path)
    assert plain.conditional.weights == "imagenet"
    assert plain.prediction.weights == str(tmp_path / "resnet50-1.pth")
    other = configure("voc-r50", CLASSES, {TRUNK: "resnet101"}, weights=tmp_path)
    assert other.conditional.weights == str(tmp_path / "resnet101-1.pth")
    scratch = configure("voc-r50", CLASSES, {"conditional.weights": "none"}, weights=tmp_path)
    assert scratch.conditional.weights == "none"
    assert configure("synthetic", CLASSES, weights=tmp_path).classifier.weights == "imagenet"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no weights of the classifier's backbone resnet50; expected a file resnet50*.pth"),
        (["resnet50.txt", "my-resnet50.pth"], "expected a file resnet50*.pth, .pt or .safetensors"),
        (["resnet50.pth"], "no weights of the prediction network's backbone resnet101"),
    ],
)
def test_a_folder_without_the_weights_of_a_backbone_is_refused(
    files: list[str], message: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(InputError) as error:
        configure("voc-r101", CLASSES, weights=tmp_path)
    assert str(error.value).startswith(f"{tmp_path}: ")
    assert message in str(error.value)
    with pytest.raises(InputError, match="no such folder of backbone weights"):
        configure("voc-r101", CLASSES, weights=tmp_path / "none")


def test_networks_that_start_from_the_classifier_have_its_backbone(tmp_path: Path) -> None:
    config = override(preset("voc-cpu-r50", CLASSES), {"prediction.weights": "classifier"})
    assert config.needs_classifier
    with pytest.raises(InputError, match=r"resnet50.*resnet101.*expected the same"):
        override(config, {"prediction.architecture.backbone": "resnet101"})
    options = dataclasses.replace(config.classifier, stride_in_1x1=True)
    changed = use_classifier(config, options)
    assert changed.prediction.architecture.stride_in_1x1
    assert changed.classifier.stride_in_1x1
    assert not changed.conditional.architecture.stride_in_1x1, "it starts from ImageNet weights"
    with pytest.raises(InputError, match="tiny"):
        use_classifier(config, dataclasses.replace(options, backbone="tiny"))


def test_the_conditional_network_needs_the_classifier_in_rounds_only() -> None:
    config = override(
        preset("voc-cpu-r50", CLASSES),
        {
            TRUNK: "unet-resnet50",
            "conditional.weights": "classifier",
            "prediction.weights": "none",
        },
    )
    assert config.needs_classifier
    assert not dataclasses.replace(config, rounds=0).needs_classifier


def test_the_tiny_backbone_freezes_pretrained_layers_only() -> None:
    assert classifier_options("tiny").frozen_layers == 7
    assert classifier_options("tiny", weights="none").frozen_layers == 0
    assert classifier_options("resnet50", epochs=3) == ClassifierOptions(epochs=3)
