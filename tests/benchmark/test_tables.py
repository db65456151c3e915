"""The rows of the benchmarks, and the tables that are written of their runs."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from annocoin.benchmark import published
from annocoin.benchmark.departures import BOXES, PRINTED
from annocoin.benchmark.rows import Row, rows_of
from annocoin.benchmark.runs import Options
from annocoin.benchmark.tables import write_tables
from annocoin.data.dataset import EvaluationDataset, Supervision
from annocoin.data.loading import load_evaluation
from annocoin.engine.methods import METHODS
from annocoin.engine.presets import configure
from annocoin.errors import InputError

CLASSES = ("cat", "dog")
OURS = configure("synthetic", CLASSES)


@pytest.fixture(scope="module")
def test_set(scenes: Path) -> EvaluationDataset:
    return load_evaluation(scenes, split="val")


def figures(value: float, disc: float | None = None) -> dict[str, Any]:
    """What a run gives, with mAP `value` and less at higher thresholds."""
    means = {t: value - 0.1 * i for i, t in enumerate(("0.25", "0.5", "0.7", "0.75"))}
    return {
        "test": means,
        "per_class": {t: {"cat": mean, "dog": None} for t, mean in means.items()},
        "labels": {"0.5": 0.5, "0.75": 0.25},
        "disc": disc,
        "seconds": 90.0,
    }


def test_table_1_has_every_method_of_the_package_and_the_paper() -> None:
    rows = {row.name: row for row in rows_of("comparison", OURS)}
    assert {row.method for row in rows.values()} == set(METHODS)
    assert set(rows) == set(published.PAPER)
    assert rows["annocoin-box"].supervision == "box"
    assert rows["ocis"].supervision == "count"
    assert rows["irn"].published == {"0.5": 46.7, "0.75": 23.5}
    for row in rows.values():
        assert row.supervision in METHODS[row.method].supervision


@pytest.mark.parametrize("benchmark", ["terms", "diversity", "architectures", "per-class"])
def test_the_options_of_rows_are_valid(benchmark: str) -> None:
    for row in rows_of(benchmark, OURS):
        configure("synthetic", CLASSES, row.changes, method=row.method)
        assert row.published or row.title.startswith("preset")


def test_the_rows_of_the_ablations_differ() -> None:
    terms = [configure("synthetic", CLASSES, row.changes) for row in rows_of("terms", OURS)]
    assert [c.conditional.scoring.terms for c in terms] == ["U", "U+P", "U+P+H"]
    pairs = [configure("synthetic", CLASSES, row.changes) for row in rows_of("diversity", OURS)]
    pointwise = [(c.prediction.losses.pointwise, c.conditional.training.pointwise) for c in pairs]
    assert pointwise == [(False, False), (True, False), (False, True), (True, True)]
    trunks = {
        row.changes["conditional.architecture.trunk"] for row in rows_of("architectures", OURS)
    }
    assert trunks == {"unet", "resnet50", "tiny"}


def test_rows_by_name_keep_the_order_of_the_table() -> None:
    rows = rows_of("comparison", OURS, ["sdi", "prm"])
    assert [row.name for row in rows] == ["prm", "sdi"]
    with pytest.raises(InputError, match="--methods 'sam'; expected one of full, prm"):
        rows_of("comparison", OURS, ["sam"])
    with pytest.raises(InputError, match="expected some of U, UP"):
        rows_of("terms", OURS, [])


def test_means_and_spreads_over_trials(test_set: EvaluationDataset, tmp_path: Path) -> None:
    rows = [
        Row("prm", "PRM", "prm", published={"0.5": 26.8}),
        Row("wise", "WISE", "wise"),
        Row("sdi", "SDI", "sdi", "box"),
    ]
    results: dict[str, dict[str, Any]] = {
        "prm": {"0": figures(0.5), "1": figures(0.7)},
        "wise": {"0": figures(0.4)},
        "sdi": {},
    }
    content = write_tables("comparison", rows, results, test_set, tmp_path, Options(trials=2))
    assert content["rows"]["prm"]["mean"]["0.25"] == 60.0
    assert content["rows"]["prm"]["spread"]["0.25"] == pytest.approx(14.14)
    assert content["rows"]["wise"]["spread"] == {}
    assert content["rows"]["prm"]["per_class"] == {"cat": 50.0, "dog": None}
    assert json.loads((tmp_path / "comparison.json").read_text()) == content
    lines = (tmp_path / "comparison.md").read_text().splitlines()
    assert (
        "| PRM | tags | 2 | 60.0 ± 14.1 | 50.0 ± 14.1 | 40.0 ± 14.1 | 30.0 ± 14.1 | 50.0 | 25.0 "
        "| 1.5 | - / 26.8 / - / - |"
    ) in lines
    assert "| SDI | boxes | 0 | - | - | - | - | - | - | - | - / - / - / - |" in lines
    assert any("WeakSAM, Mask2Former" in line and "64.4" in line for line in lines)
    drawing = ET.fromstring((tmp_path / "comparison.svg").read_text())
    texts = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert "IoU 0.5" in texts
    assert "IoU 0.75" in texts


def test_the_objective_has_a_column_and_no_paper_none(
    test_set: EvaluationDataset, tmp_path: Path
) -> None:
    rows = [Row("ours", "ours"), Row("one-network", "one network"), Row("later", "later")]
    results: dict[str, dict[str, Any]] = {
        "ours": {"0": figures(0.5, 0.25), "1": figures(0.5, 0.75)},
        "one-network": {"0": figures(0.5)},
        "later": {},
    }
    content = write_tables("departures", rows, results, test_set, tmp_path, Options(trials=2))
    assert content["rows"]["ours"]["disc"] == 0.5
    text = (tmp_path / "departures.md").read_text()
    assert "| labels @0.75 | DISC | min |\n" in text
    assert "| 50.0 | 25.0 | 0.50 | 1.5 |\n" in text
    assert "| 50.0 | 25.0 | - | 1.5 |\n" in text
    assert "published" not in text.lower()


@pytest.mark.parametrize("preset", ["synthetic", "voc-cpu"])
@pytest.mark.parametrize("supervision", ["image", "box"])
def test_departures_differ_from_ours_and_from_each_other(
    preset: str, supervision: Supervision
) -> None:
    ours = configure(preset, CLASSES)
    rows = rows_of("departures", ours, supervision=supervision)
    configs = {row.title: configure(preset, CLASSES, row.changes) for row in rows}
    assert configs.pop("ours") == ours
    assert ours not in configs.values()
    distinct = {str(config) for config in configs.values()}
    assert len(distinct) == len(configs)
    assert len({row.name for row in rows}) == len(rows)
    of_boxes = {name for name in PRINTED if name.startswith(BOXES)}
    assert len(of_boxes) == 3
    assert configs.keys() & of_boxes == (of_boxes if supervision == "box" else set())
    assert {row.supervision for row in rows} == {supervision}


def test_all_printed_is_every_departure_at_once() -> None:
    rows = {row.title: row.changes for row in rows_of("departures", OURS)}
    every = configure("synthetic", CLASSES, rows["all printed"])
    assert every.conditional.scoring.pairwise == "literal"
    assert every.conditional.scoring.difference == "neighbourhood"
    assert every.conditional.task_loss.clamp is None
    assert every.prediction.training.final_steps == 0
    steps = OURS.rounds * OURS.prediction.training.steps + OURS.prediction.training.final_steps
    assert every.rounds * every.prediction.training.steps <= steps
    assert every.rounds * every.prediction.training.steps > steps - every.rounds


def test_kinds_of_labels() -> None:
    rows = {row.name: row for row in rows_of("supervision", OURS)}
    assert [row.supervision for row in rows.values()] == ["mask", "box", "image", "image"]
    assert rows["seeds"].rounds == 0
    assert rows["image"].rounds is None


def test_ablations_of_boxes_have_folders_of_their_own_and_no_published_figures() -> None:
    tags, boxes = rows_of("terms", OURS), rows_of("terms", OURS, supervision="box")
    assert [row.name for row in boxes] == ["U-box", "UP-box", "UPH-box"]
    assert [row.name for row in tags] == ["U", "UP", "UPH"]
    assert not any(row.published for row in boxes)


def test_the_table_by_class_has_the_papers_figures_for_its_classes(
    test_set: EvaluationDataset, tmp_path: Path
) -> None:
    rows = rows_of("per-class", OURS)
    results = {row.name: {"0": figures(0.5)} for row in rows}
    write_tables("per-class", rows, results, test_set, tmp_path, Options(trials=1))
    lines = (tmp_path / "per-class.md").read_text().splitlines()
    assert "| class | tags | boxes | published, tags | published, boxes |" in lines
    assert "| cat | 40.0 | 40.0 | 73.7 | 78.8 |" in lines
    assert "| dog | - | - | 64.6 | 71.3 |" in lines
    assert "| mean | 40.0 | 40.0 | 50.9 | 58.2 |" in lines


def test_published_figures_agree_with_each_other() -> None:
    assert published.TERMS["U+P+H"].items() <= published.PAPER["annocoin"].items()
    assert published.DIVERSITY["Pr_p, Pr_c"].items() <= published.PAPER["annocoin"].items()
    assert published.ARCHITECTURES["U-Net, boxes"] == published.PAPER["annocoin-box"]
    for name, values in published.PER_CLASS.items():
        assert len(values) == len(published.VOC_CLASSES)
        assert sum(values) / 20 == pytest.approx(published.PAPER[name]["0.5"], abs=0.06)
