"""labelme: beside every image a JSON file of the same name, with shapes.

Masks are exact: the shape type "mask" holds a PNG of the part inside the tight box. Tags are the
image's flags; shapes with the same label and group_id belong to one object.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from annocoin import masks
from annocoin.data.dataset import LabelledImage, LabelledImages
from annocoin.data.formats import ConversionLoss
from annocoin.data.images import copy_image, image_size, open_image, safe_join
from annocoin.data.parsing import field, finite, located_label, optional_number, unique
from annocoin.errors import InputError, Problems, brief
from annocoin.files import new_directory, read_json
from annocoin.masks import RLE, Size, from_polygon
from annocoin.progress import track
from annocoin.types import Annotation, WeakLabel

VERSION = "5.5.0"
"""Of labelme, whose files these are."""

MAX_COORDINATE = 1e6
_Shape = dict[str, Any]


def read(root: Path, with_masks: bool, problems: Problems) -> LabelledImages:
    """Read a folder of labelme files; the classes are all labels and flags, sorted."""
    contents: dict[Path, dict[str, Any]] = {}
    names: set[str] = set()
    for path in sorted(root.glob("*.json")):
        with problems.caught():
            content = read_json(path)
            if isinstance(content, dict) and {"images", "annotations"} <= content.keys():
                raise InputError(
                    f"{path}: a COCO file in a folder that was read as labelme; expected the file "
                    "itself as the dataset, with --images DIR"
                )
            shapes = field(content, "shapes", list, str(path))
            labels = [field(shape, "label", str, str(path)) for shape in shapes]
            names |= {*_tags(content), *labels}
            contents[path] = content
    classes = sorted(names)
    images = []
    for path, content in track(list(contents.items()), f"reading {root.name}"):
        with problems.caught():
            file = safe_join(root, field(content, "imagePath", str, str(path)), str(path))
            size = image_size(file)
            weak_labels = [WeakLabel(classes.index(tag) + 1) for tag in _tags(content)]
            for shapes in _objects(content["shapes"]):
                where = f"{path}: shape {shapes[0]['label']!r}"
                weak_labels.append(_to_weak_label(shapes, classes, size, with_masks, where))
            name = file.relative_to(root).as_posix()
            annotation = Annotation(size, tuple(weak_labels))
            images.append(LabelledImage(path.stem, name, file, annotation))
    unique([image.file_name for image in images], f"{root}: imagePath")
    return LabelledImages.of(classes, images, source=root)


def write(labelled: LabelledImages, out: Path) -> ConversionLoss:
    """Write a new folder with images and labelme files; masks are exact."""
    loss = ConversionLoss()
    loss.drop("classes without a label", labelled.unused_classes())
    with new_directory(out) as root:
        for image, stem in track(labelled.with_stems(), "writing labelme"):
            copied = copy_image(image.image_path(), root, stem)
            height, width = image.annotation.size
            flags: dict[str, bool] = {}
            shapes: list[_Shape] = []
            for group_id, label in enumerate(image.annotation):
                name = labelled.classes[label.label - 1]
                if label.kind == "tag":
                    flags[name] = True
                    loss.drop_fields(label, supported=())
                shapes += _from_weak_label(label, name, group_id)
            content = {
                "version": VERSION,
                "flags": flags,
                "shapes": shapes,
                "imagePath": copied.name,
                "imageData": None,
                "imageHeight": height,
                "imageWidth": width,
            }
            text = json.dumps(content, indent=2, allow_nan=False)
            (root / f"{stem}.json").write_text(text, encoding="utf-8")
    return loss


def _tags(content: dict[str, Any]) -> list[str]:
    flags = content.get("flags")
    return [name for name, is_set in flags.items() if is_set] if isinstance(flags, dict) else []


def _objects(shapes: list[_Shape]) -> Iterable[list[_Shape]]:
    """The shapes of each object: those with the same label and group_id."""
    objects: dict[Any, list[_Shape]] = {}
    for number, shape in enumerate(shapes):
        group_id = shape.get("group_id")
        key = (shape["label"], group_id) if isinstance(group_id, int) else number
        objects.setdefault(key, []).append(shape)
    return objects.values()


def _to_weak_label(
    shapes: list[_Shape], classes: list[str], size: Size, with_masks: bool, where: str
) -> WeakLabel:
    box = point = rle = None
    parts: list[npt.NDArray[np.bool_]] = []
    for shape in shapes:
        kind = shape.get("shape_type", "polygon")
        corners = _corners(shape, where)
        if kind == "rectangle" and len(corners) >= 2:
            box = [*corners.min(axis=0), *corners.max(axis=0)]
        elif kind == "point" and len(corners) == 1:
            point = corners[0].tolist()
        elif kind == "mask" and len(corners) == 2:
            parts.append(_from_png(shape, corners, size, where))
        elif kind == "polygon" and len(corners) >= 3:
            parts.append(from_polygon(corners, size))
            if not parts[-1].any():
                raise InputError(f"{where}: polygon {brief(corners.tolist())} is outside the image")
        else:
            raise InputError(
                f"{where}: shape_type {brief(kind)} with {len(corners)} points; expected "
                "rectangle, point, polygon or mask"
            )
    if parts:
        rle = masks.encode(np.any(parts, axis=0)[None])[0]
        if not with_masks:
            box, rle = box or masks.boxes([rle])[0].tolist(), None
    flags = shapes[0].get("flags")
    flags = flags if isinstance(flags, dict) else {}
    return located_label(
        classes.index(shapes[0]["label"]) + 1,
        size,
        where,
        box=box,
        point=point,
        mask=rle,
        crowd=bool(flags.get("crowd")),
        difficult=bool(flags.get("difficult")),
        score=optional_number(shapes[0], "score", where),
        confidence=optional_number(shapes[0], "confidence", where),
    )


def _corners(shape: _Shape, where: str) -> npt.NDArray[np.float64]:
    points = field(shape, "points", list, where)
    if not all(isinstance(point, list) and len(point) == 2 for point in points):
        raise InputError(f"{where}: points is {brief(points)}; expected [[x, y], ...]")
    numbers = [[finite(value, f"{where}: points") for value in point] for point in points]
    corners = np.asarray(numbers, dtype=np.float64).reshape(-1, 2)
    if np.abs(corners).max(initial=0) > MAX_COORDINATE:
        raise InputError(f"{where}: points {brief(points)} are far outside the image")
    return corners


def _from_png(
    shape: _Shape, corners: npt.NDArray[np.float64], size: Size, where: str
) -> npt.NDArray[np.bool_]:
    x0, y0, x1, y1 = (int(value) for value in corners.ravel())
    text = field(shape, "mask", str, where)
    try:
        png = base64.b64decode(text, validate=True)
    except ValueError as error:  # not base64, or not even ASCII
        raise InputError(f"{where}: broken mask ({error})") from None
    with open_image(f"{where}: mask", io.BytesIO(png), formats=("PNG",)) as image:
        inside = x0 >= 0 and y0 >= 0 and x1 < size[1] and y1 < size[0]
        if not inside or image.size != (x1 - x0 + 1, y1 - y0 + 1):
            raise InputError(
                f"{where}: mask of {image.size} at {brief(corners.tolist())} does not fit"
            )
        mask = np.zeros(size, dtype=bool)
        mask[y0 : y1 + 1, x0 : x1 + 1] = np.asarray(image.convert("L")) > 0
    return mask


def _from_weak_label(label: WeakLabel, name: str, group_id: int) -> list[_Shape]:
    """The shapes of a weak label: up to three of one group, none for a tag."""
    shapes: list[_Shape] = []
    if label.mask is not None:
        shapes.append(_to_png(label.mask))
    if label.box is not None:
        x0, y0, x1, y1 = label.box
        shapes.append({"shape_type": "rectangle", "points": [[x0, y0], [x1, y1]], "mask": None})
    if label.point is not None:
        shapes.append({"shape_type": "point", "points": [list(label.point)], "mask": None})
    common: _Shape = {
        "label": name,
        "group_id": group_id if len(shapes) > 1 else None,
        "description": _description(label),
        "flags": {flag: True for flag in ("crowd", "difficult") if getattr(label, flag)},
    }
    for key, value in (("score", label.score), ("confidence", label.confidence)):
        if value is not None:
            common[key] = value
    return [{**common, **shape} for shape in shapes]


def _description(label: WeakLabel) -> str:
    """Confidence or score as text, which labelme shows with a shape; other keys it only keeps."""
    if label.confidence is not None:
        return f"confidence {label.confidence:.2f}"
    return "" if label.score is None else f"score {label.score:.2f}"


def _to_png(rle: RLE) -> _Shape:
    dense = masks.decode([rle], (rle["size"][0], rle["size"][1]))[0]
    x0, y0, x1, y1 = (int(value) for value in masks.boxes([rle])[0])
    x1, y1 = max(x1, x0 + 1), max(y1, y0 + 1)  # an empty mask keeps one (empty) pixel
    file = io.BytesIO()
    Image.fromarray(dense[y0:y1, x0:x1]).save(file, format="PNG")
    return {
        "shape_type": "mask",
        "points": [[float(x0), float(y0)], [float(x1 - 1), float(y1 - 1)]],
        "mask": base64.b64encode(file.getvalue()).decode("ascii"),
    }
