from __future__ import annotations

import json

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from annocoin import masks
from annocoin.errors import InputError

sizes = st.tuples(st.integers(1, 30), st.integers(1, 30))
binary = sizes.flatmap(lambda size: hnp.arrays(bool, size))


def naive_runs(mask: np.ndarray) -> list[int]:
    """Lengths of runs of 0, 1, 0, ... down the columns, counted pixel by pixel."""
    lengths, value = [0], False
    for pixel in mask.T.ravel().tolist():
        if pixel != value:
            lengths.append(0)
            value = pixel
        lengths[-1] += 1
    return lengths


@given(binary)
def test_encode_decode_is_exact(mask: np.ndarray) -> None:
    rles = masks.encode(mask[None])
    assert np.array_equal(masks.decode(rles, mask.shape)[0], mask)


@given(st.lists(binary, max_size=6))
def test_count_pixels_of_each_mask(drawn: list[np.ndarray]) -> None:
    counts = [masks.encode(mask[None])[0]["counts"] for mask in drawn]
    pixels, canonical = masks.count_pixels(counts)
    assert pixels.tolist() == [mask.size for mask in drawn]
    assert canonical.all()


def naive_count(text: bytes) -> int:
    """Pixels of one run-length string, read character by character; -1 if it is broken."""
    runs: list[int] = []
    value = shift = 0
    for index, code in enumerate(text):
        group = code - 48
        if not 0 <= group <= 63 or shift > 30:
            return -1
        value |= (group & 31) << shift
        shift += 5
        if group & 32:
            if index == len(text) - 1:
                return -1
            continue
        value -= (1 << shift) if group & 16 else 0
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    return sum(runs) if runs and min(runs) >= 0 else -1


strings = st.binary(max_size=12) | st.text("01234OPQ_o`n", max_size=12).map(str.encode)


@given(st.lists(strings, max_size=6))
def test_count_pixels_of_any_strings_equals_a_naive_reading(texts: list[bytes]) -> None:
    assert masks.count_pixels(texts)[0].tolist() == [naive_count(text) for text in texts]


def test_count_pixels_of_a_large_mask_with_numbers_of_many_groups() -> None:
    mask = np.zeros((1, 3000, 2000), bool)
    mask[0, 1500:, 1000] = True
    assert masks.count_pixels([masks.encode(mask)[0]["counts"]])[0].tolist() == [6_000_000]
    assert masks.all_of_size(masks.encode(mask), (3000, 2000))
    assert not masks.all_of_size(masks.encode(mask), (2000, 2000))


@given(binary)
def test_json_round_trip_in_both_rle_forms(mask: np.ndarray) -> None:
    rle = masks.encode(mask[None])[0]
    text = json.loads(json.dumps(masks.to_json(rle)))
    plain = {"size": list(mask.shape), "counts": naive_runs(mask)}
    assert masks.from_json(text, mask.shape, "here") == rle
    assert masks.from_json(plain, mask.shape, "here") == rle


@given(binary, st.data())
def test_iou_areas_and_boxes_equal_naive_ones(first: np.ndarray, data: st.DataObject) -> None:
    second = data.draw(hnp.arrays(bool, first.shape))
    rles = masks.encode(np.stack([first, second]))
    union = (first | second).sum()
    expected = (first & second).sum() / union if union else 0.0
    assert masks.iou(rles[:1], rles[1:])[0, 0] == pytest.approx(expected)
    assert masks.areas(rles).tolist() == [first.sum(), second.sum()]
    if first.any():
        rows, columns = np.nonzero(first)
        tight = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert masks.boxes(rles)[0].tolist() == tight


def test_iou_with_a_crowd_is_over_the_area_of_the_first() -> None:
    stack = np.zeros((2, 4, 4), bool)
    stack[0, 0, :2] = True
    stack[1, 0, 1:] = True
    rles = masks.encode(stack)
    assert masks.iou(rles[:1], rles[1:], [True])[0, 0] == 0.5


def test_empty_lists() -> None:
    assert masks.iou([], []).shape == (0, 0)
    assert masks.boxes([]).shape == (0, 4)
    assert masks.areas([]).shape == (0,)
    assert masks.decode([], (3, 4)).shape == (0, 3, 4)


