"""Peaks selected for every kind of weak label, and their refinement."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annocoin import masks
from annocoin.errors import InputError
from annocoin.seeds.class_maps import ClassMapper
from annocoin.seeds.classifier import Classifier, ClassifierArchitecture, find_peaks
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.seeder import MAX_SEEDS, Seeder, SeedOptions, refine_peaks, select_peaks
from annocoin.types import Annotation, WeakLabel

SIZE = (40, 60)  # a cell of the 4 x 6 maps is 10 x 10 pixels
CENTRES = (torch.arange(4) * 10.0 + 5, torch.arange(6) * 10.0 + 5)


def maps_with(*peaks: tuple[int, int, int, float]) -> torch.Tensor:
    maps = torch.full((2, 4, 6), -5.0)
    for label, row, column, value in peaks:
        maps[label - 1, row, column] = value
    return maps


def test_a_tag_gets_the_peaks_near_the_best_one() -> None:
    maps = maps_with((1, 0, 0, 3.0), (1, 2, 4, 2.0), (1, 3, 0, -4.0), (2, 1, 1, -4.5))
    annotation = Annotation(SIZE, (WeakLabel(1), WeakLabel(2)))
    selected = select_peaks(maps, CENTRES, annotation, threshold=0.5)
    assert selected.peaks.tolist() == [[0, 0, 0], [0, 2, 4], [1, 1, 1]]
    assert selected.points.tolist() == [[5, 5], [45, 25], [15, 15]]
    assert selected.annotation_index.tolist() == [0, 0, 1]
    assert len(select_peaks(maps, CENTRES, annotation, threshold=1.0).peaks) == 2
    assert [0, 3, 0] in select_peaks(maps, CENTRES, annotation, threshold=0.0).peaks.tolist()


def test_a_box_gets_the_best_peak_inside() -> None:
    maps = maps_with((1, 0, 0, 3.0), (1, 2, 4, 2.0))
    boxes = ((30.0, 10.0, 60.0, 40.0), (0.0, 0.0, 20.0, 20.0))
    annotation = Annotation(SIZE, tuple(WeakLabel(1, box=box) for box in boxes))
    selected = select_peaks(maps, CENTRES, annotation, 0.5)
    assert selected.peaks.tolist() == [[0, 2, 4], [0, 0, 0]]
    assert selected.annotation_index.tolist() == [0, 1]


def test_a_box_without_a_peak_gets_its_best_cell_and_a_tiny_one_its_centre() -> None:
    maps = maps_with((1, 0, 0, 3.0), (1, 0, 1, 2.5))
    slope = WeakLabel(1, box=(10.0, 0.0, 40.0, 10.0))  # its best cell is beside a peak outside
    tiny = WeakLabel(1, box=(31.0, 31.0, 33.0, 33.0))
    selected = select_peaks(maps, CENTRES, Annotation(SIZE, (slope, tiny)), 0.5)
    assert selected.peaks.tolist() == [[0, 0, 1], [0, 3, 3]]
    assert selected.points.tolist() == [[15, 5], [32, 32]]


def test_points_and_masks_get_the_cell_at_their_location() -> None:
    mask = np.zeros((1, *SIZE), dtype=np.uint8)
    mask[0, 20:31, 40:51] = 1
    weak_labels = (WeakLabel(2, point=(60.0, 40.0)), WeakLabel(1, mask=masks.encode(mask)[0]))
    selected = select_peaks(maps_with((1, 0, 0, 3.0)), CENTRES, Annotation(SIZE, weak_labels), 0.5)
    assert selected.peaks.tolist() == [[1, 3, 5], [0, 2, 4]]
    assert selected.points[0].tolist() == [60, 40]
    assert mask[0, int(selected.points[1, 1]), int(selected.points[1, 0])] == 1


def test_an_empty_annotation_has_no_peaks() -> None:
    selected = select_peaks(torch.randn(2, 4, 6), CENTRES, Annotation(SIZE), 0.5)
    assert selected.peaks.shape == (0, 3)
    assert selected.points.shape == (0, 2)


@st.composite
def annotations(draw: st.DrawFn) -> Annotation:
    weak_labels = []
    for _ in range(draw(st.integers(0, 4))):
        x0, y0 = draw(st.floats(0, 55)), draw(st.floats(0, 35))
        kind = draw(st.sampled_from(["tag", "box", "point"]))
        box = (x0, y0, draw(st.floats(x0 + 0.5, 60)), draw(st.floats(y0 + 0.5, 40)))
        weak_labels.append(
            WeakLabel(
                draw(st.integers(1, 2)),
                box=box if kind == "box" else None,
                point=(x0, y0) if kind == "point" else None,
            )
        )
    return Annotation(SIZE, tuple(weak_labels))


@given(annotations(), st.integers(0, 1000), st.floats(0, 1), st.sampled_from([0.1, 1, 50]))
def test_every_weak_label_has_a_peak_of_its_class_at_its_location(
    annotation: Annotation, seed: int, threshold: float, spread: float
) -> None:
    maps = spread * torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(seed))
    selected = select_peaks(maps, CENTRES, annotation, threshold)
    indices = selected.annotation_index.tolist()
    assert set(indices) == set(range(len(annotation)))
    for (label, _, _), (x, y), index in zip(
        selected.peaks.tolist(), selected.points.tolist(), indices, strict=True
    ):
        weak_label = annotation[index]
        assert label + 1 == weak_label.label
        if weak_label.box is not None:
            assert weak_label.box[0] - 1e-4 <= x <= weak_label.box[2] + 1e-4
            assert weak_label.box[1] - 1e-4 <= y <= weak_label.box[3] + 1e-4
            assert indices.count(index) == 1
        elif weak_label.point is not None:
            assert (x, y) == pytest.approx(weak_label.point, abs=1e-4)


def response(*blobs: tuple[int, int, float]) -> torch.Tensor:
    """A response of 20 x 30 with blobs at row and column, with a sum each."""
    values = torch.full((20, 30), 1e-6)
    for row, column, total in blobs:
        values[row - 1 : row + 2, column - 1 : column + 2] += total / 9
    return values / values.sum()


def refine(weak_label: WeakLabel, values: torch.Tensor) -> list[float]:
    """The point (3, 4), refined in an image of twice the response's resolution."""
    start = torch.tensor([[3.0, 4.0]])
    annotation = Annotation(SIZE, (weak_label,))
    return refine_peaks(start, values[None], torch.tensor([0]), annotation)[0].tolist()


