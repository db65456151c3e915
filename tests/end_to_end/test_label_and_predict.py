"""What a trained run is for: labels, predictions and their evaluation, by command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from annocoin import api
from annocoin.data.loading import load_evaluation, load_labelled, load_weak
from annocoin.errors import InputError, Problems
from annocoin.evaluation.evaluator import evaluate
from annocoin.trained import TrainedRun, predict_dataset
from end_to_end.quick import train
from pictures import break_jpeg, picture

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def without_rounds(
    runs: dict[str, Path], scenes: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A finished run that was trained once, on the retrieved seeds."""
    return train(scenes, tmp_path_factory.mktemp("run") / "r", rounds=0).path


def tagged(root: Path, image: Path, *names: str) -> Path:
    """A dataset of one image with tags."""
    (root / "images").mkdir(parents=True)
    shutil.copy(image, root / "images" / image.name)
    lines = ["image,class", *(f"{image.name},{name}" for name in names)]
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


def first_image(scenes: Path) -> Path:
    return min((scenes / "JPEGImages").iterdir())


@pytest.mark.parametrize("to", ["coco", "voc", "yolo", "labelme"])
def test_every_label_gets_a_mask_in_every_format(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Command, to: str
) -> None:
    out = tmp_path / ("labels.json" if to == "coco" else "labels")
    outcome = annocoin(
        "label", runs["box"], scenes, "--split", "val",  # boxes, as in training
        "--format", to, "--out", out, "--jobs", 1,
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    expected = load_labelled(scenes, split="val", with_masks="never")
    assert f"{len(expected)} images" in outcome.out
    labelled = load_labelled(out, **({"images": scenes / "JPEGImages"} if to == "coco" else {}))
    assert len(labelled) == len(expected)
    for ours, theirs in zip(labelled, expected, strict=True):
        names = [
            sorted(dataset.classes[label - 1] for label in image.annotation.labels.tolist())
            for dataset, image in ((labelled, ours), (expected, theirs))
        ]
        assert names[0] == names[1]
        if to == "coco":
            confidences = [label.confidence for label in ours.annotation]
            assert all(label.mask is not None for label in ours.annotation)
            assert all(c is not None and 0 <= c <= 1 for c in confidences)


def test_labelling_the_training_images_uses_their_regions_and_seeds(
    runs: dict[str, Path], scenes: Path, annocoin: Command, tmp_path: Path
) -> None:
    run = tmp_path / "moved"
    shutil.copytree(runs["image"], run)
    command = ("label", run, scenes, "--split", "train")
    outcome = annocoin(*command, "--out", tmp_path / "l.json")
    assert outcome.code == 0, outcome.err
    stamps = {path: path.stat().st_mtime_ns for path in (run / "labelling").glob("*/*/*.npz")}
    assert {path.parent.name for path in stamps} == {"examples", "tables", "labels"}
    again = annocoin(*command, "--out", tmp_path / "again.json")
    assert again.code == 0, again.err
    files = (run / "labelling").glob("*/*/*.npz")
    assert {path: path.stat().st_mtime_ns for path in files} == stamps
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "l.json").read_bytes()
    labelled = load_labelled(tmp_path / "l.json", images=scenes / "JPEGImages")
    for ours, theirs in zip(labelled, load_labelled(scenes, split="train"), strict=True):
        assert set(ours.annotation.labels.tolist()) == set(theirs.annotation.labels.tolist())


def test_a_run_whose_regions_were_removed(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Command
) -> None:
    run = tmp_path / "r"
    shutil.copytree(runs["image"], run)
    shutil.rmtree(next((run / "stages").glob("regions-*")))
    outcome = annocoin("label", run, scenes, "--split", "train", "--out", tmp_path / "l.json")
    assert outcome.code == 2
    assert "does not exist any more; pass --regions and --seeds" in outcome.err


def test_a_run_without_rounds_labels_another_dataset(
    without_rounds: Path, scenes: Path, tmp_path: Path, annocoin: Command
) -> None:
    weak = load_weak(scenes, "image", split="val")
    labelled = api.label(TrainedRun(without_rounds), weak, jobs=1)
    assert [image.image_id for image in labelled] == [image.image_id for image in weak]
    for ours, theirs in zip(labelled, weak, strict=True):
        assert set(ours.annotation.labels.tolist()) == set(theirs.annotation.distinct_labels)
        assert all(label.mask is not None for label in ours.annotation)
    command = ("label", without_rounds, scenes, "--jobs", 1, "--limit", 3)
    outcome = annocoin(*command, "--out", tmp_path / "l.json")
    assert outcome.code == 0, outcome.err
    assert "3 images" in outcome.out
    content = json.loads((tmp_path / "l.json").read_text())
    names = [image["file_name"] for image in content["images"]]
    assert names == [image.file_name for image in load_labelled(scenes)[:3]]
    assert content["annotations"]


