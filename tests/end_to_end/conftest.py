"""One small finished run per kind of supervision, for all tests here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from annocoin import api
from annocoin.data.loading import load_evaluation, load_weak
from end_to_end.quick import QUICK

SUPERVISION = ("image", "box", "point", "mask")


def metrics(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def train(scenes: Path, out: Path, supervision: Any = "image", **options: Any) -> api.TrainedRun:
    """A small run on the training split, in this process."""
    options = {"jobs": 1, "log": lambda _: None, **options}
    changes = {**QUICK, **options.pop("changes", {})}
    weak = options.pop("dataset", None) or load_weak(scenes, supervision, split="train")
    return api.train(weak, out, "synthetic", changes=changes, **options)


@pytest.fixture(scope="session")
def runs(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs by supervision; tests must not change them, but for what is done again."""
    root = tmp_path_factory.mktemp("runs")
    truth = load_evaluation(scenes, split="train")
    for supervision in SUPERVISION:
        train(scenes, root / supervision, supervision, truth=truth)
    return {supervision: root / supervision for supervision in SUPERVISION}