def test_a_tag_moves_to_where_the_response_is_densest() -> None:
    values = response((15, 25, 0.6), (5, 10, 0.4))
    values[2, 2] = 0.08  # the maximum, but isolated
    assert float(values.max()) == pytest.approx(0.08)
    assert refine(WeakLabel(1), values) == [51, 31]


def test_points_of_a_box_stay_inside() -> None:
    values = response((15, 25, 0.6), (5, 10, 0.4))
    assert refine(WeakLabel(1, box=(0, 0, 40, 40)), values) == [21, 11]
    without_centre = WeakLabel(1, box=(4.1, 4.1, 4.2, 4.2))
    assert refine(without_centre, values) == [3, 4]


def test_annotated_points_and_masks_are_not_moved() -> None:
    values = response((15, 25, 1.0))
    mask = np.zeros((1, *SIZE), np.uint8)
    mask[0, :5, :5] = 1
    assert refine(WeakLabel(1, point=(3.0, 4.0)), values) == [3, 4]
    assert refine(WeakLabel(1, mask=masks.encode(mask)[0]), values) == [3, 4]


def test_refining_no_points() -> None:
    empty = refine_peaks(
        torch.zeros(0, 2), torch.zeros(0, 4, 4), torch.zeros(0), Annotation((8, 8))
    )
    assert empty.shape == (0, 2)


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    torch.manual_seed(0)
    net = Classifier(ClassifierArchitecture(("cat", "dog"), "tiny", size=64), "imagenet")
    torch.nn.init.normal_(net.head.weight)
    return net


def seeds_of(classifier: Classifier, annotation: Annotation, **options: Any) -> Seeds:
    pixels = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    return Seeder(classifier, SeedOptions(**options))(pixels, annotation)


def test_map_scales_change_only_the_maps(classifier: Classifier) -> None:
    labels = (WeakLabel(1), WeakLabel(2, box=(10.0, 5.0, 50.0, 30.0)))
    annotation = Annotation(SIZE, labels)
    plain = seeds_of(classifier, annotation)
    scaled = seeds_of(classifier, annotation, map_scales=(1.0, 1.5))
    for name in ("size", "labels", "points", "scores", "annotation_index", "responses"):
        before, after = getattr(plain, name), getattr(scaled, name)
        assert torch.equal(torch.as_tensor(before), torch.as_tensor(after)), name
    assert len(plain) == len(scaled) >= 2
    pixels = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    expected = ClassMapper(classifier, (64, 96), mirror=True, dense=True)(pixels)
    assert expected.shape[1:] == (16, 24)
    torch.testing.assert_close(scaled.maps, expected[scaled.labels - 1])


