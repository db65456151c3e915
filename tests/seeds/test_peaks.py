"""Peaks of class maps, and the scores that they stimulate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from annocoin.seeds.classifier import find_peaks, peak_scores


def by_loops(values: Tensor) -> list[list[bool]]:
    """Of one map [h, w], place by place."""
    height, width = values.shape
    median = values.flatten().sort().values[(values.numel() - 1) // 2]
    found = [[False] * width for _ in range(height)]
    for i in range(height):
        for j in range(width):
            window = [
                (float(values[y, x]), -(y * width + x))
                for y in range(max(0, i - 1), min(height, i + 2))
                for x in range(max(0, j - 1), min(width, j + 2))
            ]
            _, place = max(window)
            found[i][j] = -place == i * width + j and bool(values[i, j] >= median)
    return found


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 4), st.integers(0, 10_000))
def test_peaks_are_those_of_a_plain_loop(height: int, width: int, levels: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    maps = torch.randint(-levels, levels + 1, (2, 3, height, width), generator=generator).float()
    found = find_peaks(maps)
    assert found.shape == maps.shape
    for b in range(2):
        for c in range(3):
            assert found[b, c].tolist() == by_loops(maps[b, c])


@given(st.integers(0, 10_000), st.sampled_from([0.0, 1.0, 5.0]))
def test_scores_are_means_over_peaks(seed: int, sharpness: float) -> None:
    maps = torch.randn(2, 3, 5, 6, generator=torch.Generator().manual_seed(seed))
    scores = peak_scores(maps, sharpness=sharpness)
    for b in range(2):
        for c in range(3):
            values = maps[b, c][torch.tensor(by_loops(maps[b, c]))].double()
            weights = (sharpness * values).exp()
            expected = float((weights * values).sum() / weights.sum())
            assert float(scores[b, c]) == pytest.approx(expected, abs=1e-5)
    assert bool((scores <= maps.amax(dim=(-2, -1)) + 1e-6).all())


def test_a_great_sharpness_leaves_the_best_peak() -> None:
    maps = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(peak_scores(maps, sharpness=1e4), maps.amax(dim=(-2, -1)))


def test_only_peaks_learn() -> None:
    maps = torch.randn(1, 2, 6, 6, requires_grad=True)
    peak_scores(maps).sum().backward()
    assert maps.grad is not None
    assert torch.equal(maps.grad != 0, find_peaks(maps))
    assert torch.allclose(maps.grad.sum(dim=(-2, -1)), torch.ones(1, 2))
