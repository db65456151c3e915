"""COCO, a small example, and files that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from annocoin import masks
from annocoin.data.loading import load_evaluation, load_labelled, load_weak
from annocoin.errors import InputError
from annocoin.types import WeakLabel
from pictures import picture


def coco_content() -> dict[str, Any]:
    return {
        "images": [{"id": 7, "file_name": "sub/a.jpg", "height": 10, "width": 20}],
        "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}],
        "annotations": [
            {
                "id": 1,
                "image_id": 7,
                "category_id": 18,
                "bbox": [2, 3, 4, 5],
                "segmentation": [[2, 3, 6, 3, 6, 8, 2, 8]],
                "iscrowd": 0,
            },
            {
                "id": 2,
                "image_id": 7,
                "category_id": 3,
                "bbox": [0, 0, 20, 10],
                "segmentation": {"size": [10, 20], "counts": [0, 200]},
                "iscrowd": 1,
            },
        ],
    }


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    picture(tmp_path / "images" / "sub" / "a.jpg")
    (tmp_path / "a.json").write_text(json.dumps(coco_content()))
    return tmp_path / "a.json"


def test_coco_classes_go_by_rising_id(coco: Path) -> None:
    labelled = load_labelled(coco, images=coco.parent / "images")
    assert (labelled.classes, labelled.category_ids) == (("car", "dog"), (3, 18))
    first, second = labelled[0].annotation
    assert (first.label, first.box, first.crowd) == (2, (2, 3, 6, 8), False)
    assert (second.label, second.crowd) == (1, True)
    assert masks.areas([first.mask, second.mask]).tolist() == [20, 200]  # type: ignore[list-item]
    assert labelled[0].image_id == 7


def test_an_empty_box_beside_a_mask_is_ignored(coco: Path) -> None:
    content = coco_content()
    content["annotations"][0]["bbox"] = [2, 3, 4, 0]
    coco.write_text(json.dumps(content))
    assert load_labelled(coco)[0].annotation[0].box is None
    content["annotations"][1]["iscrowd"] = 0
    coco.write_text(json.dumps(content))
    weak = load_weak(coco, "box", images=coco.parent / "images")
    assert weak[0].annotation.kinds == ("tag", "box")  # masks are not read for boxes


def test_coco_crowds_are_tags_for_training(coco: Path) -> None:
    weak = load_weak(coco, "box", images=coco.parent / "images")
    assert weak[0].annotation.weak_labels == (WeakLabel(2, box=(2, 3, 6, 8)), WeakLabel(1))


def changed(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["annotations"][0].update(fields)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda c: c.pop("images"), "no 'images'"),
        (lambda c: c.update(images=[]), "which is not among the images"),
        (lambda c: c["images"].append(dict(c["images"][0])), "image id 7 occurs twice"),
        (lambda c: c["annotations"].append(dict(c["annotations"][0])), "id 1 occurs twice"),
        (lambda c: c["categories"].append({"id": 3, "name": "x"}), "3 occurs twice"),
        (lambda c: c["categories"].append({"id": 4, "name": "car"}), "'car' occurs twice"),
        (lambda c: c["categories"].append({"name": "x"}), "no 'id'"),
        (lambda c: c["images"][0].update(file_name="../a.jpg"), "a name inside"),
        (lambda c: c["images"][0].update(file_name="/a.jpg"), "a name inside"),
        (lambda c: c["images"][0].update(file_name="b.jpg"), "no such image"),
        (lambda c: c["images"][0].update(file_name=3), "expected str"),
        (lambda c: c["images"][0].update(height=11), "says 11 x 20"),
        (lambda c: c["images"][0].update(height=-1), "expected whole numbers"),
        (lambda c: c["images"][0].update(height=10**9), "at most"),
        (lambda c: c["images"][0].update(id=[1]), "expected a whole number or a text"),
        (changed(category_id=4), "category_id 4"),
        (changed(category_id="dog"), "expected int"),
        (changed(image_id=8), "image 8"),
        (changed(bbox=[1, 2, 3]), "expected x, y, width, height"),
        (changed(bbox=[1, 2, float("nan"), 4]), "finite"),
        (changed(bbox="1 2 3 4"), "expected list"),
        (changed(bbox=[30, 30, 5, 5]), "empty or outside"),
        (changed(bbox=[3, 3, 0, 5], segmentation=None), "empty or outside"),
        (changed(segmentation={"size": [5, 5], "counts": [25]}), "RLE of size"),
        (changed(segmentation={"size": [10, 20], "counts": [25]}), "covers 25 pixels"),
        (changed(score=float("inf")), "finite"),
        (lambda c: c["annotations"].append(3), "expected an object"),
    ],
)
def test_bad_coco_is_one_clear_line(
    coco: Path, damage: Callable[[dict[str, Any]], object], expected: str
) -> None:
    content = coco_content()
    damage(content)
    coco.write_text(json.dumps(content))
    with pytest.raises(InputError, match=expected) as caught:
        load_evaluation(coco, images=coco.parent / "images")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1, 2", "[]", '"x"', "\x00", "[" * 100_000])
def test_what_is_no_coco_file(coco: Path, text: str) -> None:
    coco.write_text(text)
    with pytest.raises(InputError, match=r"a\.json: "):
        load_evaluation(coco)
