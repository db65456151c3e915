"""The command `annocoin classifier`: a classifier from tags, without regions."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from annocoin.engine.image_stages import CLASSIFIER_FILE, METRICS
from annocoin.seeds.classifier import read_classifier
from engine.worlds import Artefacts
from pictures import break_jpeg

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
