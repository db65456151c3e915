"""Writing datasets in any format, with their labels or with predicted instances."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from annocoin.data.dataset import LabelledImages
from annocoin.data.formats import ConversionLoss, coco, folder, labelme, labelstudio, voc, yolo
from annocoin.data.predictions import read_predictions, write_predictions
from annocoin.errors import InputError, Problems, check_choice
from annocoin.files import refuse_input
from annocoin.types import Annotation, ImageId, Instances

Format = Literal["coco", "voc", "yolo", "labelme", "labelstudio", "folder", "results"]
FILES = ("coco", "labelstudio")
"""Formats of one .json file; "results" may be one."""

WITH_POLYGONS = ("coco", "labelstudio")


def write_dataset(
    labelled: LabelledImages, out: str | Path, to: Format, *, polygons: bool = False
) -> ConversionLoss:
    """Write a dataset in another format; returns what the format could not hold.

    Args:
        labelled: from `load_labelled` or `with_predictions`.
        out: a .json file for "coco" and "labelstudio"; .json or a new folder for "results"; else a
            new folder.
        to: the format; "results" are instances for `read_predictions`.
        polygons: write masks as polygons, for "coco" and "labelstudio"; otherwise they are exact.
    """
    out = Path(out)
    check_output(out, to, polygons)
    refuse_input(out, labelled.source)
    if polygons:
        return (coco if to == "coco" else labelstudio).write(labelled, out, polygons=True)
    return _WRITERS[to](labelled, out)


def check_output(out: Path, to: str, polygons: bool = False) -> None:
    """Raise unless a format can be written to a path of that name."""
    check_choice("format", to, get_args(Format))
    if to in FILES and out.suffix != ".json":
        raise InputError(f"{out}: {to} is one file; give a name that ends in .json")
    if to not in (*FILES, "results") and out.suffix == ".json":
        raise InputError(f"{out}: {to} is a folder; give a name that does not end in .json")
    if polygons and to not in WITH_POLYGONS:
        raise InputError(f"--polygons: not for {to}; expected {' or '.join(WITH_POLYGONS)}")


def with_predictions(
    labelled: LabelledImages, predictions: str | Path, problems: Problems | None = None
) -> LabelledImages:
    """The same images with predicted instances, from a file or folder, instead of their labels."""
    return with_instances(labelled, read_predictions(predictions, labelled, problems))


def with_instances(
    labelled: LabelledImages, instances: Mapping[ImageId, Instances]
) -> LabelledImages:
    """The same images with these instances instead of their labels."""
    images = []
    for image in labelled:
        annotation = Annotation(image.annotation.size)
        if image.image_id in instances:
            annotation = instances[image.image_id].annotation()
        images.append(replace(image, annotation=annotation, listed_labels=None))
    return replace(labelled, images=tuple(images))


def _write_results(labelled: LabelledImages, out: Path) -> ConversionLoss:
    loss = ConversionLoss()
    for image in labelled:
        for kind in image.annotation.kinds:
            if kind != "mask":
                loss.drop(f"{kind} labels")
    instances = {image.image_id: image.annotation.instances() for image in labelled}
    write_predictions(out, instances, labelled.category_ids)
    return loss


_WRITERS: dict[str, Callable[[LabelledImages, Path], ConversionLoss]] = {
    "coco": coco.write,
    "voc": voc.write,
    "yolo": yolo.write,
    "labelme": labelme.write,
    "labelstudio": labelstudio.write,
    "folder": folder.write,
    "results": _write_results,
}
