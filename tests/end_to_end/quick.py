"""A whole run in seconds: options that make everything small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from annocoin import api
from annocoin.data.loading import load_weak
from annocoin.trained import TrainedRun

QUICK = {
    "regions.boundaries": "gradient",
    "regions.limit": "60",
    "classifier.size": "64",
    "classifier.epochs": "1",
    "classifier.batch_size": "4",
    "conditional.architecture.size": "64",
    "conditional.top_regions": "20",
    "conditional.training.initial_steps": "4",
    "conditional.training.steps": "3",
    "conditional.training.batch_size": "2",
    "conditional.training.samples": "3",
    "prediction.architecture.min_size": "64",
    "prediction.architecture.fpn_channels": "16",
    "prediction.architecture.representation_size": "32",
    "prediction.architecture.mask_layers": "1",
    "prediction.architecture.rpn_top_n": "50",
    "prediction.losses.anchors_per_image": "16",
    "prediction.losses.rois_per_image": "8",
    "prediction.training.steps": "4",
    "prediction.training.final_steps": "4",
    "prediction.training.batch_size": "2",
    "rounds": "1",
}
OVERRIDES = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
ARGUMENTS = ("--preset", "synthetic", "--jobs", "1", *OVERRIDES)
"""The same for the command line."""


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def train(scenes: Path, out: Path, supervision: Any = "image", **options: Any) -> TrainedRun:
    """A small run on the training split, in this process."""
    options = {"jobs": 1, "log": lambda _: None, **options}
    changes = {**QUICK, **options.pop("changes", {})}
    weak = options.pop("dataset", None) or load_weak(scenes, supervision, split="train")
    return api.train(weak, out, "synthetic", changes=changes, **options)
