from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from annocoin import evaluate, load_evaluation, load_labelled, read_predictions


def test_the_demo_makes_what_it_says_twice(annocoin: Callable[..., Any], tmp_path: Path) -> None:
    out = tmp_path / "demo"
    for _ in range(2):
        outcome = annocoin("demo", "--out", out, "--images", 8)
        assert outcome.code == 0, outcome.err
    summary = json.loads((out / "summary.json").read_text())
    assert summary["map"]["truth"] == {
        protocol: {"0.5": 1.0, "0.75": 1.0} for protocol in ("chainercv", "sds", "bbtp", "coco")
    }
    at_half = {name: figures["chainercv"]["0.5"] for name, figures in summary["map"].items()}
    assert at_half["filled box"] < at_half["GrabCut"] < at_half["region"] < 1
    assert Image.open(out / "picture.jpg").size[0] > 500
    truth = load_evaluation(out / "data")
    found = read_predictions(out / "regions.json", truth.labelled)
    mean = evaluate(found, truth, thresholds=[0.5]).mean[0.5]
    assert mean == summary["map"]["region"]["chainercv"]["0.5"]
    again = read_predictions(out / "labels" / "coco.json", truth.labelled)
    assert again == found
    for name in ("voc", "yolo", "labelme"):
        assert len(load_labelled(out / "labels" / name)) == 8


def test_the_demo_does_not_remove_what_it_did_not_make(
    annocoin: Callable[..., Any], tmp_path: Path
) -> None:
    for name in ("mine", "summary.json"):
        (tmp_path / name).write_text("{}")
        assert annocoin("demo", "--out", tmp_path).code == 2
        assert (tmp_path / name).read_text() == "{}"
