"""Trained networks by run directory, file and name: opening, predicting, exporting."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import annocoin as package
from annocoin.data.images import read_image
from annocoin.engine.run_directory import RUN_FORMAT
from annocoin.errors import InputError
from annocoin.prediction.networks import PredictionArchitecture, read_prediction, write_prediction
from annocoin.synthetic.creatures import CLASSES
from annocoin.trained import WEIGHTS, TrainedNetwork, TrainedRun, load, network_names
from prediction.worlds import network, small

Command = Callable[..., Any]
ARCHITECTURE: PredictionArchitecture = small()


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two prediction networks, one in float16, beside networks of other kinds."""
    folder = tmp_path / "weights"
    shutil.copytree(WEIGHTS, folder)
    for path in folder.glob("*.safetensors"):
        if path.stem not in ("boundaries", "ranker"):
            path.unlink()
    write_prediction(folder / "small.safetensors", network(), ARCHITECTURE, half=True)
    write_prediction(folder / "another.safetensors", network(1), ARCHITECTURE)
    monkeypatch.setattr("annocoin.trained.WEIGHTS", folder)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run, as far as predictions need it."""
    path = tmp_path / "run"
    path.mkdir()
    write_prediction(path / "stage.safetensors", network(), ARCHITECTURE)
    for name, content in {
        "config": {},
        "environment": {"run_format": RUN_FORMAT},
        "run": {
            "config": {},
            "networks": {"prediction": "stage.safetensors"},
            "supervision": "image",
            "dataset": "",
            "folders": {},
        },
    }.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def pixels() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)


def test_a_run_a_file_and_a_name(run: Path, weights: Path) -> None:
    by_path, by_file, by_name = load(run), load(str(run / "stage.safetensors")), load("small")
    assert isinstance(by_path, TrainedRun)
    assert by_path == package.load(run) == TrainedRun(run)
    assert not isinstance(by_file, TrainedRun)
    assert by_file.file == by_path.file == run / "stage.safetensors"
    assert by_name.path == weights / "small.safetensors"
    predictions = []
    for trained in (by_path, by_file, by_name):
        assert isinstance(trained, TrainedNetwork)
        assert trained.classes == ("cat", "dog", "cow")
        predictions.append(trained.predictor(device="cpu")([pixels()])[0])
    first, second, half = predictions
    assert len(first) > 3
    assert first.scores.tolist() == second.scores.tolist()
    assert torch.equal(first.dense(), second.dense())
    assert half.scores[0].item() == pytest.approx(first.scores[0].item(), abs=0.01)


def test_names_are_prediction_networks_only(weights: Path) -> None:
    assert network_names() == ["another", "small"]
    with pytest.raises(InputError) as refused:
        load("smal")
    assert str(refused.value) == (
        "smal: no such run or file, and no network of the package (another, small); expected a run "
        "directory, a prediction.safetensors or such a name"
    )
    for name in ("boundaries", "ranker", "../weights/small", ""):
        with pytest.raises(InputError):
            load(name)


def test_the_package_has_no_other_networks_as_names() -> None:
    assert not {"boundaries", "ranker"} & set(network_names())


def test_a_run_comes_before_a_name_and_another_folder_after_it(
    run: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    (run.parent / "small").mkdir()
    assert load("small").path == weights / "small.safetensors"
    (run.parent / "small").rmdir()
    run.rename(run.parent / "small")
    assert load("small") == TrainedRun(Path("small"))


def test_float16_files(tmp_path: Path) -> None:
    net, path = network(), tmp_path / "half.safetensors"
    write_prediction(path, net, ARCHITECTURE, half=True)
    stored = load_file(path)
    assert {value.dtype for value in stored.values()} == {torch.float16}
    loaded, architecture = read_prediction(path)
    assert architecture == ARCHITECTURE
    for name, value in loaded.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, net.state_dict()[name].half().float())
    net.backbone.body["0"][0].weight.data[0] = 1e5
    with pytest.raises(InputError, match=r"body\.0\.0\.weight: too large for float16"):
        write_prediction(tmp_path / "large.safetensors", net, ARCHITECTURE, half=True)
    assert list(tmp_path.iterdir()) == [path]


def test_commands_take_files_and_names(
    scenes: Path, weights: Path, annocoin: Command, tmp_path: Path
) -> None:
    architecture = PredictionArchitecture(
        CLASSES, "tiny", min_size=64, fpn_channels=16, representation_size=32, mask_layers=1
    )
    from annocoin.prediction.networks import build_network

    torch.manual_seed(0)
    write_prediction(weights / "scenes.safetensors", build_network(architecture), architecture)
    image = min((scenes / "JPEGImages").iterdir())
    results = []
    for source in ("scenes", weights / "scenes.safetensors"):
        out = tmp_path / f"out{len(results)}"
        outcome = annocoin("predict", source, image, "--out", out, "--no-overlays", "--score", 0.1)
        assert outcome.code == 0, outcome.err
        results.append((out / "predictions.json").read_text())
        outcome = annocoin("evaluate", source, scenes, "--split", "val")
        assert outcome.code == 0, outcome.err
        assert "1 images" in outcome.out
    assert results[0] == results[1]
    expected = load("scenes").predictor(threshold=0.1)([read_image(image)])[0]
    assert len(json.loads(results[0])["annotations"]) == len(expected) > 0
    for command in (
        ("predict", "scene", image, "--out", tmp_path / "new"),
        ("evaluate", "scene", scenes),
        ("export", "scene", "--to", "onnx", "--out", tmp_path / "new"),
    ):
        outcome = annocoin(*command)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert "(another, scenes, small)" in outcome.err


def test_export_command(weights: Path, annocoin: Command, scenes: Path, tmp_path: Path) -> None:
    out, images = tmp_path / "out", scenes / "JPEGImages"
    command = ("export", "small", "--to", "torchvision", "--out", out, "--check", images)
    outcome = annocoin(*command)
    assert (outcome.code, outcome.err) == (0, "")
    assert "3 classes" in outcome.out
    assert sorted(path.name for path in out.iterdir()) == ["model.py", "prediction.safetensors"]
    cases: dict[str, tuple[object, ...]] = {
        "exists already": command,
        "no image": (*command[:-3], tmp_path / "new", "--check", tmp_path / "nothing"),
        "expected one of onnx": ("export", "small", "--to", "pdf", "--out", tmp_path / "new"),
        "that is the input": (
            "export", weights / "small.safetensors", "--to", "onnx", "--out",
            weights / "small.safetensors",
        ),
    }  # fmt: skip
    for message, arguments in cases.items():
        outcome = annocoin(*arguments)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome
        assert message in outcome.err
    assert not (tmp_path / "new").exists()


def test_label_needs_a_run(weights: Path, annocoin: Command, scenes: Path, tmp_path: Path) -> None:
    for source in ("small", weights / "small.safetensors"):
        outcome = annocoin("label", source, scenes, "--out", tmp_path / "labels.json")
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert "not a run directory" in outcome.err


def test_other_files_are_refused(run: Path, annocoin: Command, tmp_path: Path) -> None:
    text = tmp_path / "network.safetensors"
    text.write_text("text")
    for source, message in {
        text: "not a prediction network",
        WEIGHTS / "boundaries.safetensors": "not a prediction network",
        tmp_path: "not a finished run",
    }.items():
        outcome = annocoin("predict", source, run, "--out", tmp_path / "new")
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert message in outcome.err


def test_prediction_imports_no_code_of_training(run: Path, scenes: Path, tmp_path: Path) -> None:
    heavy = ("lightning_fabric", "segmentation_models_pytorch", "higra", "scipy", "tensorboard",
             "onnx", "annocoin.api", "annocoin.engine.config", "annocoin.engine.network_config",
             "annocoin.regions")  # fmt: skip
    code = f"""
