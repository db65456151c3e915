"""Runs that are killed, that two processes want, that many processes share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from annocoin import files
from end_to_end.quick import WORDS

TESTS = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS), "OMP_NUM_THREADS": "1"}


def finished(*words: object) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the test forks")
def test_killed_twenty_times_a_run_ends_the_same(scenes: Path, tmp_path: Path) -> None:
    said = finished(TESTS / "end_to_end" / "killed.py", scenes, tmp_path, 20, 0)
    moments = [line for line in said.splitlines() if line.startswith("killed in")]
    assert len(moments) == 20
    assert len(set(moments)) >= 5, "the moments should lie in many stages"
    runs = list(tmp_path.glob("killed-*"))
    assert runs
    for run in runs:
        for name in ("metrics.jsonl", "config.json", "run.json"):
            assert (run / name).read_bytes() == (tmp_path / "straight" / name).read_bytes(), name
        for name in ("prediction", "conditional", "classifier"):
            found, wanted = (
                load_file(folder / f"{name}.safetensors") for folder in (run, tmp_path / "straight")
            )
            assert found.keys() == wanted.keys()
            assert all(torch.equal(found[key], wanted[key]) for key in wanted), name


@pytest.mark.parametrize("devices", [1, 2])
def test_a_second_process_is_refused(scenes: Path, tmp_path: Path, devices: int) -> None:
    with files.exclusive_lock(tmp_path / "run" / ".lock"):
        second = subprocess.run(
            [sys.executable, "-m", "annocoin", "train", scenes, "--out", tmp_path / "run",
             "--preset", "synthetic", "--devices", str(devices)],
            env=ENVIRONMENT, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert second.returncode == 2
    assert "another process" in second.stderr
    assert "Traceback" not in second.stderr
    if devices == 1:
        assert second.stderr.count("\n") == 1


def test_two_processes_are_one_with_the_doubled_batch(scenes: Path, tmp_path: Path) -> None:
    """Real processes, gloo between them: the same losses, and each image's files once."""
    # with a higher rate the last bit of a sum may decide, steps later, which boxes are looked at
    common = ("-m", "annocoin", "train", scenes, "--split", "train", "--preset", "synthetic",
              "--jobs", 1, *WORDS, "--set", "prediction.learning.rate=1e-4")  # fmt: skip
    doubled = ("--set", "conditional.learning.batch=4", "--set", "prediction.learning.batch=4")
    finished(*common, "--out", tmp_path / "one", *doubled)
    finished(*common, "--out", tmp_path / "two", "--devices", 2)
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert [(own["stage"], own.get("step")) for own in one] == [
        (own["stage"], own.get("step")) for own in two
    ]
    compared = 0
    for alone, shared in zip(one, two, strict=True):
        if alone["stage"] in ("conditional", "round 1, prediction") and "loss" in alone:
            assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-4, abs=1e-4), alone
            compared += 1
    assert compared == 8
    for kind in ("regions", "seeds"):
        folders = [next((tmp_path / run / "stages").glob(f"{kind}-*")) for run in ("one", "two")]
        names = [sorted(p.relative_to(f).as_posix() for p in f.rglob("*.npz")) for f in folders]
        assert names[0] == names[1]
        assert len(names[0]) > 0
