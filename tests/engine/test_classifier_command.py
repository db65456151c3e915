"""The command `annocoin classifier`: a classifier from tags, without regions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from annocoin.data.loading import load_weak
from annocoin.engine.image_stages import CLASSIFIER_FILE, METRICS
from annocoin.seeds.classifier import read_classifier
from annocoin.synthetic.dataset import write_synthetic
from engine.worlds import Artefacts
from pictures import break_jpeg, tagged_picture

Run = Callable[..., Any]
TINY = (
    "--preset", "synthetic", "--set", "classifier.size=64", "--set", "classifier.epochs=1",
    "--set", "classifier.batch_size=4",
)  # fmt: skip


def test_a_classifier_for_other_commands(
    annocoin: Run, scenes: Path, artefacts: Artefacts, tmp_path: Path
) -> None:
    out = tmp_path / "classifier"
    command = ("classifier", scenes, "--split", "train", "--out", out, *TINY)
    outcome = annocoin(*command, "--validation-split", "val")
    assert (outcome.code, outcome.err) == (0, "")
    training, validation, last = outcome.out.splitlines()
    assert training.startswith("classifier: tag map ")
    assert validation.startswith("classifier: validation tag map ")
    assert last == f"{out / CLASSIFIER_FILE}: 6 classes, from the tags of 7 images"
    assert {path.name for path in out.iterdir()} == {".lock", CLASSIFIER_FILE, METRICS}
    before = (out / CLASSIFIER_FILE).read_bytes()
    again = annocoin(*command, "--validation-split", "val")
    assert (again.code, again.out.splitlines()) == (0, [last]), "nothing is left to do"
    assert (out / CLASSIFIER_FILE).read_bytes() == before
    outcome = annocoin(
        "seeds", scenes, "--regions", artefacts.regions.path, "--out", tmp_path / "seeds",
        "--jobs", 1, "--preset", "synthetic", "--classifier", out / CLASSIFIER_FILE,
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, "")
    assert "seeds of 8 images" in outcome.out


@pytest.fixture(scope="module")
def more(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three further scenes."""
    root = tmp_path_factory.mktemp("more") / "scenes"
    write_synthetic(root, images=3, size=64, seed=4)
    return root


def test_more_tags_train_the_classifier(
    annocoin: Run, scenes: Path, more: Path, artefacts: Artefacts, tmp_path: Path
) -> None:
    name = load_weak(scenes).classes[2]
    grey = tagged_picture(tmp_path / "grey", "grey.png", name, "sphinx")
    further = ("--more-tags", more, "--more-tags", grey)
    outcome = annocoin("classifier", scenes, "--out", tmp_path / "c", *TINY, *further)
    assert outcome.code == 0, outcome.err
    assert "from the tags of 12 images" in outcome.out
    note = f"note: {scenes}: 1 labels of unknown classes in {grey} left out: sphinx\n"
    assert outcome.err == note
    assert len((tmp_path / "c" / METRICS).read_text().splitlines()) == 3, "12 images, 4 per step"
    outcome = annocoin(
        "seeds", scenes, "--regions", artefacts.regions.path, "--supervision", "box",
        "--out", tmp_path / "s", "--jobs", 1, *TINY, *further,
    )  # fmt: skip
    assert (outcome.code, outcome.err) == (0, note)
    assert "seeds of 8 images" in outcome.out
    first, second = (read_classifier(tmp_path / name / CLASSIFIER_FILE) for name in "cs")
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key]), "boxes are tags for the classifier"


def test_tags_of_a_coco_file_with_its_images(
    annocoin: Run, scenes: Path, more: Path, tmp_path: Path
) -> None:
    coco = tmp_path / "more.json"
    assert annocoin("convert", more, coco, "--to", "coco").code == 0
    command = ("classifier", scenes, "--out", tmp_path / "c", *TINY, "--more-tags", coco)
    outcome = annocoin(*command)
    assert (outcome.code, "where they are with --images DIR" in outcome.err) == (2, True)
    outcome = annocoin(*command, "--images", more / "JPEGImages")
    assert outcome.code == 0, outcome.err
    assert "from the tags of 11 images" in outcome.out


def test_bad_datasets_of_more_tags_are_one_line(
    annocoin: Run, scenes: Path, artefacts: Artefacts, tmp_path: Path
) -> None:
    out, sphinx = tmp_path / "out", tagged_picture(tmp_path / "d", "a.png", "sphinx")
    cases: dict[str, tuple[object, ...]] = {
        f"{tmp_path / 'none'}: no such file or folder": ("--more-tags", tmp_path / "none"),
        f"{tmp_path}: not a dataset of a known format": ("--more-tags", tmp_path),
        f"{scenes}: knows none of the dataset's classes ('sphinx',) in {sphinx}": (
            "--more-tags", sphinx,
        ),
        "expected every image id once, leave one of them out": ("--more-tags", scenes),
    }  # fmt: skip
    regions = ("--regions", artefacts.regions.path)
    for command in (("classifier", scenes), ("seeds", scenes, *regions)):
        for message, extra in cases.items():
            outcome = annocoin(*command, "--out", out, *TINY, *extra)
            assert (outcome.code, outcome.err.count("\n")) == (2, 1), (extra, outcome.err)
            assert message in outcome.err, (message, outcome.err)
            assert not list(tmp_path.rglob("*.safetensors")), message
    trained = ("--classifier", artefacts.classifier, "--more-tags", sphinx)
    outcome = annocoin("seeds", scenes, *regions, "--out", out, *trained)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "--classifier is trained already" in outcome.err
    outcome = annocoin("classifier", scenes, "--out", sphinx, "--more-tags", sphinx)
    assert (outcome.code, "that is the input" in outcome.err) == (2, True)


def test_a_bad_image_is_skipped(annocoin: Run, scenes: Path, tmp_path: Path) -> None:
    dataset, out = tmp_path / "scenes", tmp_path / "classifier"
    shutil.copytree(scenes, dataset)
    broken = min((dataset / "JPEGImages").iterdir())
    break_jpeg(broken)
    outcome = annocoin("classifier", dataset, "--out", out, *TINY, "--skip-bad")
    assert outcome.code == 0, outcome.err
    assert "skipped 1 bad items" in outcome.err
    assert broken.name in outcome.err
    assert len(read_classifier(out / CLASSIFIER_FILE).architecture.classes) == 6


def test_bad_arguments_are_one_line(annocoin: Run, scenes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("classifier", scenes, "--out", out)
    cases: dict[str, tuple[object, ...]] = {
        "no such file or folder": ("classifier", tmp_path / "none", "--out", out),
        "that is the input": ("classifier", scenes, "--out", scenes),
        "Missing option": ("classifier", scenes),
        "expected one of synthetic": (*command, "--preset", "voc"),
        "backbone 'resnet51'": (*command, *TINY, "--set", "classifier.backbone=resnet51"),
        "epochs 0": (*command, "--set", "classifier.epochs=0"),
        "no such folder of backbone": (*command, "--weights", tmp_path / "none"),
        "found: train, trainval, val": (*command, *TINY, "--validation-split", "none"),
        "device": (*command, *TINY, "--device", "quantum"),
    }
    for message, arguments in cases.items():
        outcome = annocoin(*arguments)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1), (arguments, outcome.err)
        assert message in outcome.err, (message, outcome.err)
        assert not list(tmp_path.rglob("*.safetensors")), message
