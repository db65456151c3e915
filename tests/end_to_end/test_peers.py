"""Runs of the peers: the same directory, resume, `label`, `report` and `verify` as ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from annocoin import api
from annocoin.data.loading import load_evaluation, load_weak
from annocoin.engine.methods import METHODS
from annocoin.engine.verification import verify_run
from annocoin.report.run_data import read_run
from annocoin.trained import TrainedRun
from end_to_end.quick import ARGUMENTS, metrics, train
from end_to_end.test_train import precomputed_of, stages_of

Command = Callable[..., Any]
PEERS = ("prm", "sdi")


@pytest.fixture(scope="module")
def peers(
    runs: dict[str, Path], scenes: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Finished runs with the regions, and where they are needed the seeds, of the run from tags."""
    root, truth = tmp_path_factory.mktemp("peers"), load_evaluation(scenes, split="train")
    given = precomputed_of(runs["image"])
    for method in PEERS:
        supervision = METHODS[method].supervision[0]
        train(scenes, root / method, supervision, method=method, truth=truth, precomputed=given)
    return {method: root / method for method in PEERS}


@pytest.mark.parametrize("method", PEERS)
def test_a_run_of_a_peer(peers: dict[str, Path], runs: dict[str, Path], method: str) -> None:
    run = TrainedRun(peers[method])
    assert run.config.method == method
    stages = stages_of(run.path)
    assert stages[-2:] == [f"{method} labels", "prediction"]
    assert "seeds" in stages if METHODS[method].seeds else "seeds" not in stages
    lines = [line for line in metrics(run.path) if line["stage"] == "prediction"]
    assert len(lines) == 8, "as many steps as in all rounds of ours"
    (measured,) = (line for line in metrics(run.path) if line["stage"] == f"{method} labels")
    assert measured["instances"] >= 1
    assert verify_run(run.path) == []
    data = read_run(run.path)
    assert list(data.labels) == [method]
    assert data.round_figures(method)["map@0.5"] == measured["map@0.5"]
    assert METHODS[method].title in (run.path / "report.html").read_text()


@pytest.mark.parametrize("method", PEERS)
def test_a_peer_labels_again_as_in_training(
    peers: dict[str, Path], scenes: Path, method: str
) -> None:
    run = TrainedRun(peers[method])
    supervision = METHODS[method].supervision[0]
    labelled = api.label(run, load_weak(scenes, supervision, split="train"), jobs=1)
    folder = read_run(run.path).labels[method]
    for image in labelled:
        instances = folder[image.image_id].consensus_instances()
        assert image.annotation.instances().masks == instances.masks


def test_new_images_are_labelled_with_the_method_of_the_run(
    peers: dict[str, Path], scenes: Path
) -> None:
    weak = load_weak(scenes, "box", split="val")
    labelled = api.label(TrainedRun(peers["sdi"]), weak, jobs=1)
    assert [len(i.annotation) for i in labelled] == [len(i.annotation) for i in weak]


def test_a_finished_run_of_a_peer_is_not_done_again(peers: dict[str, Path], scenes: Path) -> None:
    lines: list[str] = []
    before = (peers["sdi"] / "prediction.safetensors").read_bytes()
    given = json.loads((peers["sdi"] / "run.json").read_text())["folders"]
    assert set(given) == {"regions"}
    run = TrainedRun(peers["sdi"])
    weak = load_weak(scenes, "box", split="train")
    train(
        scenes,
        run.path,
        dataset=weak,
        method="sdi",
        precomputed=run.precomputed_for(weak),
        log=lines.append,
    )
    assert sum("done before" in line for line in lines) == 2
    assert (run.path / "prediction.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "prm", "--supervision", "box"), "method prm: supervision box; expected"),
        (("--method", "full", "--supervision", "image"), "expected --supervision mask"),
        (("--method", "best"), "--method 'best'; expected one of annocoin, full, prm"),
        (("--method", "wise", "--rounds", "2"), "method wise has none"),
        (("--set", "method=wise"), "name a peer with --method"),
        (("--method", "sdi", "--set", "baseline.steps=0"), "steps 0; expected at least 1"),
    ],
)
def test_bad_combinations_are_one_line(
    annocoin: Command, scenes: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    command = ("train", scenes, "--split", "train", "--out", tmp_path / "run", *ARGUMENTS)
    outcome = annocoin(*command, *arguments, "--dry-run")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
    assert message in outcome.err


def test_the_supervision_of_a_peer_is_the_default(
    annocoin: Command, scenes: Path, tmp_path: Path
) -> None:
    command = ("train", scenes, "--split", "train", "--out", tmp_path / "run", *ARGUMENTS)
    outcome = annocoin(*command, "--method", "sdi", "--dry-run")
    assert outcome.code == 0, outcome.err
    assert "supervision box" in outcome.out
    assert "GrabCut in boxes" in outcome.out
    assert "seeds" not in outcome.out


def test_a_peer_that_trains_the_prediction_network_on_boxes(scenes: Path, tmp_path: Path) -> None:
    truth = load_evaluation(scenes, split="train")
    run = train(scenes, tmp_path / "run", "box", method="bbtp", truth=truth, report=False)
    assert stages_of(run.path) == ["dataset", "bbtp targets", "prediction", "bbtp labels"]
    assert run.config.prediction.losses.masks == "projection"
    assert verify_run(run.path) == []
    weak = load_weak(scenes, "box", split="train")
    labelled = api.label(run, weak, jobs=1)
    folder = read_run(run.path).labels["bbtp"]
    for image, given in zip(labelled, weak, strict=True):
        instances = image.annotation.instances()
        assert instances.masks == folder[image.image_id].consensus_instances().masks
        assert instances.labels.tolist() == given.annotation.labels.tolist()


def test_a_peer_with_a_network_of_its_own(
    runs: dict[str, Path], scenes: Path, tmp_path: Path
) -> None:
    """OCIS: it needs counts, and the classifier, whose seeds it replaces by its own."""
    given = replace(precomputed_of(runs["image"]), seeds=None)
    options: dict[str, Any] = dict(method="ocis", precomputed=given, report=False)
    changes = {"baseline.steps": "3", "baseline.batch_size": "2"}
    run = train(scenes, tmp_path / "run", "count", changes=changes, **options)
    stages = ["dataset", "classifier", "regions", "ocis network", "ocis labels", "prediction"]
    assert stages_of(run.path) == stages
    steps = [line["step"] for line in metrics(run.path) if line["stage"] == "ocis network"]
    assert steps == [1, 2, 3]
    assert (run.path / "ocis.safetensors").is_file()
    weak = load_weak(scenes, "count", split="train")
    labelled = api.label(run, weak, precomputed=given, jobs=1)
    folder = read_run(run.path).labels["ocis"]
    for image in labelled:
        masks = image.annotation.instances().masks
        assert masks == folder[image.image_id].consensus_instances().masks