def test_label_with_a_limit(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Command
) -> None:
    """The masks of the first images do not depend on the others."""
    run, images = TrainedRun(runs["image"]), load_weak(scenes, "image", split="train")
    whole = api.label(run, images, jobs=1)
    command = ("label", run.path, scenes, "--split", "train", "--jobs", 1, "--limit", 2)
    outcome = annocoin(*command, "--out", tmp_path / "l.json")
    assert outcome.code == 0, outcome.err
    some = load_labelled(tmp_path / "l.json", images=scenes / "JPEGImages")
    assert len(some) == 2
    for ours, theirs in zip(some, whole, strict=False):
        assert [label.mask for label in ours.annotation] == [
            label.mask for label in theirs.annotation
        ]


def test_a_bad_image_is_skipped_by_label_and_reported_once(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Command
) -> None:
    dataset = tmp_path / "scenes"
    shutil.copytree(scenes, dataset)
    broken = first_image(dataset)
    break_jpeg(broken)
    command = ("label", runs["image"], dataset, "--jobs", 1, "--limit", 3)
    outcome = annocoin(*command, "--out", tmp_path / "a.json")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert broken.name in outcome.err
    outcome = annocoin(*command, "--out", tmp_path / "b.json", "--skip-bad")
    assert outcome.code == 0, outcome.err
    assert "2 images" in outcome.out
    assert "skipped 1 bad items" in outcome.err


def test_predict_and_evaluate(
    runs: dict[str, Path], scenes: Path, annocoin: Command, tmp_path: Path
) -> None:
    run, out, kept = runs["mask"], tmp_path / "p", tmp_path / "kept.json"
    command = ("predict", run, scenes / "JPEGImages", "--out", out, "--score", 0.01)
    outcome = annocoin(*command, "--shown", 0.0)
    assert outcome.code == 0, outcome.err
    stems = {path.stem for path in (scenes / "JPEGImages").iterdir()}
    assert {path.stem for path in (out / "overlays").glob("*.png")} == stems
    of_file = annocoin("evaluate", out / "predictions.json", scenes, "--json", tmp_path / "a.json")
    assert of_file.code == 0, of_file.err
    of_run = annocoin("evaluate", run, scenes, "--keep", kept)
    assert of_run.code == 0, of_run.err
    of_kept = annocoin("evaluate", kept, scenes)
    assert of_kept.out.splitlines()[-8:] == of_run.out.splitlines()[-8:]
    again = annocoin("evaluate", kept, scenes, "--keep", tmp_path / "twice.json")
    assert again.code == 2
    assert "is no run" in again.err
    one = annocoin("predict", run, first_image(scenes), "--out", tmp_path / "one", "--no-overlays")
    assert one.code == 0
    assert "in 1 image\n" in one.out
    pattern = f"{scenes}/JPEGImages/*1.jpg"
    assert annocoin("predict", run, pattern, "--out", tmp_path / "some").code == 0


def test_symbolic_links_keep_their_names(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Command
) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("cat.jpg", "dog.jpg"):
        (tmp_path / "photos" / name).symlink_to(first_image(scenes))
    out = tmp_path / "out"
    assert annocoin("predict", runs["mask"], tmp_path / "photos", "--out", out).code == 0
    content = json.loads((out / "predictions.json").read_text())
    assert [image["file_name"] for image in content["images"]] == ["cat.jpg", "dog.jpg"]


def test_a_broken_image_is_skipped_by_predict(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Command
) -> None:
    (tmp_path / "photos").mkdir()
    shutil.copy(first_image(scenes), tmp_path / "photos" / "a.jpg")
    break_jpeg(shutil.copy(first_image(scenes), tmp_path / "photos" / "b.jpg"))
    command = ("predict", runs["mask"], tmp_path / "photos", "--out", tmp_path / "out")
    outcome = annocoin(*command)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "b.jpg" in outcome.err
    assert not (tmp_path / "out").exists()
    outcome = annocoin(*command, "--skip-bad")
    assert outcome.code == 0
    assert "in 1 image\n" in outcome.out
    assert "skipped 1 bad items" in outcome.err


def test_a_dataset_of_unknown_classes_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    picture(tmp_path / "a.png", (40, 40))
    dataset = tagged(tmp_path / "d", tmp_path / "a.png", "sphinx")
    run = TrainedRun(runs["image"])
    with pytest.raises(InputError, match=r"knows none of the dataset's classes.*sphinx"):
        api.label(run, load_weak(dataset, "image"))
    with pytest.raises(InputError, match=r"has none of the classes.*sphinx"):
        predict_dataset(run, load_labelled(dataset))


def test_labels_of_unknown_classes_are_left_out_with_a_note(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Command
) -> None:
    known = TrainedRun(runs["image"]).config.classes[2]
    dataset = tagged(tmp_path / "d", first_image(scenes), "sphinx", known)
    command = ("label", runs["image"], dataset, "--jobs", 1, "--out", tmp_path / "l.json")
    outcome = annocoin(*command)
    assert outcome.code == 0, outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("note: ")
    assert f"1 labels of unknown classes in {dataset} left out: sphinx" in outcome.err
    content = json.loads((tmp_path / "l.json").read_text())
    names = {category["id"]: category["name"] for category in content["categories"]}
    assert {names[a["category_id"]] for a in content["annotations"]} == {known}


