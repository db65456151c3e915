"""Round trips through every format: nothing is lost that the format can hold."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from annocoin import masks
from annocoin.data.conversion import with_predictions, write_dataset
from annocoin.data.dataset import LabelledImage, LabelledImages, tight_box
from annocoin.data.loading import load_labelled
from annocoin.data.predictions import read_predictions, write_predictions
from annocoin.errors import InputError
from annocoin.masks import from_polygon, to_polygon
from annocoin.types import Annotation, Instances, WeakLabel

CLASSES = ("cat", "dog & <co>", "Vögel", "x, y")
settings.register_profile(
    "files", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
FILES = settings.get_profile("files")


@st.composite
def drawn_weak_labels(draw: st.DrawFn, size: tuple[int, int]) -> tuple[WeakLabel, ...]:
    """Up to six weak labels: tags, points, boxes and disjoint masks, with flags."""
    height, width = size
    labels = st.integers(1, len(CLASSES))
    tags = [WeakLabel(label) for label in draw(st.lists(labels, max_size=2, unique=True))]
    quarter = st.integers(0, 4)
    weak_labels: list[WeakLabel] = []
    free = np.ones(size, bool)
    for _ in range(draw(st.integers(0, 4))):
        x0, y0 = draw(st.integers(0, width - 2)), draw(st.integers(0, height - 2))
        x1, y1 = draw(st.integers(x0 + 1, width)), draw(st.integers(y0 + 1, height))
        box = (x0 + draw(quarter) / 8, float(y0), float(x1), float(y1))
        point = (x0 + 0.5, y0 + draw(quarter) / 4)
        kinds = draw(st.sets(st.sampled_from(["box", "point", "mask"]), min_size=1))
        mask = np.zeros(size, bool)
        if "mask" in kinds:
            pixels = np.asarray(draw(st.lists(st.booleans(), min_size=4, max_size=4)))
            mask[y0:y1, x0:x1] = np.resize(pixels, (y1 - y0, x1 - x0))
            mask &= free
            free &= ~mask
        weak_labels.append(
            WeakLabel(
                label=draw(labels),
                box=box if "box" in kinds or not mask.any() else None,
                point=point if "point" in kinds else None,
                mask=masks.encode(mask[None])[0] if mask.any() else None,
                crowd=draw(st.booleans()),
                difficult=draw(st.booleans()),
                score=draw(st.none() | st.floats(0, 1)),
                confidence=draw(st.none() | st.floats(0, 1)),
            )
        )
    return (*tags, *weak_labels)


@st.composite
def drawn_datasets(draw: st.DrawFn) -> list[tuple[tuple[int, int], tuple[WeakLabel, ...]]]:
    sides = st.integers(3, 12)
    sizes = draw(st.lists(st.tuples(sides, sides), min_size=1, max_size=3))
    return [(size, draw(drawn_weak_labels(size))) for size in sizes]


@contextmanager
def on_disk(
    drawn: list[tuple[tuple[int, int], tuple[WeakLabel, ...]]],
) -> Iterator[tuple[Path, LabelledImages]]:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "source").mkdir()
        images = []
        for number, (size, weak_labels) in enumerate(drawn):
            path = root / "source" / f"image {number}.png"
            Image.fromarray(np.full((*size, 3), number * 50, np.uint8)).save(path)
            annotation = Annotation(size, weak_labels)
            images.append(LabelledImage(path.stem, path.name, path, annotation))
        yield root, LabelledImages.of(CLASSES, images, source=root / "source")


def fields_of(labelled: LabelledImages, *fields: str) -> dict[str, list[Any]]:
    """The fields of each image's weak labels, in sorted order, with the names of classes."""

    return {
        Path(image.file_name).stem: sorted(
            (labelled.classes[label.label - 1], *(repr(getattr(label, name)) for name in fields))
            for label in image.annotation
        )
        for image in labelled
    }


