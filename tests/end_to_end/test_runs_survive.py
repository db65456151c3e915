"""Runs that are killed, that two processes open, that several processes share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from annocoin import files
from annocoin.data.loading import load_weak
from annocoin.seeds.classifier import Classifier, ClassifierArchitecture, write_classifier
from end_to_end.quick import ARGUMENTS, metrics

TESTS = Path(__file__).parent.parent
PATHS = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
ENVIRONMENT = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}


def output_of(*arguments: object) -> str:
    """The output of a Python process, which must succeed."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the test forks")
def test_commands_that_are_killed_twenty_times_give_the_same_bytes(
    scenes: Path, tmp_path: Path
) -> None:
    """`make chaos` does the same with a hundred kills."""
    output = output_of(TESTS / "end_to_end" / "killed.py", tmp_path, 20, 0, scenes)
    moments = [line for line in output.splitlines() if line.startswith("killed in")]
    assert len(moments) == 20, output
    assert len(set(moments)) >= 8, "the moments should lie in many stages"
    assert sum(line.endswith("in a write") for line in moments) >= 5
    assert "all identical" in output.splitlines()[-1]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_second_process_is_refused(scenes: Path, tmp_path: Path, devices: int) -> None:
    command = [sys.executable, "-m", "annocoin", "train", scenes, "--out", tmp_path / "run"]
    with files.exclusive_lock(tmp_path / "run" / ".lock"):
        second = subprocess.run(
            [*command, "--preset", "synthetic", "--devices", str(devices)],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert second.returncode == 2
    assert "another process" in second.stderr
    assert "Traceback" not in second.stderr
    if devices == 1:
        assert second.stderr.count("\n") == 1


def test_a_run_on_two_machines_survives_the_death_of_one(scenes: Path, tmp_path: Path) -> None:
    """`make chaos` also lets the other one die, and cuts the link between them."""
    output = output_of(TESTS / "end_to_end" / "nodes.py", tmp_path, 1, scenes)
    first, last = output.splitlines()
    assert first.startswith("classifier, process 1 was killed: annocoin: another process has ended")
    assert last.endswith("all identical")


def test_two_processes_train_as_one_with_twice_the_batch(scenes: Path, tmp_path: Path) -> None:
    """Processes with gloo between them: the same losses, and every image's files once."""
    classifier = tmp_path / "c.safetensors"  # the same seeds for both, to the bit
    torch.manual_seed(0)
    architecture = ClassifierArchitecture(load_weak(scenes).classes, "tiny", size=64)
    write_classifier(classifier, Classifier(architecture))
    # with a higher learning rate the last bit of a sum may decide, steps later, on the proposals
    common = ("-m", "annocoin", "train", scenes, "--split", "train", *ARGUMENTS,
              "--classifier", classifier, "--set", "prediction.training.lr=1e-4")  # fmt: skip
    doubled = [f"{part}.training.batch_size=4" for part in ("conditional", "prediction")]
    flags = [word for change in doubled for word in ("--set", change)]
    output_of(*common, "--out", tmp_path / "one", *flags)
    output_of(*common, "--out", tmp_path / "two", "--devices", 2)
    one, two = metrics(tmp_path / "one"), metrics(tmp_path / "two")
    assert [(line["stage"], line.get("step")) for line in one] == [
        (line["stage"], line.get("step")) for line in two
    ]
    compared = 0
    for ours, theirs in zip(one, two, strict=True):
        if ours["stage"] in ("conditional", "round 1, prediction") and "loss" in ours:
            assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-4, abs=1e-4), ours
            compared += 1
    assert compared == 8
    for stage in ("regions", "seeds", "examples", "round-1-tables", "final-samples"):
        names = []
        for run in ("one", "two"):
            (folder,) = (tmp_path / run / "stages").glob(f"{stage}-*")
            names.append(sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.npz")))
        assert names[0] == names[1]
        assert len(names[0]) == 7
