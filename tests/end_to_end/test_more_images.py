"""Runs with images of further datasets: for the classifier only, or for every stage."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from annocoin import api
from annocoin.data.loading import load_evaluation, load_labelled, load_weak
from annocoin.errors import InputError
from annocoin.seeds.classifier import Classifier, ClassifierArchitecture, write_classifier
from annocoin.synthetic.dataset import write_synthetic
from end_to_end.quick import ARGUMENTS, metrics, train
from pictures import tagged_picture

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three further scenes."""
    root = tmp_path_factory.mktemp("more") / "scenes"
    write_synthetic(root, images=3, size=64, seed=4)
    return root


def stage_folders(run: Path) -> set[str]:
    return {path.name for path in (run / "stages").iterdir()}


def names_of(folders: set[str]) -> set[str]:
    return {name.rsplit("-", 1)[0] for name in folders}


def test_more_tags_train_the_classifier_only(scenes: Path, more: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(scenes, run, rounds=0)
    before = stage_folders(run)
    tags = load_weak(more, "image")
    lines: list[str] = []
    train(scenes, run, rounds=0, more_tags=tags, log=lines.append)
    new = stage_folders(run) - before
    assert names_of(new) == {"classifier", "seeds", "retrieved-labels", "prediction"}
    assert "regions: done before" in lines
    assert any("epoch of 10 images" in line for line in lines)
    steps = [line for line in metrics(run) if line["stage"] == "classifier" and "step" in line]
    assert len(steps) == 3, "10 images, 4 per step"
    for folder in ("seeds", "retrieved-labels"):
        for path in (run / "stages").glob(f"{folder}-*"):
            assert len(list(path.rglob("*.npz"))) == 7, "no results for the further images"
    train(scenes, run, rounds=0, more_tags=tags[:2])
    assert names_of(stage_folders(run) - before - new) == names_of(new), "fewer images, other keys"
    assert stage_folders(run) > before | new
    lines.clear()
    train(scenes, run, rounds=0, log=lines.append)
    assert sum("done before" in line for line in lines) == 5


def test_bad_more_tags_are_one_line_before_any_work(
    scenes: Path, annocoin: Command, tmp_path: Path
) -> None:
    new, classifier = tmp_path / "new", tmp_path / "c.safetensors"
    classes = load_weak(scenes).classes
    write_classifier(classifier, Classifier(ClassifierArchitecture(classes, "tiny", size=64)))
    sphinx = tagged_picture(tmp_path / "sphinx", "a.png", "sphinx")
    known = ("--more-tags", tagged_picture(tmp_path / "known", "a.png", classes[0]))
    cases: dict[str, tuple[object, ...]] = {
        "no such file or folder": ("--more-tags", tmp_path / "none"),
        f"knows none of the dataset's classes ('sphinx',) in {sphinx}": ("--more-tags", sphinx),
        "expected every image id once": ("--more-tags", scenes),
        "known/images/a.png; expected every image id once": (*known, *known),
        f"--more-tags: {classifier} is trained already; leave --more-tags out": (
            *known, "--classifier", classifier,
        ),
        "--more-tags: the run trains no classifier": (*known, "--supervision", "mask"),
    }  # fmt: skip
    for message, extra in cases.items():
        outcome = annocoin("train", scenes, "--out", new, *ARGUMENTS, *extra)
        assert outcome.code == 2, extra
        assert message in outcome.err, (message, outcome.err)
        assert outcome.err.count("\n") == 1
        assert not new.exists(), message
    outcome = annocoin("train", scenes, "--out", tmp_path / "known", *ARGUMENTS, *known)
    assert (outcome.code, "that is the input" in outcome.err) == (2, True)


def files_of(run: Path, stage: str) -> int:
    return sum(len(list(path.rglob("*.npz"))) for path in (run / "stages").glob(f"{stage}-*"))


def test_more_images_take_part_in_every_stage(
    scenes: Path, more: Path, tmp_path: Path, annocoin: Command
) -> None:
    run = tmp_path / "run"
    grey = tagged_picture(tmp_path / "grey", "grey.png", load_weak(scenes).classes[0])
    further = ("--more-images", more, "--more-images", grey)
    every = ("--set", "prediction.training.steps=6", "--set", "prediction.training.final_steps=6")
    command = ("train", scenes, "--split", "train", "--out", run, *ARGUMENTS, *further, *every)
    outcome = annocoin(*command, "--measure")
    assert outcome.code == 0, outcome.err
    assert "11 images, 6 classes, supervision image" in outcome.out
    assert outcome.out.count("pseudo labels are measured on 7 of 11 images") == 1
    for stage in ("regions", "seeds", "examples", "round-1-samples", "round-1-tables", "final-sam"):
        assert files_of(run, f"{stage}*") == 11, stage
    measured = [line["stage"] for line in metrics(run) if "map@0.5" in line]
    assert measured == ["round 1, samples", "final samples"]
    before = stage_folders(run)
    again = annocoin(*command)
    assert again.out.count("done before") == 13
    assert stage_folders(run) == before
    command = ("label", run, scenes, "--split", "train", "--jobs", 1)
    outcome = annocoin(*command, "--out", tmp_path / "l.json")
    assert outcome.code == 0, outcome.err
    folders = {path.parent.name for path in (run / "labelling").glob("*/*/*.npz")}
    assert folders == {"examples", "tables", "labels"}, "regions and seeds are those of the run"
    assert len(load_labelled(tmp_path / "l.json")) == 7


def test_only_images_that_a_training_sees_are_computed(
    scenes: Path, more: Path, tmp_path: Path
) -> None:
    """Three steps of two images in the round and four in the last training, of 10 images."""
    changes = {"prediction.training.steps": "3", "prediction.training.final_steps": "4"}
    options: Any = {"changes": changes, "more_images": load_weak(more, "image")}
    truth = load_evaluation(scenes, split="train")
    run = train(scenes, tmp_path / "run", truth=truth, **options)
    expected = {"regions": 8, "seeds": 8, "examples": 8, "round-1-samples": 6, "round-1-tables": 8}
    for stage, count in {**expected, "final-samples": 8}.items():
        assert files_of(run.path, stage) == count, stage
    measured = [line for line in metrics(run.path) if "map@0.5" in line]
    assert [line["stage"] for line in measured] == ["round 1, samples", "final samples"]
    weak = load_weak(scenes, "image", split="train")
    assert not run.precomputed_for(weak)  # some of its images have no regions
    assert len(api.label(run, weak, jobs=1)) == len(weak)


def test_measuring_needs_the_masks_of_the_main_dataset(
    scenes: Path, more: Path, tmp_path: Path
) -> None:
    truth = load_evaluation(scenes, split="val")
    images = load_weak(more, "image")
    with pytest.raises(InputError, match="no true masks of these images"):
        train(scenes, tmp_path / "run", truth=truth, more_images=images)
    weak = load_weak(scenes, "image")
    with pytest.raises(InputError, match="true masks of 1 of 8 images; use --skip-bad"):
        train(scenes, tmp_path / "run", dataset=weak, truth=truth, more_images=images)
    assert not (tmp_path / "run").exists()


def test_full_supervision_with_more_images(scenes: Path, more: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    masks = load_weak(more, "mask")
    train(scenes, tmp_path / "run", "mask", more_images=masks, log=lines.append)
    assert lines[0] == "10 images, 6 classes, supervision mask"
    assert names_of(stage_folders(tmp_path / "run")) == {"prediction"}


def test_bad_more_images_are_one_line_before_any_work(
    scenes: Path, more: Path, annocoin: Command, tmp_path: Path
) -> None:
    new, classes = tmp_path / "new", load_weak(scenes).classes
    sphinx = tagged_picture(tmp_path / "sphinx", "a.png", "sphinx")
    known = tagged_picture(tmp_path / "known", "a.png", classes[0])
    coco, photos = tmp_path / "coco.json", tmp_path / "photos"
    assert annocoin("convert", known, coco, "--to", "coco").code == 0
    shutil.copytree(known / "images", photos)
    further = ("--more-images", known)
    cases: dict[str, tuple[object, ...]] = {
        "no such file or folder": ("--more-images", tmp_path / "none"),
        f"knows none of the dataset's classes ('sphinx',) in {sphinx}": ("--more-images", sphinx),
        "expected every image id once": ("--more-images", scenes),
        "a.png; expected every image id once": (*further, "--more-tags", known),
        "both have the file name a.png": (*further, "--more-images", coco, "--images", photos),
        "no boxes in it": (*further, "--supervision", "box"),
        "none with a mask": (*further, "--supervision", "mask"),
    }
    for message, extra in cases.items():
        outcome = annocoin("train", scenes, "--out", new, *ARGUMENTS, *extra)
        assert outcome.code == 2, extra
        assert message in outcome.err, (message, outcome.err)
        assert outcome.err.count("\n") == 1
        assert not new.exists(), message
    outcome = annocoin("train", scenes, "--out", more, *ARGUMENTS, "--more-images", more)
    assert (outcome.code, "that is the input" in outcome.err) == (2, True)