def with_tight_boxes(labelled: LabelledImages) -> LabelledImages:
    """As formats return it that write a box beside every mask."""
    images = []
    for image in labelled:
        weak_labels = tuple(replace(label, box=tight_box(label)) for label in image.annotation)
        images.append(replace(image, annotation=replace(image.annotation, weak_labels=weak_labels)))
    return replace(labelled, images=tuple(images))


ALL = ("box", "point", "mask", "crowd", "difficult", "score", "confidence")


@FILES
@given(drawn_datasets())
def test_coco_holds_everything(drawn: Any) -> None:
    with on_disk(drawn) as (root, labelled):
        loss = write_dataset(labelled, root / "out.json", "coco")
        assert (loss.ious, dict(loss.dropped)) == ([], {})
        again = load_labelled(root / "out.json", images=root / "source")
        assert again.classes == CLASSES
        assert fields_of(again, *ALL) == fields_of(with_tight_boxes(labelled), *ALL)


@FILES
@given(drawn_datasets())
def test_voc_holds_everything_that_does_not_overlap(drawn: Any) -> None:
    with on_disk(drawn) as (root, labelled):
        assert write_dataset(labelled, root / "out", "voc").lines() == []
        again = load_labelled(root / "out")
        assert again.classes == CLASSES
        assert fields_of(again, *ALL) == fields_of(with_tight_boxes(labelled), *ALL)


@FILES
@given(drawn_datasets())
def test_labelme_holds_everything(drawn: Any) -> None:
    with on_disk(drawn) as (root, labelled):
        loss = write_dataset(labelled, root / "out", "labelme")
        assert loss.ious == []
        assert set(loss.dropped) <= {"classes without a label"}
        again = load_labelled(root / "out", kind="labelme")
        assert fields_of(again, *ALL) == fields_of(labelled, *ALL)


@FILES
@given(drawn_datasets())
def test_a_folder_holds_tags_points_and_boxes(drawn: Any) -> None:
    with on_disk(drawn) as (root, labelled):
        loss = write_dataset(labelled, root / "out", "folder")
        again = load_labelled(root / "out")
        fields = ("box", "point")
        assert fields_of(again, *fields) == fields_of(with_tight_boxes(labelled), *fields)
        kinds = [kind for image in labelled for kind in image.annotation.kinds]
        assert loss.dropped.get("masks", 0) == kinds.count("mask")


@FILES
@given(drawn_datasets())
def test_yolo_reports_the_iou_of_its_polygons(drawn: Any) -> None:
    with on_disk(drawn) as (root, labelled):
        loss = write_dataset(labelled, root / "out", "yolo")
        again = load_labelled(root / "out")
        assert again.classes == CLASSES
        assert [i.image_id for i in again] == [i.image_id for i in labelled]
        ious = []
        for before, after in zip(labelled, again, strict=True):
            written = [label for label in before.annotation if label.kind in ("box", "mask")]
            assert [label.label for label in written] == after.annotation.labels.tolist()
            for old, new in zip(written, after.annotation, strict=True):
                if old.mask is None:
                    assert new.box == pytest.approx(old.box, abs=1e-4)
                else:
                    ious.append(masks.iou([old.mask], [new.mask])[0, 0])  # type: ignore[list-item]
        assert loss.ious == pytest.approx(ious)


@FILES
@given(drawn_datasets())
def test_chains_of_formats_keep_masks_exact(drawn: Any) -> None:
    with on_disk(drawn) as (root, labelled):
        write_dataset(labelled, root / "voc", "voc")
        write_dataset(load_labelled(root / "voc"), root / "labelme", "labelme")
        write_dataset(load_labelled(root / "labelme"), root / "out.json", "coco")
        again = load_labelled(root / "out.json", images=root / "labelme")
        assert fields_of(again, *ALL) == fields_of(with_tight_boxes(labelled), *ALL)


def some_predictions(labelled: LabelledImages, seed: int = 0) -> dict[int | str, Instances]:
    rng = np.random.default_rng(seed)
    return {
        image.image_id: Instances(
            size=image.annotation.size,
            masks=rng.random((4, *image.annotation.size)) < 0.4,
            labels=[1, 2, 3, 1],
            scores=rng.random(4).tolist(),
            confidence=[*rng.random(3).tolist(), math.nan],
        )
        for image in labelled
    }


