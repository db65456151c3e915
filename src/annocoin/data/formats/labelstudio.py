"""Label Studio: one JSON file of tasks with predictions, to be imported and corrected there.

A mask is a brush region, which is exact, or polygons. The region's score is the confidence of a
pseudo label, or else its score; the prediction's score is the lowest of its regions, so that Label
Studio can sort tasks by it. The labelling configuration needs an Image named "image" and
BrushLabels (or PolygonLabels) named "label". Written only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from annocoin import masks
from annocoin.data.dataset import LabelledImage, LabelledImages
from annocoin.data.formats import ConversionLoss
from annocoin.files import write_json
from annocoin.types import WeakLabel

LOCAL_FILES = "/data/local-files/?d="
"""Address of an image below Label Studio's LOCAL_FILES_DOCUMENT_ROOT."""

IMAGE, CONTROL, MODEL = "image", "label", "annocoin"
WORD_BITS = 8
COUNT_BITS = (3, 4, 8, 16)
"""Sizes of the length of a run, of which the smallest is used."""


def write(labelled: LabelledImages, out: Path, *, polygons: bool = False) -> ConversionLoss:
    """Write one JSON file; the images are not copied."""
    loss = ConversionLoss()
    tasks: list[dict[str, Any]] = []
    for image in labelled:
        results: list[dict[str, Any]] = []
        for label in image.annotation:
            if label.mask is None:
                loss.drop(f"{label.kind} labels")
                continue
            name = labelled.classes[label.label - 1]
            number = f"{len(tasks)}-{len(results)}"
            results += _regions(image, label, name, number, loss, polygons=polygons)
        scores = [result["score"] for result in results if "score" in result]
        prediction: dict[str, Any] = {"model_version": MODEL, "result": results}
        if scores:
            prediction["score"] = min(scores)
        address = LOCAL_FILES + quote(image.file_name)
        tasks.append({"data": {IMAGE: address}, "predictions": [prediction]})
    write_json(out, tasks)
    return loss


def brush_rle(mask: npt.NDArray[np.bool_]) -> list[int]:
    """A mask [H, W] as Label Studio's run lengths: bytes of a bit stream.

    The content is 255 or 0 for each of four channels of each pixel, row by row. A header has the
    number of values, their bits, and four sizes of lengths; then each run has a 1, the number of
    its size, its length - 1, and its value.
    """
    flat = mask.ravel()
    starts = np.concatenate(([0], np.flatnonzero(flat[1:] != flat[:-1]) + 1))
    lengths = 4 * np.diff(np.append(starts, flat.size))
    bits = [f"{4 * flat.size:032b}", f"{WORD_BITS - 1:05b}"]
    bits += [f"{size - 1:04b}" for size in COUNT_BITS]
    longest = 2 ** COUNT_BITS[-1]
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        value = f"{255 * int(flat[start]):0{WORD_BITS}b}"
        for first in range(0, length, longest):
            count = min(longest, length - first) - 1
            index = next(i for i, size in enumerate(COUNT_BITS) if count < 2**size)
            bits.append(f"1{index:02b}{count:0{COUNT_BITS[index]}b}{value}")
    stream = np.frombuffer("".join(bits).encode(), dtype=np.uint8) - ord("0")
    packed: list[int] = np.packbits(stream).tolist()
    return packed


def _regions(
    image: LabelledImage,
    label: WeakLabel,
    name: str,
    number: str,
    loss: ConversionLoss,
    *,
    polygons: bool,
) -> list[dict[str, Any]]:
    """The regions of one object: a brush, or a polygon for each part."""
    assert label.mask is not None
    height, width = image.annotation.size
    dense = masks.decode([label.mask], (height, width))[0]
    values: list[dict[str, Any]]
    if polygons:
        outlines = masks.to_polygons(dense)
        loss.ious.append(masks.iou_of_polygons(outlines, label.mask))
        percent = 100 / np.asarray([width, height])
        values = [{"points": (outline * percent).tolist(), "closed": True} for outline in outlines]
    else:
        values = [{"format": "rle", "rle": brush_rle(dense)}]
    kind = "polygonlabels" if polygons else "brushlabels"
    common: dict[str, Any] = {
        "type": kind,
        "from_name": CONTROL,
        "to_name": IMAGE,
        "original_width": width,
        "original_height": height,
        "image_rotation": 0,
    }
    score = label.score if label.confidence is None else label.confidence
    if score is not None:
        common["score"] = score
    return [
        {"id": f"{MODEL}-{number}-{part}", **common, "value": {**value, kind: [name]}}
        for part, value in enumerate(values)
    ]
