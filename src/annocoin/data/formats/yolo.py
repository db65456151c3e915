"""YOLO: `data.yaml`, `images/SPLIT/*`, `labels/SPLIT/*.txt` with one object per line.

A line is ``class x y w h`` (a box by its centre) or ``class x y x y x y ...`` (a polygon), all from
0 to 1, classes from 0. Masks become polygons; the conversion loss has their IoU with the original.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import yaml

from annocoin import masks
from annocoin.data.dataset import LabelledImage, LabelledImages, tight_box
from annocoin.data.formats import ConversionLoss
from annocoin.data.images import SUFFIXES, copy_image, image_size, safe_join
from annocoin.data.parsing import field, finite, located_label, unique
from annocoin.errors import InputError, Problems, brief
from annocoin.files import new_directory, read_lines, read_text
from annocoin.masks import Size, from_polygon, to_polygon
from annocoin.progress import track
from annocoin.types import Annotation, ImageId, WeakLabel

_SPLITS = ("train", "val", "test")


def read(root: Path, split: str | None, with_masks: bool, problems: Problems) -> LabelledImages:
    """Read one split of a YOLO folder; without `split`, all of them."""
    path = root / "data.yaml"
    content = _read_yaml(path)
    classes = _class_names(content, path)
    folders = {key: content[key] for key in _SPLITS if isinstance(content.get(key), str)}
    if split is not None and split not in folders:
        raise InputError(f"{path}: no split {split!r}; found: {', '.join(folders) or 'none'}")
    files = {
        key: [
            file
            for file in sorted(_images_folder(root, folders[key], path).rglob("*"))
            if file.suffix.lower() in SUFFIXES
        ]
        for key in ([split] if split else folders)
    }
    images = []
    all_files = list(dict.fromkeys(file for listed in files.values() for file in listed))
    for file in track(all_files, f"reading {root.name}"):
        with problems.caught():
            size = image_size(file)
            weak_labels = _read_labels(_labels_file(root, file), size, len(classes), with_masks)
            name = file.relative_to(root).as_posix()
            images.append(LabelledImage(file.stem, name, file, Annotation(size, weak_labels)))
    unique([image.image_id for image in images], f"{root}: image name without suffix")
    splits = None if split else {key: [file.stem for file in files[key]] for key in files}
    return LabelledImages.of(classes, images, split=split, splits=splits, source=root)


def write(labelled: LabelledImages, out: Path) -> ConversionLoss:
    """Write a new YOLO folder with copies of the images; tags and points are lost."""
    loss = ConversionLoss()
    splits = _splits_by_image(labelled)
    with new_directory(out) as root:
        for image, stem in track(labelled.with_stems(), "writing YOLO"):
            split = splits[image.image_id]
            for folder in ("images", "labels"):
                (root / folder / split).mkdir(parents=True, exist_ok=True)
            copy_image(image.image_path(), root / "images" / split, stem)
            lines = [_to_line(label, image.annotation.size, loss) for label in image.annotation]
            text = "".join(f"{line}\n" for line in lines if line)
            (root / "labels" / split / f"{stem}.txt").write_text(text, encoding="utf-8")
        text = _to_yaml(set(splits.values()), labelled.classes)
        (root / "data.yaml").write_text(text, encoding="utf-8")
    return loss


def _splits_by_image(labelled: LabelledImages) -> dict[ImageId, str]:
    """train, val or test: by the lists (the last that has it), or by the name of the only one."""
    matching = [split for split in _SPLITS if split in (labelled.split or "")]
    default = matching[-1] if matching else "train"
    splits = dict.fromkeys((image.image_id for image in labelled), default)
    for split in _SPLITS:
        splits.update(dict.fromkeys(labelled.splits.get(split, ()), split))
    return splits


def _to_yaml(used: set[str], classes: tuple[str, ...]) -> str:
    """YOLO's tools need both train and val: a missing one refers to the images of another."""
    first = next(split for split in _SPLITS if split in used)
    lines = [f"{s}: images/{s if s in used else first}" for s in {"train", "val"} | used]
    names = [f"  {j}: {json.dumps(name, ensure_ascii=False)}" for j, name in enumerate(classes)]
    return "\n".join([*sorted(lines), "names:", *names]) + "\n"


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(read_text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: broken YAML ({error})") from None
    if not isinstance(content, dict):
        raise InputError(f"{path}: found {brief(content)}; expected names and splits")
    return content


def _class_names(content: dict[str, Any], path: Path) -> list[str]:
    names: Any = field(content, "names", object, str(path))
    if isinstance(names, dict) and set(names) == set(range(len(names))):
        names = [names[j] for j in range(len(names))]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise InputError(f"{path}: names is {brief(names)}; expected a list of class names")
    return unique(names, f"{path}: names")


def _images_folder(root: Path, name: str, path: Path) -> Path:
    """The images of a split. Some tools write "../train/images" and mean train/images in `root`."""
    name_inside = name.removeprefix("./").removeprefix("../")
    folder = None if ".." in name_inside else safe_join(root, name_inside, str(path))
    if folder is None or not folder.is_dir():
        raise InputError(f"{path}: no folder {name!r} of images inside {root}")
    return folder


def _labels_file(root: Path, image: Path) -> Path:
    """YOLO's rule: the last "images" of the path becomes "labels"."""
    parts = list(image.relative_to(root).parts)
    if "images" not in parts[:-1]:
        raise InputError(f"{image}: expected it in a folder named images, beside one named labels")
    parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    return root.joinpath(*parts).with_suffix(".txt")


def _read_labels(
    path: Path, size: Size, num_classes: int, with_masks: bool
) -> tuple[WeakLabel, ...]:
    if not path.exists():  # YOLO's convention for an image without objects
        return ()
    weak_labels = []
    for number, line in enumerate(read_lines(path), start=1):
        where = f"{path}:{number}"
        values = [finite(word, where) for word in line.split()]
        if len(values) != 5 and (len(values) < 7 or len(values) % 2 == 0):
            raise InputError(f"{where}: {len(values)} numbers; expected class x y w h or a polygon")
        label = int(values[0]) + 1
        if values[0] != int(values[0]) or not 1 <= label <= num_classes:
            raise InputError(f"{where}: class {values[0]:g}; expected 0 to {num_classes - 1}")
        if min(values[1:]) < -0.5 or max(values[1:]) > 1.5:
            raise InputError(f"{where}: {brief(values[1:])}; expected numbers from 0 to 1")
        pixels = np.asarray(values[1:]).reshape(-1, 2) * (size[1], size[0])
        weak_labels.append(_to_weak_label(label, pixels, size, with_masks, where))
    return tuple(weak_labels)


def _to_weak_label(
    label: int, points: npt.NDArray[np.float64], size: Size, with_masks: bool, where: str
) -> WeakLabel:
    """`points` in pixels: centre and extent of a box, or the corners of a polygon."""
    if len(points) == 2:
        centre, extent = points
        box = [*(centre - extent / 2).tolist(), *(centre + extent / 2).tolist()]
        return located_label(label, size, where, box=box)
    rle = masks.encode(from_polygon(points, size)[None])[0]
    boxed = located_label(label, size, where, box=masks.boxes([rle])[0].tolist())
    return WeakLabel(label, mask=rle) if with_masks else boxed


def _to_line(label: WeakLabel, size: Size, loss: ConversionLoss) -> str | None:
    height, width = size
    loss.drop_fields(label, supported={"masks"})
    if label.mask is not None:
        mask = masks.decode([label.mask], size)[0]
        corners = to_polygon(mask)
        if corners is None:
            loss.ious.append(0.0)
            return None
        written = from_polygon(corners, size)
        loss.ious.append(float((mask & written).sum() / (mask | written).sum()))
        numbers = (corners / (width, height)).ravel().tolist()
        if label.box is not None and label.box != tight_box(replace(label, box=None)):
            loss.drop("boxes other than the mask's")
    elif label.box is not None:
        x0, y0, x1, y1 = label.box
        centre = [(x0 + x1) / 2 / width, (y0 + y1) / 2 / height]
        numbers = [*centre, (x1 - x0) / width, (y1 - y0) / height]
    else:
        if label.kind == "tag":
            loss.drop("tags")
        return None
    return " ".join([str(label.label - 1), *(f"{value:.6f}" for value in numbers)])
