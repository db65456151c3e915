"""Drawing of labels, and grids of pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from annocoin import masks
from annocoin.errors import InputError
from annocoin.report.overlay import draw, draw_text, label_text, save, sheet
from annocoin.types import Annotation, WeakLabel

GREY = np.full((40, 60, 3), 100, np.uint8)


def test_each_kind_of_label_is_drawn_at_its_location() -> None:
    dense = np.zeros((1, 40, 60))
    dense[0, 20:38, 5:30] = 1
    for weak_label, y, x in (
        (WeakLabel(1, mask=masks.encode(dense)[0]), 36, 7),
        (WeakLabel(1, box=(30, 10, 58, 38)), 37, 40),
        (WeakLabel(1, point=(50, 30)), 30, 50),
        (WeakLabel(1), 3, 4),
    ):
        picture = draw(GREY, Annotation((40, 60), (weak_label,)), ["c"])
        assert picture.shape == GREY.shape
        assert (picture[y, x] != 100).any(), weak_label.kind
        assert (picture[5, 58] == 100).all()
    assert (GREY == 100).all()  # the input is not changed


def test_the_caption_is_in_the_lower_left_corner() -> None:
    plain = draw(GREY, Annotation((40, 60)), [])
    assert (plain == GREY).all()
    rows, columns = np.nonzero((draw(GREY, Annotation((40, 60)), [], caption="c") != GREY).any(2))
    assert rows.min() > 20
    assert columns.max() < 30


def test_scale_and_sheet_sizes() -> None:
    large = draw(GREY, Annotation((40, 60)), [], scale=2)
    assert large.shape == (80, 120, 3)
    grid = sheet([large, GREY, GREY], 2, gap=6)
    assert grid.shape == (2 * 86 + 6, 2 * 126 + 6, 3)
    assert (grid[6:86, 6:126] == large).all()


def test_pictures_are_saved_as_rgb(tmp_path: Path) -> None:
    red = np.zeros((4, 4, 3), np.uint8)
    red[:, :, 0] = 255
    save(red, tmp_path / "a.png")
    assert np.array_equal(np.asarray(Image.open(tmp_path / "a.png")), red)
    with pytest.raises(InputError, match=r"\.png or \.jpg"):
        save(red, tmp_path / "a.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_boxes_and_points_can_be_seen_on_large_images() -> None:
    """Lines of at least two pixels, three on a side of 480."""
    image = np.full((480, 640, 3), 100, np.uint8)
    box = draw(image, Annotation((480, 640), (WeakLabel(1, box=(100, 100, 400, 400)),)), ["c"])
    changed = (box != image).any(axis=2)
    assert changed[300, 98:106].tolist() == [False, False, True, True, True, False, False, False]
    assert changed[100, 390:402].sum() == 10  # the right edge stays exclusive
    point = draw(image, Annotation((480, 640), (WeakLabel(1, point=(300, 200)),)), ["c"])
    assert (point != image).any(axis=2)[200, :300].sum() >= 6


def test_colours_by_class_are_the_same_in_pictures_that_are_compared() -> None:
    first, second = WeakLabel(1, point=(20, 20)), WeakLabel(2, point=(40, 20))
    one = draw(GREY, Annotation((40, 60), (first, second)), ["", ""], by_class=True)
    other = draw(GREY, Annotation((40, 60), (second, first)), ["", ""], by_class=True)
    assert (one == other).all()
    assert (one[20, 20] != one[20, 40]).any()
    swapped = draw(GREY, Annotation((40, 60), (second, first)), ["", ""])
    assert (swapped != draw(GREY, Annotation((40, 60), (first, second)), ["", ""])).any()


def test_texts_do_not_cover_each_other() -> None:
    canvas = np.full((60, 200, 3), 100, np.uint8)
    taken: list[tuple[int, int, int, int]] = []
    for number in range(20):
        draw_text(canvas, f"label {number}", 10 + number, 20, 0.4, taken=taken)
    assert 2 <= len(taken) < 20  # some have no space
    pixels = np.zeros(canvas.shape[:2], int)
    for x0, y0, x1, y1 in taken:
        pixels[y0:y1, x0:x1] += 1
    assert pixels.max() == 1
    assert taken[0][1] == 20  # the first one was not moved


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({}, "dog"),
        ({"score": 0.456}, "dog 0.46"),
        ({"score": 0.999, "confidence": 0.25}, "dog 0.25"),
        ({"score": 1.0}, "dog"),
    ],
)
def test_the_text_of_a_label_has_its_confidence_or_score(
    numbers: dict[str, float], expected: str
) -> None:
    label = WeakLabel(2, mask=masks.encode(np.ones((1, 4, 4), bool))[0], **numbers)
    assert label_text(label, ("cat", "dog")) == expected