import sys
from annocoin.cli import main
try:
    main()
except SystemExit as ended:
    print(ended.code, [name for name in {heavy!r} if name in sys.modules])
"""
    image = min((scenes / "JPEGImages").iterdir())
    command = [sys.executable, "-c", code, "predict", run, image, "--out", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []", done.stderr
    assert (tmp_path / "out" / "overlays").is_dir()


PHOTOGRAPHS = Path(package.__file__).parent / "photographs"


@pytest.mark.parametrize(("name", "expected"), [("cat", "cat"), ("astronaut", "person")])
def test_the_network_voc_finds_what_the_photographs_show(name: str, expected: str) -> None:
    network = package.load("voc")
    assert len(network.classes) == 20
    instances = network.predictor(threshold=0.8)([PHOTOGRAPHS / f"{name}.jpg"])[0]
    assert [network.classes[label - 1] for label in instances.labels.tolist()] == [expected]
    share = float(instances.areas[0]) / (instances.size[0] * instances.size[1])
    assert 0.25 < share < 0.95


def test_the_card_of_the_network_voc_names_its_data() -> None:
    card = (WEIGHTS / "voc.md").read_text(encoding="utf-8")
    assert "PASCAL VOC 2012" in card
    assert (WEIGHTS / "voc.safetensors").stat().st_size <= 20 << 20
