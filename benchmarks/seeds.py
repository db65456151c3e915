"""Measure seeds: the classifier, where its peaks fall, the first labels, and the region filter.

    python benchmarks/seeds.py VOCdevkit/VOC2012 --split devval --regions REGIONS --seeds SEEDS \\
        --classifier CLASSIFIER
    python benchmarks/seeds.py SYNTHETIC --split val --regions REGIONS --seeds SEEDS --train train

CLASSIFIER was trained by `annocoin seeds` on other images; with `--train SPLIT` a tiny one is
trained first. SEEDS are made for the split, from tags, if they are not there yet. Reported are the
tag mAP of the classifier; pointing, how often the best peak of an image's class falls on an object
of that class (and any of its peaks); how many objects have a peak; the share of a response's mass
on its class; mAP (protocol chainercv) and mean best IoU of the labels by each retrieval; and the
best IoU that regions can reach before and after the filter. VOC's void pixels count for nobody in
the last two.
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

from annocoin.data.dataset import EvaluationDataset, WeakDataset, WeakImage
from annocoin.data.loading import load_evaluation, load_weak
from annocoin.engine.classifier_training import options_for, predict_tags, tag_map, train_classifier
from annocoin.engine.dataset_stages import make_seeds
from annocoin.evaluation.evaluator import evaluate
from annocoin.files import write_json
from annocoin.progress import track
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.classifier import read_classifier, write_classifier
from annocoin.seeds.retrieval import WAYS, retrieve
from annocoin.seeds.seed_set import SeedFolder, Seeds
from annocoin.seeds.votes import BEST, STRONG, filter_regions
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
    parser.add_argument("--strong", type=float, nargs="+", default=[STRONG, 0.5])
    parser.add_argument("--limit", type=int, help="only so many images")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    weak = load_weak(options.dataset, options.supervision, split=options.split)[: options.limit]
    whole = load_evaluation(options.dataset, split=options.split)
    truth = EvaluationDataset(whole.labelled[: options.limit])
    file = options.classifier or options.seeds.with_suffix(".safetensors")
    if options.train is not None and not file.exists():
        images = load_weak(options.dataset, split=options.train)
        write_classifier(file, train_classifier(images, options_for("tiny"), log=print))
    regions = RegionFolder(options.regions)
    started = time.monotonic()
    seeds = make_seeds(weak, regions, options.seeds, classifier=file)
    results: dict[str, Any] = {"images": len(weak)}
    results["seconds to make the seeds"] = time.monotonic() - started
    results["tag mAP"] = tag_map(predict_tags(read_classifier(file), weak), weak)
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
    labels: dict[str, dict[Any, Instances]] = {way: {} for way in WAYS}
    for image in track(weak.images, "seeds"):
        found, candidates = seeds[image.image_id], regions[image.image_id]
        true = truth.truth(image.image_id)
        add(rows, pointing(image, found, true))
        valid = valid_pixels(options.dataset, image.image_id, true.size)
        add(rows, {"best IoU, all regions": best(candidates, true, valid)})
        add(rows, {"regions": [len(candidates)]})
        for strong, least in itertools.product(options.strong, (0, BEST)):
            kept = filter_regions(candidates, found, image.annotation, strong=strong, best=least)
            left = candidates[kept]
            how = f"at {strong:g}, first {least}"
            add(rows, {f"best IoU, filtered {how}": best(left, true, valid)})
            add(rows, {f"share of regions kept {how}": [len(left) / len(candidates)]})
        for way in WAYS:
            chosen = retrieve(candidates, found, image.annotation, way)
            instances = chosen.instances(candidates, found)
            labels[way][image.image_id] = instances
            overlaps = best_label_overlaps(instances, true, valid)
            add(rows, {f"best IoU, labels by {way}": overlaps})
    results = {name: float(np.mean(values)) for name, values in rows.items()}
    for name, answers in labels.items():
        result = evaluate(answers, truth, protocol="chainercv")
        for threshold, mean in result.mean.items():
            results[f"mAP at {threshold:g}, labels by {name}"] = mean
    return results


def pointing(image: WeakImage, seeds: Seeds, true: Instances) -> Row:
    """Hits of one image's peaks; classes without a true mask do not count."""
    rows: Row = {}
    dense = true.dense()
    responses = seeds.responses_in_image()
    for label in image.annotation.distinct_labels:
        objects = dense[true.labels == label]
        if not len(objects):
            continue
        of_class = (seeds.labels == label).nonzero()[:, 0].tolist()
        on_object = torch.stack([under(objects, seeds.points[i]) for i in of_class])  # [n, objects]
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


def under(objects: Tensor, point: Tensor) -> Tensor:
    """Which masks [n, H, W] have the pixel under a point: bool [n]."""
    column = min(int(point[0]), objects.shape[2] - 1)
    return objects[:, min(int(point[1]), objects.shape[1] - 1), column]


def best(regions: RegionSet, true: Instances, valid: Any) -> list[float]:
    """The best IoU that any region has with each object; 0 if there is none."""
    if not len(regions):
        return [0.0] * len(true)
    return [float(row[-1]) for row in best_overlaps(regions, true.dense(), valid)]


def best_label_overlaps(labels: Instances, true: Instances, valid: Any) -> list[float]:
    """The best IoU of each object with a label of its own class."""
    counts = torch.from_numpy(valid)
    masks = labels.dense() & counts
    best = []
    for mask, label in zip(true.dense(), true.labels.tolist(), strict=True):
        own = masks[labels.labels == label]
        common, union = (own & mask).sum(dim=(1, 2)), (own | mask).sum(dim=(1, 2))
        best.append(float((common / union.clamp(min=1)).max()) if len(own) else 0.0)
    return best


def add(rows: Row, new: Row) -> None:
    for name, values in new.items():
        rows.setdefault(name, []).extend(values)


if __name__ == "__main__":
    main()
