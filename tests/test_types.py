from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from annocoin import masks
from annocoin.errors import InputError
from annocoin.types import Annotation, Instances, WeakLabel


def three() -> Instances:
    dense = torch.zeros(3, 6, 8)
    dense[0, 1:3, 2:5] = 1
    dense[1, 5, 7] = 1
    return Instances(
        size=(6, 8),
        masks=dense,
        labels=[2, 1, 2],
        scores=[0.9, 0.8, 0.1],
        confidence=[1.0, math.nan, 0.5],
        crowd=[False, False, True],
    )


def test_masks_from_tensor_array_and_rle_are_the_same() -> None:
    instances = three()
    assert Instances(size=(6, 8), masks=instances.dense().numpy(), labels=[2, 1, 2]).masks == (
        instances.masks
    )
    again = Instances(size=(6, 8), masks=instances.masks, labels=[2, 1, 2])
    assert torch.equal(again.dense(), instances.dense())
    assert again.scores.tolist() == [1, 1, 1]


def test_boxes_and_areas_come_from_the_masks() -> None:
    instances = three()
    assert instances.boxes.tolist() == [[2, 1, 5, 3], [7, 5, 8, 6], [0, 0, 0, 0]]
    assert instances.areas.tolist() == [6, 1, 0]


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (1, [0.8]),
        (-1, [0.1]),
        (slice(1, None), [0.8, 0.1]),
        ([2, 0], [0.1, 0.9]),
        ([], []),
        (torch.tensor([True, False, True]), [0.9, 0.1]),
        (torch.tensor([1, 1]), [0.8, 0.8]),
    ],
)
def test_indexing_selects_all_fields(index: object, expected: list[float]) -> None:
    instances = three()
    part = instances[index]  # type: ignore[index]
    assert part.scores.tolist() == expected
    for i, score in enumerate(expected):
        assert part[i] == instances[instances.scores.tolist().index(score)]


def test_indexing_outside_and_with_the_wrong_length_is_an_error() -> None:
    with pytest.raises(IndexError):
        three()[3]
    with pytest.raises(IndexError):
        three()[torch.tensor([True, False])]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"masks": torch.zeros(3, 6, 7)}, "masks of shape"),
        ({"masks": torch.zeros(6, 8)}, "masks of shape"),
        ({"labels": [1]}, "labels of shape"),
        ({"labels": [0, 1, 1]}, "count from 1"),
        ({"scores": [1.0, math.nan, 0.0]}, "NaN"),
        ({"scores": [1.0, math.inf, 0.0]}, "infinite"),
        ({"masks": torch.full((3, 6, 8), 0.5)}, "threshold"),
        ({"boxes": [[0, 0, 1, 1]]}, "boxes of shape"),
        ({"crowd": [True]}, "crowd of shape"),
    ],
)
def test_fields_that_do_not_fit_are_refused(change: dict[str, object], expected: str) -> None:
    fields = {"size": (6, 8), "masks": torch.zeros(3, 6, 8), "labels": [1, 2, 3], **change}
    with pytest.raises(ValueError, match=expected):
        Instances(**fields)  # type: ignore[arg-type]


def test_no_instances_at_all() -> None:
    empty = Instances(size=(6, 8), masks=[], labels=[])
    assert len(empty) == 0
    assert empty.boxes.shape == (0, 4)
    assert empty.dense().shape == (0, 6, 8)
    assert len(empty.annotation()) == 0


def test_instances_as_annotation_and_back() -> None:
    instances = three()
    assert instances.annotation().instances() == instances


def test_annotation_fields_line_up() -> None:
    rle = masks.encode(np.ones((1, 6, 8)))[0]
    weak_labels = (
        WeakLabel(3),
        WeakLabel(1, point=(2.5, 3)),
        WeakLabel(2, box=(0, 1, 2, 3)),
        WeakLabel(1, mask=rle),
    )
    annotation = Annotation((6, 8), weak_labels)
    assert annotation.kinds == ("tag", "point", "box", "mask")
    assert annotation.labels.tolist() == [3, 1, 2, 1]
    assert annotation.distinct_labels == (1, 2, 3)
    assert annotation.boxes.isnan().any(dim=1).tolist() == [True, True, False, True]
    assert annotation.points[1].tolist() == [2.5, 3]
    assert annotation.masks == (None, None, None, rle)
    assert annotation.only("box").labels.tolist() == [2]
    assert annotation[1:3].kinds == ("point", "box")
    assert annotation[0] == WeakLabel(3)
    assert [label.label for label in annotation] == [3, 1, 2, 1]
    assert Annotation((6, 8)).boxes.shape == (0, 4)


@pytest.mark.parametrize(
    "weak_label",
    [
        WeakLabel(0),
        WeakLabel(1, box=(0, 0, 9, 3)),
        WeakLabel(1, box=(2, 2, 2, 3)),
        WeakLabel(1, box=(0, 0, math.nan, 3)),
        WeakLabel(1, point=(9, 1)),
        WeakLabel(1, mask=masks.encode(np.ones((1, 6, 7)))[0]),
    ],
)
def test_weak_labels_outside_the_image_are_refused(weak_label: WeakLabel) -> None:
    with pytest.raises(ValueError, match=r"box|point|mask|label"):
        Annotation((6, 8), (weak_label,))


def test_fields_are_detached_copies() -> None:
    scores = torch.tensor([0.5], requires_grad=True)
    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0]], dtype=torch.float64)
    instances = Instances(
        size=(4, 4), masks=torch.ones(1, 4, 4), labels=[1], scores=scores, boxes=boxes
    )
    boxes += 1
    assert not instances.scores.requires_grad
    assert instances.boxes.tolist() == [[0, 0, 2, 2]]


def test_boxes_are_clipped_to_the_image() -> None:
    instances = Instances(
        size=(4, 4),
        masks=torch.ones(2, 4, 4),
        labels=[1, 1],
        boxes=[[-1.0, 0.0, 4.00001, 4.0], [9.0, 9.0, 10.0, 10.0]],
    )
    assert [label.box for label in instances.annotation()] == [(0, 0, 4, 4), None]


def test_instances_as_detections_of_supervision(monkeypatch: pytest.MonkeyPatch) -> None:
    supervision = pytest.importorskip("supervision")
    dense = torch.zeros(2, 8, 9)
    dense[0, 2:4, 1:6] = dense[1, 5:, 5:] = 1
    instances = Instances(size=(8, 9), masks=dense, labels=[3, 1], scores=[0.9, 0.4])
    detections = instances.to_supervision()
    assert isinstance(detections, supervision.Detections)
    assert detections.xyxy.tolist() == [[1, 2, 6, 4], [5, 5, 9, 8]]
    assert detections.class_id.tolist() == [2, 0]
    assert detections.confidence.tolist() == pytest.approx([0.9, 0.4])
    assert np.array_equal(detections.mask, dense.numpy().astype(bool))
    assert detections.data == {}
    named = instances[:1].annotation()
    named = replace(named, weak_labels=(replace(named[0], confidence=0.25),))
    detections = named.instances().to_supervision(["a", "b", "c"])
    assert detections.data["class_name"].tolist() == ["c"]
    assert detections.data["label_confidence"].tolist() == [0.25]
    assert len(instances[:0].to_supervision(["a"])) == 0
    monkeypatch.setitem(sys.modules, "supervision", None)
    with pytest.raises(InputError, match="pip install supervision"):
        instances.to_supervision()