def test_options_of_the_maps(classifier: Classifier) -> None:
    tag = Annotation(SIZE, (WeakLabel(1),))
    plain = seeds_of(classifier, tag)
    unchanged = seeds_of(classifier, tag, mirror=False, dense=False, precision="bf16")
    assert torch.equal(unchanged.maps, plain.maps), "without map_scales they have no effect"
    single = seeds_of(classifier, tag, map_scales=(1.0,), mirror=False, dense=False)
    assert single.maps.shape[1:] == (6, 8)
    mirrored = seeds_of(classifier, tag, map_scales=(1.0,), dense=False)
    assert not torch.allclose(mirrored.maps, single.maps)
    tiny = seeds_of(classifier, tag, map_scales=(0.1,), mirror=False, dense=False)
    assert tiny.maps.shape[1:] == (4, 4), "inputs have at least 32 pixels"
    half = seeds_of(classifier, tag, map_scales=(1.0,), mirror=False, dense=False, precision="bf16")
    assert not torch.equal(half.maps, single.maps)
    torch.testing.assert_close(half.maps, single.maps, rtol=0.1, atol=0.1 * single.maps.std())
    empty = seeds_of(classifier, Annotation(SIZE), map_scales=(1.0,))
    assert (len(empty), empty.maps.shape[0]) == (0, 0)


def test_seeds_of_class_maps(classifier: Classifier) -> None:
    """The peaks and responses are those of the class maps, at the centres of equal cells."""
    annotation = Annotation(SIZE, (WeakLabel(1), WeakLabel(2)))
    seeds = seeds_of(classifier, annotation, responses="maps", map_scales=(1.0,), threshold=0.6)
    maps = ClassMapper(classifier, (64,), mirror=True, dense=True)(
        np.random.default_rng(0).integers(0, 256, (*SIZE, 3), dtype=np.uint8)
    )
    height, width = maps.shape[1:]
    is_peak = find_peaks(maps.clamp(min=0))
    expected = set()
    for label in (1, 2):
        values = maps[label - 1]
        assert float(values.max()) > 0
        for row in range(height):
            for column in range(width):
                share = float(values[row, column] / values.max())
                if share >= 0.6 and is_peak[label - 1, row, column]:
                    x, y = (column + 0.5) * SIZE[1] / width, (row + 0.5) * SIZE[0] / height
                    expected.add((label, round(x, 3), round(y, 3), round(share, 3)))
    found = zip(seeds.labels.tolist(), seeds.points.tolist(), seeds.scores.tolist(), strict=True)
    assert {
        (label, round(x, 3), round(y, 3), round(score / float(maps[label - 1].max()), 3))
        for label, (x, y), score in found
    } == expected
    for label, response, stored in zip(seeds.labels, seeds.responses, seeds.maps, strict=True):
        positive = maps[label - 1].clamp(min=0)
        torch.testing.assert_close(response, positive / positive.sum())
        torch.testing.assert_close(stored, maps[label - 1])


def test_seeds_of_class_maps_respond_inside_their_boxes(classifier: Classifier) -> None:
    box = (10.0, 5.0, 40.0, 30.0)
    labels = (WeakLabel(1, box=box), WeakLabel(2, point=(33.0, 21.0)))
    seeds = seeds_of(classifier, Annotation(SIZE, labels), responses="maps", map_scales=(1.0,))
    assert seeds.annotation_index.tolist() == [0, 1]
    assert seeds.labels.tolist() == [1, 2]
    x, y = seeds.points[0].tolist()
    assert box[0] <= x <= box[2]
    assert box[1] <= y <= box[3]
    assert seeds.points[1].tolist() == [33, 21]
    torch.testing.assert_close(seeds.responses.sum(dim=(1, 2)), torch.ones(2))
    rows, columns = seeds.responses[0].nonzero(as_tuple=True)
    height, width = seeds.responses.shape[1:]
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        assert box[0] <= (column + 0.5) * SIZE[1] / width <= box[2]
        assert box[1] <= (row + 0.5) * SIZE[0] / height <= box[3]


