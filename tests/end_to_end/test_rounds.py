"""The alternating rounds of a run: the preset for photographs, and how networks start."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from annocoin import api
from annocoin.data.loading import load_evaluation, load_weak
from annocoin.engine import labelling, shared_stages
from annocoin.engine.conditional_dataset import PreparedFolder
from annocoin.engine.image_stages import Execution
from annocoin.engine.pseudo_labels import TableFolder
from annocoin.prediction.networks import read_prediction
from annocoin.report.figures import rounds_figure
from end_to_end.quick import QUICK, metrics, train
from end_to_end.test_train import STAGES, precomputed_of, stage_folder, stages_of


def recorded(make_loss_tables: Any, networks: list[Path]) -> Any:
    """The function, which appends the network of each call to a list."""

    def make(dataset: Any, prepared: Any, network: Path, *args: Any) -> Any:
        networks.append(network)
        return make_loss_tables(dataset, prepared, network, *args)

    return make


def test_the_cpu_preset_trains(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With small networks: class maps, loss tables from detections, a teacher."""
    changes = {
        **QUICK,
        "classifier.backbone": "tiny",
        "conditional.architecture.trunk": "tiny",
        "prediction.architecture.backbone": "tiny",
        "prediction.architecture.anchor_size": "20",
        "prediction.architecture.max_size": "96",
        "teacher.architecture.backbone": "tiny",
        "teacher.architecture.fpn_channels": "16",
        "teacher.architecture.min_size": "64",
        "teacher.architecture.max_size": "96",
        "teacher.training.steps": "2",
        "teacher.weights": "imagenet",
    }
    weak = load_weak(scenes, "image", split="train")
    truth = load_evaluation(scenes, split="train")
    options: Any = {"changes": changes, "truth": truth, "jobs": 1, "log": lambda _: None}
    run = api.train(weak, tmp_path / "run", "voc-cpu", **options)
    assert run.config.conditional.evidence == run.config.conditional.training.targets == "maps"
    assert run.config.conditional.tables == "detections"
    assert stages_of(run.path) == STAGES
    steps = [line for line in metrics(run.path) if line["stage"] == "final prediction"]
    assert len(steps) == 4
    teacher = run.network("teacher")
    assert teacher is not None
    assert read_prediction(teacher)[1] == run.config.teacher.architecture
    with monkeypatch.context() as patch:  # labels come from the teacher
        used = []
        patch.setattr(api, "make_loss_tables", recorded(api.make_loss_tables, used))
        assert len(api.label(run, weak, jobs=1)) == len(weak)
        assert used == [teacher]
    shutil.rmtree(stage_folder(run.path, "seeds"))
    shutil.rmtree(stage_folder(run.path, "final-prediction"))
    assert stages_of(api.train(weak, tmp_path / "run", "voc-cpu", **options).path) == STAGES


@pytest.mark.parametrize("average", [True, False])
def test_tables_are_averaged_over_rounds(
    runs: dict[str, Path],
    scenes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    average: bool,
) -> None:
    """The tables of the second round are those of both networks; labels come from all networks."""
    changes = {"rounds": "2", "conditional.average_tables": str(average).lower()}
    precomputed = precomputed_of(runs["image"])
    run = train(scenes, tmp_path / "run", changes=changes, precomputed=precomputed)
    first, second = (TableFolder(stage_folder(run.path, f"round-{n}-tables")) for n in (1, 2))
    weak = load_weak(scenes, "image", split="train")
    prepared = PreparedFolder(stage_folder(run.path, "examples") / "files")
    network = stage_folder(run.path, "round-2-prediction") / "prediction.safetensors"
    arguments = (weak, prepared, network, run.config.conditional, tmp_path / "alone")
    alone = labelling.make_loss_tables(*arguments, Execution(jobs=1))
    for image_id, table in second.items():
        log_odds = [t[:, :1] - t[:, 1:] for t in (first[image_id], alone[image_id], table)]
        expected = (log_odds[0] + log_odds[1]) / 2 if average else log_odds[1]
        torch.testing.assert_close(log_odds[2], expected, rtol=0.01, atol=0.02)
    used: list[Path] = []
    monkeypatch.setattr(api, "make_loss_tables", recorded(api.make_loss_tables, used))
    assert len(api.label(run, weak, jobs=1)) == len(weak)
    folders = [path.parent.name.rsplit("-", 1)[0] for path in used]
    rounds_before = ["round-1-prediction", "round-2-prediction"] if average else []
    assert folders == [*rounds_before, "final-prediction"]


