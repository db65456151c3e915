"""Runs with images of further datasets: for the classifier only, or for every stage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from annocoin.data.loading import load_weak
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
    assert any("epochs of 10 images" in line for line in lines)
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
