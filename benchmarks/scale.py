"""Processor time per image and peak memory as a dataset grows; neither should grow with it.

    python benchmarks/scale.py --out FOLDER --images 1000 3000 10000

Images are synthetic scenes of 64 x 64 pixels, again and again under new names. Each figure is of a
process of its own, forked after all imports; memory is what it needs beyond them. The run has no
rounds and a tiny network that sees each image once; regions and seeds of equal scenes are computed
once: what is measured is reading, writing and bookkeeping. In FOLDER, datasets stay; a second call
uses them again.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from annocoin import api, files
from annocoin.data.conversion import write_dataset
from annocoin.data.dataset import LabelledImage
from annocoin.data.loading import load_evaluation, load_labelled, load_weak
from annocoin.data.predictions import read_predictions
from annocoin.engine.dataset_check import check_dataset
from annocoin.engine.image_stages import (
    Execution,
    make_classifier,
    make_regions,
    make_seeds,
    run_image_stage,
)
from annocoin.engine.preflight import Precomputed
from annocoin.engine.presets import configure
from annocoin.engine.verification import verify_run
from annocoin.evaluation.evaluator import evaluate
from annocoin.regions.storage import RegionFolder, regions_are_current, write_regions
from annocoin.report.page import write_report
from annocoin.seeds.seed_set import SeedFolder, seeds_are_current, write_seeds
from annocoin.synthetic.dataset import write_synthetic

SCENES, SIDE = 50, 64
BATCH = 50
CHANGES = {
    "regions.boundaries": "gradient",
    "regions.limit": "20",
    "classifier.size": "64",
    "classifier.epochs": "1",
    "prediction.architecture.min_size": "64",
    "prediction.architecture.fpn_channels": "16",
    "prediction.architecture.representation_size": "32",
    "prediction.architecture.mask_layers": "1",
    "prediction.architecture.rpn_top_n": "50",
    "prediction.losses.anchors_per_image": "16",
    "prediction.losses.rois_per_image": "8",
}
JOBS = Execution(jobs=1)


class CopiedRegions:
    """Gives every image the regions of the scene that it is a copy of."""

    def __init__(self, folder: Path) -> None:
        self.folder = RegionFolder(folder)

    def compute(self, item: str) -> Any:
        return self.folder[item]

    def write(self, path: Path, result: Any) -> None:
        write_regions(path, result)


class CopiedSeeds:
    """Likewise, its seeds."""

    def __init__(self, folder: Path) -> None:
        self.folder = SeedFolder(folder)

    def compute(self, item: Any) -> Any:
        return item, self.folder[scene_of(item.image_id)]

    def write(self, path: Path, result: Any) -> None:
        write_seeds(path, result[1], result[0].annotation)


def scene_of(image_id: object) -> str:
    """The scene of an image whose id is the scene's, "-" and a number."""
    return str(image_id).rpartition("-")[0]


def prepare(out: Path) -> None:
    """The scenes, their regions, a classifier and seeds."""
    scenes = out / "scenes"
    if not scenes.exists():
        write_synthetic(scenes, images=SCENES, size=SIDE)
    weak = load_weak(scenes, "image")
    config = configure("synthetic", weak.classes, CHANGES)
    regions = make_regions(weak, out / "regions", config.regions, JOBS)
    make_classifier(weak, out / "classifier", config.classifier)
    classifier = out / "classifier" / "classifier.safetensors"
    make_seeds(weak, regions, out / "seeds", config.seeds, classifier=classifier, execution=JOBS)


def enlarge(out: Path, count: int) -> None:
    """A dataset of so many images in a folder of its own, which its steps fill."""
    labelled = load_labelled(out / "scenes")
    images: list[LabelledImage] = []
    for number in range(count):
        image = labelled.images[number % len(labelled)]
        name = f"{image.image_id}-{number:06d}"
        images.append(replace(image, image_id=name, file_name=f"{name}.jpg"))
    enlarged = replace(labelled, images=tuple(images), splits={})
    if not (out / str(count) / "voc").exists():
        write_dataset(enlarged, out / str(count) / "voc", "voc")


def convert(folder: Path, to: Any) -> None:
    out = folder / (f"{to}.json" if to in ("coco", "results") else to)
    if out.is_dir():
        shutil.rmtree(out)
    write_dataset(load_labelled(folder / "voc"), out, to)


def evaluate_all(folder: Path, protocol: Any) -> None:
    truth = load_evaluation(folder / "voc")
    predictions = read_predictions(folder / "results.json", truth.labelled)
    assert evaluate(predictions, truth, protocol=protocol).mean[0.5] == 1.0


