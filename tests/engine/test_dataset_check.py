"""The summary of a dataset, what looks wrong in it, and the advice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from annocoin.data.dataset import LabelledImage, LabelledImages, weak_dataset
from annocoin.engine import dataset_check
from annocoin.engine.dataset_check import (
    advise_preset,
    advise_supervision,
    check_dataset,
    similar_names,
)
from annocoin.masks import encode
from annocoin.types import Annotation, WeakLabel

MASK = encode(torch.ones(1, 40, 60).numpy())[0]


def dataset(classes: tuple[str, ...], *images: tuple[WeakLabel, ...]) -> LabelledImages:
    """Images of 40 x 60 with these labels, each twenty times, so that no class is small."""
    listed = [
        LabelledImage(f"{i}-{k}", f"{i}-{k}.jpg", Path("x.jpg"), Annotation((40, 60), labels))
        for i, labels in enumerate(images)
        for k in range(20)
    ]
    return LabelledImages.of(classes, listed)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"Person": 9, "person": 9}, [("Person", "person")]),
        ({"dining table": 9, "diningtable": 9}, [("dining table", "diningtable")]),
        ({"persn": 1, "person": 2}, [("persn", "person")]),
        ({"perosn": 9, "person": 9}, [("perosn", "person")]),
        ({"dog": 9, "dogs": 9}, [("dog", "dogs")]),
        ({"house": 9, "mouse": 9}, []),
        ({"house": 99, "mouse": 1}, [("house", "mouse")]),
        ({"cat": 99, "car": 1, "bus": 3}, []),
        ({"a": 1, "b": 1, "": 1}, []),
        ({"犬": 3, "猫": 3, "犬 ": 3}, [("犬", "犬 ")]),
    ],
)
def test_names_that_may_be_one_class(
    counts: dict[str, int], expected: list[tuple[str, str]]
) -> None:
    assert similar_names(counts) == expected


def test_the_classes_of_voc_and_many_others_are_not_similar() -> None:
    from annocoin.data.formats.voc import CLASSES

    assert similar_names(dict.fromkeys(CLASSES, 5)) == []


def test_a_summary_counts_images_labels_and_kinds() -> None:
    box = WeakLabel(2, box=(0, 0, 5, 5))
    labelled = dataset(("cat", "dog"), (WeakLabel(1), box, box), (WeakLabel(2, point=(3, 3)),), ())
    summary = check_dataset(labelled)
    assert (summary.images, summary.unlabelled) == (60, 20)
    assert summary.images_by_class == {"cat": 20, "dog": 40}
    assert summary.labels_by_class == {"cat": 20, "dog": 60}
    assert summary.kinds == {"tag": 20, "point": 20, "box": 40, "mask": 0}
    assert summary.lines() == [
        "60 images: 60 x 40 pixels; 20 without a label",
        "labels: 20 tags, 20 points, 40 boxes",
    ]
    assert summary.warnings == ()
    assert check_dataset(weak_dataset(labelled, "box")).kinds["box"] == 40


def test_what_looks_wrong_is_one_line_each() -> None:
    clipped = WeakLabel(1, box=(50, 0, 60, 5), clipped=0.4)
    good = WeakLabel(1, box=(0, 0, 5, 5), clipped=0.05)
    labelled = dataset(("cat", "Cat", "cat, dog"), (clipped, good), (WeakLabel(3),))
    tiny = LabelledImage("t", "t.jpg", None, Annotation((10, 60)))
    labelled = LabelledImages.of(labelled.classes, [*labelled.images, tiny])
    similar, listed, boxes, sizes, few = check_dataset(labelled).warnings
    assert similar.startswith("warning: classes 'Cat' (0 images) and 'cat' (20): two classes, or")
    assert "class 'cat, dog': one class, or a list?" in listed
    assert "20 of 40 boxes lie by more than 10 % outside the image, such as 40 %" in boxes
    assert "1 image with a side of less than 32 pixels, such as t.jpg" in sizes
    assert "fewer than 20 images of Cat (0)" in few
    (empty,) = (w for w in check_dataset(dataset(("cat",), ())).warnings if "no image" in w)
    assert empty == "warning: no image has a label"


@pytest.mark.parametrize(
    ("labels", "kind", "expected"),
    [
        ((WeakLabel(1),), "folder", "image"),
        ((), "folder", "image"),
        ((WeakLabel(1, box=(0, 0, 5, 5)),), "coco", "box"),
        ((WeakLabel(1, point=(1, 1)),), "coco", "point"),
        ((WeakLabel(1), WeakLabel(1, box=(0, 0, 5, 5))), "coco", "mixed"),
        ((WeakLabel(1, mask=MASK),), "voc", "mask"),
        ((WeakLabel(1, mask=MASK), WeakLabel(1, box=(0, 0, 5, 5))), "voc", "box"),
        ((WeakLabel(1, mask=MASK), WeakLabel(1, box=(0, 0, 5, 5))), "coco", "mixed"),
    ],
)
def test_advice_on_supervision(labels: tuple[WeakLabel, ...], kind: Any, expected: str) -> None:
    assert advise_supervision(check_dataset(dataset(("cat",), labels)), kind) == expected


def test_advice_on_the_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    photographs: Any = SimpleNamespace(median=(375, 500))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(dataset_check, "has_bfloat16", lambda: True)
    assert advise_preset(photographs) == ("voc-cpu", "bf16-mixed")
    monkeypatch.setattr(dataset_check, "has_bfloat16", lambda: False)
    assert advise_preset(photographs) == ("voc-cpu", "32-true")
    small: Any = SimpleNamespace(median=(128, 128))
    assert advise_preset(small) == ("synthetic", "32-true")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert advise_preset(photographs) == ("voc-r50", "32-true")
