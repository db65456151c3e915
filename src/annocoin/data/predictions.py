"""Instances on disk: COCO results (one JSON file), or a folder with one JSON file an image.

COCO results: ``[{"image_id", "category_id", "segmentation": RLE, "score"}, ...]``, optionally with
"bbox" and "confidence". A file of the folder: ``{"image_id": ..., "instances": [...]}`` with the
same entries but for the image_id. A COCO dataset file with segmentations is taken too: a score that
it does not give is 1, its images are known by their file names and its classes by their names.
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
from annocoin.data.parsing import field, finite, label_of, numbers
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
    if path.is_dir():
        return _read_folder(path, labelled, problems)
    content = read_json(path)
    if isinstance(content, list):
        return _Known(labelled).read(content, str(path), problems)
    if isinstance(content, dict) and {"images", "annotations"} <= content.keys():
        return _read_dataset(content, path, labelled, problems)
    raise InputError(
        f"{path}: found {brief(content)}; expected a list of COCO results, a COCO dataset "
        "or a folder of prediction files"
    )


def write_predictions(
    path: str | Path, predictions: Mapping[ImageId, Instances], category_ids: Sequence[int]
) -> None:
    """Write COCO results if `path` ends in .json, else a new folder with one file an image."""
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


def _read_folder(
    folder: Path, labelled: LabelledImages, problems: Problems
) -> dict[ImageId, Instances]:
    files = sorted(folder.glob("*.json"))
    if not files:
        raise InputError(f"{folder}: no prediction files; expected one .json file an image")
    known = _Known(labelled)
    seen: set[ImageId] = set()
    found: dict[ImageId, Instances] = {}
    for file in track(files, "reading predictions"):
        with problems.caught():
            content = read_json(file)
            image_id = known.image_id(content, str(file))
            if image_id in seen:
                raise InputError(f"{file}: image_id {image_id!r} occurs twice")
            seen.add(image_id)
            entries = field(content, "instances", list, str(file))
            own = [e | {"image_id": image_id} if isinstance(e, dict) else e for e in entries]
            found |= known.read(own, str(file), problems)
    return found


class _Known:
    """The images and classes of a dataset, against which entries are checked."""

    def __init__(self, labelled: LabelledImages) -> None:
        self.sizes = {image.image_id: image.annotation.size for image in labelled}
        self.labels = {number: j for j, number in enumerate(labelled.category_ids, start=1)}

    def image_id(self, entry: Any, where: str) -> ImageId:
        image_id: Any = field(entry, "image_id", object, where)
        if isinstance(image_id, bool | list | dict) or image_id not in self.sizes:
            raise InputError(
                f"{where}: image_id {brief(image_id)} is not in the dataset; "
                f"its ids are such as {next(iter(self.sizes))!r}"
            )
        found: ImageId = image_id
        return found

    def read(self, entries: list[Any], where: str, problems: Problems) -> dict[ImageId, Instances]:
        """The instances of each image that the entries are about."""
        by_image: dict[ImageId, list[tuple[str, dict[str, Any]]]] = {}
        seen: set[str] = set()
        for number, entry in enumerate(entries):
            with problems.caught():
                here = f"{where}: entry {number}"
                image_id = self.image_id(entry, here)
                if "id" in entry:
                    if str(entry["id"]) in seen:
                        raise InputError(f"{here}: id {brief(entry['id'])} occurs twice")
                    seen.add(str(entry["id"]))
                by_image.setdefault(image_id, []).append((here, entry))
        found = {
            image_id: _to_instances(own, self.sizes[image_id], self.labels, problems)
            for image_id, own in by_image.items()
        }
        return {image_id: instances for image_id, instances in found.items() if len(instances)}


class _Row(NamedTuple):
    """One instance as read: `box` and `confidence` where the file gives them."""

    label: int
    score: float
    mask: RLE
    box: list[float] | None
    confidence: float


def _to_instances(
    entries: list[tuple[str, dict[str, Any]]],
    size: Size,
    labels: dict[int, int],
    problems: Problems,
) -> Instances:
    """The entries of one image. Its masks are checked together, and one by one if any is bad."""
    for check in (False, True):
        attempt = Problems(problems.skip)
        rows = []
        for where, entry in entries:
            with attempt.caught():
                rows.append(_to_row(entry, size, labels, where, check))
        if masks.all_of_size([row.mask for row in rows], size):
            break
    problems.skipped += attempt.skipped
    rles = [row.mask for row in rows]
    tight = masks.boxes(rles).tolist()
    return Instances(
        size=size,
        masks=rles,
        labels=[row.label for row in rows],
        scores=[row.score for row in rows],
        boxes=[row.box or own for row, own in zip(rows, tight, strict=True)],
        confidence=[row.confidence for row in rows],
    )


def _to_row(
    entry: dict[str, Any], size: Size, labels: dict[int, int], where: str, check: bool
) -> _Row:
    category = field(entry, "category_id", int, where)
    if category not in labels:
        raise InputError(f"{where}: category_id {category}; expected {brief(list(labels))}")
    score = finite(field(entry, "score", object, where), f"{where}: score")
    confidence = entry.get("confidence")
    box = numbers(entry, "bbox", 4, "x, y, width, height", where)
    if box is not None:
        box = [*box[:2], box[0] + box[2], box[1] + box[3]]
    return _Row(
        label=labels[category],
        score=score,
        mask=masks.from_json(field(entry, "segmentation", object, where), size, where, check=check),
        box=box,
        confidence=math.nan if confidence is None else finite(confidence, f"{where}: confidence"),
    )


def _read_dataset(
    content: dict[str, Any], path: Path, dataset: LabelledImages, problems: Problems
) -> dict[ImageId, Instances]:
    given = coco.from_content(content, path, None, True, problems)
    ids = _by_file_name(dataset)
    sizes = {image.image_id: image.annotation.size for image in dataset}
    found: dict[ImageId, Instances] = {}
    for image in given:
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
            names = [given.classes[label - 1] for label in instances.labels.tolist()]
            labels = [label_of(name, dataset.classes, where) for name in names]
            instances.labels = instances.labels.new_tensor(labels)
            if len(instances):
                found[image_id] = instances
    return found


def _by_file_name(dataset: LabelledImages) -> dict[str, ImageId]:
    """Image ids by file name without ending; without folders too, where that is unique."""
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
            entry["confidence"] = float(instances.confidence[i])
        yield entry
