"""Warnings of labels that look wrong as a whole, without true masks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.engine.label_quality import check_class_sizes, check_masks, check_tag_map
from annocoin.types import Annotation, Instances, WeakLabel


def dataset(*tags: tuple[int, ...]) -> WeakDataset:
    images = tuple(
        WeakImage(f"{i}", Path(f"{i}.jpg"), Annotation((8, 8), tuple(map(WeakLabel, t))))
        for i, t in enumerate(tags)
    )
    return WeakDataset(("cat", "dog", "cow"), (1, 2, 3), "image", images)


def test_classes_with_few_images_are_named_with_their_number() -> None:
    images = dataset((1,), (1, 1, 2), (1,))
    assert check_class_sizes(images, least=0) == []
    (line,) = check_class_sizes(images, least=2)
    assert "fewer than 2 images of" in line
    assert "dog (1)" in line
    assert "cow (0)" in line
    assert "cat" not in line


@pytest.mark.parametrize(
    ("tag_map", "warned"), [(0.3, True), (0.59, True), (0.6, False), (1, False)]
)
def test_a_classifier_that_does_not_find_the_tags(tag_map: float, warned: bool) -> None:
    lines = check_tag_map(tag_map, "image")
    assert len(lines) == warned
    assert not warned or f"{100 * tag_map:.0f} %" in lines[0]


def test_boxes_and_points_need_no_good_classifier() -> None:
    assert check_tag_map(0.3, "count")
    assert not check_tag_map(0.3, "box")
    assert not check_tag_map(0.3, "point")


def masks(*heights: int) -> Instances:
    """Masks of this many rows in an image of 10 x 4 pixels."""
    pixels = torch.arange(10)[None, :, None] < torch.tensor(heights)[:, None, None]
    return Instances(size=(10, 4), masks=pixels.expand(-1, -1, 4), labels=[1] * len(heights))


def test_masks_of_whole_images() -> None:
    assert check_masks([]) == []
    assert check_masks([masks(8, 2), masks(1)]) == []  # exactly .8 is not more
    assert check_masks([masks(9, 2, 3), masks(4)]) == []
    (line,) = check_masks([masks(9, 2), masks(10)])
    assert "2 of 3 masks cover more than 80 %" in line
