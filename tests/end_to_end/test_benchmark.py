"""The command `benchmark`: shared stages once, resume, the same seeds give the same table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from end_to_end.quick import ARGUMENTS

Command = Callable[..., Any]


def test_a_comparison(annocoin: Command, scenes: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("benchmark", "comparison", scenes, "--trials", 1, *ARGUMENTS)
    chosen = ("--methods", "wise,sdi", "--methods", "full")
    first = annocoin(*command, *chosen, "--out", out)
    assert first.code == 0, first.err
    assert first.out.index("3 runs, in all about") < first.out.index("full, trial 0")
    assert "| WISE (Laradji 2019) | tags | 1 |" in first.out
    assert not list((out / "runs").glob("*/stages/regions-*")), "computed once, for all"
    table = json.loads((out / "comparison.json").read_text())
    assert list(table["rows"]) == ["full", "wise", "sdi"]
    assert table["rows"]["full"]["labels"] == {}
    assert set(table["rows"]["sdi"]["labels"]) == {"0.25", "0.5", "0.7", "0.75"}
    assert sorted(path.name for path in (out / "shared").iterdir())[:2] == ["classifier", "regions"]
    again = annocoin(*command, *chosen, "--out", out)
    assert "prediction: done before" in again.out
    repeated = json.loads((out / "comparison.json").read_text())
    assert repeated["rows"] == table["rows"]


def test_kinds_of_labels_with_regions_and_classifier_of_another_run(
    annocoin: Command, scenes: Path, tmp_path: Path
) -> None:
    command = ("benchmark", "supervision", scenes, "--trials", 1, *ARGUMENTS)
    first = annocoin(*command, "--methods", "image", "--out", tmp_path / "first")
    assert first.code == 0, first.err
    shared = tmp_path / "first" / "shared"
    shared_parts = ("--regions", shared / "regions")
    shared_parts += ("--classifier", shared / "classifier" / "classifier.safetensors")
    second = annocoin(
        *command, "--methods", "image,seeds", *shared_parts, "--out", tmp_path / "second"
    )
    assert second.code == 0, second.err
    assert [path.name[:5] for path in (tmp_path / "second" / "shared").iterdir()] == ["seeds"]
    tables = [
        json.loads((tmp_path / name / "supervision.json").read_text())["rows"]
        for name in ("first", "second")
    ]
    assert tables[0]["image"]["mean"] == tables[1]["image"]["mean"]
    assert tables[1]["image"]["disc"] is not None
    assert tables[1]["seeds"]["disc"] is None
    bad = annocoin(*command, "--regions", tmp_path / "none", "--out", tmp_path / "third")
    assert (bad.code, bad.err.count("\n")) == (2, 1), bad.err
    assert not (tmp_path / "third").exists()


def test_departures_print_their_options_before_they_run(
    annocoin: Command, scenes: Path, tmp_path: Path
) -> None:
    command = ("benchmark", "departures", scenes, "--supervision", "box", *ARGUMENTS)
    outcome = annocoin(*command, "--out", tmp_path / "out", "--dry-run")
    assert outcome.code == 0, outcome.err
    assert "boxes-high-overlap-box: 3 runs of about" in outcome.out
    assert ", conditional.best_fit_share=0\n" in outcome.out


def test_the_same_seeds_give_the_same_table(
    annocoin: Command, scenes: Path, tmp_path: Path
) -> None:
    tables = []
    for jobs in (1, 2):  # one after the other, and both at once
        out = tmp_path / str(jobs)
        command = ("benchmark", "comparison", scenes, "--methods", "sdi", "--trials", 2)
        outcome = annocoin(*command, *ARGUMENTS, "--jobs", jobs, "--out", out)
        assert outcome.code == 0, outcome.err
        assert outcome.out.index("\nsdi, trial 0: @0.25") < outcome.out.index(
            "\nsdi, trial 1: @0.25"
        )
        content = json.loads((out / "comparison.json").read_text())
        row = content["rows"]["sdi"]
        assert list(row["trials"]) == ["0", "1"]
        for part in (row, *row["trials"].values()):
            del part["seconds"]
        tables.append(content)
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("comparisons", "{scenes}"), "benchmark 'comparisons'; expected one of comparison"),
        (("comparison", "{scenes}", "--methods", "best"), "--methods 'best'; expected one of full"),
        (("terms", "{scenes}", "--test", "none"), "none"),
        (("terms", "{scenes}", "--set", "rounds=x"), "--set rounds=x"),
        (("comparison", "{scenes}/nowhere"), "no such file or folder"),
    ],
)
def test_bad_input_is_one_line(
    annocoin: Command, scenes: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    command = [word.format(scenes=scenes) for word in arguments]
    outcome = annocoin("benchmark", *command, "--out", tmp_path / "out", "--preset", "synthetic")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
    assert message in outcome.err
    assert not (tmp_path / "out").exists()


def test_a_dry_run_only_says_how_long_it_takes(
    annocoin: Command, scenes: Path, tmp_path: Path
) -> None:
    outcome = annocoin(
        "benchmark", "diversity", scenes, "--out", tmp_path / "out", "--dry-run", *ARGUMENTS
    )
    assert outcome.code == 0, outcome.err
    assert "12 runs, in all about" in outcome.out
    assert "Pr_p-PW_c: 3 runs of about" in outcome.out
    assert not (tmp_path / "out").exists()
