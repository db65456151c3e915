"""COCO: one JSON file with images, categories and annotations; the image files lie elsewhere.

Beyond COCO itself: an annotation without box and segmentation is a tag, and an annotation may have
"point", "difficult", "score" and "label_confidence" (the confidence of a pseudo label; FiftyOne
reads "score" as confidence and fails on a key of that name). Of visible "keypoints" the one nearest
to their mean is the point.

A folder in COCO's layout has `annotations/instances_SPLIT.json`, and the images in `SPLIT/`,
`images/SPLIT/` or `images/`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from annocoin import masks
from annocoin.data.dataset import LabelledImage, LabelledImages, tight_box
from annocoin.data.formats import ConversionLoss
from annocoin.data.images import image_size, safe_join
from annocoin.data.parsing import (
    checked_size,
    field,
    finite,
    located_label,
    numbers,
    optional_number,
    unique,
    xywh_box,
)
from annocoin.errors import InputError, Problems, brief
from annocoin.files import read_json, write_json
from annocoin.masks import Size
from annocoin.progress import track
from annocoin.types import Annotation, ImageId, WeakLabel

LABEL_CONFIDENCE = "label_confidence"
INSTANCES = "annotations/instances_*.json"
MARGIN = 0.02
"""Boxes that leave the image by more than this share of its side are not merely inexact."""

VISIBLE = 2
"""Of a keypoint; 1 is hidden behind something, 0 not annotated."""


def read(
    path: Path, images_folder: Path | None, with_masks: bool, problems: Problems
) -> LabelledImages:
    """Read a COCO file; segmentations are dropped unless `with_masks`.

    The image files are checked if `images_folder` is given.
    """
    return from_content(read_json(path), path, images_folder, with_masks, problems)


def from_content(
    content: Any, path: Path, images_folder: Path | None, with_masks: bool, problems: Problems
) -> LabelledImages:
    """`read` for the content of a JSON file."""
    for key in ("images", "categories", "annotations"):
        field(content, key, list, str(path))
    categories = sorted(
        content["categories"], key=lambda c: field(c, "id", int, f"{path}: category")
    )
    ids = unique([category["id"] for category in categories], f"{path}: category id")
    names = [field(category, "name", str, f"{path}: category") for category in categories]
    unique(names, f"{path}: category name")
    labels = {category_id: j for j, category_id in enumerate(ids, start=1)}
    entries, annotations = _by_image(content, path, problems)
    _check_box_order(entries, annotations, path)
    images = []
    for image_id, entry in track(list(entries.items()), f"reading {path.name}"):
        with problems.caught():
            where = f"{path}: image {image_id!r}"
            file_name = field(entry, "file_name", str, where)
            size = checked_size(entry.get("height"), entry.get("width"), where)
            file = _image_file(file_name, images_folder, size, where)
            weak_labels = tuple(
                _to_weak_label(a, labels, size, with_masks, f"{path}: annotation {a.get('id')!r}")
                for a in annotations.get(image_id, [])
            )
            images.append(LabelledImage(image_id, file_name, file, Annotation(size, weak_labels)))
    return LabelledImages.of(names, images, category_ids=ids, source=path)


def write(labelled: LabelledImages, out: Path, *, polygons: bool = False) -> ConversionLoss:
    """Write one JSON file. The image files are not copied.

    Args:
        polygons: write masks as polygons; otherwise as RLE, which is exact.
    """
    loss = ConversionLoss()
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    keep_ids = all(isinstance(image.image_id, int) for image in labelled)
    for number, image in enumerate(labelled, start=1):
        image_id = image.image_id if keep_ids else number
        height, width = image.annotation.size
        images.append(
            {"id": image_id, "file_name": image.file_name, "height": height, "width": width}
        )
        for label in image.annotation:
            entry = {"id": len(annotations) + 1, "image_id": image_id}
            entry["category_id"] = labelled.category_ids[label.label - 1]
            annotations.append({**entry, **_from_weak_label(label)})
            if polygons and label.mask is not None and not label.crowd:
                annotations[-1]["segmentation"] = _to_polygons(label.mask, loss)
    categories = [
        {"id": number, "name": name}
        for number, name in zip(labelled.category_ids, labelled.classes, strict=True)
    ]
    write_json(out, {"images": images, "categories": categories, "annotations": annotations})
    without_mask = sum("segmentation" not in annotation for annotation in annotations)
    if 0 < without_mask < len(annotations):
        loss.notes.append(f"{without_mask} labels have no mask; some COCO tools need one for each")
    return loss


def find_file(root: Path, split: str | None) -> tuple[Path, Path | None]:
    """The annotations of a split in a folder of COCO's layout, and its images if they are there."""
    files = {file.stem.removeprefix("instances_"): file for file in sorted(root.glob(INSTANCES))}
    if not files:
        raise InputError(f"{root}: no {INSTANCES} in it; expected a COCO .json or such a folder")
    if split is None and len(files) > 1:
        raise InputError(f"{root}: has {', '.join(files)}; select one with --split")
    name = split or next(iter(files))
    if name not in files:
        raise InputError(f"{root}: no split {name!r}; expected one of {', '.join(files)}")
    folders = (root / name, root / "images" / name, root / "images")
    return files[name], next((folder for folder in folders if folder.is_dir()), None)


def label_of_category(entry: dict[str, Any], labels: dict[int, int], where: str) -> int:
    """The class of an entry's category_id."""
    category = field(entry, "category_id", int, where)
    if category not in labels:
        raise InputError(f"{where}: category_id {category}; expected one of {brief(list(labels))}")
    return labels[category]


