"""COCO: one JSON file with images, categories and annotations; the image files lie elsewhere.

Beyond COCO itself: an annotation without box and segmentation is a tag, and an annotation may have
"point", "difficult", "score" and "label_confidence" (the confidence of a pseudo label; FiftyOne
reads "score" as confidence and fails on a key of that name).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from annocoin import masks
from annocoin.data.dataset import LabelledImage, LabelledImages, tight_box
from annocoin.data.formats import ConversionLoss
from annocoin.data.images import image_size, safe_join
from annocoin.data.parsing import (
    checked_size,
    field,
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


def write(labelled: LabelledImages, out: Path) -> ConversionLoss:
    """Write one JSON file; masks are exact (RLE). The image files are not copied."""
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
    categories = [
        {"id": number, "name": name}
        for number, name in zip(labelled.category_ids, labelled.classes, strict=True)
    ]
    write_json(out, {"images": images, "categories": categories, "annotations": annotations})
    without_mask = sum("segmentation" not in annotation for annotation in annotations)
    loss = ConversionLoss()
    if 0 < without_mask < len(annotations):
        loss.notes.append(f"{without_mask} labels have no mask; some COCO tools need one for each")
    return loss


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
    if box is not None and segmentation and not (box[0] < box[2] and box[1] < box[3]):
        box = None  # beside a mask, an empty box is ignored
    return located_label(
        label,
        size,
        where,
        box=box,
        point=numbers(entry, "point", "x, y", where),
        mask=masks.from_json(segmentation, size, where) if segmentation and with_masks else None,
        crowd=bool(entry.get("iscrowd")),
        difficult=bool(entry.get("difficult")),
        score=optional_number(entry, "score", where),
        confidence=optional_number(entry, LABEL_CONFIDENCE, where),
    )


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
