"""The objective of a round, measured: by hand, and from the files of a run's stages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from annocoin.conditional.requirements import requirements_of
from annocoin.engine.dissimilarity import (
    image_diversities,
    measure_dissimilarity,
    predicted_instances,
)
from annocoin.engine.distribution import single_process
from annocoin.engine.metrics import write_scalars
from annocoin.engine.pseudo_labels import PseudoLabels
from annocoin.engine.run_directory import open_run
from annocoin.types import Instances, WeakLabel
from conditional.worlds import annotation, stripes

REGIONS = stripes([0], [0, 1], [2], [3])
REQUIREMENTS = requirements_of(annotation(WeakLabel(2)), REGIONS)
PROBABILITIES = torch.tensor([0.2, 0.8, 0.5, 0.01])
TABLE = -torch.stack([1 - PROBABILITIES, PROBABILITIES], dim=1).log()


def labels(*samples: list[int], label: int = 2) -> PseudoLabels:
    """Samples of the four regions."""
    members = torch.tensor([[u in sample for u in range(4)] for sample in samples])
    instances = Instances(size=REGIONS.size, masks=REGIONS.rles(), labels=[label] * 4)
    return PseudoLabels(instances, members, 0)


def test_the_prediction_distribution_after_suppression() -> None:
    """The first region lies in the second, which is more probable; the last is improbable."""
    predicted = predicted_instances(REQUIREMENTS, TABLE)
    assert list(predicted.masks) == REGIONS[[1, 2]].rles()
    assert predicted.labels.tolist() == [2, 2]
    assert predicted.scores.tolist() == pytest.approx([0.8, 0.5])


def test_diversities_of_an_image_by_hand() -> None:
    """Pr_p has instances with .8 and .5, the samples have one or both of them."""
    terms = image_diversities(REQUIREMENTS, labels([1], [1, 2]), TABLE)
    cross = (0.8 + 0.5) / 2 + (1 + 2) / 2 / 2 - (0.8 + 1.3) / 2
    expected = [cross, 1.5 - 1, 0.8 * 0.2 + 0.5 * 0.5]
    assert [float(term) for term in terms] == pytest.approx(expected)


def test_other_classes_and_no_instances() -> None:
    other = image_diversities(REQUIREMENTS, labels([1], label=1), TABLE)
    assert float(other.div_pc) == pytest.approx((1.3 + 1) / 2)
    empty = requirements_of(annotation(), REGIONS)
    nothing = PseudoLabels.single(Instances(size=REGIONS.size, masks=[], labels=[]))
    terms = image_diversities(empty, nothing, torch.zeros(4, 1))
    assert [float(term) for term in terms] == [0, 0, 0]


def test_curves_continue_over_rounds_and_start_again(tmp_path: Path) -> None:
    for step, value in ((1, 3.0), (2, 2.0), (1, 5.0)):
        write_scalars(tmp_path, step, {"disc": value})
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("disc")
    assert [(event.step, event.value) for event in events][-1] == (1, 5.0)


def test_without_common_images_there_are_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("annocoin.engine.dissimilarity.PseudoLabelFolder", lambda _: {"a": None})
    monkeypatch.setattr("annocoin.engine.dissimilarity.TableFolder", lambda _: {"b": None})
    with open_run(tmp_path / "run", {}, single_process(), log=lambda _: None) as run:
        samples, tables = run.stage("samples", {}), run.stage("tables", {})
        measure_dissimilarity(run, 1, "prediction", {}, samples, tables, 0.5)  # type: ignore[arg-type]
        record = run.stages[-1].record
    assert "figures" not in record
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert not [line for line in lines if "disc" in json.loads(line)]
