"""Predictions for Label Studio, read back by a plain implementation of its run lengths."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from annocoin import masks
from annocoin.data.conversion import write_dataset
from annocoin.data.dataset import LabelledImage, LabelledImages
from annocoin.data.formats.labelstudio import brush_rle
from annocoin.errors import InputError
from annocoin.types import Annotation, WeakLabel


def decode(rle: list[int]) -> list[int]:
    """The values of a bit stream, one bit after the other."""
    bits = "".join(f"{byte:08b}" for byte in rle)
    position = 0

    def read(count: int) -> int:
        nonlocal position
        position += count
        return int(bits[position - count : position], 2)

    number, word = read(32), read(5) + 1
    sizes = [read(4) + 1 for _ in range(4)]
    values: list[int] = []
    while len(values) < number:
        is_run = read(1)
        count = read(sizes[read(2)]) + 1
        values += [read(word)] * count if is_run else [read(word) for _ in range(count)]
    return values


@given(hnp.arrays(bool, st.tuples(st.integers(1, 9), st.integers(1, 9))))
def test_brushes_are_exact(mask: npt.NDArray[np.bool_]) -> None:
    assert decode(brush_rle(mask)) == np.repeat(255 * mask.ravel(), 4).tolist()


def test_long_runs_are_split() -> None:
    mask = np.zeros((200, 200), bool)
    mask[150:] = True
    values = np.asarray(decode(brush_rle(mask))).reshape(200, 200, 4)
    assert np.array_equal(values[:, :, 3] == 255, mask)


def labelled() -> LabelledImages:
    mask = np.zeros((1, 40, 80))
    mask[0, 10:20, 20:60] = mask[0, 30:35, :5] = 1
    rle = masks.encode(mask)[0]
    weak_labels = (
        WeakLabel(2, mask=rle, score=1.0, confidence=0.75),
        WeakLabel(1, mask=rle, score=0.5),
        WeakLabel(1),
    )
    image = LabelledImage("a", "sub dir/a.jpg", None, Annotation((40, 80), weak_labels))
    return LabelledImages.of(("cat", "dog"), [image])


def test_tasks_with_brushes(tmp_path: Path) -> None:
    loss = write_dataset(labelled(), tmp_path / "l.json", "labelstudio")
    assert loss.lines() == ["1 tag labels left out: the format cannot hold them"]
    (task,) = json.loads((tmp_path / "l.json").read_text())
    assert task["data"] == {"image": "/data/local-files/?d=sub%20dir/a.jpg"}
    (prediction,) = task["predictions"]
    assert prediction["score"] == 0.5
    first, second = prediction["result"]
    assert (first["score"], second["score"]) == (0.75, 0.5)
    assert (first["type"], first["value"]["brushlabels"]) == ("brushlabels", ["dog"])
    assert (first["from_name"], first["to_name"]) == ("label", "image")
    assert (first["original_width"], first["original_height"]) == (80, 40)
    assert first["id"] != second["id"]
    alpha = np.asarray(decode(first["value"]["rle"])).reshape(40, 80, 4)[:, :, 3]
    assert (alpha > 0).sum() == 10 * 40 + 5 * 5


def test_tasks_with_polygons(tmp_path: Path) -> None:
    write_dataset(labelled(), tmp_path / "l.json", "labelstudio", polygons=True)
    (task,) = json.loads((tmp_path / "l.json").read_text())
    parts = [result["value"] for result in task["predictions"][0]["result"][:2]]
    assert sorted(sorted(part["points"]) for part in parts) == [
        [[0, 75], [0, 87.5], [6.25, 75], [6.25, 87.5]],  # percent of the image
        [[25, 25], [25, 50], [75, 25], [75, 50]],
    ]
    assert [part["polygonlabels"] for part in parts] == [["dog"]] * 2


def test_coco_with_polygons(tmp_path: Path) -> None:
    loss = write_dataset(labelled(), tmp_path / "c.json", "coco", polygons=True)
    assert loss.ious == [1, 1]  # rectangles are exact
    annotations = json.loads((tmp_path / "c.json").read_text())["annotations"]
    assert [len(a.get("segmentation", [])) for a in annotations] == [2, 2, 0]
    assert annotations[0]["area"] == 10 * 40 + 5 * 5


def test_names_of_outputs(tmp_path: Path) -> None:
    for to, name, polygons, message in (
        ("labelstudio", "folder", False, "labelstudio is one file"),
        ("voc", "m1.json", False, "voc is a folder; give a name that does not end in .json"),
        ("yolo", "m1.json", False, "yolo is a folder"),
        ("voc", "v", True, "--polygons: not for voc; expected coco or labelstudio"),
    ):
        with pytest.raises(InputError, match=message):
            write_dataset(labelled(), tmp_path / name, to, polygons=polygons)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