@pytest.mark.parametrize("responses", ["maps", "peaks"])
@pytest.mark.parametrize("bias", [0.0, -1e3])
def test_a_seed_of_a_box_without_response_is_its_peak(
    classifier: Classifier, responses: str, bias: float
) -> None:
    """Of a box that is smaller than a cell; and of one whose class map is negative everywhere."""
    other = copy.deepcopy(classifier)
    torch.nn.init.constant_(other.head.bias, bias)
    boxes = [(20.2, 20.2, 20.6, 20.6), (10.0, 5.0, 40.0, 30.0)]
    annotation = Annotation(SIZE, tuple(WeakLabel(1, box=box) for box in boxes))
    seeds = seeds_of(other, annotation, responses=responses, map_scales=(1.0,))
    height, width = seeds.responses.shape[1:]
    for box, response in zip(boxes, seeds.responses, strict=True):
        assert float(response.sum()) == pytest.approx(1)
        rows, columns = response.nonzero(as_tuple=True)
        assert box[1] - SIZE[0] / height < rows.min() * SIZE[0] / height
        assert rows.max() * SIZE[0] / height < box[3]
        assert box[0] - SIZE[1] / width < columns.min() * SIZE[1] / width
        assert columns.max() * SIZE[1] / width < box[2]
    if responses == "maps":
        assert int((seeds.responses[0] > 0).sum()) == 1


def test_peak_responses_are_cut_to_their_boxes(classifier: Classifier) -> None:
    box = (10.0, 5.0, 40.0, 30.0)
    boxed = seeds_of(classifier, Annotation(SIZE, (WeakLabel(1, box=box),)))
    assert len(boxed) == 1
    torch.testing.assert_close(boxed.responses.sum(dim=(1, 2)), torch.ones(1))
    whole = Annotation(SIZE, (WeakLabel(1, box=(0.0, 0.0, float(SIZE[1]), float(SIZE[0]))),))
    assert seeds_of(classifier, whole).responses[0, 0, 0] > 0, "a response has values everywhere"
    height, width = boxed.responses.shape[1:]
    rows, columns = boxed.responses[0].nonzero(as_tuple=True)
    down, across = SIZE[0] / height, SIZE[1] / width
    assert box[1] < (rows.min() + 1) * down
    assert rows.max() * down < box[3]
    assert box[0] < (columns.min() + 1) * across
    assert columns.max() * across < box[2]


def test_seeds_of_class_maps_without_positive_values(classifier: Classifier) -> None:
    """The peak is the maximum of the map, and the response its cell."""
    negative = copy.deepcopy(classifier)
    torch.nn.init.constant_(negative.head.bias, -1e3)
    tag = Annotation(SIZE, (WeakLabel(2),))
    seeds = seeds_of(negative, tag, responses="maps", map_scales=(1.0,))
    assert float(seeds.maps.max()) < 0
    assert len(seeds) >= 1
    assert float(seeds.scores.max()) == float(seeds.maps[0].max())
    for response, score, values in zip(seeds.responses, seeds.scores, seeds.maps, strict=True):
        assert response.nonzero().tolist() == (values == score).nonzero().tolist()
        assert float(response.sum()) == 1
    empty = seeds_of(negative, Annotation(SIZE), responses="maps", map_scales=(1.0,))
    assert (len(empty), empty.responses.shape[0]) == (0, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 8},
        {"threshold": 1.5},
        {"rule": "guided"},
        {"cell": 0},
        {"map_scales": (1.0, 0.0)},
        {"map_scales": (11.0,)},
        {"map_scales": (float("nan"),)},
        {"precision": "16"},
        {"responses": "map"},
        {"responses": "maps"},
    ],
)
def test_bad_options(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(wrong))} .*expected"):
        SeedOptions(**wrong)  # type: ignore[arg-type]


def test_the_seeds_of_tags_are_bounded() -> None:
    """Nearly flat maps, as of a classifier that has learned nothing, have hundreds of peaks."""
    maps = 1e-3 * torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    annotation = Annotation((64, 64), (WeakLabel(1), WeakLabel(2), WeakLabel(3, point=(5.0, 5.0))))
    centres = torch.arange(64) + 0.5
    _, _, index = select_peaks(maps, (centres, centres), annotation, 0.7)
    assert torch.bincount(index).tolist() == [MAX_SEEDS // 2, MAX_SEEDS // 2, 1]
