"""The points of seeds: where responses are densest, but never out of a box."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from annocoin import masks
from annocoin.seeds.seeder import refine_peaks
from annocoin.types import Annotation, WeakLabel

SIZE = (40, 80)  # twice the resolution of the responses


def response(*blobs: tuple[int, int, float]) -> torch.Tensor:
    """Mass around places row, column of a map of 20 x 40."""
    found = torch.full((20, 40), 1e-6)
    for row, column, mass in blobs:
        found[row - 1 : row + 2, column - 1 : column + 2] += mass / 9
    return found / found.sum()


def settle(weak_label: WeakLabel, found: torch.Tensor) -> list[float]:
    annotation = Annotation(SIZE, (weak_label,))
    start = torch.tensor([[3.0, 4.0]])
    return refine_peaks(start, found[None], torch.tensor([0]), annotation)[0].tolist()


def test_where_the_response_is_densest() -> None:
    found = response((15, 30, 0.6), (5, 10, 0.4))
    found[2, 2] = 0.08  # the greatest single value, and alone
    assert float(found.max()) == pytest.approx(0.08)
    assert settle(WeakLabel(1), found) == [61, 31]


def test_a_box_keeps_its_seed() -> None:
    found = response((15, 30, 0.6), (5, 10, 0.4))
    assert settle(WeakLabel(1, box=(0, 0, 40, 40)), found) == [21, 11]
    assert settle(WeakLabel(1, box=(4.1, 4.1, 4.2, 4.2)), found) == [3, 4]  # holds no middle: stays


def test_what_a_person_showed_stays() -> None:
    found = response((15, 30, 1.0))
    mask = np.zeros((1, *SIZE), np.uint8)
    mask[0, :5, :5] = 1
    assert settle(WeakLabel(1, point=(3.0, 4.0)), found) == [3, 4]
    assert settle(WeakLabel(1, mask=masks.encode(mask)[0]), found) == [3, 4]


def test_none() -> None:
    empty = refine_peaks(
        torch.zeros(0, 2), torch.zeros(0, 4, 4), torch.zeros(0), Annotation((8, 8))
    )
    assert empty.shape == (0, 2)
