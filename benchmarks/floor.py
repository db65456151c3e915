"""From boxes to masks without learning anything from them: the floor for every method that learns.

    python benchmarks/floor.py [--images 60] [--json FILE]

The filled box, GrabCut in it, and the region whose own tight box fits it best, on synthetic scenes;
mAP by protocol chainercv.
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
    given = parser.parse_args()
    propose = RegionProposer()

    def best_regions(image: WeakImage) -> Instances:
        regions = propose(image.pixels())
        best = regions.box_iou(image.annotation.boxes).argmax(dim=0)
        masks, labels = regions[best].rles(), image.annotation.labels
        return Instances(size=image.annotation.size, masks=masks, labels=labels)

    ways: dict[str, Callable[[WeakImage], Instances]] = {
        "filled box": lambda image: of_boxes(image, lambda _, place: place),
        "GrabCut": lambda image: of_boxes(image, cut),
        "region": best_regions,
    }
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        write_synthetic(Path(folder) / "data", images=given.images)
        weak, truth = (
            load_weak(Path(folder) / "data", "box"),
            load_evaluation(Path(folder) / "data"),
        )
        for name, way in ways.items():
            labels = {image.image_id: way(image) for image in track(weak, name)}
            mean = evaluate(labels, truth, thresholds=(0.5, 0.75)).mean
            found[name] = {f"{threshold:g}": value for threshold, value in mean.items()}
            print(
                f"{name:10s} " + "  ".join(f"@{t} {100 * v:5.1f}" for t, v in found[name].items())
            )
    if given.json is not None:
        write_json(given.json, found, indent=1)


def of_boxes(image: WeakImage, fill: Callable[[npt.NDArray[np.uint8], Mask], Mask]) -> Instances:
    """A mask for each box, made of the image and of the box as a mask."""
    pixels, masks = image.pixels(), []
    for x0, y0, x1, y1 in image.annotation.boxes.round().long().tolist():
        place = np.zeros(pixels.shape[:2], dtype=bool)
        place[y0:y1, x0:x1] = True
        masks.append(fill(pixels, place))
    labels = image.annotation.labels
    return Instances(size=image.annotation.size, masks=np.stack(masks), labels=labels)


def cut(pixels: npt.NDArray[np.uint8], place: Mask) -> Mask:
    """GrabCut's answer, or else the box."""
    found = grab_cut(pixels, place)
    return place if found is None else found


if __name__ == "__main__":
    main()