def test_an_unknown_class_has_no_predictions_and_an_ap_of_zero(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Command
) -> None:
    """A dataset in which a class of the run has another name."""
    coco = tmp_path / "d.json"
    assert annocoin("convert", scenes, coco, "--to", "coco").code == 0
    content = json.loads(coco.read_text())
    used = {annotation["category_id"] for annotation in content["annotations"]}
    renamed = next(c for c in content["categories"] if c["id"] in used)
    renamed["name"] = "sphinx"
    coco.write_text(json.dumps(content))
    images = ("--images", scenes / "JPEGImages")
    command = ("evaluate", runs["mask"], coco, *images, "--json", tmp_path / "r.json")
    outcome = annocoin(*command)
    assert outcome.code == 0, outcome.err
    assert outcome.err == (
        f"note: {runs['mask']} was trained without ['sphinx']; they get no instances\n"
    )
    (row,) = [line for line in outcome.out.splitlines() if "sphinx" in line]
    assert row.count("0.0") == 4
    truth = load_evaluation(coco, images=scenes / "JPEGImages")
    predictions = predict_dataset(TrainedRun(runs["mask"]), truth.labelled, threshold=0.0)
    number = truth.classes.index("sphinx") + 1
    assert all(number not in instances.labels.tolist() for instances in predictions.values())
    assert any(len(instances) for instances in predictions.values())
    ap = evaluate(predictions, truth, thresholds=(0.25,)).ap
    assert float(ap[0, number - 1]) == 0


def test_classes_are_matched_by_name(runs: dict[str, Path], scenes: Path, tmp_path: Path) -> None:
    """A dataset with one of a run's classes, under another number."""
    run = TrainedRun(runs["image"])
    name = run.config.classes[4]
    dataset = tagged(tmp_path / "d", first_image(scenes), name)
    labelled = api.label(run, load_weak(dataset, "image"), jobs=1)
    assert {labelled.classes[label.label - 1] for label in labelled[0].annotation} == {name}
    (instances,) = predict_dataset(run, load_labelled(dataset), threshold=0.0).values()
    assert set(instances.labels.tolist()) <= {1}


def test_label_does_not_use_masks_that_training_did_not_have(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, annocoin: Command
) -> None:
    labelled = load_evaluation(scenes, split="val").labelled
    truth = [label.mask for image in labelled for label in image.annotation]
    for supervision in ("box", "mixed"):
        out = tmp_path / f"{supervision}.json"
        outcome = annocoin(
            "label", runs["box"], scenes, "--split", "val", "--jobs", 1,
            "--supervision", supervision, "--out", out,
        )  # fmt: skip
        assert outcome.code == 0, outcome.err
        images = load_labelled(out, images=scenes / "JPEGImages")
        masks = [label.mask for image in images for label in image.annotation]
        assert len(masks) == len(truth)
        assert all(mask not in truth for mask in masks)


def test_bad_input_is_one_line(
    runs: dict[str, Path], scenes: Path, annocoin: Command, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    run, new, images = runs["image"], tmp_path / "new", scenes / "JPEGImages"
    cases: dict[str, tuple[object, ...]] = {
        "not a finished run": ("predict", tmp_path, scenes, "--out", new),
        "no image": ("predict", run, tmp_path / "nothing*.jpg", "--out", new),
        "exists already": ("predict", run, images, "--out", tmp_path / "mine"),
        "expected 0 to 1": ("predict", run, images, "--out", new, "--score", 2),
        "was trained on masks": ("label", runs["mask"], scenes, "--out", tmp_path / "a.json"),
        "ends in .json": ("label", run, scenes, "--split", "train", "--out", new),
        "voc is a folder": ("label", run, scenes, "--format", "voc", "--out", tmp_path / "m1.json"),
        "that is the input": ("label", run, scenes, "--format", "voc", "--out", scenes),
        "Invalid value": ("label", run, scenes, "--out", tmp_path / "a.json", "--limit", 0),
    }
    for message, command in cases.items():
        outcome = annocoin(*command)
        assert outcome.code == 2, command
        assert message in outcome.err, (message, outcome.err)
        assert outcome.err.count("\n") == 1
        assert not new.exists()


def test_the_seeds_of_a_stage_are_shown(
    runs: dict[str, Path], scenes: Path, annocoin: Command, tmp_path: Path
) -> None:
    (seeds,), (regions,) = (
        list(runs["image"].glob(f"stages/{name}-*")) for name in ("seeds", "regions")
    )
    picture = tmp_path / "s.png"
    command = ("seeds", "show", seeds, scenes, "--regions", regions, "--out", picture)
    outcome = annocoin(*command, "--count", 1)
    assert (outcome.code, outcome.err) == (0, "")
    assert picture.is_file()


def test_a_locked_run_is_not_labelled_with(runs: dict[str, Path], scenes: Path) -> None:
    """A training could change its networks meanwhile."""
    from annocoin.files import exclusive_lock

    weak = load_weak(scenes, "image", split="val")
    with (
        exclusive_lock(runs["image"] / ".lock"),
        pytest.raises(InputError, match="another process"),
    ):
        api.label(TrainedRun(runs["image"]), weak, problems=Problems(skip=True))
