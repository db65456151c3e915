"""YOLO, a small example, and files that are refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from annocoin import masks
from annocoin.data.loading import load_labelled
from annocoin.errors import InputError
from annocoin.types import WeakLabel
from pictures import picture


@pytest.fixture
def yolo(tmp_path: Path) -> Path:
    root = tmp_path / "yolo"
    picture(root / "images" / "train" / "a.jpg")
    picture(root / "images" / "train" / "empty.jpg")
    (root / "labels" / "train").mkdir(parents=True)
    lines = "1 0.5 0.5 0.2 0.4\n0 0.1 0.1 0.3 0.1 0.3 0.5 0.1 0.5\n"
    (root / "labels" / "train" / "a.txt").write_text(lines)
    (root / "data.yaml").write_text("train: images/train\nnames: [cat, dog]\n")
    return root


def test_yolo_boxes_polygons_and_images_without_labels(yolo: Path) -> None:
    labelled = load_labelled(yolo, split="train")
    box, polygon = labelled[0].annotation
    assert box == WeakLabel(2, box=pytest.approx((8, 3, 12, 7)))
    assert polygon.label == 1
    assert masks.boxes([polygon.mask]).tolist() == [[2, 1, 7, 6]]  # type: ignore[list-item]
    assert len(labelled[1].annotation) == 0


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("labels/train/a.txt", "2 0.5 0.5 0.2 0.4", "expected 0 to 1"),
        ("labels/train/a.txt", "0 0.5 0.5 0.2", "4 numbers"),
        ("labels/train/a.txt", "0 0.5 0.5 0.2 x", "finite"),
        ("labels/train/a.txt", "0 50 50 20 20", "from 0 to 1"),
        ("data.yaml", "names: [cat]\ntrain: ../..", "inside"),
        ("data.yaml", "names: [cat]\ntrain: /etc", "inside"),
        ("data.yaml", "names: [cat]\ntrain: nowhere", "no folder 'nowhere'"),
        ("data.yaml", "names: {a: cat, 1: dog}\ntrain: images/train", "expected a list"),
        ("data.yaml", "names: 2024-13-45\ntrain: images/train", "broken YAML"),
        ("data.yaml", "names: {0: cat, 2: dog}\ntrain: images/train", "expected a list"),
        ("data.yaml", "train: images/train", "no 'names'"),
        ("data.yaml", "a: [", "broken YAML"),
        ("data.yaml", "!!python/object/apply:os.system [ls]", "broken YAML"),
        ("data.yaml", "names: [cat]\nval: images/train", "no split 'train'"),
    ],
)
def test_bad_yolo_is_one_clear_line(yolo: Path, file: str, text: str, expected: str) -> None:
    (yolo / file).write_text(text)
    with pytest.raises(InputError, match=expected) as caught:
        load_labelled(yolo, split="train")
    assert "\n" not in str(caught.value)


def test_the_layout_of_other_yolo_tools(yolo: Path) -> None:
    (yolo / "train").mkdir()
    shutil.move(yolo / "images" / "train", yolo / "train" / "images")
    shutil.move(yolo / "labels" / "train", yolo / "train" / "labels")
    (yolo / "data.yaml").write_text("train: ../train/images\nnames: [cat, dog]\n")
    assert [len(image.annotation) for image in load_labelled(yolo)] == [2, 0]
