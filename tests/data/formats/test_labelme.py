"""labelme, a small example, and files that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from annocoin import masks
from annocoin.data.conversion import write_dataset
from annocoin.data.dataset import LabelledImage, LabelledImages
from annocoin.data.loading import load_labelled
from annocoin.errors import InputError
from annocoin.types import Annotation, WeakLabel
from pictures import picture


@pytest.fixture
def labelme(tmp_path: Path) -> Path:
    picture(tmp_path / "lm" / "a.jpg")
    shapes = [
        {"label": "dog", "shape_type": "rectangle", "points": [[12, 8], [2, 1]]},
        {"label": "cat", "shape_type": "polygon", "points": [[1, 1], [4, 1], [4, 4], [1, 4]]},
        {"label": "cat", "shape_type": "point", "points": [[3, 3]]},
    ]
    content = {"flags": {"sky": True, "sea": False}, "shapes": shapes, "imagePath": "a.jpg"}
    (tmp_path / "lm" / "a.json").write_text(json.dumps(content))
    return tmp_path / "lm"


def test_labelme_shapes_and_flags(labelme: Path) -> None:
    labelled = load_labelled(labelme)
    assert labelled.classes == ("cat", "dog", "sky")
    tag, box, polygon, point = labelled[0].annotation
    assert (tag, box) == (WeakLabel(3), WeakLabel(2, box=(2, 1, 12, 8)))
    assert masks.boxes([polygon.mask]).tolist() == [[1, 1, 5, 5]]  # type: ignore[list-item]
    assert point == WeakLabel(1, point=(3, 3))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"imagePath": "../a.jpg"}, "a name inside"),
        ({"imagePath": "b.jpg"}, "no such image"),
        ({"shapes": [{"label": "x", "points": [[1, 1]], "flags": ["a"]}]}, "with 1 points"),
        ({"imagePath": None}, "expected str"),
        ({"shapes": [{"label": "x", "shape_type": "circle", "points": [[1, 1]]}]}, "circle"),
        ({"shapes": [{"label": "x", "points": [[1, 1, 1]]}]}, "expected"),
        ({"shapes": [{"label": "x", "points": [[1, 1], [2, "b"], [3, 3]]}]}, "finite"),
        ({"shapes": [{"label": "x", "points": [[1, 1], [2, 1e30], [3, 3]]}]}, "far outside"),
        ({"shapes": [{"points": [[1, 1]]}]}, "no 'label'"),
        ({"shapes": [{"label": "x", "points": [[99, 99], [98, 98], [97, 99]]}]}, "outside"),
        (
            {
                "shapes": [
                    {"label": "x", "shape_type": "mask", "points": [[0, 0], [1, 1]], "mask": "!"}
                ]
            },
            "broken mask",
        ),
        (
            {
                "shapes": [
                    {"label": "x", "shape_type": "mask", "points": [[0, 0], [1, 1]], "mask": "é"}
                ]
            },
            "broken mask",
        ),
        (
            {
                "shapes": [
                    {"label": "x", "shape_type": "mask", "points": [[0, 0], [1, 1]], "mask": "aaaa"}
                ]
            },
            "mask: not an image",
        ),
    ],
)
def test_bad_labelme_is_one_clear_line(
    labelme: Path, change: dict[str, Any], expected: str
) -> None:
    content = json.loads((labelme / "a.json").read_text()) | change
    (labelme / "a.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=expected) as caught:
        load_labelled(labelme)
    assert "\n" not in str(caught.value)


def test_the_confidence_is_in_the_description(tmp_path: Path) -> None:
    """labelme shows it in the dialog of a shape."""
    picture(tmp_path / "a.jpg")
    labels = (
        WeakLabel(1, box=(1, 2, 5, 6), score=1.0, confidence=0.755),
        WeakLabel(1, box=(1, 2, 5, 6), score=0.5),
        WeakLabel(1, box=(1, 2, 5, 6)),
    )
    image = LabelledImage("a", "a.jpg", tmp_path / "a.jpg", Annotation((10, 20), labels))
    write_dataset(LabelledImages.of(["cat"], [image]), tmp_path / "out", "labelme")
    shapes = json.loads((tmp_path / "out" / "a.json").read_text())["shapes"]
    texts = [shape["description"] for shape in shapes]
    assert texts in (["confidence 0.76", "score 0.50", ""], ["confidence 0.75", "score 0.50", ""])
    assert [label.confidence for label in load_labelled(tmp_path / "out")[0].annotation] == [
        0.755, None, None,
    ]  # fmt: skip