@pytest.mark.parametrize("name", ["predictions.json", "predictions"])
def test_round_trip_of_predictions(scenes: Path, tmp_path: Path, name: str) -> None:
    labelled = load_labelled(scenes)
    predictions = some_predictions(labelled)
    write_predictions(tmp_path / name, predictions, labelled.category_ids)
    assert read_predictions(tmp_path / name, labelled) == predictions


@pytest.mark.parametrize("to", ["coco", "labelme", "results"])
def test_instances_through_other_formats_keep_scores_and_masks(
    scenes: Path, tmp_path: Path, to: Any
) -> None:
    labelled = load_labelled(scenes)
    predictions = some_predictions(labelled)
    write_predictions(tmp_path / "predictions.json", predictions, labelled.category_ids)
    out = tmp_path / ("out.json" if to != "labelme" else "out")
    write_dataset(with_predictions(labelled, tmp_path / "predictions.json"), out, to)
    if to == "labelme":
        again = load_labelled(out)
        write_dataset(again, tmp_path / "again.json", "coco")
        out = tmp_path / "again.json"
    assert read_predictions(out, labelled) == predictions


def test_overlap_in_voc_is_reported(scenes: Path, tmp_path: Path) -> None:
    labelled = load_labelled(scenes)
    predictions = some_predictions(labelled)
    write_predictions(tmp_path / "predictions.json", predictions, labelled.category_ids)
    predicted = with_predictions(labelled, tmp_path / "predictions.json")
    loss = write_dataset(predicted, tmp_path / "voc", "voc")
    again = load_labelled(tmp_path / "voc")
    expected = []
    for image in labelled:
        visible = {i.image_id: i for i in again}[image.image_id].annotation.masks
        for old, new in zip(predictions[image.image_id].masks, visible, strict=True):
            expected.append(masks.iou([old], [new])[0, 0] if new else 0.0)
    assert loss.ious == pytest.approx(expected)
    assert any("masks changed" in line for line in loss.lines())


