from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from annocoin import masks
from annocoin.data.conversion import write_dataset
from annocoin.data.dataset import LabelledImages
from annocoin.data.loading import load_labelled
from annocoin.data.predictions import read_predictions
from annocoin.errors import InputError, Problems


@pytest.fixture
def labelled(scenes: Path) -> LabelledImages:
    return load_labelled(scenes)


def entries(labelled: LabelledImages) -> list[dict[str, Any]]:
    """The truth of two images as COCO results, scores falling; the first two are of one image."""
    found: list[dict[str, Any]] = []
    several = [image for image in labelled if len(image.annotation) > 1]
    for image in several[:2]:
        for weak_label in image.annotation:
            assert weak_label.mask is not None
            found.append(
                {
                    "image_id": image.image_id,
                    "category_id": weak_label.label,
                    "segmentation": masks.to_json(weak_label.mask),
                    "score": 1 - len(found) / 10,
                }
            )
    return found


def test_results_without_box_have_tight_ones(labelled: LabelledImages, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps(entries(labelled)))
    found = read_predictions(tmp_path / "r.json", labelled)
    assert len(found) == 2
    image = next(image for image in labelled if image.image_id in found)
    assert found[image.image_id].masks == image.annotation.masks
    assert found[image.image_id].boxes.tolist() == image.annotation.boxes.tolist()


def test_a_coco_dataset_serves_as_predictions(labelled: LabelledImages, tmp_path: Path) -> None:
    write_dataset(labelled, tmp_path / "d.json", "coco")
    found = read_predictions(tmp_path / "d.json", labelled)
    for image in labelled:
        assert found[image.image_id] == image.annotation.instances()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda e: e.update(score=float("nan")), "score is nan"),
        (lambda e: e.update(score=float("inf")), "score is inf"),
        (lambda e: e.update(score=None), "score is None"),
        (lambda e: e.update(score=True), "score is True"),
        (lambda e: e.pop("score"), "no 'score'"),
        (lambda e: e.update(image_id="nobody"), "'nobody' is not in the dataset"),
        (lambda e: e.update(image_id=[1]), "not in the dataset"),
        (lambda e: e.update(category_id=7), "category_id 7"),
        (lambda e: e.update(category_id=0), "category_id 0"),
        (lambda e: e.pop("segmentation"), "no 'segmentation'"),
        (lambda e: e.update(segmentation={"size": [9, 9], "counts": "Q2"}), "RLE of size"),
        (lambda e: e.update(segmentation={"size": [64, 64], "counts": "Q2"}), "covers 65 pixels"),
        (lambda e: e.update(bbox=[1, 2]), "expected x, y, width, height"),
        (lambda e: e.update(bbox=[1, 2, 3, "x"]), "finite"),
        (lambda e: e.update(id=5), "id 5 occurs twice"),
        (lambda e: e.update(label_confidence="high"), "label_confidence is 'high'"),
    ],
)
@pytest.mark.parametrize("form", ["file", "folder"])
def test_bad_entries_are_refused_or_skipped(
    labelled: LabelledImages,
    tmp_path: Path,
    damage: Callable[[dict[str, Any]], object],
    expected: str,
    form: str,
) -> None:
    content = entries(labelled)
    if "twice" in expected:
        content[0]["id"] = 5
    damage(content[1])
    path = tmp_path / "r.json"
    if form == "folder":
        path = tmp_path / "r"
        path.mkdir()
        if content[1]["image_id"] != content[0]["image_id"]:
            return  # in a folder the image_id stands for the whole file
        first = [e for e in content if e["image_id"] == content[0]["image_id"]]
        whole = {"image_id": content[0]["image_id"], "instances": first}
        (path / "x.json").write_text(json.dumps(whole))
        content = first
    else:
        path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=expected) as caught:
        read_predictions(path, labelled)
    assert "\n" not in str(caught.value)
    problems = Problems(skip=True)
    found = read_predictions(path, labelled, problems)
    assert sum(len(instances) for instances in found.values()) == len(content) - 1
    assert len(problems.skipped) == 1


@pytest.mark.parametrize("content", ["{}", "3", "[3]", "[", '[{"a": 1}]'])
def test_what_is_no_prediction_file(labelled: LabelledImages, tmp_path: Path, content: str) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(InputError, match=r"r\.json"):
        read_predictions(tmp_path / "r.json", labelled)


def test_folders_without_files_or_with_an_image_twice(
    labelled: LabelledImages, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="no prediction files"):
        read_predictions(tmp_path, labelled)
    for name in ("a", "b"):
        content = {"image_id": labelled[0].image_id, "instances": entries(labelled)[:1]}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match="occurs twice"):
        read_predictions(tmp_path, labelled)


def test_an_empty_list_is_no_predictions(labelled: LabelledImages, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("[]")
    assert read_predictions(tmp_path / "r.json", labelled) == {}
