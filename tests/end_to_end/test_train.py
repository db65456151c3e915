"""From weakly labelled images to a trained network: the command `train` and what it leaves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from annocoin import api, files
from annocoin.data.dataset import EvaluationDataset, weak_dataset
from annocoin.data.loading import load_evaluation, load_weak
from annocoin.engine import conditional_dataset, shared_stages
from annocoin.engine.config import Config
from annocoin.engine.preflight import Precomputed
from annocoin.errors import InputError, Problems
from annocoin.prediction.networks import read_prediction
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.classifier import read_classifier
from annocoin.seeds.seed_set import SeedFolder
from annocoin.trained import TrainedRun
from end_to_end.quick import ARGUMENTS, QUICK, metrics, train
from pictures import break_jpeg

Command = Callable[..., Any]
STAGES = [
    "dataset",
    "classifier",
    "regions",
    "seeds",
    "examples",
    "conditional",
    "round 1, samples",
    "round 1, prediction",
    "round 1, tables",
    "round 1, dissimilarity after prediction",
    "round 1, conditional",
    "final samples",
    "round 1, dissimilarity after conditional",
    "final prediction",
]


def stages_of(run: Path) -> list[str]:
    listed = json.loads((run / "run.json").read_text())["stages"]
    return [entry["stage"] for entry in listed]


def stage_folder(run: Path, name: str) -> Path:
    (folder,) = (run / "stages").glob(f"{name}-*")
    return folder


def precomputed_of(run: Path) -> Precomputed:
    """Regions, seeds and classifier of a run, for another one."""
    return Precomputed(
        RegionFolder(stage_folder(run, "regions") / "files"),
        SeedFolder(stage_folder(run, "seeds") / "files"),
        run / "classifier.safetensors",
    )


@pytest.fixture
def copied(runs: dict[str, Path], tmp_path: Path) -> Path:
    """The finished run from tags, to be changed."""
    return Path(shutil.copytree(runs["image"], tmp_path / "copied"))


@pytest.mark.parametrize("supervision", ["image", "box", "point"])
def test_the_files_of_a_run(runs: dict[str, Path], supervision: str) -> None:
    run = runs[supervision]
    assert stages_of(run) == STAGES
    lines = metrics(run)
    steps = {name: [line for line in lines if line["stage"] == name] for name in STAGES}
    assert [line["step"] for line in steps["round 1, prediction"]] == [1, 2, 3, 4]
    assert {"loss", "loss_classifier", "loss_mask", "loss_box_reg", "grad_norm"} <= set(
        steps["final prediction"][0]
    )
    assert {"cross_diversity", "changed_by_loss"} <= set(steps["round 1, conditional"][0])
    for network in ("prediction", "conditional"):
        (line,) = steps[f"round 1, dissimilarity after {network}"]
        assert set(line) == {"stage", "round", "div_pc", "div_cc", "div_pp", "disc"}
        disc = line["div_pc"] - 0.5 * line["div_cc"] - 0.5 * line["div_pp"]
        assert (line["round"], line["disc"]) == (1, pytest.approx(disc))
        assert line["div_pc"] > 0
        events = (run / "tensorboard" / f"dissimilarity after {network}").glob(
            "events.out.tfevents.*"
        )
        assert any(events)
    measured = steps["final samples"][0]
    assert all(0 <= measured[name] <= 1 for name in ("map@0.5", "f1@0.5", "f1@0.75"))
    assert measured["f1@0.75"] <= measured["f1@0.5"]
    assert measured["instances"] >= 1, "every image has a label"
    assert measured["true_instances"] >= 1
    assert 0 <= steps["classifier"][-1]["tag_map"] <= 1
    assert set(json.loads((run / "costs.json").read_text())) == set(STAGES[1:])
    assert json.loads((run / "environment.json").read_text())["torch"] == torch.__version__
    config = json.loads((run / "config.json").read_text())
    assert Config.from_json(config, "config.json") == TrainedRun(run).config
    assert TrainedRun(run).config.rounds == 1
    assert any((run / "tensorboard").rglob("events.out.tfevents.*"))
    assert any((run / "tensorboard" / "report").iterdir()), "pictures of the rounds"
    assert "Reliability of the confidence" in (run / "report.html").read_text()
    assert json.loads((stage_folder(run, "seeds") / "costs.json").read_text())["memory"] > 1 << 20
    net, architecture = read_prediction(run / "prediction.safetensors")
    assert architecture.fpn_channels == 16
    assert len(net.state_dict()) > 50
    assert not list(run.rglob("checkpoint.pt"))


def test_full_supervision_needs_only_the_prediction_network(runs: dict[str, Path]) -> None:
    assert stages_of(runs["mask"]) == ["dataset", "prediction"]
    assert len(metrics(runs["mask"])) == 8, "as many steps as in all rounds together"


def test_networks_start_from_the_classifier(scenes: Path, tmp_path: Path) -> None:
    changes = {
        "classifier.backbone": "mobilenet_v2",
        "classifier.weights": "none",
        "prediction.architecture.backbone": "mobilenet_v2",
        "prediction.weights": "classifier",
        "prediction.training.frozen_layers": "6",
    }
    run = train(scenes, tmp_path / "a", "mask", changes=changes).path
    assert stages_of(run) == ["dataset", "classifier", "prediction"]
    classifier = read_classifier(run / "classifier.safetensors")
    net, _ = read_prediction(run / "prediction.safetensors")
    trained, start = net.backbone.body, classifier.trunk
    assert torch.equal(trained["5"].conv[0][0].weight, start[5].conv[0][0].weight)
    assert not torch.equal(trained["12"].conv[0][0].weight, start[12].conv[0][0].weight)
    precomputed = Precomputed(classifier=run / "classifier.safetensors")
    again = train(scenes, tmp_path / "b", "mask", changes=changes, precomputed=precomputed)
    same, _ = read_prediction(again.path / "prediction.safetensors")
    assert all(value.equal(net.state_dict()[name]) for name, value in same.state_dict().items())


def test_the_literal_preset_trains(runs: dict[str, Path], scenes: Path, tmp_path: Path) -> None:
    changes = {
        **QUICK,
        "classifier.backbone": "tiny",
        "prediction.architecture.backbone": "tiny",
        "prediction.architecture.anchor_size": "20",
        "prediction.architecture.max_size": "96",
    }
    weak = load_weak(scenes, "image", split="train")
    run = api.train(
        weak, tmp_path / "run", "voc-r50-literal", changes=changes, jobs=1, log=lambda _: None
    )
    assert run.config.conditional.architecture.trunk == "unet"
    assert run.config.seeds.rule == "published"
    steps = [line for line in metrics(run.path) if line["stage"] == "round 1, conditional"]
    assert len(steps) == 3


def test_labels_without_a_mask_are_left_out_of_full_supervision(scenes: Path) -> None:
    labelled = load_evaluation(scenes, split="train").labelled
    image = next(image for image in labelled if len(image.annotation) > 1)
    first, *rest = image.annotation
    weak_labels = (replace(first, mask=None, box=(0.0, 0.0, 9.0, 9.0)), *rest)
    partly = replace(image, annotation=replace(image.annotation, weak_labels=weak_labels))
    dataset = weak_dataset(replace(labelled, images=(partly,), splits={}), "mask")
    assert [label.label for label in dataset[0].annotation] == [label.label for label in rest]
    assert dataset.fully_masked


def test_done_stages_are_not_done_again(copied: Path, scenes: Path, annocoin: Command) -> None:
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*.safetensors")}
    command = ("train", scenes, "--split", "train", "--out", copied, *ARGUMENTS)
    outcome = annocoin(*command)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("done before") == len(STAGES) - 1
    kept = [path for path in before if "stages" in path.parts]
    assert kept
    assert all(path.stat().st_mtime_ns == before[path] for path in kept)
    old = set((copied / "stages").iterdir())
    outcome = annocoin(*command, "--set", "prediction.training.final_steps=5")
    assert outcome.code == 0, outcome.err
    assert "prediction.training.final_steps 4 -> 5" in outcome.out
    new = set((copied / "stages").iterdir()) - old
    names = {path.name.rsplit("-", 1)[0] for path in new}
    assert {"round-1-prediction", "final-prediction"} <= names, "the learning rates are others"
    assert not names & {"regions", "seeds", "examples", "conditional", "round-1-samples"}
    assert annocoin(*command).code == 0
    assert set((copied / "stages").iterdir()) == old | new, "the first options' stages are used"


@pytest.mark.parametrize(
    ("changes", "first_round"),
    [
        ({"conditional.scoring.extra_margin": "0.5"}, set()),
        ({"conditional.annotated_boxes": "false"}, set()),
        ({"conditional.training.samples": "4"}, set()),
        (
            {"conditional.training.epsilon": "1", "conditional.training.keep_better": "false"},
            {"round 1, samples", "round 1, prediction", "round 1, tables"},
        ),
    ],
)
def test_options_of_the_rounds_keep_the_initial_conditional_network(
    copied: Path, scenes: Path, changes: dict[str, str], first_round: set[str]
) -> None:
    lines: list[str] = []
    train(scenes, copied, changes=changes, log=lines.append)
    kept = {line.split(": done before")[0] for line in lines if ": done before" in line}
    initial = {"classifier", "regions", "seeds", "examples", "conditional"}
    kept -= {"round 1, dissimilarity after prediction"}
    assert kept == initial | first_round


def test_images_are_prepared_once_for_all_trainings(
    copied: Path, scenes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare_again(*args: Any) -> None:
        raise AssertionError("prepared again")

    monkeypatch.setattr(conditional_dataset, "prepare_image", prepare_again)
    changes = {"conditional.training.initial_steps": "2", "conditional.scoring.terms": "U+P"}
    run = train(scenes, copied, changes=changes)
    assert len([line for line in metrics(run.path) if line["stage"] == "conditional"]) == 2
    with pytest.raises(AssertionError, match="prepared again"):
        train(scenes, copied, changes={"conditional.top_regions": "5"})


def test_without_rounds_the_retrieved_seeds_are_learned(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Command
) -> None:
    precomputed = precomputed_of(runs["image"])
    assert precomputed.regions is not None
    assert precomputed.seeds is not None
    outcome = annocoin(
        "train", scenes, "--split", "train", "--out", tmp_path / "run", *ARGUMENTS, "--rounds", 0,
        "--regions", precomputed.regions.path, "--seeds", precomputed.seeds.path, "--measure",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    lines = metrics(tmp_path / "run")
    assert [line["stage"] for line in lines] == ["retrieved labels", *["prediction"] * 8]
    assert "map@0.5" in lines[0]
    weak = load_weak(scenes, "image", split="train")
    labelled = api.label(TrainedRun(str(tmp_path / "run")), weak, jobs=1)  # type: ignore[arg-type]
    assert len(labelled) == len(weak)
    unseen = load_weak(scenes, "image", split="val")
    with pytest.raises(InputError, match="pass --classifier FILE"):
        api.label(TrainedRun(tmp_path / "run"), unseen, jobs=1)


def test_labels_are_measured_when_and_with_what_is_asked(
    copied: Path, scenes: Path, tmp_path: Path
) -> None:
    """Later than the training, and again if the true masks change."""
    truth = load_evaluation(scenes, split="train")
    run = tmp_path / "run"

    def figures(truth: EvaluationDataset | None, **options: Any) -> dict[str, float]:
        precomputed = precomputed_of(copied)
        train(scenes, run, truth=truth, precomputed=precomputed, **options)
        return {line["stage"]: line["map@0.25"] for line in metrics(run) if "map@0.25" in line}

    assert figures(None) == {}
    measured = figures(truth)
    assert list(measured) == ["round 1, samples", "final samples"]
    assert figures(None) == measured
    first = truth.labelled[0]
    emptied = replace(first, annotation=replace(first.annotation, weak_labels=()))
    images = (emptied, *truth.labelled.images[1:])
    changed = EvaluationDataset(replace(truth.labelled, images=images, splits={}))
    assert figures(changed) != measured
    assert figures(truth) == measured
    some = EvaluationDataset(replace(truth.labelled, images=truth.labelled.images[1:], splits={}))
    with pytest.raises(InputError, match="--skip-bad to measure with those"):
        figures(some)
    problems = Problems(skip=True)
    shutil.rmtree(stage_folder(run, "final-samples"))
    assert len(figures(some, problems=problems)) == 2
    assert len(problems.skipped) == 1


def test_train_overwrites_nothing_else(
    copied: Path, scenes: Path, tmp_path: Path, annocoin: Command
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "config.json").write_text("mine")
    outcome = annocoin("train", scenes, "--split", "train", "--out", mine, *ARGUMENTS)
    assert outcome.code == 2
    assert "is not a run of annocoin" in outcome.err
    assert (mine / "config.json").read_text() == "mine"
    seeds = tmp_path / "seeds"
    with files.exclusive_lock(seeds / ".lock"):
        (seeds / "classifier.safetensors").write_text("trained for hours")
    outcome = annocoin("train", scenes, "--split", "train", "--out", seeds, *ARGUMENTS)
    assert "is not a run of annocoin" in outcome.err
    assert (seeds / "classifier.safetensors").read_text() == "trained for hours"
    before = (copied / "run.json").read_bytes()
    command = ("train", scenes, "--split", "train", "--out", copied, *ARGUMENTS)
    outcome = annocoin(*command, "--classifier", copied / "classifier.safetensors")
    assert outcome.code == 2
    assert "is the run's own" in outcome.err
    assert (copied / "run.json").read_bytes() == before


def test_an_earlier_result_stays_until_another_is_complete(
    copied: Path, scenes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def result() -> dict[str, bytes]:
        names = ("run.json", *(f"{n}.safetensors" for n in ("prediction", "conditional")))
        return {name: (copied / name).read_bytes() for name in names}

    before, lines = result(), []
    with pytest.raises(InputError, match=r"nowhere\.pth: no such file"):
        train(scenes, copied, changes={"prediction.weights": "nowhere.pth"}, seed=1)
    write_prediction = shared_stages.write_prediction

    def killed(path: Path, *args: Any) -> None:
        if path.parent.name.startswith("final"):
            raise KeyboardInterrupt
        write_prediction(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(shared_stages, "write_prediction", killed)
        with pytest.raises(KeyboardInterrupt):
            train(scenes, copied, seed=1, log=lines.append)
    assert any("holds a finished run with other options (seed 0 -> 1)" in line for line in lines)
    assert result() == before
    run = TrainedRun(copied)
    assert run.config.seed == 0
    image = load_weak(scenes, "image", split="val")[0]
    assert len(run.predictor(threshold=0.0)([image.path])) == 1
    assert len(api.label(run, load_weak(scenes, "image", split="train")[:2], jobs=1)) == 2
    assert train(scenes, copied, seed=1).config.seed == 1
    after = result()
    assert all(after[name] != before[name] for name in before)
    assert train(scenes, copied, seed=0).config.seed == 0
    assert result() == before


@pytest.mark.parametrize(
    "command",
    [
        ("train", "{scenes}", "--out", "{run}", *ARGUMENTS),
        ("label", "{run}", "{scenes}", "--out", "{tmp}/l.json"),
        ("predict", "{run}", "{scenes}/JPEGImages", "--out", "{tmp}/p"),
        ("evaluate", "{run}", "{scenes}"),
    ],
)
def test_a_run_of_version_0_1_is_refused(
    scenes: Path, tmp_path: Path, annocoin: Command, command: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    (run / "stages" / "dataset-1").mkdir(parents=True)
    (run / "environment.json").write_text('{"annocoin": "0.1.0", "torch": "2.2.0"}')
    (run / "config.json").write_text('{"rounds": 1}')
    (run / "run.json").write_text('{"supervision": "image", "stages": []}')
    (run / "prediction.safetensors").write_bytes(b"weights")
    before = {path: path.read_bytes() for path in run.rglob("*.*") if path.is_file()}
    outcome = annocoin(*(word.format(scenes=scenes, run=run, tmp=tmp_path) for word in command))
    assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
    assert "a run of annocoin 0.1.0, which this version cannot use; train anew" in outcome.err
    assert {p: p.read_bytes() for p in run.rglob("*.*") if p.is_file()} == before


def test_seeds_of_another_supervision_are_refused_before_any_work(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Command
) -> None:
    """Seeds of tags name one seed per class, not one per box."""
    precomputed = precomputed_of(runs["image"])
    assert precomputed.regions is not None
    assert precomputed.seeds is not None
    folders = ("--regions", precomputed.regions.path, "--seeds", precomputed.seeds.path)
    command = ("train", scenes, "--split", "train", "--out", tmp_path / "run", *ARGUMENTS)
    outcome = annocoin(*command, "--supervision", "box", *folders)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "made for another annotation or supervision" in outcome.err
    assert "--supervision" in outcome.err
    assert not (tmp_path / "run").exists()


def test_bad_input_is_one_line_before_any_work(
    runs: dict[str, Path], scenes: Path, annocoin: Command, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "weights").mkdir()
    new = tmp_path / "new"
    assert annocoin("convert", scenes, tmp_path / "boxes", "--to", "folder").code == 0
    command = ("train", scenes, "--out", new)
    small = (*command, *ARGUMENTS, "--set")
    cases: dict[str, tuple[object, ...]] = {
        "is not a run of annocoin": ("train", scenes, "--out", tmp_path / "mine"),
        "nowhere.pth: no such file": (*small, "prediction.weights=nowhere.pth"),
        "import the regions with `annocoin regions --from`": (*small, "regions.source=mcg:x"),
        "backbone 'nothing'": (*small, "conditional.architecture.trunk=nothing"),
        "trunk unet-nothing": (*small, "conditional.architecture.trunk=unet-nothing"),
        "backbone 'resnet51'": (*small, "classifier.backbone=resnet51"),
        "prediction backbone 'vgg16'": (*small, "prediction.architecture.backbone=vgg16"),
        "expected KEY=VALUE": (*command, "--set", "rounds"),
        "no option 'round'": (*command, "--set", "round=1"),
        "say which option of it": (*command, "--set", "prediction=1"),
        "expected int": (*command, "--set", "rounds=many"),
        "keeps the number of steps": (*command, "--set", "rounds=0"),
        "has no options of its own": (*command, "--set", "rounds.number=1"),
        "expected one of": (*command, "--preset", "magic"),
        "--seeds without --regions": (*command, "--seeds", tmp_path),
        "no such folder of backbone": (*command, "--weights", new),
        f"{tmp_path / 'weights'}: no weights of the classifier's backbone resnet50; expected a "
        "file resnet50*.pth": (
            *command, "--preset", "voc-cpu", "--weights", tmp_path / "weights",
        ),
        "device 'cuda:77' cannot be used": (*command, "--device", "cuda:77"),
        "jobs 0; expected at least 1": (*command, *ARGUMENTS, "--jobs", 0),
        "none with a mask": (
            "train", tmp_path / "boxes", "--out", new, "--supervision", "mask",
        ),
    }  # fmt: skip
    for message, arguments in cases.items():
        outcome = annocoin(*arguments)
        assert outcome.code == 2, arguments
        assert message in outcome.err, (message, outcome.err)
        assert outcome.err.count("\n") == 1
        assert not new.exists(), message


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-600])


@pytest.mark.parametrize(
    ("supervision", "damage"), [("mask", truncate), ("image", break_jpeg), ("mask", break_jpeg)]
)
def test_a_broken_image_stops_the_training_or_is_skipped(
    scenes: Path,
    tmp_path: Path,
    annocoin: Command,
    supervision: str,
    damage: Callable[[Path], None],
) -> None:
    dataset = tmp_path / "scenes"
    shutil.copytree(scenes, dataset)
    name = (dataset / "ImageSets/Segmentation/train.txt").read_text().split()[0]
    (broken,) = (dataset / "JPEGImages").glob(f"{name}.*")
    damage(broken)
    command = ("train", dataset, "--split", "train", "--supervision", supervision, *ARGUMENTS)
    outcome = annocoin(*command, "--out", tmp_path / "stopped")
    assert outcome.code == 2
    assert broken.name in outcome.err
    outcome = annocoin(*command, "--out", tmp_path / "run", "--skip-bad")
    assert outcome.code == 0, outcome.err
    assert "skipped 1 bad items" in outcome.err
    assert broken.name in outcome.err
    assert TrainedRun(tmp_path / "run").supervision == supervision


@pytest.mark.parametrize("rounds_option", [None, 0])
def test_an_image_that_becomes_unreadable_stops_the_training_or_is_skipped(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, rounds_option: int | None
) -> None:
    """After regions, seeds and, with rounds, examples were computed; its size stays the same."""
    copy = tmp_path / "scenes"
    shutil.copytree(scenes, copy)
    weak = load_weak(copy, "image", split="train")
    run, precomputed = tmp_path / "run", precomputed_of(runs["image"])
    options: Any = {"dataset": weak, "precomputed": precomputed, "rounds": rounds_option}
    train(copy, run, **options)
    for folder in (run / "stages").iterdir():
        if not folder.name.startswith("examples"):
            shutil.rmtree(folder)
    (run / "run.json").unlink()
    broken = weak[2]
    break_jpeg(broken.path)
    with pytest.raises(InputError, match=str(broken.image_id)):
        train(copy, run, **options)
    problems = Problems(skip=True)
    train(copy, run, **options, problems=problems)
    assert len(problems.skipped) == 1, problems.skipped
    assert str(broken.image_id) in problems.skipped[0]
    if rounds_option is None:
        assert len(list(stage_folder(run, "round-1-tables").rglob("*.npz"))) == 6
        steps = [line for line in metrics(run) if line["stage"] == "round 1, conditional"]
        assert len(steps) == 3


def test_bfloat16_trains(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Command
) -> None:
    precomputed = precomputed_of(runs["image"])
    assert precomputed.regions is not None
    assert precomputed.seeds is not None
    folders = ("--regions", precomputed.regions.path, "--seeds", precomputed.seeds.path)
    command = ("train", scenes, "--split", "train", "--out", tmp_path / "r", *ARGUMENTS, *folders)
    outcome = annocoin(*command, "--precision", "bf16-mixed")
    assert outcome.code == 0, outcome.err
    assert annocoin(*command, "--precision", "16-true").code == 2
