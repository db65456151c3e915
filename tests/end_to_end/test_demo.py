from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from annocoin.api import TrainedRun, predict_dataset
from annocoin.data.loading import load_evaluation, load_labelled
from annocoin.demo import STARTED, WAYS
from annocoin.evaluation.evaluator import evaluate
from end_to_end.quick import WORDS


def test_the_demo_makes_what_it_says(annocoin: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "demo"
    outcome = annocoin("demo", "--out", out, "--images", 8, *WORDS)
    assert outcome.code == 0, outcome.err
    summary = json.loads((out / "summary.json").read_text())
    assert {way.name for way in WAYS} == {"image", "box", "seeds", "full"} <= summary.keys()
    assert summary["seconds"] > 0
    test = load_evaluation(out / "data", split="val")
    for way in WAYS:
        run = TrainedRun(out / way.name)
        found = evaluate(predict_dataset(run, test.labelled), test).mean
        assert summary[way.name] == {f"{t:g}": pytest.approx(v) for t, v in found.items()}
        assert set(summary[way.name]) == {"0.25", "0.5", "0.7", "0.75"}
    assert Image.open(out / "picture.jpg").size[0] > 500
    assert Image.open(out / "rounds.jpg").size[0] > 1000
    images = load_labelled(out / "data", split="train")
    for name in ("voc", "yolo", "labelme"):
        assert len(load_labelled(out / "labels" / name)) == len(images)
    assert not (out / STARTED).exists()
    for words in ("from tags", "from boxes", "without rounds", "from true masks", "picture.jpg"):
        assert words in outcome.out
    (out / "old").write_text("of the finished demo")
    (out / STARTED).touch()  # as if it had been interrupted: then it goes on
    (out / "summary.json").unlink()
    again = annocoin("demo", "--out", out, "--images", 8, *WORDS)
    assert again.code == 0, again.err
    assert (out / "old").exists()
    assert json.loads((out / "summary.json").read_text())["image"] == summary["image"]


def test_the_demo_does_not_remove_what_it_did_not_make(
    annocoin: Callable[..., Any], tmp_path: Path
) -> None:
    for name in ("mine", "summary.json"):
        (tmp_path / name).write_text("{}")
        assert annocoin("demo", "--out", tmp_path).code == 2
        assert (tmp_path / name).read_text() == "{}"
