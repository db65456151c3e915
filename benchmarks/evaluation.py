"""Time to evaluate as many images as VOC 2012 val has, compared with pycocotools.

    python benchmarks/evaluation.py                             # synthetic scenes of 375 x 500
    python benchmarks/evaluation.py --dataset VOC2012 --split val

A dataset with fewer images is repeated. Half of the predictions are true masks moved by a few
pixels, half are random ellipses. On one core, including the time to read the files: annocoin from
the VOC folder with its PNG maps, and both from the same COCO file.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from annocoin import files
from annocoin.data.conversion import write_dataset
from annocoin.data.dataset import LabelledImage, LabelledImages
from annocoin.data.loading import load_evaluation, load_labelled
from annocoin.data.predictions import read_predictions, write_predictions
from annocoin.evaluation.evaluator import PROTOCOLS, THRESHOLDS, evaluate
from annocoin.synthetic.dataset import write_synthetic
from annocoin.types import Instances


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dataset", type=Path, help="a VOC folder; default: synthetic scenes")
    parser.add_argument("--split")
    parser.add_argument("--images", type=int, default=1449)
    parser.add_argument("--predictions", type=int, default=50, help="per image")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(Path(folder), options)
    size = f"{options.images} images, {options.predictions} predictions each, one core"
    print(f"seconds for {size}")
    for name, value in seconds.items():
        print(f"  {name:42s} {value:8.3f}")
    if options.json:
        files.write_json(options.json, {"setting": size, "seconds": seconds}, indent=2)


def measure(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of each part; both tools must have the same mAP."""
    source = options.dataset
    if source is None:
        source = folder / "scenes"
        write_synthetic(source, images=min(145, options.images), size=(375, 500))
    labelled = repeated(load_labelled(source, split=options.split), options.images)
    voc, truth_json, results = folder / "voc", folder / "truth.json", folder / "results.json"
    write_dataset(labelled, voc, "voc")
    labelled = load_labelled(voc)
    write_dataset(labelled, truth_json, "coco")
    rng = np.random.default_rng(0)
    predicted = {
        image.image_id: random_predictions(image, options.predictions, rng) for image in labelled
    }
    write_predictions(results, predicted, labelled.category_ids)
    coco_results = folder / "coco_results.json"
    numbers = {image.image_id: number for number, image in enumerate(labelled, start=1)}
    by_number: dict[str | int, Instances] = {
        numbers[image_id]: instances for image_id, instances in predicted.items()
    }
    write_predictions(coco_results, by_number, labelled.category_ids)

    seconds: dict[str, float] = {}
    with timed(seconds, "annocoin: read VOC folder"):
        dataset = load_evaluation(voc)
    with timed(seconds, "annocoin: read predictions"):
        predictions = read_predictions(results, dataset.labelled)
    for protocol in PROTOCOLS:
        with timed(seconds, f"annocoin: evaluate, {protocol}"):
            evaluate(predictions, dataset, protocol=protocol)
    reading = sum(value for name, value in seconds.items() if "read" in name)
    for protocol in PROTOCOLS:
        part = seconds[f"annocoin: evaluate, {protocol}"]
        seconds[f"annocoin: all from VOC folder, {protocol}"] = reading + part
    with timed(seconds, "annocoin: all from COCO file, coco"):
        dataset = load_evaluation(truth_json)
        predictions = read_predictions(coco_results, dataset.labelled)
        ours = evaluate(predictions, dataset, protocol="coco").mean[0.5]
    with timed(seconds, "pycocotools: all from COCO file"), quiet():
        truth = COCO(str(truth_json))
        theirs = coco_mean(truth, truth.loadRes(str(coco_results)))
    if abs(ours - theirs) > 1e-9:
        raise SystemExit(f"mAP differs: annocoin {ours}, pycocotools {theirs}")
    print(f"mAP at .5, protocol coco: {100 * ours:.3f} by both")
    return seconds


def repeated(labelled: LabelledImages, images: int) -> LabelledImages:
    """The images repeated under new names, with the objects that have masks."""
    renamed = []
    for i in range(images):
        image = labelled[i % len(labelled)]
        name, annotation = f"{i:06d}", image.annotation.only("mask")
        renamed.append(
            replace(image, image_id=name, file_name=f"{name}.jpg", annotation=annotation)
        )
    return LabelledImages.of(labelled.classes, renamed, source=labelled.source)


def random_predictions(image: LabelledImage, count: int, rng: np.random.Generator) -> Instances:
    """Half moved true masks, half ellipses, mostly of the right class."""
    size = image.annotation.size
    truth = image.annotation.instances()
    dense = truth.dense().numpy()
    classes = truth.labels.tolist() or [1]
    masks, labels = [], []
    for i in range(count):
        if i % 2 and len(truth):
            k = int(rng.integers(len(truth)))
            masks.append(np.roll(dense[k], rng.integers(-12, 13, 2), (0, 1)))
            labels.append(classes[k])
        else:
            mask = np.zeros(size, np.uint8)
            centre = (int(rng.integers(size[1])), int(rng.integers(size[0])))
            axes = (int(rng.integers(8, size[1] // 3)), int(rng.integers(8, size[0] // 3)))
            cv2.ellipse(mask, centre, axes, float(rng.integers(180)), 0, 360, 1, -1)
            masks.append(mask.astype(bool))
            labels.append(classes[int(rng.integers(len(classes)))])
    return Instances(size=size, masks=np.stack(masks), labels=labels, scores=rng.random(count))  # type: ignore[arg-type]


def coco_mean(truth: COCO, predictions: COCO) -> float:
    """mAP at .5 by pycocotools, with the same four thresholds and without area ranges."""
    run = COCOeval(truth, predictions, "segm")
    run.params.iouThrs = np.asarray(THRESHOLDS)
    run.params.areaRng, run.params.areaRngLbl = [[0, 1e10]], ["all"]
    run.params.maxDets = [100]
    run.evaluate()
    run.accumulate()
    precision = run.eval["precision"][THRESHOLDS.index(0.5), :, :, 0, 0]
    return float(precision[:, precision.min(axis=0) >= 0].mean(axis=0).mean())


@contextlib.contextmanager
def timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - started


def quiet() -> contextlib.redirect_stdout[io.StringIO]:
    return contextlib.redirect_stdout(io.StringIO())


if __name__ == "__main__":
    main()
