"""Finished runs written by hand: two objects in every image, known labels, a small network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from annocoin import files, masks
from annocoin.data.dataset import (
    EvaluationDataset,
    LabelledImage,
    LabelledImages,
    WeakDataset,
    weak_dataset,
)
from annocoin.engine.presets import configure
from annocoin.engine.pseudo_labels import PseudoLabelFolder, PseudoLabels, write_pseudo_labels
from annocoin.engine.run_directory import RUN_FORMAT
from annocoin.engine.shared_stages import PREDICTION_FILE
from annocoin.prediction.networks import PredictionArchitecture, build_network, write_prediction
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import RegionFolder, write_regions
from annocoin.report.run_data import record_dataset
from annocoin.seeds.seed_set import SeedFolder, Seeds, write_seeds
from annocoin.types import Annotation, Instances, WeakLabel

SIZE = (48, 64)
HOSTILE = (
    "<script>alert(1)</script>",
    'dog & "cat" \'</style>',
    "x</script><img src=x onerror=alert(2)>",
)
"""Names of classes that would run as code if they were not escaped."""


def rectangle(x0: int, y0: int, x1: int, y1: int) -> np.ndarray:
    dense = np.zeros(SIZE, dtype=np.uint8)
    dense[y0:y1, x0:x1] = 1
    return dense


LEFT, RIGHT, SHIFTED = rectangle(4, 8, 24, 32), rectangle(36, 8, 60, 40), rectangle(40, 12, 60, 40)


def truth_of(number: int, classes: tuple[str, ...]) -> tuple[WeakLabel, ...]:
    """The left object is of class 1, the right one of another class."""
    left, right = masks.encode(np.stack([LEFT, RIGHT]))
    return (WeakLabel(1, mask=left), WeakLabel(2 + number % (len(classes) - 1), mask=right))


def images_of(folder: Path, count: int, classes: tuple[str, ...], stem: str) -> LabelledImages:
    folder.mkdir(parents=True, exist_ok=True)
    images = []
    for number in range(count):
        path = folder / f"{stem}{number}.png"
        Image.fromarray(np.full((*SIZE, 3), 40 + 10 * (number % 20), np.uint8)).save(path)
        annotation = Annotation(SIZE, truth_of(number, classes))
        images.append(LabelledImage(f"{stem}{number}", path.name, path, annotation))
    return LabelledImages.of(classes, images, source=folder)


def labels_of(number: int, classes: tuple[str, ...], *, moved: bool) -> PseudoLabels:
    """Two samples; the left object in both, with falling confidence, the right one in the first."""
    right = SHIFTED if moved else RIGHT
    instances = Instances(
        size=SIZE,
        masks=np.stack([LEFT, right]),
        labels=[1, 2 + number % (len(classes) - 1)],
        confidence=[1 - 0.1 * (number % 10), 0.5],
    )
    return PseudoLabels(instances, torch.tensor([[True, True], [True, False]]), 0)


def write_labels(folder: Path, ids: list[str], classes: tuple[str, ...], *, moved: bool) -> None:
    names = [(image_id, f"{number}.npz") for number, image_id in enumerate(ids)]
    with PseudoLabelFolder.writing(folder, {}, names) as paths:
        for number, path in enumerate(paths.values()):
            write_pseudo_labels(path, labels_of(number, classes, moved=moved))


def write_layers(run: Path, dataset: WeakDataset) -> dict[str, str]:
    """Seeds and regions of every image; gives their folders."""
    names = [(image.image_id, f"{i}.npz") for i, image in enumerate(dataset)]
    with RegionFolder.writing(run / "regions", {}, names) as paths:
        for path in paths.values():
            regions = RegionSet.of(LEFT.astype(int), [[0, 1]], edges=np.full(SIZE, 0.5))
            write_regions(path, regions)
    with SeedFolder.writing(run / "seeds", {}, names) as paths:
        for image, path in zip(dataset, paths.values(), strict=True):
            seeds = Seeds(SIZE, torch.tensor([1]), torch.tensor([[10.0, 20.0]]), torch.ones(1),
                          torch.zeros(1, dtype=torch.int64), torch.ones(1, 4, 4),
                          torch.ones(1, 4, 4))  # fmt: skip
            write_seeds(path, seeds, image.annotation)
    return {"regions": "regions", "seeds": "seeds"}


def write_run(
    run: Path,
    count: int = 6,
    classes: tuple[str, ...] = HOSTILE,
    *,
    measured: bool = True,
    stem: str = "image <b>",
) -> EvaluationDataset:
    """A finished run of one round from tags; gives the truth of its images."""
    labelled = images_of(run.parent / f"{run.name}-images", count, classes, stem)
    weak = weak_dataset(labelled, "image")
    ids = [str(image.image_id) for image in weak]
    figures = {f"map@{t}": 0.5 for t in ("0.25", "0.5", "0.7", "0.75")} | {"true_instances": 2.0}
    terms = {"round": 1, "div_pc": 2.0, "div_cc": 1.0, "div_pp": 0.5, "disc": 1.25}
    stages: dict[str, dict[str, Any]] = {
        "classifier": {"tag_map": 0.3},
        "round 1, samples": figures if measured else {},
        "round 1, prediction": {},
        "round 1, dissimilarity after prediction": terms,
        "round 1, conditional": {},
        "round 1, dissimilarity after conditional": {**terms, "div_pc": 1.5, "disc": 0.75},
        "final samples": figures if measured else {},
        "final prediction": {},
    }
    steps = {
        "classifier": {"loss": 0.7, "loss_tags": 0.7},
        "round 1, prediction": {"loss": 3.0, "loss_mask": 2.0, "class_entropy": -0.2},
        "round 1, conditional": {"loss": 3.0},
        "final prediction": {"loss": 2.0, "loss_mask": 1.0, "class_entropy": -0.1},
    }
    architecture = PredictionArchitecture(
        classes, "tiny", min_size=64, fpn_channels=8, representation_size=16, mask_layers=1
    )
    net = build_network(architecture)
    for name, measured_figures in stages.items():
        folder = run / "stages" / name.replace(", ", "-").replace(" ", "-")
        if name.endswith("samples"):
            write_labels(folder, ids, classes, moved=name.startswith("round"))
        if name.endswith("prediction"):
            write_prediction(folder / PREDICTION_FILE, net, architecture)
        if name in steps:
            lines = [json.dumps({"step": step + 1, **steps[name]}) for step in range(4)]
            files.write_bytes(folder / "metrics.jsonl", "\n".join(lines).encode())
        record = {"stage": name, "seconds": 2.5, "memory": 3 << 30, "figures": measured_figures}
        files.write_json(folder / "done.json", record)
    listed = [
        {"stage": name, "folder": f"stages/{name.replace(', ', '-').replace(' ', '-')}"}
        for name in stages
    ]
    config = configure("synthetic", classes, rounds=1).to_json()
    result = {
        "config": config,
        "supervision": "image",
        "networks": {"prediction": "stages/final-prediction/prediction.safetensors"},
        "stages": listed,
        "folders": write_layers(run, weak),
    }
    environment = {"run_format": RUN_FORMAT, "annocoin": "0.1.0", "device": "cpu", "processes": 1}
    files.write_json(run / "environment.json", {**environment, "command": "annocoin train <x>"})
    files.write_json(run / "config.json", config)
    files.write_json(run / "run.json", result)
    record_dataset(run, weak)
    return EvaluationDataset(labelled)
