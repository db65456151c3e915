"""labelme: beside every image a JSON file of the same name, with shapes.

Masks are exact: the shape type "mask" holds a PNG of the part inside the tight box. Tags are the
image's flags; shapes of one label and group_id are about one object.
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
from annocoin.data.images import copy_image, image_size, inside, opened
from annocoin.data.parsing import checked_point, clipped_box, field, finite, unique
from annocoin.errors import InputError, Problems, brief
from annocoin.files import new_directory, read_json
from annocoin.masks import RLE, Size, from_polygon
from annocoin.progress import track
from annocoin.types import Annotation, WeakLabel

_EXTRAS = ("score", "confidence")
_FLAGS = ("crowd", "difficult")


def read(root: Path, with_masks: bool, problems: Problems) -> LabelledImages:
    """Read a folder of labelme files; the classes are all labels and flags, sorted."""
    files: dict[Path, dict[str, Any]] = {}
    found: set[str] = set()
    for path in sorted(root.glob("*.json")):
        with problems.caught():
            content = read_json(path)
            field(content, "shapes", list, str(path))
            found |= set(_names(content, path))
            files[path] = content
    names = sorted(found)
    images = []
    for path, content in track(list(files.items()), f"reading {root.name}"):
        with problems.caught():
            named = field(content, "imagePath", str, str(path))
            file = inside(root, named, str(path))
            size = image_size(file)
            weak_labels = [WeakLabel(names.index(tag) + 1) for tag in _tags(content)]
            weak_labels += [
                _to_weak_label(
                    shapes, names, size, with_masks, f"{path}: shape {shapes[0]['label']!r}"
                )
                for shapes in _objects(content["shapes"])
            ]
            name = file.relative_to(root).as_posix()
            annotation = Annotation(size, tuple(weak_labels))
            images.append(LabelledImage(path.stem, name, file, annotation))
    unique([image.file_name for image in images], f"{root}: imagePath")
    return LabelledImages.of(names, images, source=root)


def write(labelled: LabelledImages, out: Path) -> ConversionLoss:
    """Write a new folder with images and labelme files; masks are exact."""
    loss = ConversionLoss()
    loss.drop("classes without a label", labelled.unused_classes())
    with new_directory(out) as root:
        pairs = list(zip(labelled, labelled.stems(), strict=True))
        for image, stem in track(pairs, "writing labelme"):
            copied = copy_image(image.image_path(), root, stem)
            height, width = image.annotation.size
            tags = [weak_label for weak_label in image.annotation if weak_label.kind == "tag"]
            shapes = [
                shape
                for group, weak_label in enumerate(image.annotation)
                for shape in _from_weak_label(
                    weak_label, labelled.classes[weak_label.label - 1], group
                )
            ]
            content = {
                "version": "5.5.0",
                "flags": {labelled.classes[weak_label.label - 1]: True for weak_label in tags},
                "shapes": shapes,
                "imagePath": copied.name,
                "imageData": None,
                "imageHeight": height,
                "imageWidth": width,
            }
            text = json.dumps(content, indent=2, allow_nan=False)
            (root / f"{stem}.json").write_text(text, encoding="utf-8")
            for weak_label in tags:
                loss.leave_out(weak_label, held=())
    return loss


def _names(content: dict[str, Any], path: Path) -> list[str]:
    return _tags(content) + [field(shape, "label", str, str(path)) for shape in content["shapes"]]


def _tags(content: dict[str, Any]) -> list[str]:
    flags = content.get("flags")
    return [name for name, on in flags.items() if on] if isinstance(flags, dict) else []


def _objects(shapes: list[dict[str, Any]]) -> Iterable[list[dict[str, Any]]]:
    """Shapes that belong together: same label, same group_id."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for number, shape in enumerate(shapes):
        group = shape.get("group_id")
        alone = ("alone", number)
        key = (shape["label"], group) if isinstance(group, int) else alone
        groups.setdefault(key, []).append(shape)
    return groups.values()


