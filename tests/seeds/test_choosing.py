"""Which places become seeds, for every kind of weak_label."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annocoin import masks
from annocoin.seeds.seeder import choose_seeds
from annocoin.types import Annotation, WeakLabel

SIZE = (40, 60)  # a cell of the 4 x 6 maps is 10 x 10 pixels
CELLS = (torch.arange(4) * 10.0 + 5, torch.arange(6) * 10.0 + 5)


def maps_with(*peaks: tuple[int, int, int, float]) -> torch.Tensor:
    maps = torch.full((2, 4, 6), -5.0)
    for label, row, column, value in peaks:
        maps[label - 1, row, column] = value
    return maps


def test_a_tag_gets_the_peaks_near_the_best_one() -> None:
    maps = maps_with((1, 0, 0, 3.0), (1, 2, 4, 2.0), (1, 3, 0, -4.0), (2, 1, 1, -4.5))
    annotation = Annotation(SIZE, (WeakLabel(1), WeakLabel(2)))
    choice = choose_seeds(maps, CELLS, annotation, threshold=0.5)
    assert choice.peaks.tolist() == [[0, 0, 0], [0, 2, 4], [1, 1, 1]]
    assert choice.points.tolist() == [[5, 5], [45, 25], [15, 15]]
    assert choice.annotation_index.tolist() == [0, 0, 1]
    assert len(choose_seeds(maps, CELLS, annotation, threshold=1.0).peaks) == 2
    assert [0, 3, 0] in choose_seeds(maps, CELLS, annotation, threshold=0.0).peaks.tolist()


def test_a_box_gets_the_best_peak_in_it() -> None:
    maps = maps_with((1, 0, 0, 3.0), (1, 2, 4, 2.0))
    boxes = ((30.0, 10.0, 60.0, 40.0), (0.0, 0.0, 20.0, 20.0))
    choice = choose_seeds(
        maps, CELLS, Annotation(SIZE, tuple(WeakLabel(1, box=b) for b in boxes)), 0.5
    )
    assert choice.peaks.tolist() == [[0, 2, 4], [0, 0, 0]]
    assert choice.annotation_index.tolist() == [0, 1]


def test_a_box_without_a_peak_gets_its_best_place_and_a_tiny_one_its_middle() -> None:
    maps = maps_with((1, 0, 0, 3.0), (1, 0, 1, 2.5))
    slope = WeakLabel(1, box=(10.0, 0.0, 40.0, 10.0))  # its best place is beside a peak outside
    tiny = WeakLabel(1, box=(31.0, 31.0, 33.0, 33.0))
    choice = choose_seeds(maps, CELLS, Annotation(SIZE, (slope, tiny)), 0.5)
    assert choice.peaks.tolist() == [[0, 0, 1], [0, 3, 3]]
    assert choice.points.tolist() == [[15, 5], [32, 32]]


def test_points_and_masks_stay_where_they_are() -> None:
    mask = np.zeros((1, *SIZE), dtype=np.uint8)
    mask[0, 20:31, 40:51] = 1
    weak_labels = (WeakLabel(2, point=(60.0, 40.0)), WeakLabel(1, mask=masks.encode(mask)[0]))
    choice = choose_seeds(maps_with((1, 0, 0, 3.0)), CELLS, Annotation(SIZE, weak_labels), 0.5)
    assert choice.peaks.tolist() == [[1, 3, 5], [0, 2, 4]]
    assert choice.points[0].tolist() == [60, 40]
    assert mask[0, int(choice.points[1, 1]), int(choice.points[1, 0])] == 1


def test_nothing_said_nothing_found() -> None:
    choice = choose_seeds(torch.randn(2, 4, 6), CELLS, Annotation(SIZE), 0.5)
    assert choice.peaks.shape == (0, 3)
    assert choice.points.shape == (0, 2)


@st.composite
def annotations(draw: st.DrawFn) -> Annotation:
    weak_labels = []
    for _ in range(draw(st.integers(0, 4))):
        x0, y0 = draw(st.floats(0, 55)), draw(st.floats(0, 35))
        place = draw(st.sampled_from(["tag", "box", "point"]))
        box = (x0, y0, draw(st.floats(x0 + 0.5, 60)), draw(st.floats(y0 + 0.5, 40)))
        weak_labels.append(
            WeakLabel(
                draw(st.integers(1, 2)),
                box=box if place == "box" else None,
                point=(x0, y0) if place == "point" else None,
            )
        )
    return Annotation(SIZE, tuple(weak_labels))


@given(annotations(), st.integers(0, 1000), st.floats(0, 1), st.sampled_from([0.1, 1, 50]))
def test_every_mark_has_a_seed_of_its_class_where_it_says(
    annotation: Annotation, seed: int, threshold: float, spread: float
) -> None:
    maps = spread * torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(seed))
    choice = choose_seeds(maps, CELLS, annotation, threshold)
    assert set(choice.annotation_index.tolist()) == set(range(len(annotation)))
    for (label, _, _), (x, y), number in zip(
        choice.peaks.tolist(), choice.points.tolist(), choice.annotation_index.tolist(), strict=True
    ):
        weak_label = annotation[number]
        assert label + 1 == weak_label.label
        if weak_label.box is not None:
            assert weak_label.box[0] - 1e-4 <= x <= weak_label.box[2] + 1e-4
            assert weak_label.box[1] - 1e-4 <= y <= weak_label.box[3] + 1e-4
            assert choice.annotation_index.tolist().count(number) == 1
        elif weak_label.point is not None:
            assert (x, y) == pytest.approx(weak_label.point, abs=1e-4)
