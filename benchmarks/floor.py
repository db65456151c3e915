"""Masks from boxes without training: a lower bound for every trained method.

    python benchmarks/floor.py [--images 60] [--json FILE]

The filled box, GrabCut in it, and the region whose tight box has the best IoU with it, on synthetic
scenes; mAP by protocol chainercv.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from annocoin.conditional.requirements import grab_cut
from annocoin.data.dataset import WeakImage
from annocoin.data.loading import load_evaluation, load_weak
from annocoin.evaluation.evaluator import evaluate
from annocoin.files import write_json
from annocoin.progress import track
from annocoin.regions.proposals import RegionProposer
from annocoin.synthetic.dataset import write_synthetic
from annocoin.types import Instances

Mask = npt.NDArray[np.bool_]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    propose = RegionProposer()

    def best_regions(image: WeakImage) -> Instances:
        regions = propose(image.pixels())
        best = regions.box_iou(image.annotation.boxes).argmax(dim=0)
        masks, labels = regions[best].rles(), image.annotation.labels
        return Instances(size=image.annotation.size, masks=masks, labels=labels)

    methods: dict[str, Callable[[WeakImage], Instances]] = {
        "filled box": lambda image: of_boxes(image, lambda _, box: box),
        "GrabCut": lambda image: of_boxes(image, cut_or_box),
        "region": best_regions,
    }
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        write_synthetic(data, images=options.images)
        weak, truth = load_weak(data, "box"), load_evaluation(data)
        for name, method in methods.items():
            labels = {image.image_id: method(image) for image in track(weak, name)}
            mean = evaluate(labels, truth, thresholds=(0.5, 0.75)).mean
            results[name] = {f"{threshold:g}": value for threshold, value in mean.items()}
            cells = "  ".join(f"@{t} {100 * v:5.1f}" for t, v in results[name].items())
            print(f"{name:10s} {cells}")
    if options.json is not None:
        write_json(options.json, results, indent=1)


def of_boxes(image: WeakImage, fill: Callable[[npt.NDArray[np.uint8], Mask], Mask]) -> Instances:
    """A mask for each box: `fill` of the image and the box as a mask."""
    pixels, masks = image.pixels(), []
    for x0, y0, x1, y1 in image.annotation.boxes.round().long().tolist():
        box = np.zeros(pixels.shape[:2], dtype=bool)
        box[y0:y1, x0:x1] = True
        masks.append(fill(pixels, box))
    labels = image.annotation.labels
    return Instances(size=image.annotation.size, masks=np.stack(masks), labels=labels)


def cut_or_box(pixels: npt.NDArray[np.uint8], box: Mask) -> Mask:
    """The result of GrabCut; the box where it has none."""
    mask = grab_cut(pixels, box)
    return box if mask is None else mask


if __name__ == "__main__":
    main()
