"""From any format to any other, for datasets and for instances."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from annocoin.data.dataset import LabelledImages
from annocoin.data.formats import ConversionLoss, coco, folder, labelme, voc, yolo
from annocoin.data.predictions import read_predictions, write_predictions
from annocoin.errors import InputError, Problems, check_choice
from annocoin.files import refuse_input
from annocoin.types import Annotation, ImageId, Instances

Format = Literal["coco", "voc", "yolo", "labelme", "folder", "results"]


def write_dataset(labelled: LabelledImages, out: str | Path, to: Format) -> ConversionLoss:
    """Write a dataset in another format; the result tells what the format could not hold.

    Args:
        labelled: from `load_labelled` or `with_predictions`.
        out: a .json file for "coco"; .json or a new folder for "results"; else a new folder.
        to: the format; "results" are instances as `read_predictions` takes them.
    """
    out = Path(out)
    check_choice("format", to, get_args(Format))
    if to == "coco" and out.suffix != ".json":
        raise InputError(f"{out}: COCO is one file; give a name that ends in .json")
    refuse_input(out, labelled.source)
    return _WRITERS[to](labelled, out)


def with_predictions(
    labelled: LabelledImages, predictions: str | Path, problems: Problems | None = None
) -> LabelledImages:
    """The same images with predicted instances, from a file or folder, instead of their labels."""
    return with_instances(labelled, read_predictions(predictions, labelled, problems))


def with_instances(labelled: LabelledImages, found: Mapping[ImageId, Instances]) -> LabelledImages:
    """The same images with these instances instead of their labels."""
    images = tuple(
        replace(
            image,
            annotation=found[image.image_id].annotation()
            if image.image_id in found
            else Annotation(image.annotation.size),
            listed_labels=None,
        )
        for image in labelled
    )
    return replace(labelled, images=images)


def _write_results(labelled: LabelledImages, out: Path) -> ConversionLoss:
    loss = ConversionLoss()
    for weak_label in (weak_label for image in labelled for weak_label in image.annotation):
        if weak_label.mask is None:
            loss.drop(f"{weak_label.kind} labels")
    found = {image.image_id: image.annotation.instances() for image in labelled}
    write_predictions(out, found, labelled.category_ids)
    return loss


_WRITERS: dict[str, Callable[[LabelledImages, Path], ConversionLoss]] = {
    "coco": coco.write,
    "voc": voc.write,
    "yolo": yolo.write,
    "labelme": labelme.write,
    "folder": folder.write,
    "results": _write_results,
}
