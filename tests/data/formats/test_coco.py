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


def with_annotations(coco: Path, *annotations: dict[str, Any]) -> Path:
    """The file with these annotations of its image."""
    content = coco_content()
    content["annotations"] = [
        {"id": number, "image_id": 7, "category_id": 18, **annotation}
        for number, annotation in enumerate(annotations)
    ]
    coco.write_text(json.dumps(content))
    return coco


def test_tags_and_points_of_coco(coco: Path) -> None:
    three = [1, 1, 2, 9, 1, 2, 4, 2, 2, 0, 0, 0, 19, 9, 1]  # visible at x 1, 9 and 4
    with_annotations(
        coco,
        {},
        {"bbox": [], "segmentation": []},
        {"bbox": [], "point": [3, 4]},
        {"keypoints": [5.5, 6, 2]},
        {"keypoints": three, "bbox": [0, 0, 0, 0]},
        {"keypoints": [0, 0, 0], "bbox": [1, 1, 4, 4]},
        {"point": [3, 4], "keypoints": three, "bbox": [1, 1, 4, 4]},
    )
    annotation = load_labelled(coco)[0].annotation
    assert annotation.kinds == ("tag", "tag", "point", "point", "point", "box", "box")
    points = [label.point for label in annotation]
    assert points == [None, None, (3, 4), (5.5, 6), (4, 2), None, (3, 4)]
    weak = load_weak(coco, "point", images=coco.parent / "images")
    assert weak[0].annotation.kinds == ("tag", "tag", "point", "point", "point", "tag", "point")
    with_annotations(coco, {"keypoints": [1, 2]})
    with pytest.raises(InputError, match="expected x, y, visibility"):
        load_labelled(coco)


def test_boxes_as_corners_are_refused(coco: Path) -> None:
    """Images of 10 x 20: as x, y, width, height the first box would end at 30, 14."""
    with_annotations(coco, {"bbox": [12, 5, 18, 9]}, {"bbox": [1, 2, 4, 5]})
    with pytest.raises(InputError, match=r"look like x0, y0, x1, y1; expected x, y, width, height"):
        load_labelled(coco)
    with_annotations(coco, {"bbox": [12, 5, 18, 9]}, {"bbox": [9, 2, 4, 5]})  # not all: clipped
    first, second = load_labelled(coco)[0].annotation
    assert (first.box, first.clipped) == ((12, 5, 20, 10), pytest.approx(1 - 8 * 5 / (18 * 9)))
    assert second.clipped == 0
    with_annotations(coco, {"bbox": [0, 0, 20, 10]})  # the whole image is right in both
    assert load_labelled(coco)[0].annotation[0].box == (0, 0, 20, 10)


@pytest.fixture
def coco_folder(coco: Path) -> Path:
    root = coco.parent / "COCO"
    for split, images in (("train2017", "train2017"), ("val2017", "images/val2017")):
        picture(root / images / "sub" / "a.jpg")
        (root / "annotations").mkdir(exist_ok=True)
        (root / "annotations" / f"instances_{split}.json").write_text(coco.read_text())
    return root


def test_a_folder_in_cocos_layout(coco_folder: Path) -> None:
    for split in ("train2017", "val2017"):
        weak = load_weak(coco_folder, "box", split=split)
        assert split in weak[0].path.parts
        assert len(weak[0].annotation) == 2
    with pytest.raises(InputError, match="has train2017, val2017; select one with --split"):
        load_weak(coco_folder)
    with pytest.raises(InputError, match="no split 'test'; expected one of train2017, val2017"):
        load_weak(coco_folder, split="test")
    (coco_folder / "annotations" / "instances_val2017.json").unlink()
    assert len(load_weak(coco_folder)) == 1


def test_the_annotations_of_coco_are_not_labelme(coco_folder: Path) -> None:
    with pytest.raises(InputError, match=r"COCO annotations; expected the folder above it"):
        load_weak(coco_folder / "annotations")
    file = coco_folder / "annotations" / "instances_val2017.json"
    file.rename(coco_folder / "labels.json")
    for path in coco_folder.glob("annotations/*"):
        path.unlink()
    with pytest.raises(InputError, match=r"labels.json: a COCO file in a folder that was read"):
        load_weak(coco_folder)
    with pytest.raises(InputError, match=r"no annotations/instances_\*.json in it"):
        load_weak(coco_folder, kind="coco")


def test_a_missing_file_is_not_broken_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^\S*nope.json: no such file$"):
        load_labelled(tmp_path / "nope.json", kind="coco")
