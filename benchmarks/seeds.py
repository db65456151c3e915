"""Measure seeds: the classifier, pointing, the retrieved labels, and the region filter.

    python benchmarks/seeds.py VOCdevkit/VOC2012 --split devval --regions REGIONS --seeds SEEDS \\
        --classifier CLASSIFIER
    python benchmarks/seeds.py SYNTHETIC --split val --regions REGIONS --seeds SEEDS --train train

CLASSIFIER was trained by `annocoin seeds` on other images; with `--train SPLIT` a tiny one is
trained first. SEEDS are made from the tags of the split if they do not exist yet. Reported are: the
tag mAP of the classifier; pointing, how often the best peak (and any peak) of a class lies on an
object of that class; the share of objects with a peak; the share of a response on its class; mAP
(protocol chainercv) and mean best IoU of the labels by each retrieval method; and the best IoU of
the regions before and after the filter. The last two ignore VOC's void pixels.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from annocoin.backbones import TINY
from annocoin.data.dataset import EvaluationDataset, WeakDataset, WeakImage
from annocoin.data.loading import load_evaluation, load_weak
from annocoin.engine.classifier_training import tag_map, train_classifier
from annocoin.engine.image_stages import make_seeds
from annocoin.engine.presets import classifier_options
from annocoin.evaluation.evaluator import evaluate
from annocoin.files import write_json
from annocoin.progress import track
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.classifier import read_classifier, write_classifier
from annocoin.seeds.region_filter import RESPONSE_THRESHOLD, TOP_REGIONS, filter_regions
from annocoin.seeds.retrieval import METHODS, retrieve
from annocoin.seeds.seed_set import SeedFolder, Seeds
from annocoin.types import Instances
from regions import best_overlaps, valid_pixels

Row = dict[str, list[float]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--split")
    parser.add_argument("--regions", type=Path, required=True)
    parser.add_argument("--seeds", type=Path, required=True)
    parser.add_argument("--classifier", type=Path)
    parser.add_argument("--train", metavar="SPLIT", help="train a tiny classifier on this list")
    parser.add_argument("--supervision", default="image")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[RESPONSE_THRESHOLD, 0.5])
    parser.add_argument("--limit", type=int, help="number of images")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    weak = load_weak(options.dataset, options.supervision, split=options.split)[: options.limit]
    whole = load_evaluation(options.dataset, split=options.split)
    truth = EvaluationDataset(whole.labelled[: options.limit])
    file = options.classifier or options.seeds.with_suffix(".safetensors")
    if options.train is not None and not file.exists():
        images = load_weak(options.dataset, split=options.train)
        write_classifier(file, train_classifier(images, classifier_options(TINY)))
    regions = RegionFolder(options.regions)
    started = time.monotonic()
    seeds = make_seeds(weak, regions, options.seeds, classifier=file)
    results: dict[str, Any] = {"images": len(weak)}
    results["seconds to make the seeds"] = time.monotonic() - started
    results["tag mAP"] = tag_map(read_classifier(file), weak)
    results |= measure(weak, truth, seeds, regions, options)
    for name, value in results.items():
        print(f"{name:50s} {value if isinstance(value, int) else f'{value:.3f}'}")
    if options.json is not None:
        write_json(options.json, results, indent=1)


def measure(
    weak: WeakDataset,
    truth: EvaluationDataset,
    seeds: SeedFolder,
    regions: RegionFolder,
    options: argparse.Namespace,
) -> dict[str, Any]:
    rows: Row = {}
    labels: dict[str, dict[Any, Instances]] = {method: {} for method in METHODS}
    for image in track(weak.images, "seeds"):
        image_seeds, candidates = seeds[image.image_id], regions[image.image_id]
        truths = truth.truth(image.image_id)
        add(rows, pointing(image, image_seeds, truths))
        valid = valid_pixels(options.dataset, image.image_id, truths.size)
        add(rows, {"best IoU, all regions": best_iou(candidates, truths, valid)})
        add(rows, {"regions": [len(candidates)]})
        for threshold, top in itertools.product(options.thresholds, (0, TOP_REGIONS)):
            kept = filter_regions(
                candidates,
                image_seeds,
                image.annotation,
                response_threshold=threshold,
                top_regions=top,
            )
            setting = f"at {threshold:g}, first {top}"
            filtered = best_iou(candidates[kept], truths, valid)
            add(rows, {f"best IoU, filtered {setting}": filtered})
            add(rows, {f"share of regions kept {setting}": [float(kept.float().mean())]})
        for method in METHODS:
            retrieved = retrieve(candidates, image_seeds, image.annotation, method)
            instances = retrieved.instances(candidates, image_seeds)
            labels[method][image.image_id] = instances
            overlaps = best_label_iou(instances, truths, valid)
            add(rows, {f"best IoU, labels by {method}": overlaps})
    results = {name: float(np.mean(values)) for name, values in rows.items()}
    for name, predictions in labels.items():
        result = evaluate(predictions, truth, protocol="chainercv")
        for iou, mean in result.mean.items():
            results[f"mAP at {iou:g}, labels by {name}"] = mean
    return results


def pointing(image: WeakImage, seeds: Seeds, truths: Instances) -> Row:
    """Hits of the peaks of one image; classes without a ground-truth mask are left out."""
    rows: Row = {}
    dense = truths.dense()
    responses = seeds.responses_in_image()
    for label in image.annotation.distinct_labels:
        objects = dense[truths.labels == label]
        if not len(objects):
            continue
        of_class = (seeds.labels == label).nonzero()[:, 0].tolist()
        on_object = torch.stack([masks_at(objects, seeds.points[i]) for i in of_class])
        top = max(range(len(of_class)), key=lambda k: float(seeds.scores[of_class[k]]))
        mass = (responses[of_class] * objects.any(dim=0)).sum(dim=(1, 2))
        add(
            rows,
            {
                "pointing: best peak on its class": [float(on_object[top].any())],
                "pointing: any peak on its class": [float(on_object.any())],
                "peaks on their class": on_object.any(dim=1).float().tolist(),
                "objects with a peak": on_object.any(dim=0).float().tolist(),
                "peaks of a class in an image": [len(of_class)],
                "response mass on the class": mass.tolist(),
            },
        )
    return rows


def masks_at(objects: Tensor, point: Tensor) -> Tensor:
    """Which masks [n, H, W] contain a point: bool [n]."""
    column = min(int(point[0]), objects.shape[2] - 1)
    return objects[:, min(int(point[1]), objects.shape[1] - 1), column]


def best_iou(regions: RegionSet, truths: Instances, valid: Any) -> list[float]:
    """The best IoU of any region with each object; 0 without regions."""
    if not len(regions):
        return [0.0] * len(truths)
    return [float(row[-1]) for row in best_overlaps(regions, truths.dense(), valid)]


def best_label_iou(labels: Instances, truths: Instances, valid: Any) -> list[float]:
    """The best IoU of each object with a label of its class."""
    masks = labels.dense() & torch.from_numpy(valid)
    best = []
    for mask, label in zip(truths.dense(), truths.labels.tolist(), strict=True):
        same_class = masks[labels.labels == label]
        intersection = (same_class & mask).sum(dim=(1, 2))
        iou = intersection / (same_class | mask).sum(dim=(1, 2)).clamp(min=1)
        best.append(float(iou.max()) if len(iou) else 0.0)
    return best


def add(rows: Row, new: Row) -> None:
    for name, values in new.items():
        rows.setdefault(name, []).extend(values)


if __name__ == "__main__":
    main()