def _to_weak_label(
    shapes: list[dict[str, Any]], names: list[str], size: Size, with_masks: bool, where: str
) -> WeakLabel:
    box = point = None
    dense: npt.NDArray[np.bool_] | None = None
    for shape in shapes:
        kind = shape.get("shape_type", "polygon")
        corners = _corners(shape, where)
        if kind == "rectangle" and len(corners) >= 2:
            box = clipped_box([*corners.min(axis=0), *corners.max(axis=0)], size, where)
        elif kind == "point" and len(corners) == 1:
            point = checked_point(corners[0].tolist(), size, where)
        elif kind == "mask" and len(corners) == 2:
            part = _from_png(shape, corners, size, where)
            dense = part if dense is None else dense | part
        elif kind == "polygon" and len(corners) >= 3:
            part = from_polygon(corners, size)
            if not part.any():
                raise InputError(f"{where}: polygon {brief(corners.tolist())} is outside the image")
            dense = part if dense is None else dense | part
        else:
            raise InputError(
                f"{where}: shape_type {brief(kind)} with {len(corners)} points; expected "
                "rectangle, point, polygon or mask"
            )
    rle: RLE | None = None if dense is None else masks.encode(dense[None])[0]
    if rle is not None and not with_masks:
        box = box or clipped_box(masks.boxes([rle])[0].tolist(), size, where)
        rle = None
    flags = shapes[0].get("flags")
    flags = flags if isinstance(flags, dict) else {}
    extras = {key: shapes[0][key] for key in _EXTRAS if shapes[0].get(key) is not None}
    return WeakLabel(
        label=names.index(shapes[0]["label"]) + 1,
        box=box,
        point=point,
        mask=rle,
        crowd=bool(flags.get("crowd")),
        difficult=bool(flags.get("difficult")),
        **{key: finite(value, f"{where}: {key}") for key, value in extras.items()},
    )


def _corners(shape: dict[str, Any], where: str) -> npt.NDArray[np.float64]:
    points = field(shape, "points", list, where)
    if not all(isinstance(point, list) and len(point) == 2 for point in points):
        raise InputError(f"{where}: points is {brief(points)}; expected [[x, y], ...]")
    numbers = [[finite(value, f"{where}: points") for value in point] for point in points]
    corners = np.asarray(numbers, dtype=np.float64).reshape(-1, 2)
    if np.abs(corners).max(initial=0) > 1e6:
        raise InputError(f"{where}: points {brief(points)} are far outside the image")
    return corners


def _from_png(
    shape: dict[str, Any], corners: npt.NDArray[np.float64], size: Size, where: str
) -> npt.NDArray[np.bool_]:
    x0, y0, x1, y1 = (int(value) for value in corners.ravel())
    try:
        packed = base64.b64decode(field(shape, "mask", str, where), validate=True)
    except InputError:
        raise
    except ValueError as error:  # not base64, or not even ASCII
        raise InputError(f"{where}: broken mask ({error})") from None
    with opened(f"{where}: mask", io.BytesIO(packed), formats=("PNG",)) as picture:
        expected = (x1 - x0 + 1, y1 - y0 + 1)
        fits = x0 >= 0 and y0 >= 0 and x1 < size[1] and y1 < size[0]
        if picture.size != expected or not fits:
            raise InputError(
                f"{where}: mask of {picture.size} at {brief(corners.tolist())} does not fit"
            )
        part = np.asarray(picture.convert("L")) > 0
    mask = np.zeros(size, dtype=bool)
    mask[y0 : y1 + 1, x0 : x1 + 1] = part
    return mask


def _from_weak_label(weak_label: WeakLabel, name: str, group: int) -> list[dict[str, Any]]:
    places: list[tuple[str, list[list[float]], str | None]] = []
    if weak_label.mask is not None:
        places.append(_to_png(weak_label.mask))
    if weak_label.box is not None:
        x0, y0, x1, y1 = weak_label.box
        places.append(("rectangle", [[x0, y0], [x1, y1]], None))
    if weak_label.point is not None:
        places.append(("point", [list(weak_label.point)], None))
    extras = {
        key: getattr(weak_label, key) for key in _EXTRAS if getattr(weak_label, key) is not None
    }
    return [
        {
            "label": name,
            "points": points,
            "group_id": group if len(places) > 1 else None,
            "description": "",
            "shape_type": kind,
            "flags": {flag: True for flag in _FLAGS if getattr(weak_label, flag)},
            "mask": png,
            **extras,
        }
        for kind, points, png in places
    ]


def _to_png(rle: RLE) -> tuple[str, list[list[float]], str]:
    dense = masks.decode([rle], (rle["size"][0], rle["size"][1]))[0]
    x0, y0, x1, y1 = (int(value) for value in masks.boxes([rle])[0])
    x1, y1 = max(x1, x0 + 1), max(y1, y0 + 1)  # an empty mask keeps one (empty) pixel
    file = io.BytesIO()
    Image.fromarray(dense[y0:y1, x0:x1]).save(file, format="PNG")
    png = base64.b64encode(file.getvalue()).decode("ascii")
    return "mask", [[float(x0), float(y0)], [float(x1 - 1), float(y1 - 1)]], png
