"""From images with cheap labels to a trained network, labels and predictions: the commands."""

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
from annocoin.api import TrainedRun
from annocoin.data.dataset import EvaluationDataset, weak_dataset
from annocoin.data.loading import load_evaluation, load_labelled, load_weak
from annocoin.engine.config import read_config
from annocoin.engine.precomputed import Precomputed
from annocoin.errors import InputError, Problems
from annocoin.prediction.networks import read_prediction
from annocoin.seeds.classifier import read_classifier
from end_to_end.quick import QUICK, WORDS

SAID = ("--preset", "synthetic", "--jobs", "1", *WORDS)


@pytest.fixture(scope="module")
def runs(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished run for each kind of supervision."""
    root = tmp_path_factory.mktemp("runs")
    found = {}
    for supervision in ("image", "box", "point", "mask"):
        found[supervision] = root / supervision
        api.train(
            load_weak(scenes, supervision, split="train"),  # type: ignore[arg-type]
            found[supervision],
            "synthetic",
            changes=QUICK,
            truth=load_evaluation(scenes, split="train"),
            jobs=1,
            say=lambda _: None,
        )
    return found


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("supervision", ["image", "box", "point"])
def test_a_run_holds_what_it_should(runs: dict[str, Path], supervision: str) -> None:
    run = runs[supervision]
    stages = [own["stage"] for own in json.loads((run / "run.json").read_text())["stages"]]
    assert stages == [
        "dataset",
        "classifier",
        "regions",
        "seeds",
        "conditional",
        "round 1, samples",
        "round 1, prediction",
        "round 1, tables",
        "round 1, conditional",
        "final samples",
        "final prediction",
    ]
    lines = metrics(run)
    steps = {name: [own for own in lines if own["stage"] == name] for name in stages}
    assert [own["step"] for own in steps["round 1, prediction"]] == [1, 2, 3, 4]
    assert {"loss", "loss_classifier", "loss_mask", "loss_box_reg", "gradient"} <= set(steps["final prediction"][0])
    assert {"cross_diversity", "moved_by_loss"} <= set(steps["round 1, conditional"][0])
    assert 0 <= steps["final samples"][0]["map@0.5"] <= 1
    assert set(json.loads((run / "costs.json").read_text())) == set(stages[1:])
    assert json.loads((run / "environment.json").read_text())["torch"] == torch.__version__
    assert read_config(run / "config.json").rounds == 1
    assert any((run / "tensorboard").rglob("events.out.tfevents.*"))
    net, architecture = read_prediction(run / "prediction.safetensors")
    assert architecture.fpn_channels == 16
    assert len(net.state_dict()) > 50


def test_full_supervision_needs_only_the_prediction_network(runs: dict[str, Path]) -> None:
    listed = json.loads((runs["mask"] / "run.json").read_text())["stages"]
    assert [own["stage"] for own in listed] == ["dataset", "prediction"]
    assert len(metrics(runs["mask"])) == 8, "as many steps as all rounds together"


def test_networks_start_from_the_classifier(scenes: Path, tmp_path: Path) -> None:
    changes = {
        **QUICK,
        "classifier.backbone": "mobilenet_v2",
        "classifier.backbone_weights": "none",
        "prediction.architecture.backbone": "mobilenet_v2",
        "prediction.weights": "classifier",
        "prediction.learning.frozen": "6",
    }
    weak = load_weak(scenes, "mask", split="train")
    run = api.train(weak, tmp_path / "a", "synthetic", changes=changes, say=lambda _: None)
    listed = json.loads((run.path / "run.json").read_text())["stages"]
    assert [own["stage"] for own in listed] == ["dataset", "classifier", "prediction"]
    classifier = read_classifier(run.path / "classifier.safetensors")
    net, _ = read_prediction(run.path / "prediction.safetensors")
    learned, kept = net.backbone.body, classifier.trunk
    assert torch.equal(learned["5"].conv[0][0].weight, kept[5].conv[0][0].weight)
    assert not torch.equal(learned["12"].conv[0][0].weight, kept[12].conv[0][0].weight)
    given = Precomputed(classifier=run.path / "classifier.safetensors")
    again = api.train(
        weak, tmp_path / "b", "synthetic", changes=changes, given=given, say=lambda _: None
    )
    same, _ = read_prediction(again.path / "prediction.safetensors")
    assert all(value.equal(net.state_dict()[name]) for name, value in same.state_dict().items())


def test_the_literal_preset_runs_too(scenes: Path, tmp_path: Path) -> None:
    small = {
        "classifier.backbone": "tiny",
        "prediction.architecture.backbone": "tiny",
        "prediction.architecture.anchor_size": "20",
        "prediction.architecture.max_size": "96",
    }
    api.train(
        load_weak(scenes, "image", split="train"),
        tmp_path / "run",
        "voc-r50-literal",
        changes=QUICK | small,
        jobs=1,
        say=lambda _: None,
    )
    config = read_config(tmp_path / "run" / "config.json")
    assert config.conditional.architecture.trunk == "unet"
    assert config.seeds.rule == "published"
    steps = [own for own in metrics(tmp_path / "run") if own["stage"] == "round 1, conditional"]
    assert len(steps) == 3


def test_a_box_without_a_mask_is_left_out_of_full_supervision(scenes: Path) -> None:
    labelled = load_evaluation(scenes, split="train").labelled
    image = next(own for own in labelled if len(own.annotation) > 1)
    first, *rest = image.annotation
    weak_labels = (replace(first, mask=None, box=(0.0, 0.0, 9.0, 9.0)), *rest)
    partly = replace(image, annotation=replace(image.annotation, weak_labels=weak_labels))
    dataset = weak_dataset(replace(labelled, images=(partly,), splits={}), "mask")
    assert [weak_label.label for weak_label in dataset.images[0].annotation] == [
        m.label for m in rest
    ]
    assert dataset.fully_masked


def test_done_stages_are_not_done_again(
    runs: dict[str, Path], scenes: Path, annocoin: Callable[..., Any]
) -> None:
    run = runs["image"]
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*.safetensors")}
    words = ("train", scenes, "--split", "train", "--out", run, *SAID)
    outcome = annocoin(*words)
    assert outcome.code == 0, outcome.err
    kept = [path for path in before if "stages" in path.parts]
    assert kept
    assert all(path.stat().st_mtime_ns == before[path] for path in kept)
    old = set((run / "stages").iterdir())
    outcome = annocoin(*words, "--set", "prediction.learning.final_steps=5")
    assert outcome.code == 0, outcome.err
    new = set((run / "stages").iterdir()) - old
    names = {path.name.rsplit("-", 1)[0] for path in new}
    assert {"round-1-prediction", "final-prediction"} <= names, "the learning rates are others"
    assert not names & {"regions", "seeds", "conditional", "round-1-samples"}
    again = annocoin(*words)
    assert again.code == 0
    assert set((run / "stages").iterdir()) == old | new, "the first options' stages are used again"


def test_without_rounds_the_seeds_are_learned(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Callable[..., Any]
) -> None:
    stages = runs["image"] / "stages"
    folders = {name: next(stages.glob(f"{name}-*")) / "files" for name in ("regions", "seeds")}
    outcome = annocoin(
        "train", scenes, "--split", "train", "--out", tmp_path / "w", *SAID, "--rounds", 0,
        "--regions", folders["regions"], "--seeds", folders["seeds"], "--measure",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    lines = metrics(tmp_path / "w")
    assert [own["stage"] for own in lines] == ["retrieved labels", *["prediction"] * 8]
    assert "map@0.5" in lines[0]
    weak = load_weak(scenes, "image", split="train")
    labels = TrainedRun(str(tmp_path / "w")).labels_of(weak)  # type: ignore[arg-type]
    assert labels is not None
    assert len(labels) == len(weak)


@pytest.mark.parametrize("to", ["coco", "voc", "yolo", "labelme"])
def test_label_meets_every_label(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Callable[..., Any], to: str
) -> None:
    out = tmp_path / ("labels.json" if to == "coco" else "labels")
    outcome = annocoin(
        "label", runs["box"], scenes, "--split", "val",  # boxes, as it was trained
        "--format", to, "--out", out, "--jobs", 1,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    wanted = load_labelled(scenes, split="val", with_masks="never")
    assert f"{len(wanted)} images" in outcome.out
    given = {"images": scenes / "JPEGImages"} if to == "coco" else {}
    found = load_labelled(out, **given)
    assert len(found) == len(wanted)
    for said, made in zip(wanted, found, strict=True):
        names = [
            sorted(dataset.classes[label - 1] for label in own.annotation.labels.tolist())
            for dataset, own in ((wanted, said), (found, made))
        ]
        assert names[0] == names[1]
        if to == "coco":
            assert all(
                m.mask is not None and 0 <= (m.confidence or 0) <= 1 for m in made.annotation
            )
            assert any(m.confidence is not None for m in made.annotation)


def test_label_of_the_training_images_needs_no_new_regions_and_seeds(
    runs: dict[str, Path], scenes: Path, annocoin: Callable[..., Any], tmp_path: Path
) -> None:
    run = tmp_path / "moved"
    shutil.copytree(runs["image"], run)
    words = ("label", run, scenes, "--split", "train")
    outcome = annocoin(*words, "--out", tmp_path / "l.json")
    assert outcome.code == 0, outcome.err
    made = {path: path.stat().st_mtime_ns for path in (run / "labelling").glob("*/*/*.npz")}
    assert {path.parent.name for path in made} == {"tables", "labels"}
    again = annocoin(*words, "--out", tmp_path / "again.json")
    assert again.code == 0, again.err
    assert {path: path.stat().st_mtime_ns for path in (run / "labelling").glob("*/*/*.npz")} == made
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "l.json").read_bytes()
    found = load_labelled(tmp_path / "l.json", images=scenes / "JPEGImages")
    for said, made in zip(load_labelled(scenes, split="train"), found, strict=True):
        assert set(made.annotation.labels.tolist()) == set(said.annotation.labels.tolist())


def test_a_run_whose_regions_are_gone_says_so(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Callable[..., Any]
) -> None:
    run, words = tmp_path / "r", ("--split", "train", "--out", tmp_path / "l.json")
    shutil.copytree(runs["image"], run)
    shutil.rmtree(next((run / "stages").glob("regions-*")))
    outcome = annocoin("label", run, scenes, *words)
    assert outcome.code == 2
    assert "is gone; give --regions and --seeds" in outcome.err


def test_predict_and_evaluate(
    runs: dict[str, Path], scenes: Path, annocoin: Callable[..., Any], tmp_path: Path
) -> None:
    out = tmp_path / "p"
    words = ("predict", runs["mask"], scenes / "JPEGImages", "--out", out, "--score", 0.01)
    outcome = annocoin(*words, "--shown", 0.0)
    assert outcome.code == 0, outcome.err
    assert len(list((out / "overlays").glob("*.png"))) == 8
    from_file = annocoin(
        "evaluate", out / "predictions.json", scenes, "--json", tmp_path / "a.json"
    )
    assert from_file.code == 0, from_file.err
    kept = tmp_path / "kept.json"
    of_run = annocoin("evaluate", runs["mask"], scenes, "--keep", kept)
    assert of_run.code == 0, of_run.err
    of_kept = annocoin("evaluate", kept, scenes)
    assert of_kept.out.splitlines()[-8:] == of_run.out.splitlines()[-8:]
    again = annocoin("evaluate", kept, scenes, "--keep", tmp_path / "twice.json")
    assert again.code == 2
    assert "is no run" in again.err
    one = annocoin("predict", runs["mask"], next((scenes / "JPEGImages").iterdir()), "--out",
                   tmp_path / "one", "--no-overlays")  # fmt: skip
    assert one.code == 0
    assert "in 1 images" in one.out
    pattern = annocoin(
        "predict", runs["mask"], f"{scenes}/JPEGImages/*1.jpg", "--out", tmp_path / "some"
    )
    assert pattern.code == 0


def test_images_behind_links_keep_their_names(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Callable[..., Any]
) -> None:
    store = sorted((scenes / "JPEGImages").iterdir())[0]
    (tmp_path / "photos").mkdir()
    for name in ("cat.jpg", "dog.jpg"):
        (tmp_path / "photos" / name).symlink_to(store)
    out = tmp_path / "out"
    assert annocoin("predict", runs["mask"], tmp_path / "photos", "--out", out).code == 0
    found = json.loads((out / "predictions.json").read_text())
    assert [image["file_name"] for image in found["images"]] == ["cat.jpg", "dog.jpg"]


def test_what_was_not_measured_can_be_measured_later(scenes: Path, tmp_path: Path) -> None:
    weak, truth = load_weak(scenes, "image", split="train"), load_evaluation(scenes, split="train")

    def train(truth: EvaluationDataset | None, **options: Any) -> list[dict[str, Any]]:
        api.train(
            weak, tmp_path / "run", "synthetic",
            changes=QUICK, truth=truth, jobs=1, say=lambda _: None, **options,
        )  # fmt: skip
        return [own for own in metrics(tmp_path / "run") if "map@0.5" in own]

    assert train(None) == []
    found = train(truth)
    assert [own["stage"] for own in found] == ["round 1, samples", "final samples"]
    assert train(None) == found
    some = replace(truth.labelled, images=truth.labelled.images[1:], splits={})
    with pytest.raises(InputError, match="--skip-bad to measure with those"):
        train(EvaluationDataset(some))
    problems = Problems(skip=True)
    shutil.rmtree(next((tmp_path / "run" / "stages").glob("final-samples-*")))
    assert len(train(EvaluationDataset(some), problems=problems)) == 2
    assert len(problems.skipped) == 1


def test_train_destroys_nothing(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Callable[..., Any]
) -> None:
    (tmp_path / "config.json").write_text("mine")
    outcome = annocoin("train", scenes, "--split", "train", "--out", tmp_path, *SAID)
    assert outcome.code == 2
    assert "is no run of annocoin" in outcome.err
    assert (tmp_path / "config.json").read_text() == "mine"
    seeds = tmp_path / "seeds"  # a folder that annocoin made, and has locked, for something else
    with files.exclusive_lock(seeds / ".lock"):
        (seeds / "classifier.safetensors").write_text("trained for hours")
    outcome = annocoin("train", scenes, "--split", "train", "--out", seeds, *SAID)
    assert "is no run of annocoin" in outcome.err
    assert (seeds / "classifier.safetensors").read_text() == "trained for hours"
    run = runs["image"]
    before = (run / "run.json").read_bytes()
    words = ("train", scenes, "--split", "train", "--out", run, *SAID)
    outcome = annocoin(*words, "--classifier", run / "classifier.safetensors")
    assert outcome.code == 2
    assert "is the run's own" in outcome.err
    assert (run / "run.json").read_bytes() == before


def test_bad_input_is_one_line(
    runs: dict[str, Path], scenes: Path, annocoin: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    run, new = runs["image"], tmp_path / "new"
    assert annocoin("convert", scenes, tmp_path / "boxes", "--to", "folder").code == 0
    cases = {
        "is no run of annocoin": ("train", scenes, "--out", tmp_path / "mine"),
        "nowhere.pth: no such file": (
            "train",
            scenes,
            "--out",
            new,
            *SAID,
            "--set",
            "prediction.weights=nowhere.pth",
        ),
        "expected KEY=VALUE": ("train", scenes, "--out", new, "--set", "rounds"),
        "no 'round' here": ("train", scenes, "--out", new, "--set", "round=1"),
        "say which part": ("train", scenes, "--out", new, "--set", "prediction=1"),
        "expected int": ("train", scenes, "--out", new, "--set", "rounds=many"),
        "keeps the number of steps": ("train", scenes, "--out", new, "--set", "rounds=0"),
        "has no parts": ("train", scenes, "--out", new, "--set", "rounds.number=1"),
        "expected one of": ("train", scenes, "--out", new, "--preset", "magic"),
        "give the regions": ("train", scenes, "--out", new, "--seeds", tmp_path),
        "no such folder of backbone": ("train", scenes, "--out", new, "--weights", new),
        "cannot be used": ("train", scenes, "--out", new, "--device", "cuda:77"),
        "no finished run": ("predict", tmp_path, scenes, "--out", new),
        "no image": ("predict", run, tmp_path / "nothing*.jpg", "--out", new),
        "exists already": ("predict", run, scenes / "JPEGImages", "--out", tmp_path / "mine"),
        "expected 0 to 1": ("predict", run, scenes / "JPEGImages", "--out", new, "--score", 2),
        "no conditional network": ("label", runs["mask"], scenes, "--out", tmp_path / "a.json"),
        "none with a mask": ("train", tmp_path / "boxes", "--out", new, "--supervision", "mask"),
        "ends in .json": ("label", run, scenes, "--split", "train", "--out", new),
    }
    for words, command in cases.items():
        outcome = annocoin(*command)
        assert outcome.code == 2, command
        assert words in outcome.err, (words, outcome.err)
        assert outcome.err.count("\n") == 1
        assert not new.exists() or not any(new.rglob("*.safetensors"))


def test_other_classes_are_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    from PIL import Image

    Image.new("RGB", (40, 40)).save(tmp_path / "images" / "a.png")
    (tmp_path / "labels.csv").write_text("image,class\na.png,sphinx\n")
    with pytest.raises(InputError, match="sphinx"):
        api.label(TrainedRun(runs["image"]), load_weak(tmp_path, "image"))
    with pytest.raises(InputError, match="sphinx"):
        api.predict_dataset(TrainedRun(runs["image"]), load_labelled(tmp_path))


def test_classes_are_known_by_their_names(
    runs: dict[str, Path], scenes: Path, tmp_path: Path
) -> None:
    """A dataset with some of a run's classes, under other numbers."""
    name = TrainedRun(runs["image"]).config.classes[4]
    (tmp_path / "images").mkdir()
    image = next((scenes / "JPEGImages").iterdir())
    (tmp_path / "images" / image.name).write_bytes(image.read_bytes())
    (tmp_path / "labels.csv").write_text(f"image,class\n{image.name},{name}\n")
    run = TrainedRun(runs["image"])
    found = api.label(run, load_weak(tmp_path, "image"), jobs=1)
    assert {found.classes[m.label - 1] for m in found[0].annotation} == {name}
    (answer,) = api.predict_dataset(run, load_labelled(tmp_path), threshold=0.0).values()
    assert set(answer.labels.tolist()) <= {1}


def test_label_never_sees_masks_that_training_did_not(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Callable[..., Any]
) -> None:
    truth = [m.mask for i in load_evaluation(scenes, split="val").labelled for m in i.annotation]
    for supervision in ("box", "mixed"):
        out = tmp_path / f"{supervision}.json"
        outcome = annocoin("label", runs["box"], scenes, "--split", "val", "--jobs", 1,
                           "--supervision", supervision, "--out", out)  # fmt: skip
        assert outcome.code == 0, outcome.err
        labelled = load_labelled(out, images=scenes / "JPEGImages")
        masks = [weak_label.mask for image in labelled for weak_label in image.annotation]
        assert len(masks) == len(truth)
        assert all(mask not in truth for mask in masks)


@pytest.mark.parametrize("supervision", ["image", "mask"])
def test_an_image_that_breaks_off_stops_or_is_skipped(
    scenes: Path, tmp_path: Path, annocoin: Callable[..., Any], supervision: str
) -> None:
    dataset = tmp_path / "scenes"
    shutil.copytree(scenes, dataset)
    name = (dataset / "ImageSets/Segmentation/train.txt").read_text().split()[0]
    (broken,) = (dataset / "JPEGImages").glob(f"{name}.*")
    broken.write_bytes(broken.read_bytes()[:-600])  # its size can still be read
    words = ("train", dataset, "--split", "train", "--supervision", supervision, *SAID)
    outcome = annocoin(*words, "--out", tmp_path / "stopped")
    assert outcome.code == 2
    assert broken.name in outcome.err
    outcome = annocoin(*words, "--out", tmp_path / "run", "--skip-bad")
    assert outcome.code == 0, outcome.err
    assert "skipped 1 bad items" in outcome.err
    assert broken.name in outcome.err
    assert TrainedRun(tmp_path / "run").supervision == supervision


def test_an_earlier_run_is_gone_while_another_is_made(
    scenes: Path, tmp_path: Path, annocoin: Callable[..., Any]
) -> None:
    words = ("train", scenes, "--split", "train", "--supervision", "mask", "--out", tmp_path / "r")
    assert annocoin(*words, *SAID).code == 0
    assert TrainedRun(tmp_path / "r").config.seed == 0
    bad = annocoin(*words, *SAID, "--set", "prediction.weights=nowhere.pth", "--seed", 1)
    assert bad.code == 2
    assert TrainedRun(tmp_path / "r").config.seed == 0  # nothing was begun
    (tmp_path / "w.pth").write_text("no weights")
    weights = f"prediction.weights={tmp_path / 'w.pth'}"
    assert annocoin(*words, *SAID, "--set", weights, "--seed", 1).code == 2
    with pytest.raises(InputError, match="no finished run"):
        TrainedRun(tmp_path / "r")
    assert annocoin(*words, *SAID).code == 0
    assert TrainedRun(tmp_path / "r").config.seed == 0


def test_bfloat16_trains_too(scenes: Path, tmp_path: Path, annocoin: Callable[..., Any]) -> None:
    words = ("train", scenes, "--split", "train", "--out", tmp_path / "r", *SAID)
    outcome = annocoin(*words, "--precision", "bf16-mixed")
    assert outcome.code == 0, outcome.err
    assert annocoin(*words, "--precision", "16-true").code == 2
