"""The demo, small."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from annocoin.data.loading import load_evaluation, load_labelled
from annocoin.demo import FILES, SETTINGS, STAGE_SECONDS, STARTED
from annocoin.evaluation.evaluator import evaluate
from annocoin.trained import TrainedRun, predict_dataset
from end_to_end.quick import OVERRIDES


def test_the_demo_writes_all_that_it_names(annocoin: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "demo"
    outcome = annocoin("demo", "--out", out, "--images", 8, *OVERRIDES)
    assert outcome.code == 0, outcome.err
    summary = json.loads((out / "summary.json").read_text())
    names = {setting.name for setting in SETTINGS}
    assert names == {"image", "box", "seeds", "full"} <= summary.keys()
    assert summary["seconds"] > 0
    test = load_evaluation(out / "data", split="val")
    for name in names:
        mean = evaluate(predict_dataset(TrainedRun(out / name), test.labelled), test).mean
        assert summary[name] == {f"{t:g}": pytest.approx(value) for t, value in mean.items()}
        assert set(summary[name]) == {"0.25", "0.5", "0.7", "0.75"}
    assert "mAP on the test set" in (out / "report.html").read_text()
    assert "Precision and recall" in (out / "full" / "report.html").read_text()
    assert Image.open(out / "picture.jpg").size[0] > 500
    assert Image.open(out / "rounds.jpg").size[0] > 1000
    images = load_labelled(out / "data", split="train")
    for name in ("voc", "yolo", "labelme"):
        assert len(load_labelled(out / "labels" / name)) == len(images)
    assert not (out / STARTED).exists()
    for text in ("from tags", "from boxes", "without rounds", "from true masks", "picture.jpg"):
        assert text in outcome.out
    lines = outcome.out.splitlines()
    assert all(any(line.startswith(f"{stage}: ") for line in lines) for stage in STAGE_SECONDS)
    assert lines[-1] == f"Open {out / 'report.html'}: the four runs side by side."
    assert all((out / name).exists() for name in FILES)
    (out / "old").write_text("of the finished demo")
    (out / STARTED).touch()  # as if it had been interrupted: it is resumed
    (out / "summary.json").unlink()
    again = annocoin("demo", "--out", out, "--images", 8, *OVERRIDES)
    assert again.code == 0, again.err
    assert (out / "old").exists()
    assert json.loads((out / "summary.json").read_text())["image"] == summary["image"]


def test_the_demo_does_not_remove_other_files(annocoin: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("mine", "summary.json"):
        (tmp_path / name).write_text("{}")
        assert annocoin("demo", "--out", tmp_path).code == 2
        assert (tmp_path / name).read_text() == "{}"