@pytest.mark.parametrize("continued", [True, False])
def test_the_prediction_network_of_a_round_continues_or_starts_anew(
    runs: dict[str, Path],
    scenes: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    continued: bool,
) -> None:
    train_prediction = shared_stages.train_prediction
    before, after, spans = [], [], []

    def recorded(net: torch.nn.Module, *args: Any, **options: Any) -> Any:
        before.append({name: value.clone() for name, value in net.state_dict().items()})
        result = train_prediction(net, *args, **options)
        after.append({name: value.clone() for name, value in net.state_dict().items()})
        spans.append(options["span"])
        return result

    def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(value, second[name]) for name, value in first.items())

    monkeypatch.setattr(shared_stages, "train_prediction", recorded)
    changes = {"rounds": "2", "prediction.training.continued": str(continued).lower()}
    precomputed = precomputed_of(runs["image"])
    run = train(scenes, tmp_path / "run", changes=changes, precomputed=precomputed)
    assert len(before) == len(after) == 3
    assert not same(before[0], after[0])
    for k in (1, 2):
        assert same(before[k], after[k - 1]) == continued
        assert same(before[k], before[0]) != continued
    expected = [(0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1)] if continued else [(0, 1)] * 3
    assert [tuple(span) for span in spans] == [pytest.approx(span) for span in expected]
    result, _ = read_prediction(run.path / "prediction.safetensors")
    assert same(after[2], result.state_dict())


LITERAL = {
    **{name: value for name, value in QUICK.items() if name != "conditional.top_regions"},
    "classifier.backbone": "tiny",
    "conditional.architecture.trunk": "tiny",
    "prediction.architecture.backbone": "tiny",
    "prediction.architecture.anchor_size": "20",
    "prediction.architecture.max_size": "96",
    "prediction.training.final_steps": "0",
    "rounds": "2",
}


@pytest.mark.parametrize("supervision", ["image", "box"])
def test_the_literal_preset_trains(scenes: Path, tmp_path: Path, supervision: Any) -> None:
    """With small networks: everything as printed, and no training after the rounds."""
    weak = load_weak(scenes, supervision, split="train")
    options: Any = {"changes": LITERAL, "jobs": 1, "log": lambda _: None}
    run = api.train(weak, tmp_path / "run", "voc-r50-literal", **options)
    assert run.config.conditional.scoring.share_regions
    stages = stages_of(run.path)
    assert stages[-2:] == ["final samples", "round 2, dissimilarity after conditional"]
    assert "final prediction" not in stages
    last = stage_folder(run.path, "round-2-prediction") / "prediction.safetensors"
    assert (run.path / "prediction.safetensors").read_bytes() == last.read_bytes()
    lines = [line for line in metrics(run.path) if "disc" in line]
    assert [(line["round"], line["stage"].split()[-1]) for line in lines] == [
        (1, "prediction"), (1, "conditional"), (2, "prediction"), (2, "conditional")
    ]  # fmt: skip
    steps = [line for line in metrics(run.path) if line["stage"] == "round 2, prediction"]
    assert {"box_diversity", "class_entropy", "mask_entropy"} <= set(steps[0])
    assert len(api.label(run, weak, jobs=1)) == len(weak)
    assert len(rounds_figure(run.path, weak, 1)) > 0