def stage_of_regions(folder: Path) -> None:
    """All files of a stage, or none if they are there."""
    weak = load_weak(folder / "voc", "image")
    items = [(i.image_id, f"{i.file_name}.npz", scene_of(i.image_id)) for i in weak]
    start = partial(CopiedRegions, folder.parent / "regions")
    provenance = RegionFolder(folder.parent / "regions").provenance
    run_image_stage(
        RegionFolder, folder / "regions", provenance, items, start,
        lambda path, _: regions_are_current(path), "regions", JOBS,
    )  # fmt: skip


def stage_of_seeds(folder: Path) -> None:
    weak = load_weak(folder / "voc", "image")
    items = [(i.image_id, f"{i.file_name}.npz", i) for i in weak]
    start = partial(CopiedSeeds, folder.parent / "seeds")
    provenance = SeedFolder(folder.parent / "seeds").provenance
    run_image_stage(
        SeedFolder, folder / "seeds", provenance, items, start,
        lambda path, image: seeds_are_current(path, image.annotation), "seeds", JOBS,
    )  # fmt: skip


def train(folder: Path) -> None:
    """A run with the regions and seeds of the stages: pseudo labels, and one visit of each."""
    weak = load_weak(folder / "voc", "image")
    training = {"batch_size": BATCH, "steps": 1, "final_steps": -(-len(weak) // BATCH) - 1}
    changes = CHANGES | {f"prediction.training.{k}": str(v) for k, v in training.items()}
    given = Precomputed(
        RegionFolder(folder / "regions"),
        SeedFolder(folder / "seeds"),
        folder.parent / "classifier" / "classifier.safetensors",
    )
    api.train(
        weak, folder / "run", "synthetic", rounds=0, changes=changes, precomputed=given,
        jobs=1, report=False, log=lambda _: None,
    )  # fmt: skip


STEPS: Mapping[str, Callable[[Path], object]] = {
    "load, VOC": lambda folder: load_labelled(folder / "voc"),
    "convert to COCO": partial(convert, to="coco"),
    "convert to YOLO": partial(convert, to="yolo"),
    "convert to labelme": partial(convert, to="labelme"),
    "convert to results": partial(convert, to="results"),
    "load, COCO": lambda folder: load_labelled(folder / "coco.json"),
    "check": lambda folder: check_dataset(load_weak(folder / "voc", "image")),
    "evaluate, chainercv": partial(evaluate_all, protocol="chainercv"),
    "evaluate, coco": partial(evaluate_all, protocol="coco"),
    "stage of regions": stage_of_regions,
    "stage of regions, again": stage_of_regions,
    "stage of seeds": stage_of_seeds,
    "train": train,
    "train, again": train,
    "verify": lambda folder: verify_run(folder / "run"),
    "report": lambda folder: write_report(folder / "run", limit=1_000_000),
}


def measure(step: str, folder: Path, count: int) -> dict[str, float]:
    """Do a step in this process, which does nothing else."""
    torch.set_num_threads(1)
    before, started = _memory("VmRSS"), os.times()
    STEPS[step](folder)
    ended = os.times()
    seconds = ended.user + ended.system - started.user - started.system
    return {"ms": 1000 * seconds / count, "MB": (_memory("VmHWM") - before) / 1e6}


def _memory(name: str) -> int:
    """Bytes of this process; VmHWM is the most since it was forked."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 3000, 10_000])
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    table: dict[str, dict[str, dict[str, float]]] = {step: {} for step in options.steps}
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as new_process:
        new_process.apply(prepare, (options.out,))
        for count in options.images:
            folder = options.out / str(count)
            new_process.apply(enlarge, (options.out, count))
            for step in options.steps:
                figures = new_process.apply(measure, (step, folder, count))
                table[step][str(count)] = figures
                shown = f"{figures['ms']:8.2f} ms an image {figures['MB']:8.0f} MB"
                print(f"{count:6d} {step:26s} {shown}", flush=True)
    print(f"| | {' | '.join(f'{count:,}' for count in options.images)} |")
    for step, row in table.items():
        cells = [f"{figures['ms']:.2f} ms, {figures['MB']:.0f} MB" for figures in row.values()]
        print(f"| {step} | {' | '.join(cells)} |")
    if options.json is not None:
        files.write_json(options.json, table, indent=1)


if __name__ == "__main__":
    main()
