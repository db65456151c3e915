"""The training script of the ranker, on two small images in the layout of BSDS500."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.io
from PIL import Image
from safetensors.numpy import load_file

from annocoin.regions.hierarchy import CandidateRegions
from annocoin.regions.ranking import Ranker
from annocoin.regions.superpixel_graph import BoundaryElements, SuperpixelGraph
from tools.scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("train_ranker")


def annotators(*maps: np.ndarray) -> np.ndarray:
    truth = np.empty((1, len(maps)), dtype=object)
    for i, segments in enumerate(maps):
        truth[0, i] = {"Segmentation": segments.astype(np.uint16)}
    return truth


def test_training_writes_weights_of_the_ranker(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "images/train").mkdir(parents=True)
    (tmp_path / "groundTruth/train").mkdir(parents=True)
    for name in ("1", "2"):
        image = rng.integers(90, 110, (80, 120, 3), dtype=np.uint8)
        segments = np.ones((80, 120), int)
        image[20:60, 30:80] = (200, 40, 40)
        segments[20:60, 30:80] = 2
        Image.fromarray(image).save(tmp_path / f"images/train/{name}.jpg")
        truth = {"groundTruth": annotators(segments, segments)}
        scipy.io.savemat(tmp_path / f"groundTruth/train/{name}.mat", truth)
    out = tmp_path / "ranker.safetensors"
    arguments = ["train", str(tmp_path), "--splits", "train", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    script.main()
    packaged = Ranker().weights
    written = load_file(out)
    assert {name: value.shape for name, value in written.items()} == {
        name: value.shape for name, value in packaged.items()
    }
    monkeypatch.setattr(sys, "argv", [*arguments[:3], "val", *arguments[4:]])
    with pytest.raises(SystemExit):
        script.main()


def test_the_target_is_the_iou_with_segments(script: ModuleType) -> None:
    ids = np.zeros((10, 12), np.int32)
    ids[3:7, 3:6] = 1
    ids[3:7, 6:9] = 2
    graph = SuperpixelGraph(
        np.zeros((10, 12, 3), np.uint8), ids, BoundaryElements.of(ids), np.zeros((2, 3))
    )
    members = np.array([[0, 1, 0], [0, 1, 1], [1, 0, 0], [1, 1, 1]], bool)
    candidates = CandidateRegions(members, np.ones(4, int), np.arange(4))
    whole, half = np.where(ids > 0, 2, 1), np.where(ids == 1, 2, 1)
    both = script.target(graph, candidates, [whole, half])
    assert both[0] == pytest.approx(((0.5 + 1) / 2 + 1) / 2)
    assert both[1] == pytest.approx(((1 + 0.5) / 2 + 1) / 2)
    assert both[2] == 0  # its segment touches four sides and is background
    assert script.sides_touched(whole).tolist() == [0, 4, 0]


def test_training_fits_a_linear_function(script: ModuleType) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(3, 2, (20_000, 4)).astype(np.float32)
    targets = (0.1 * rows[:, 0] - 0.05 * rows[:, 2]).astype(np.float32)
    weights = {k: v.numpy() for k, v in script.train(rows, targets, 30, 0).items()}
    x = (rows - weights["mean"]) / weights["spread"]
    x = np.maximum(x @ weights["0.weight"].T + weights["0.bias"], 0)
    x = np.maximum(x @ weights["2.weight"].T + weights["2.bias"], 0)
    predicted = (x @ weights["4.weight"].T + weights["4.bias"])[:, 0]
    assert np.abs(predicted - targets).mean() < 0.02
