"""Instances on disk: COCO results (one JSON file), or a folder with one JSON file per image.

COCO results: ``[{"image_id", "category_id", "segmentation": RLE, "score"}, ...]``, optionally with
"bbox" and "label_confidence". A file of the folder: ``{"image_id": ..., "instances": [...]}`` with
the same entries without image_id. A COCO dataset file with segmentations can be read too: missing
scores are 1, images are matched by file name and classes by name.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from annocoin import masks
from annocoin.data.dataset import EvaluationDataset, LabelledImages
from annocoin.data.formats import coco
from annocoin.data.parsing import field, finite, label_of, optional_number, xywh_box
from annocoin.errors import InputError, Problems, brief
from annocoin.files import new_directory, read_json, write_json
from annocoin.masks import RLE, Size
from annocoin.progress import track
from annocoin.types import ImageId, Instances


def read_predictions(
    path: str | Path, dataset: LabelledImages | EvaluationDataset, problems: Problems | None = None
) -> dict[ImageId, Instances]:
    """The instances of every image that has any, checked against the images of `dataset`."""
    path, problems = Path(path), problems or Problems()
    labelled = dataset.labelled if isinstance(dataset, EvaluationDataset) else dataset
    reader = _Reader(labelled, problems)
    if path.is_dir():
        return reader.read_folder(path)
    content = read_json(path)
    if isinstance(content, list):
        return reader.read_entries(content, str(path))
    if isinstance(content, dict) and {"images", "annotations"} <= content.keys():
        return _read_coco_dataset(content, path, labelled, problems)
    raise InputError(
        f"{path}: found {brief(content)}; expected a list of COCO results, a COCO dataset "
        "or a folder of prediction files"
    )


def write_predictions(
    path: str | Path, predictions: Mapping[ImageId, Instances], category_ids: Sequence[int]
) -> None:
    """Write COCO results if `path` ends in .json, else a new folder with one file per image."""
    path = Path(path)
    if path.suffix == ".json":
        entries = [
            {"image_id": image_id, **entry}
            for image_id, instances in predictions.items()
            for entry in _to_entries(instances, category_ids)
        ]
        write_json(path, entries)
        return
    with new_directory(path) as folder:
        used: set[str] = set()
        for number, (image_id, instances) in enumerate(predictions.items()):
            name = re.sub(r"[^\w.-]", "_", str(image_id))
            if name.lower() in used:
                name += f"-{number}"
            used.add(name.lower())
            entries = list(_to_entries(instances, category_ids))
            text = json.dumps({"image_id": image_id, "instances": entries}, allow_nan=False)
            (folder / f"{name}.json").write_text(text, encoding="utf-8")


class _Reader:
    """Reads entries of COCO results for the images and classes of a dataset."""

    def __init__(self, labelled: LabelledImages, problems: Problems) -> None:
        self.sizes = {image.image_id: image.annotation.size for image in labelled}
        self.labels = {number: j for j, number in enumerate(labelled.category_ids, start=1)}
        self.problems = problems

    def read_folder(self, folder: Path) -> dict[ImageId, Instances]:
        files = sorted(folder.glob("*.json"))
        if not files:
            raise InputError(f"{folder}: no prediction files; expected one .json file per image")
        read: set[ImageId] = set()
        predictions: dict[ImageId, Instances] = {}
        for file in track(files, "reading predictions"):
            with self.problems.caught():
                content = read_json(file)
                image_id = self._image_id(content, str(file))
                if image_id in read:
                    raise InputError(f"{file}: image_id {image_id!r} occurs twice")
                read.add(image_id)
                entries = [
                    {**entry, "image_id": image_id} if isinstance(entry, dict) else entry
                    for entry in field(content, "instances", list, str(file))
                ]
                predictions |= self.read_entries(entries, str(file))
        return predictions

    def read_entries(self, entries: list[Any], where: str) -> dict[ImageId, Instances]:
        by_image: dict[ImageId, list[tuple[str, dict[str, Any]]]] = {}
        ids: set[str] = set()
        for number, entry in enumerate(entries):
            with self.problems.caught():
                location = f"{where}: entry {number}"
                image_id = self._image_id(entry, location)
                if "id" in entry:
                    if str(entry["id"]) in ids:
                        raise InputError(f"{location}: id {brief(entry['id'])} occurs twice")
                    ids.add(str(entry["id"]))
                by_image.setdefault(image_id, []).append((location, entry))
        predictions = {
            image_id: self._to_instances(located, self.sizes[image_id])
            for image_id, located in by_image.items()
        }
        return {image_id: p for image_id, p in predictions.items() if len(p)}

    def _image_id(self, entry: Any, where: str) -> ImageId:
        image_id: Any = field(entry, "image_id", object, where)
        if isinstance(image_id, bool | list | dict) or image_id not in self.sizes:
            raise InputError(
                f"{where}: image_id {brief(image_id)} is not in the dataset; "
                f"its ids are such as {next(iter(self.sizes))!r}"
            )
        checked: ImageId = image_id
        return checked

    def _to_instances(self, located: list[tuple[str, dict[str, Any]]], size: Size) -> Instances:
        """The entries of one image. Masks are checked together, and one by one if any is bad."""
        for check in (False, True):
            problems = Problems(self.problems.skip)
            rows = []
            for where, entry in located:
                with problems.caught():
                    rows.append(self._to_row(entry, size, where, check))
            rles = [row.mask for row in rows]
            if masks.all_of_size(rles, size):
                break
        self.problems.skipped += problems.skipped
        tight_boxes = masks.boxes(rles).tolist()
        return Instances(
            size=size,
            masks=rles,
            labels=[row.label for row in rows],
            scores=[row.score for row in rows],
            boxes=[row.box or tight for row, tight in zip(rows, tight_boxes, strict=True)],
            confidence=[math.nan if row.confidence is None else row.confidence for row in rows],
        )

    def _to_row(self, entry: dict[str, Any], size: Size, where: str, check: bool) -> _Row:
        segmentation = field(entry, "segmentation", object, where)
        return _Row(
            label=coco.label_of_category(entry, self.labels, where),
            score=finite(field(entry, "score", object, where), f"{where}: score"),
            mask=masks.from_json(segmentation, size, where, check=check),
            box=xywh_box(entry, where),
            confidence=optional_number(entry, coco.LABEL_CONFIDENCE, where),
        )


class _Row(NamedTuple):
    label: int
    score: float
    mask: RLE
    box: list[float] | None
    confidence: float | None


def _read_coco_dataset(
    content: dict[str, Any], path: Path, dataset: LabelledImages, problems: Problems
) -> dict[ImageId, Instances]:
    predicted = coco.from_content(content, path, None, True, problems)
    ids = _ids_by_file_name(dataset)
    sizes = {image.image_id: image.annotation.size for image in dataset}
    predictions: dict[ImageId, Instances] = {}
    for image in predicted:
        with problems.caught():
            where = f"{path}: image {image.file_name!r}"
            stem = PurePosixPath(image.file_name).with_suffix("")
            image_id = ids.get(stem.as_posix(), ids.get(stem.name))
            if image_id is None:
                raise InputError(f"{where} is not in the dataset")
            if sizes[image_id] != image.annotation.size:
                raise InputError(
                    f"{where} is {image.annotation.size}; in the dataset it is {sizes[image_id]}"
                )
            instances = image.annotation.instances()
            names = [predicted.classes[label - 1] for label in instances.labels.tolist()]
            labels = [label_of(name, dataset.classes, where) for name in names]
            instances.labels = instances.labels.new_tensor(labels)
            if len(instances):
                predictions[image_id] = instances
    return predictions


def _ids_by_file_name(dataset: LabelledImages) -> dict[str, ImageId]:
    """Image ids by file name without suffix; by name without folders too, where it is unique."""
    stems = {PurePosixPath(i.file_name).with_suffix(""): i.image_id for i in dataset}
    names = Counter(stem.name for stem in stems)
    by_name = {stem.name: i for stem, i in stems.items() if names[stem.name] == 1}
    return by_name | {stem.as_posix(): i for stem, i in stems.items()}


def _to_entries(instances: Instances, category_ids: Sequence[int]) -> Iterable[dict[str, Any]]:
    for i, rle in enumerate(instances.masks):
        x0, y0, x1, y1 = instances.boxes[i].tolist()
        entry = {
            "category_id": category_ids[int(instances.labels[i]) - 1],
            "segmentation": masks.to_json(rle),
            "score": float(instances.scores[i]),
            "bbox": [x0, y0, x1 - x0, y1 - y0],
        }
        if not instances.confidence[i].isnan():
            entry[coco.LABEL_CONFIDENCE] = float(instances.confidence[i])
        yield entry