@given(binary.filter(np.any))
def test_interior_point_lies_in_the_mask(mask: np.ndarray) -> None:
    x, y = masks.interior_point(masks.encode(mask[None])[0])
    assert mask[int(y), int(x)]


def test_polygons_become_their_filled_mask() -> None:
    square = [[1, 1, 5, 1, 5, 4, 1, 4]]
    rle = masks.from_json(square, (6, 8), "here")
    assert masks.boxes([rle])[0].tolist() == [1, 1, 5, 4]
    assert masks.areas([rle])[0] == 12


@pytest.mark.parametrize(
    ("segmentation", "expected"),
    [
        ({"size": [6, 7], "counts": "0X1"}, "size"),
        ({"size": [6, 8], "counts": "01"}, "covers 1 pixels"),
        ({"size": [6, 8], "counts": "\x01\x02"}, "broken RLE"),
        ({"size": [6, 8], "counts": "€"}, "broken RLE"),
        ({"size": [6, 8], "counts": ""}, "broken RLE"),
        ({"size": [6, 8], "counts": "oooooooooooo0"}, "broken RLE"),
        ({"size": [6, 8], "counts": [10, -2, 40]}, "broken RLE"),
        ({"size": [6, 8], "counts": [10, 2]}, "covers 12 pixels"),
        ({"size": [6, 8], "counts": [4.5, 43.5]}, "broken RLE"),
        ({"size": [6, 8], "counts": [2**40]}, "broken RLE"),
        ({"size": [6, 8], "counts": None}, "broken RLE"),
        ({"counts": "0X1"}, "expected an RLE"),
        ("mask.png", "expected an RLE"),
        ([], "empty list"),
        ([[1, 2, 3, 4]], "three or more corners"),
        ([[1, 2, 3, 4, 5]], "three or more corners"),
        ([[0, 0, 1e12, 0, 0, 1]], "near the image"),
        ([[0, 0, float("nan"), 0, 0, 1]], "near the image"),
        ([["0", "0", "1", "1", "2", "2"]], "near the image"),
    ],
)
def test_broken_segmentations_are_refused_in_one_line(segmentation: object, expected: str) -> None:
    with pytest.raises(InputError, match=expected) as caught:
        masks.from_json(segmentation, (6, 8), "file.json: entry 3")
    message = str(caught.value)
    assert message.startswith("file.json: entry 3: ")
    assert "\n" not in message


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_runs_of_length_zero_are_removed(lengths: list[int]) -> None:
    """pycocotools itself computes an IoU of 0 of such a mask with itself."""
    size = (1, max(1, sum(lengths)))
    counts = lengths if sum(lengths) else [1]
    expected = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
    rle = masks.from_json({"size": list(size), "counts": counts}, size, "here")
    assert np.array_equal(masks.decode([rle], size)[0, 0], expected)
    assert masks.all_of_size([rle], size)
    if expected.any():
        assert masks.iou([rle], [rle])[0, 0] == 1


def test_probabilities_are_refused() -> None:
    with pytest.raises(ValueError, match="threshold"):
        masks.encode(np.full((1, 4, 4), 0.3))


@given(hnp.arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 12))))
def test_polygons_along_the_edges_of_pixels_are_exact(mask: npt.NDArray[np.bool_]) -> None:
    """With parts, holes, and parts in holes; as COCO's tools read them."""
    polygons = masks.to_polygons(mask, tolerance=0)
    if not mask.any():
        assert polygons == []
        return
    flat = [polygon.ravel().tolist() for polygon in polygons]
    restored = masks.from_json(flat, mask.shape, "test")
    assert np.array_equal(masks.decode([restored], mask.shape)[0], mask)
    assert masks.iou_of_polygons(polygons, masks.encode(mask[None])[0]) == 1


def test_polygons_with_a_tolerance_have_few_corners() -> None:
    y, x = np.mgrid[:100, :120]
    disc = (x - 60) ** 2 + (y - 50) ** 2 < 40**2
    disc[45:55, 55:65] = False
    (exact,), (polygon,) = masks.to_polygons(disc, tolerance=0), masks.to_polygons(disc)
    assert len(polygon) < 0.6 * len(exact)
    iou = masks.iou_of_polygons([polygon], masks.encode(disc[None])[0])
    assert 0.97 < iou < 1
    assert masks.iou_of_polygons([], masks.encode(disc[None])[0]) == 0
