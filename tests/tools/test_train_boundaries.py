"""The training script of the boundary network, on two images in the layout of BSDS500."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn import functional as F
from torchvision.models import mobilenet_v2

from annocoin.backbones import BoundaryNet
from tools.scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("train_boundaries")


@pytest.fixture
def bsds(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        (tmp_path / "images" / split).mkdir(parents=True)
        (tmp_path / "groundTruth" / split).mkdir(parents=True)
        pixels = np.zeros((90, 120, 3), np.uint8)
        pixels[:, 60:] = 200
        Image.fromarray(pixels).save(tmp_path / "images" / split / "1.jpg")
        lines = np.zeros((90, 120), np.uint8)
        lines[:, 60] = 1
        cell = np.empty((1, 2), dtype=object)
        for i in range(2):
            cell[0, i] = {"Segmentation": lines + 1, "Boundaries": lines}
        scipy.io.savemat(tmp_path / "groundTruth" / split / "1.mat", {"groundTruth": cell})
    return tmp_path


def test_training_writes_weights_of_the_network(
    script: ModuleType, bsds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save(mobilenet_v2(weights=None).state_dict(), tmp_path / "encoder.pth")
    out = tmp_path / "out.safetensors"
    arguments = [bsds, "--encoder", tmp_path / "encoder.pth", "--out", out]
    arguments += ["--minutes", 0.02, "--batch", 1, "--threads", 1]
    monkeypatch.setattr(sys, "argv", ["train", *map(str, arguments)])
    script.main()
    weights = load_file(out)
    assert {value.dtype for value in weights.values()} == {torch.float16}
    missing, unexpected = BoundaryNet().load_state_dict(weights, strict=False)
    assert unexpected == []
    assert all(name.endswith("num_batches_tracked") for name in missing)


def test_agreement_counts_neighbours_and_ignores_pixels_beside_a_line(script: ModuleType) -> None:
    first, second, third = (np.zeros((5, 7), np.uint8) for _ in range(3))
    first[:, 2] = 1
    second[:, 3] = 1  # the same line, one pixel off
    third[0, 6] = 1
    share = script.agreement([first, second, third])
    assert share[3, 2] == pytest.approx(2 / 3)
    assert share[3, 3] == pytest.approx(2 / 3)
    assert 0 < share[3, 1] < script.MIN_AGREEMENT  # beside a line: ignored
    assert share[3, 5] == 0
    assert share[0, 6] == pytest.approx(1 / 3)


def test_the_loss_is_low_for_the_truth_and_ignores_uncounted_pixels(script: ModuleType) -> None:
    targets = torch.zeros(1, 1, 8, 8)
    targets[..., 4] = 1.0
    targets[..., 3] = 0.01
    right = torch.where(targets >= script.MIN_AGREEMENT, 6.0, -6.0)
    uncounted = torch.where(targets > 0, 6.0, -6.0)
    assert script.loss(right, targets) < 0.05
    assert script.loss(-right, targets) > 2
    assert script.loss(uncounted, targets) == pytest.approx(float(script.loss(right, targets)))
    assert torch.isfinite(script.loss(right, torch.zeros(1, 1, 8, 8)))


def test_augmentation_keeps_image_and_lines_together(script: ModuleType) -> None:
    image = torch.zeros(3, 200, 300, dtype=torch.uint8)
    image[:, :, 150:] = 255
    target = torch.zeros(1, 200, 300)
    target[:, :, 150] = 1
    rng = np.random.default_rng(0)
    crops_with_lines = 0
    for _ in range(20):
        crop, lines = script.augment(image, target, rng)
        assert crop.shape == (3, script.CROP, script.CROP)
        assert lines.shape == (1, script.CROP, script.CROP)
        values = crop[0][None, None]
        near = [F.max_pool2d(sign * values, 7, stride=1, padding=3)[0, 0] for sign in (1, -1)]
        assert (
            (near[0] + near[1])[lines[0] >= script.MIN_AGREEMENT] > 0.2
        ).all()  # dark and bright
        crops_with_lines += int((lines >= script.MIN_AGREEMENT).any())
    assert crops_with_lines > 5
