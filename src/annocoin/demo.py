"""What works, shown on data that it makes itself: no download, under a minute.

From boxes to masks in three ways that learn nothing from the labels: the filled box, GrabCut, and
the region whose own box fits best. That is the floor for every method that learns.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from annocoin import atomic
from annocoin.conditional.grab_cut import grab_cut
from annocoin.data import (
    load_evaluation,
    load_labelled,
    load_weak,
    with_predictions,
    write_dataset,
    write_predictions,
)
from annocoin.data.dataset import ImageId, WeakDataset
from annocoin.data.synthetic import write_synthetic
from annocoin.evaluation import PROTOCOLS, evaluate
from annocoin.progress import track
from annocoin.regions import RegionProposer
from annocoin.report import overlay
from annocoin.types import Instances

MADE_BY = "annocoin demo"


def run_demo(out: Path, *, images: int = 60) -> None:
    """Make data, label it two ways, evaluate, convert, draw. An earlier demo in `out` goes."""
    started = time.monotonic()
    earlier = out if _is_demo(out) else None
    making = out if earlier is None else out.with_name(f"{out.name}.new")
    with atomic.new_directory(making) as folder:
        data = folder / "data"
        write_synthetic(data, images=images)
        weak = load_weak(data, "box")
        truth = load_evaluation(data)
        answers = {
            "truth": {image_id: truth.truth(image_id) for image_id in truth},
            "filled box": _filled_boxes(weak),
            "GrabCut": _grabcut(weak),
            "region": _best_regions(weak),
        }
        print(f"mAP (%) at IoU .5 and .75 on {images} synthetic scenes, by protocol")
        summary: dict[str, dict[str, dict[str, float]]] = {}
        for name, found in answers.items():
            summary[name] = {}
            for protocol in PROTOCOLS:
                mean = evaluate(found, truth, protocol=protocol, thresholds=(0.5, 0.75)).mean
                summary[name][protocol] = {f"{t:g}": value for t, value in mean.items()}
            cells = [
                f"{p} {100 * v['0.5']:5.1f} {100 * v['0.75']:5.1f}"
                for p, v in summary[name].items()
            ]
            print(f"  {name:10s}  " + "   ".join(cells))
        write_predictions(folder / "regions.json", answers["region"], weak.category_ids)
        _convert(folder)
        _draw(weak, answers, folder / "picture.jpg")
        content = {
            "made by": MADE_BY,
            "map": summary,
            "images": images,
            "seconds": time.monotonic() - started,
        }
        atomic.write_json(folder / "summary.json", content, indent=2)
    if earlier is not None:
        shutil.rmtree(earlier)
        making.rename(out)
    print(f"Look at {out}/picture.jpg: boxes, GrabCut, regions, truth.")
    print(f"Masks in other formats: {out}/labels. Figures: {out}/summary.json.")


def _is_demo(folder: Path) -> bool:
    """Whether a demo made the folder, so that another may replace it."""
    try:
        content = json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("made by") == MADE_BY


def _filled_boxes(weak: WeakDataset) -> dict[ImageId, Instances]:
    found: dict[ImageId, Instances] = {}
    for image in weak:
        height, width = image.annotation.size
        masks = torch.zeros(len(image.annotation), height, width)
        for mask, box in zip(masks, image.annotation.boxes.round().long().tolist(), strict=True):
            x0, y0, x1, y1 = box
            mask[y0:y1, x0:x1] = 1
        found[image.image_id] = Instances(
            size=(height, width), masks=masks, labels=image.annotation.labels
        )
    return found


def _grabcut(weak: WeakDataset) -> dict[ImageId, Instances]:
    found: dict[ImageId, Instances] = {}
    for image in track(weak, "GrabCut"):
        pixels = image.pixels()
        masks = [_cut(pixels, box) for box in image.annotation.boxes.round().long().tolist()]
        found[image.image_id] = Instances(
            size=image.annotation.size, masks=np.stack(masks), labels=image.annotation.labels
        )
    return found


def _best_regions(weak: WeakDataset) -> dict[ImageId, Instances]:
    """For every box the region whose tight box overlaps it most."""
    propose = RegionProposer()
    found: dict[ImageId, Instances] = {}
    for image in track(weak, "regions"):
        regions = propose(image.pixels())
        best = regions.box_iou(image.annotation.boxes).argmax(dim=0)
        found[image.image_id] = Instances(
            size=image.annotation.size,
            masks=regions[best].rles(),
            labels=image.annotation.labels,
        )
    return found


def _cut(pixels: npt.NDArray[np.uint8], box: list[int]) -> npt.NDArray[np.bool_]:
    """GrabCut's answer, or else the box."""
    x0, y0, x1, y1 = box
    place = np.zeros(pixels.shape[:2], dtype=bool)
    place[y0:y1, x0:x1] = True
    cut = grab_cut(pixels, place)
    return place if cut is None else cut


def _convert(folder: Path) -> None:
    labelled = load_labelled(folder / "data", with_masks="never")
    labelled = with_predictions(labelled, folder / "regions.json")
    (folder / "labels").mkdir()
    write_dataset(labelled, folder / "labels" / "coco.json", "coco")
    for name in ("voc", "yolo", "labelme"):
        for line in write_dataset(labelled, folder / "labels" / name, name).lines():
            print(f"  as {name}: {line}")


def _draw(weak: WeakDataset, answers: dict[str, dict[ImageId, Instances]], path: Path) -> None:
    pictures = []
    for image in weak[:8]:
        pixels = image.pixels()
        shown = [answers[name][image.image_id] for name in ("GrabCut", "region", "truth")]
        marks = [image.annotation, *(answer.annotation() for answer in shown)]
        pictures += [overlay.draw(pixels, said, weak.classes, scale=1.5) for said in marks]
    overlay.save(overlay.sheet(pictures, 8), path)