@given(st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_polygons_of_connected_shapes_with_holes_are_exact(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mask = np.zeros((40, 40), bool)
    rows, columns = np.mgrid[:40, :40]
    centre = rng.integers(15, 25, 2)
    distance = np.hypot(rows - centre[0], columns - centre[1])
    inner, outer = rng.uniform(0, 5), rng.uniform(8, 14)
    mask = (distance < outer) & (distance >= inner)
    corners = to_polygon(mask)
    assert corners is not None
    assert np.array_equal(from_polygon(corners, (40, 40)), mask)


def test_polygons_of_few_pixels() -> None:
    assert to_polygon(np.zeros((5, 5), bool)) is None
    for pixels in ([(2, 3)], [(2, 3), (2, 4)], [(0, 0), (1, 1), (4, 4)]):
        mask = np.zeros((5, 5), bool)
        for row, column in pixels:
            mask[row, column] = True
        corners = to_polygon(mask)
        assert corners is not None
        assert len(corners) >= 3
        assert from_polygon(corners, (5, 5))[mask].all()


def test_wrong_targets_are_refused_and_nothing_is_written(scenes: Path, tmp_path: Path) -> None:
    labelled = load_labelled(scenes)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("x")
    for out, to, expected in (
        (tmp_path / "out", "coco", r"ends in \.json"),
        (tmp_path / "out", "png", "expected one of"),
        (tmp_path / "full", "voc", "exists already"),
        (scenes, "voc", "that is the input"),
    ):
        with pytest.raises(InputError, match=expected):
            write_dataset(labelled, out, to)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["full", "mine"]


def test_a_format_with_images_needs_them(scenes: Path, tmp_path: Path) -> None:
    write_dataset(load_labelled(scenes), tmp_path / "a.json", "coco")
    without_images = load_labelled(tmp_path / "a.json")
    for to in ("voc", "yolo", "labelme", "folder"):
        with pytest.raises(InputError, match="--images"):
            write_dataset(without_images, tmp_path / "out", to)  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_images_of_one_name_in_two_folders_get_different_names(tmp_path: Path) -> None:
    images = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "x.png"
        Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(path)
        annotation = Annotation((4, 4), (WeakLabel(1, box=(0, 0, 2, 2)),))
        images.append(LabelledImage(f"{folder}/x", f"{folder}/x.png", path, annotation))
    write_dataset(LabelledImages.of(("c",), images, source=tmp_path), tmp_path / "out", "voc")
    assert [i.image_id for i in load_labelled(tmp_path / "out")] == ["a__x", "b__x"]


def test_polygons_of_many_parts_and_of_a_large_ring() -> None:
    specks = np.zeros((100, 100), bool)
    specks[::4, ::4] = True
    rows, columns = np.mgrid[:1500, :1500]
    distance = np.hypot(rows - 750, columns - 750)
    ring = (distance > 500) & (distance < 700)
    for mask in (specks, ring):
        corners = to_polygon(mask)
        assert corners is not None
        assert from_polygon(corners, mask.shape)[mask].all()
    assert np.array_equal(from_polygon(corners, ring.shape), ring)


def test_polygons_are_clipped_to_the_image() -> None:
    corners = np.asarray([[20.0, 15.0], [200.0, -100.0], [200.0, 130.0]])
    wide = from_polygon(corners + 300, (800, 800))
    cut, whole = from_polygon(corners, (30, 40)), wide[300:330, 300:340]
    inner = cv2.erode(whole.astype(np.uint8), np.ones((3, 3))).astype(bool)
    outer = cv2.dilate(whole.astype(np.uint8), np.ones((3, 3))).astype(bool)
    assert (inner <= cut).all()
    assert (cut <= outer).all()  # only pixels of the outline itself may differ
    assert not from_polygon(corners + 900, (30, 40)).any()


def test_splits_are_kept(scenes: Path, tmp_path: Path) -> None:
    before = load_labelled(scenes)
    write_dataset(before, tmp_path / "voc", "voc")
    assert load_labelled(tmp_path / "voc").splits == before.splits
    write_dataset(before, tmp_path / "yolo", "yolo")
    after = load_labelled(tmp_path / "yolo")
    assert after.splits == {name: before.splits[name] for name in ("train", "val")}
    write_dataset(before[5:], tmp_path / "part", "voc")
    assert {name: len(ids) for name, ids in load_labelled(tmp_path / "part").splits.items()} == {
        "train": 2,
        "trainval": 3,
        "val": 1,
    }
    write_dataset(load_labelled(scenes, split="val"), tmp_path / "val", "yolo")
    assert len(load_labelled(tmp_path / "val", split="val")) == 1
    assert len(load_labelled(tmp_path / "val", split="train")) == 1  # the same under another name


def test_what_a_format_cannot_hold_is_counted(scenes: Path, tmp_path: Path) -> None:
    labelled = load_labelled(scenes)[:1]
    annotation = labelled[0].annotation
    full = replace(annotation[0], crowd=True, score=0.5, confidence=0.5, difficult=True)
    weak_labels = (full, WeakLabel(1), WeakLabel(1, point=(1, 1)))
    annotation = replace(annotation, weak_labels=weak_labels)
    labelled = replace(labelled, images=(replace(labelled[0], annotation=annotation),))
    flags = {"scores": 1, "confidences": 1, "crowd flags": 1, "difficult flags": 1}
    unused = len(labelled.classes) - len(annotation.distinct_labels)
    loss = write_dataset(labelled, tmp_path / "yolo", "yolo")
    assert loss.dropped == {**flags, "points": 1, "tags": 1}
    loss = write_dataset(labelled, tmp_path / "folder", "folder")
    assert loss.dropped == {**flags, "masks": 1, "classes without a label": unused}
    assert len(loss.lines()) == 6
