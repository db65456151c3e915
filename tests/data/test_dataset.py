"""Training gets no mask: by type, by the files that are opened, and by reachable objects."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest

from annocoin import masks
from annocoin.data.conversion import write_dataset
from annocoin.data.dataset import (
    EvaluationDataset,
    Supervision,
    WeakDataset,
    WeakImage,
    concatenate,
    weaken,
    with_more_tags,
)
from annocoin.data.loading import load_evaluation, load_labelled, load_weak
from annocoin.errors import InputError
from annocoin.types import Annotation, Instances, WeakLabel

_opened: list[str] | None = None


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open":
        _opened.append(str(arguments[0]))


sys.addaudithook(_listen)


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """Every file that this process opens in the block, by whatever library."""
    global _opened
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


def reachable(start: object) -> Iterator[object]:
    """Every object that can be reached from `start`, but for code."""
    seen: set[int] = set()
    todo = [start]
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, ModuleType | FunctionType | type):
            continue
        seen.add(id(item))
        yield item
        todo += gc.get_referents(item)


@pytest.mark.parametrize("supervision", ["image", "box", "mixed"])
def test_training_never_opens_vocs_segmentation(scenes: Path, supervision: Any) -> None:
    with opened_files() as opened:
        weak = load_weak(scenes, supervision)
        for image in weak:
            assert image.pixels().shape[:2] == image.annotation.size
    assert any("JPEGImages" in path for path in opened)
    assert not any("Segmentation" in path and not path.endswith(".txt") for path in opened)
    with opened_files() as opened:
        load_evaluation(scenes)
    assert any("SegmentationObject" in path for path in opened)


@pytest.mark.parametrize("kind", ["voc", "coco", "yolo", "labelme"])
@pytest.mark.parametrize("supervision", ["image", "box", "point"])
def test_no_mask_is_reachable_from_a_weak_dataset(
    scenes: Path, tmp_path: Path, kind: Any, supervision: Any
) -> None:
    path = scenes
    if kind != "voc":
        path = tmp_path / ("a.json" if kind == "coco" else "a")
        write_dataset(load_labelled(scenes), path, kind)
    images = scenes / "JPEGImages" if kind == "coco" else None

    def masks_in(start: object) -> list[object]:
        return [
            item
            for item in reachable(start)
            if isinstance(item, Instances | np.ndarray)
            or (isinstance(item, dict) and "counts" in item)
        ]

    weak = load_weak(path, supervision, images=images)
    assert len(weak) == 8
    assert masks_in(weak) == []
    assert masks_in(load_evaluation(path, images=images)) != []  # the search does find masks


def test_a_weak_dataset_has_no_ground_truth(scenes: Path) -> None:
    weak = load_weak(scenes, "box")
    assert isinstance(weak, WeakDataset)
    assert isinstance(weak[0], WeakImage)
    assert not isinstance(weak, EvaluationDataset)
    for item in (weak, weak[0]):
        assert not hasattr(item, "truth")
        assert not hasattr(item, "instances")
    assert all(mask is None for image in weak for mask in image.annotation.masks)


def test_a_weak_dataset_refuses_more_than_its_supervision() -> None:
    rle = masks.encode(np.ones((1, 4, 4)))[0]
    for weak_label, supervision in (
        (WeakLabel(1, mask=rle), "box"),
        (WeakLabel(1, mask=rle), "image"),
        (WeakLabel(1, box=(0, 0, 1, 1)), "image"),
        (WeakLabel(1, box=(0, 0, 1, 1)), "point"),
    ):
        image = WeakImage("a", Path("a.jpg"), Annotation((4, 4), (weak_label,)))
        with pytest.raises(ValueError, match="under supervision"):
            WeakDataset(("c",), (1,), supervision, (image,))  # type: ignore[arg-type]


def test_weaken() -> None:
    square = np.zeros((1, 10, 10))
    square[0, 2:7, 4:9] = 1
    rle = masks.encode(square)[0]
    annotation = Annotation(
        (10, 10),
        (
            WeakLabel(2, mask=rle),
            WeakLabel(1, box=(0, 0, 3, 3), mask=rle),
            WeakLabel(2, mask=rle, crowd=True),
        ),
    )
    tags = weaken(annotation, "image")
    assert (tags.kinds, tags.labels.tolist()) == (("tag", "tag"), [1, 2])
    boxes = weaken(annotation, "box")
    assert boxes.kinds == ("box", "box", "tag")
    assert boxes.boxes[:2].tolist() == [[4, 2, 9, 7], [0, 0, 3, 3]]
    points = weaken(annotation, "point")
    assert points.kinds == ("point", "point", "tag")
    assert points.points[0].tolist() == [6.5, 4.5]
    assert weaken(annotation, "mixed") == annotation


def test_supervision_that_the_dataset_lacks_is_refused(scenes: Path, tmp_path: Path) -> None:
    write_dataset(load_labelled(scenes, with_masks="never"), tmp_path / "a", "folder")
    with pytest.raises(InputError, match="no points in it"):
        load_weak(tmp_path / "a", "point")
    with pytest.raises(InputError, match="no masks"):
        load_evaluation(tmp_path / "a")
    with pytest.raises(InputError, match="expected one of image, count, box, point, mixed"):
        load_weak(tmp_path / "a", "full")  # type: ignore[arg-type]
    (tmp_path / "a" / "labels.csv").write_text(
        f"image,class\n{load_weak(scenes)[0].image_id},cat\n"
    )
    with pytest.raises(InputError, match="no boxes in it"):
        load_weak(tmp_path / "a", "box")


def test_mixed_keeps_the_masks_that_a_user_gave_as_labels(scenes: Path, tmp_path: Path) -> None:
    write_dataset(load_labelled(scenes), tmp_path / "a.json", "coco")
    weak = load_weak(tmp_path / "a.json", "mixed", images=scenes / "JPEGImages")
    assert all("mask" in image.annotation.kinds for image in weak)


def test_slices_are_datasets(scenes: Path) -> None:
    weak = load_weak(scenes)
    assert isinstance(weak[2:4], WeakDataset)
    assert [image.image_id for image in weak[2:4]] == [weak[2].image_id, weak[3].image_id]


def dataset_of(classes: tuple[str, ...], *labels_of_images: tuple[int, ...]) -> WeakDataset:
    images = tuple(
        WeakImage(number, Path(f"{number}.jpg"), Annotation((4, 4), tuple(map(WeakLabel, labels))))
        for number, labels in enumerate(labels_of_images)
    )
    return WeakDataset(classes, tuple(range(1, len(classes) + 1)), "image", images)


def test_labels_get_the_numbers_of_another_list_of_classes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    weak = dataset_of(("cat", "dog"), (1, 2), (2,))
    assert weak.with_classes(("cat", "dog"), "run") is weak
    renumbered = weak.with_classes(("dog", "bird", "cat"), "run")
    assert (renumbered.classes, renumbered.category_ids) == (("dog", "bird", "cat"), (1, 2, 3))
    assert [image.annotation.labels.tolist() for image in renumbered] == [[3, 1], [1]]
    assert capsys.readouterr().err == ""


def test_labels_of_unknown_classes_are_left_out_with_one_note(
    capsys: pytest.CaptureFixture[str],
) -> None:
    weak = dataset_of(("cat", "cow", "dog", "unused"), (1, 2), (2, 3), (3,))
    known = weak.with_classes(("cat",), "run")
    assert [image.annotation.labels.tolist() for image in known] == [[1], [], []]
    note = capsys.readouterr().err
    assert note == "note: run: 4 labels of unknown classes left out: cow, dog\n"


@pytest.mark.parametrize("classes", [("bird",), ("bird", "unused")])
def test_no_label_of_a_known_class_is_an_error(classes: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="run: knows none of the dataset's classes"):
        dataset_of(("cat", "unused"), (1,), ()).with_classes(classes, "run")


def numbered(
    ids: range, source: str, *classes: str, supervision: Supervision = "image"
) -> WeakDataset:
    """Images with these ids, each with a label of the first class."""
    images = dataset_of(classes, *[(1,)] * len(ids))
    renumbered = zip(ids, images, strict=True)
    return WeakDataset(
        classes,
        tuple(range(1, len(classes) + 1)),
        supervision,
        tuple(
            WeakImage(number, Path(source, f"{number}.jpg"), image.annotation)
            for number, image in renumbered
        ),
        Path(source),
    )


def test_datasets_are_concatenated_with_the_classes_of_the_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = numbered(range(2), "a", "cat", "dog")
    other = dataset_of(("bird", "cat", "dog"), (), (), (3, 2), (1, 2))[2:]
    both = concatenate(first, other)
    assert (both.classes, both.category_ids) == (("cat", "dog"), (1, 2))
    assert [image.image_id for image in both] == [0, 1, 2, 3]
    assert [image.annotation.labels.tolist() for image in both] == [[1], [1], [2, 1], [1]]
    assert capsys.readouterr().err == "note: a: 1 labels of unknown classes left out: bird\n"
    assert concatenate(first) == first


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (
            [numbered(range(1, 3), "b", "cat")],
            "image 1 is a/1.jpg and b/1.jpg; expected every image id once, leave one of them out",
        ),
        (
            [numbered(range(2, 4), "b", "cat"), numbered(range(3, 5), "c", "cat")],
            "image 3 is b/3.jpg and c/3.jpg; expected every image id once, leave one of them out",
        ),
        (
            [numbered(range(2, 4), "b", "sphinx")],
            "a: knows none of the dataset's classes ('sphinx',) in b; it knows ('cat', 'dog')",
        ),
        (
            [numbered(range(2, 4), "b", "cat", supervision="box")],
            "b: supervision box; expected image, that of a",
        ),
    ],
)
def test_datasets_that_cannot_be_concatenated(others: list[WeakDataset], message: str) -> None:
    with pytest.raises(InputError) as error:
        concatenate(numbered(range(2), "a", "cat", "dog"), *others)
    assert str(error.value) == message


def test_more_tags_keep_no_location(scenes: Path) -> None:
    boxes = load_weak(scenes, "box", split="train")
    both = with_more_tags(boxes, load_weak(scenes, "point", split="val"))
    assert (both.supervision, both.source) == ("image", scenes)
    tags = {image.image_id: image.annotation.distinct_labels for image in load_weak(scenes)}
    assert {image.image_id: image.annotation.distinct_labels for image in both} == tags
    assert {kind for image in both for kind in image.annotation.kinds} == {"tag"}


def test_a_mask_without_pixels_is_a_tag_under_point_supervision() -> None:
    empty = masks.encode(np.zeros((1, 4, 4)))[0]
    annotation = Annotation((4, 4), (WeakLabel(1, box=(0, 0, 2, 2), mask=empty),))
    assert weaken(annotation, "point").kinds == ("tag",)