def _by_image(
    content: dict[str, Any], path: Path, problems: Problems
) -> tuple[dict[ImageId, dict[str, Any]], dict[ImageId, list[dict[str, Any]]]]:
    """The image entries and the annotations by image id; ids must be unique."""
    entries: dict[ImageId, dict[str, Any]] = {}
    for entry in content["images"]:
        with problems.caught():
            image_id = _id(entry, "id", f"{path}: image")
            if image_id in entries:
                raise InputError(f"{path}: image id {image_id!r} occurs twice")
            entries[image_id] = entry
    annotations: dict[ImageId, list[dict[str, Any]]] = {}
    ids: set[str | int] = set()
    for annotation in content["annotations"]:
        with problems.caught():
            annotation_id = _id(annotation, "id", f"{path}: annotation")
            image_id = _id(annotation, "image_id", f"{path}: annotation {annotation_id!r}")
            if annotation_id in ids:
                raise InputError(f"{path}: annotation id {annotation_id!r} occurs twice")
            if image_id not in entries:
                raise InputError(
                    f"{path}: annotation {annotation_id!r} is for image {image_id!r}, "
                    "which is not among the images"
                )
            ids.add(annotation_id)
            annotations.setdefault(image_id, []).append(annotation)
    return entries, annotations


def _check_box_order(
    entries: dict[ImageId, dict[str, Any]],
    annotations: dict[ImageId, list[dict[str, Any]]],
    path: Path,
) -> None:
    """Raise if the boxes leave their images, but as x0, y0, x1, y1 all of them would be inside."""
    leaving = None
    for image_id, of_image in annotations.items():
        entry = entries[image_id]
        width, height = (entry.get(side, "") for side in ("width", "height"))
        for annotation in of_image:
            box = annotation.get("bbox")
            if not box:
                continue
            try:
                x, y, w, h = box
                if not (x < w <= width + 1 and y < h <= height + 1):
                    return
                if x + w > width + MARGIN * width + 1 or y + h > height + MARGIN * height + 1:
                    leaving = leaving or (box, width, height)
            except (TypeError, ValueError):  # malformed, which is reported later
                return
    if leaving is not None:
        box, width, height = leaving
        raise InputError(
            f"{path}: bbox {brief(box)} leaves its image of {width} x {height}, and all boxes look "
            "like x0, y0, x1, y1; expected x, y, width, height: subtract x0 and y0 from x1 and y1"
        )


def _id(entry: Any, key: str, where: str) -> str | int:
    value = field(entry, key, object, where)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"{where}: {key} is {brief(value)}; expected a whole number or a text")
    return value


def _image_file(file_name: str, folder: Path | None, size: Size, where: str) -> Path | None:
    path = safe_join(folder or Path(), file_name, where)
    if folder is None:
        return None
    height, width = image_size(path)
    if (height, width) != size:
        raise InputError(
            f"{path}: {height} x {width} pixels (height x width); {where} "
            f"says {size[0]} x {size[1]}"
        )
    return path


def _to_weak_label(
    entry: dict[str, Any], labels: dict[int, int], size: Size, with_masks: bool, where: str
) -> WeakLabel:
    label = label_of_category(entry, labels, where)
    box, segmentation = xywh_box(entry, where), entry.get("segmentation")
    point = numbers(entry, "point", "x, y", where) or _keypoint(entry, where)
    located = segmentation or point is not None
    if box is not None and located and not (box[0] < box[2] and box[1] < box[3]):
        box = None  # beside a mask or a point, an empty box is ignored
    return located_label(
        label,
        size,
        where,
        box=box,
        point=point,
        mask=masks.from_json(segmentation, size, where) if segmentation and with_masks else None,
        crowd=bool(entry.get("iscrowd")),
        difficult=bool(entry.get("difficult")),
        score=optional_number(entry, "score", where),
        confidence=optional_number(entry, LABEL_CONFIDENCE, where),
    )


def _keypoint(entry: dict[str, Any], where: str) -> list[float] | None:
    """The visible keypoint nearest to their mean, as x, y; None without any."""
    values = entry.get("keypoints") or []
    if not isinstance(values, list) or len(values) % 3:
        raise InputError(f"{where}: keypoints is {brief(values)}; expected x, y, visibility, ...")
    triples = np.asarray([finite(value, f"{where}: keypoints") for value in values]).reshape(-1, 3)
    visible = triples[triples[:, 2] == VISIBLE, :2]
    if not len(visible):
        return None
    distances = np.linalg.norm(visible - visible.mean(axis=0), axis=1)
    nearest: list[float] = visible[distances.argmin()].tolist()
    return nearest


def _to_polygons(rle: masks.RLE, loss: ConversionLoss) -> Any:
    """The polygons of a mask; an empty one, which has none, stays an RLE."""
    polygons = masks.to_polygons(masks.decode([rle], (rle["size"][0], rle["size"][1]))[0])
    if not polygons:
        return masks.to_json(rle)
    loss.ious.append(masks.iou_of_polygons(polygons, rle))
    return [polygon.ravel().tolist() for polygon in polygons]


def _from_weak_label(label: WeakLabel) -> dict[str, Any]:
    entry: dict[str, Any] = {"iscrowd": int(label.crowd)}
    box = tight_box(label)
    if box is not None:
        x0, y0, x1, y1 = box
        entry |= {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0)}
    if label.mask is not None:
        entry |= {"segmentation": masks.to_json(label.mask), "area": masks.areas([label.mask])[0]}
        entry.setdefault("bbox", [0.0, 0.0, 0.0, 0.0])
    if label.point is not None:
        entry["point"] = list(label.point)
    if label.difficult:
        entry["difficult"] = 1
    for key, value in (("score", label.score), (LABEL_CONFIDENCE, label.confidence)):
        if value is not None:
            entry[key] = value
    return entry
