"""COCO files as `annocoin label --format coco` writes them, read by other tools."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pycocotools.coco import COCO

from annocoin import masks
from annocoin.data.conversion import with_instances, write_dataset
from annocoin.data.dataset import LabelledImages
from annocoin.data.loading import load_labelled
from annocoin.types import Instances

CONFIDENCE = 0.25


@pytest.fixture
def labels(scenes: Path) -> LabelledImages:
    """The true masks as pseudo labels, with scores and confidences."""
    labelled = load_labelled(scenes)
    instances = {}
    for image in labelled:
        truth = image.annotation.instances()
        n = len(truth)
        instances[image.image_id] = Instances(
            size=truth.size,
            masks=truth.masks,
            labels=truth.labels,
            scores=[0.5] * n,
            confidence=[CONFIDENCE] * n,
        )
    return with_instances(labelled, instances)


@pytest.fixture
def file(labels: LabelledImages, tmp_path: Path) -> Path:
    write_dataset(labels, tmp_path / "labels.json", "coco")
    return tmp_path / "labels.json"


def dense(labels: LabelledImages) -> list[np.ndarray]:
    """All masks, in the order of the images."""
    return [mask for image in labels for mask in image.annotation.instances().dense().numpy()]


def test_the_agreement_of_samples_has_its_own_key(labels: LabelledImages, file: Path) -> None:
    annotations = json.loads(file.read_text())["annotations"]
    assert {annotation["label_confidence"] for annotation in annotations} == {CONFIDENCE}
    assert not any("confidence" in annotation for annotation in annotations)
    again = load_labelled(file)
    assert [image.annotation for image in again] == [image.annotation for image in labels]


def test_pycocotools(labels: LabelledImages, file: Path) -> None:
    coco = COCO(file)
    expected = dense(labels)
    loaded = [coco.annToMask(annotation) for annotation in coco.loadAnns(coco.getAnnIds())]
    assert len(loaded) == len(expected) > 0
    assert all(np.array_equal(a, b) for a, b in zip(loaded, expected, strict=True))


def test_supervision(labels: LabelledImages, file: Path, scenes: Path) -> None:
    supervision = pytest.importorskip("supervision")
    dataset = supervision.DetectionDataset.from_coco(
        str(scenes / "JPEGImages"), str(file), force_masks=True
    )
    assert tuple(dataset.classes) == labels.classes
    loaded = {Path(path).name: detections for path, _, detections in dataset}
    for image in labels:
        instances, detections = image.annotation.instances(), loaded[image.file_name]
        assert detections.class_id.tolist() == [label - 1 for label in instances.labels.tolist()]
        assert np.array_equal(detections.mask, instances.dense().numpy())


def test_fiftyone(labels: LabelledImages, file: Path, scenes: Path) -> None:
    fiftyone_coco = pytest.importorskip("fiftyone.utils.coco")
    importer = fiftyone_coco.COCODetectionDatasetImporter(
        data_path=str(scenes / "JPEGImages"), labels_path=str(file), label_types="segmentations"
    )
    with importer:
        loaded = {Path(path).name: found.detections for path, _, found in importer}
    for image in labels:
        for label, detection in zip(image.annotation, loaded[image.file_name], strict=True):
            assert detection.label == labels.classes[label.label - 1]
            assert (detection.confidence, detection["label_confidence"]) == (0.5, CONFIDENCE)
            assert label.mask is not None
            assert detection.mask.sum() == masks.areas([label.mask])[0]
