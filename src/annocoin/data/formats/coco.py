"""COCO: one JSON file with images, categories and annotations; the image files lie elsewhere.

Beyond COCO itself: an annotation without box and segmentation is a tag, and "point", "difficult",
"score" and "confidence" may stand in an annotation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from annocoin import masks
from annocoin.data.dataset import LabelledImage, LabelledImages, tight_box
from annocoin.data.formats import ConversionLoss
from annocoin.data.images import MAX_PIXELS, image_size, inside
from annocoin.data.parsing import (
    checked_point,
    checked_size,
    clipped_box,
    field,
    finite,
    numbers,
    unique,
)
from annocoin.errors import InputError, Problems, brief
from annocoin.files import read_json, write_json
from annocoin.masks import Size
from annocoin.progress import track
from annocoin.types import Annotation, WeakLabel


def read(
    path: Path, images_folder: Path | None, with_masks: bool, problems: Problems
) -> LabelledImages:
    """Read a COCO file; the image files are looked at only if their folder is given.

    Segmentations are dropped unless `with_masks`.
    """
    return from_content(read_json(path), path, images_folder, with_masks, problems)


def from_content(
    content: Any, path: Path, images_folder: Path | None, with_masks: bool, problems: Problems
) -> LabelledImages:
    """The same, of a file that was read already."""
    for key in ("images", "categories", "annotations"):
        field(content, key, list, str(path))
    categories = sorted(
        content["categories"], key=lambda c: field(c, "id", int, f"{path}: category")
    )
    labels = {category["id"]: j for j, category in enumerate(categories, start=1)}
    names = [field(category, "name", str, f"{path}: category") for category in categories]
    unique([category["id"] for category in categories], f"{path}: category id")
    unique(names, f"{path}: category name")
    entries, owned = _by_image(content, path, problems)
    images = []
    for entry in track(entries, f"reading {path.name}"):
        with problems.caught():
            where = f"{path}: image {entry['id']!r}"
            file_name = field(entry, "file_name", str, where)
            size = checked_size(entry.get("height"), entry.get("width"), MAX_PIXELS, where)
            file = _image_file(file_name, images_folder, size, where)
            weak_labels = tuple(
                _to_weak_label(a, labels, size, with_masks, f"{path}: annotation {a.get('id')!r}")
                for a in owned.get(entry["id"], [])
            )
            images.append(
                LabelledImage(entry["id"], file_name, file, Annotation(size, weak_labels))
            )
    return LabelledImages.of(names, images, category_ids=list(labels), source=path)


def write(labelled: LabelledImages, out: Path) -> ConversionLoss:
    """Write one JSON file; masks are exact (RLE). The image files stay where they are."""
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    keep_ids = all(isinstance(image.image_id, int) for image in labelled)
    for number, image in enumerate(labelled, start=1):
        image_id = image.image_id if keep_ids else number
        height, width = image.annotation.size
        images.append(
            {"id": image_id, "file_name": image.file_name, "height": height, "width": width}
        )
        for weak_label in image.annotation:
            entry = {"id": len(annotations) + 1, "image_id": image_id}
            category_id = labelled.category_ids[weak_label.label - 1]
            annotations.append(
                {**entry, "category_id": category_id, **_from_weak_label(weak_label)}
            )
    categories = [
        {"id": number, "name": name}
        for number, name in zip(labelled.category_ids, labelled.classes, strict=True)
    ]
    write_json(out, {"images": images, "categories": categories, "annotations": annotations})
    bare = sum("segmentation" not in annotation for annotation in annotations)
    loss = ConversionLoss()
    if 0 < bare < len(annotations):
        loss.notes.append(f"{bare} labels have no mask; some COCO tools want one for each")
    return loss


def _by_image(
    content: dict[str, Any], path: Path, problems: Problems
) -> tuple[list[dict[str, Any]], dict[str | int, list[dict[str, Any]]]]:
    """The image entries, and the annotations by image id; ids must be there, and once."""
    entries: dict[str | int, dict[str, Any]] = {}
    for entry in content["images"]:
        with problems.caught():
            image_id = _id(entry, "id", f"{path}: image")
            if image_id in entries:
                raise InputError(f"{path}: image id {image_id!r} occurs twice")
            entries[image_id] = entry
    owned: dict[str | int, list[dict[str, Any]]] = {}
    seen: set[str | int] = set()
    for annotation in content["annotations"]:
        with problems.caught():
            annotation_id = _id(annotation, "id", f"{path}: annotation")
            image_id = _id(annotation, "image_id", f"{path}: annotation {annotation_id!r}")
            if annotation_id in seen:
                raise InputError(f"{path}: annotation id {annotation_id!r} occurs twice")
            if image_id not in entries:
                raise InputError(
                    f"{path}: annotation {annotation_id!r} is for image {image_id!r}, "
                    "which is not among the images"
                )
            seen.add(annotation_id)
            owned.setdefault(image_id, []).append(annotation)
    return list(entries.values()), owned


def _id(entry: Any, key: str, where: str) -> str | int:
    value = field(entry, key, object, where)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise InputError(f"{where}: {key} is {brief(value)}; expected a whole number or a text")
    return value


def _image_file(file_name: str, folder: Path | None, size: Size, where: str) -> Path | None:
    path = inside(folder or Path(), file_name, where)
    if folder is None:
        return None
    found = image_size(path)
    if found != size:
        raise InputError(
            f"{path}: {found[0]} x {found[1]} pixels (height x width); {where} "
            f"says {size[0]} x {size[1]}"
        )
    return path


def _to_weak_label(
    entry: dict[str, Any], labels: dict[int, int], size: Size, with_masks: bool, where: str
) -> WeakLabel:
    category = field(entry, "category_id", int, where)
    if category not in labels:
        raise InputError(f"{where}: category_id {category}; expected one of {brief(list(labels))}")
    bbox = numbers(entry, "bbox", 4, "4 numbers", where)
    point = numbers(entry, "point", 2, "2 numbers", where)
    segmentation = entry.get("segmentation")
    box = None
    if bbox is not None:
        x, y, width, height = bbox
        if (
            width > 0 and height > 0
        ) or not segmentation:  # beside a mask, an empty box says nothing
            box = clipped_box((x, y, x + width, y + height), size, where)
    if not with_masks:
        segmentation = None
    return WeakLabel(
        label=labels[category],
        box=box,
        point=None if point is None else checked_point(point, size, where),
        mask=masks.from_json(segmentation, size, where) if segmentation else None,
        crowd=bool(entry.get("iscrowd")),
        difficult=bool(entry.get("difficult")),
        **{
            key: finite(entry[key], f"{where}: {key}")
            for key in ("score", "confidence")
            if entry.get(key) is not None
        },
    )


def _from_weak_label(weak_label: WeakLabel) -> dict[str, Any]:
    entry: dict[str, Any] = {"iscrowd": int(weak_label.crowd)}
    box = tight_box(weak_label)
    if box is not None:
        x0, y0, x1, y1 = box
        entry |= {"bbox": [x0, y0, x1 - x0, y1 - y0], "area": (x1 - x0) * (y1 - y0)}
    if weak_label.mask is not None:
        entry |= {
            "segmentation": masks.to_json(weak_label.mask),
            "area": masks.areas([weak_label.mask])[0],
        }
        entry.setdefault("bbox", [0.0, 0.0, 0.0, 0.0])
    if weak_label.point is not None:
        entry["point"] = list(weak_label.point)
    if weak_label.difficult:
        entry["difficult"] = 1
    for key, value in (("score", weak_label.score), ("confidence", weak_label.confidence)):
        if value is not None:
            entry[key] = value
    return entry
