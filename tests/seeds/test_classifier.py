"""Classifiers: backbones, files, peaks of class maps, average precision of tags."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from annocoin.errors import InputError
from annocoin.seeds.classifier import (
    Classifier,
    ClassifierArchitecture,
    find_peaks,
    peak_scores,
    read_classifier,
    tag_average_precision,
    write_classifier,
)


@pytest.mark.parametrize(
    ("name", "stride"),
    [("tiny", 8), ("resnet18", 32), ("resnet50", 32), ("mobilenet_v2", 32), ("vgg11", 32)],
)
def test_class_maps_have_the_stride_of_the_backbone(name: str, stride: int) -> None:
    net = Classifier(ClassifierArchitecture(("a", "b", "c"), name)).eval()
    with torch.inference_mode():
        assert net(torch.rand(2, 3, 96, 64)).shape == (2, 3, 96 // stride, 64 // stride)


@pytest.mark.parametrize("backbone", ["convnext_tiny", "swin_t"])
def test_backbones_with_other_layers_are_refused(backbone: str) -> None:
    with pytest.raises(InputError, match="not fully convolutional"):
        Classifier(ClassifierArchitecture(("a",), backbone))


def test_bad_architectures() -> None:
    with pytest.raises(InputError, match="at least one class"):
        ClassifierArchitecture((), "tiny")
    with pytest.raises(InputError, match="32 to 4096"):
        ClassifierArchitecture(("a",), "tiny", size=8)


def test_written_classifiers_are_read_back(tmp_path: Path) -> None:
    net = Classifier(ClassifierArchitecture(("cat", "dög"), "tiny", size=96)).eval()
    write_classifier(tmp_path / "c.safetensors", net)
    again = read_classifier(tmp_path / "c.safetensors")
    assert again.architecture == net.architecture
    x = torch.rand(1, 3, 40, 56)
    assert torch.equal(again(x), net(x))
    assert not again.training
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("no weights")
    for name in ("other", "text"):
        with pytest.raises(InputError, match="not a classifier"):
            read_classifier(tmp_path / f"{name}.safetensors")
    with pytest.raises(InputError, match="no such file"):
        read_classifier(tmp_path / "none.safetensors")


def peaks_by_loops(values: Tensor) -> list[list[bool]]:
    """The peaks of one map [h, w], cell by cell."""
    height, width = values.shape
    median = values.flatten().sort().values[(values.numel() - 1) // 2]
    peaks = [[False] * width for _ in range(height)]
    for i in range(height):
        for j in range(width):
            window = [
                (float(values[y, x]), -(y * width + x))
                for y in range(max(0, i - 1), min(height, i + 2))
                for x in range(max(0, j - 1), min(width, j + 2))
            ]
            _, negative_position = max(window)
            peaks[i][j] = -negative_position == i * width + j and bool(values[i, j] >= median)
    return peaks


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 4), st.integers(0, 10_000))
def test_peaks_are_those_of_a_plain_loop(height: int, width: int, levels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randint(-levels, levels + 1, (2, 3, height, width), generator=generator).float()
    peaks = find_peaks(maps)
    assert peaks.shape == maps.shape
    for b in range(2):
        for c in range(3):
            assert peaks[b, c].tolist() == peaks_by_loops(maps[b, c])


@given(st.integers(0, 10_000), st.sampled_from([0.0, 1.0, 5.0]))
def test_scores_are_means_over_peaks(seed: int, sharpness: float) -> None:
    maps = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(seed))
    scores = peak_scores(maps, sharpness=sharpness)
    for b in range(2):
        for c in range(3):
            values = maps[b, c][torch.tensor(peaks_by_loops(maps[b, c]))].double()
            weights = (sharpness * values).exp()
            expected = float((weights * values).sum() / weights.sum())
            assert float(scores[b, c]) == pytest.approx(expected, abs=1e-5)
    assert bool((scores <= maps.amax(dim=(-2, -1)) + 1e-6).all())


def test_a_high_sharpness_approaches_the_maximum() -> None:
    maps = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(peak_scores(maps, sharpness=1e4), maps.amax(dim=(-2, -1)))


def test_only_peaks_have_a_gradient() -> None:
    maps = torch.randn(1, 2, 6, 6, requires_grad=True)
    peak_scores(maps).sum().backward()
    assert maps.grad is not None
    assert torch.equal(maps.grad != 0, find_peaks(maps))
    assert torch.allclose(maps.grad.sum(dim=(-2, -1)), torch.ones(1, 2))


def precision_by_loops(scores: list[float], tags: list[bool]) -> float:
    """The mean, over positives, of the best precision at their score or any lower one."""
    cuts = sorted(set(scores))
    precision = {
        cut: sum(t for s, t in zip(scores, tags, strict=True) if s >= cut)
        / sum(s >= cut for s in scores)
        for cut in cuts
    }
    best = [
        max(p for cut, p in precision.items() if cut <= s)
        for s, t in zip(scores, tags, strict=True)
        if t
    ]
    return sum(best) / len(best) if best else math.nan


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12))
def test_average_precision_is_that_of_a_plain_loop(rows: list[tuple[int, bool]]) -> None:
    scores, tags = [float(s) for s, _ in rows], [t for _, t in rows]
    precisions = tag_average_precision(torch.tensor(scores)[:, None], torch.tensor(tags)[:, None])
    assert float(precisions[0]) == pytest.approx(precision_by_loops(scores, tags), nan_ok=True)


def test_average_precision_of_known_values() -> None:
    tags = torch.tensor([[True, False], [False, False], [True, False]])
    precisions = tag_average_precision(torch.tensor([[3.0, 1], [2, 2], [1, 3]]), tags)
    assert float(precisions[0]) == pytest.approx((1 + 2 / 3) / 2)
    assert math.isnan(float(precisions[1]))
    same = tag_average_precision(torch.zeros(4, 1), torch.tensor([[True], [False]] * 2))
    assert float(same[0]) == 0.5


def test_scores_and_tags_have_equal_shapes() -> None:
    with pytest.raises(ValueError, match=r"expected \[N, C\]"):
        tag_average_precision(torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.bool))
