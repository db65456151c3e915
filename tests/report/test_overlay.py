"""Drawing of labels, and grids of pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from annocoin import masks
from annocoin.errors import InputError
from annocoin.report.overlay import draw, save, sheet
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
