"""Runs that are damaged, and disks that are full."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from annocoin.data.loading import load_evaluation
from annocoin.engine.stage import COSTS
from annocoin.errors import InputError
from annocoin.report.page import write_report
from end_to_end.killed import contents
from end_to_end.quick import train
from end_to_end.test_runs_survive import ENVIRONMENT, TESTS, output_of


def test_damaged_files_are_found_and_made_again(scenes: Path, tmp_path: Path) -> None:
    """`make chaos` damages all files of a run, each in three ways."""
    output = output_of(TESTS / "end_to_end" / "damaged.py", tmp_path, 10, 1, scenes)
    assert output.splitlines()[-1].startswith("10 damages of a run of"), output
    assert output.splitlines()[-1].endswith("none silent")


def test_a_run_on_a_full_disk_names_the_file_and_resumes_to_the_same_bytes(
    runs: dict[str, Path], scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, left = os.fsync, 0

    def full(handle: int) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    truth = load_evaluation(scenes, split="train")
    named = set()
    for left in (1, 2, 3, 5, 8, 13, 21):  # noqa: B007, `full` counts down
        with pytest.raises(InputError) as caught:
            train(scenes, tmp_path / "run", "image", truth=truth)
        assert str(caught.value).startswith(str(tmp_path / "run"))
        assert str(caught.value).endswith("cannot be written (No space left on device)")
        named.add(str(caught.value).split(":")[0])
        assert not list(tmp_path.rglob("*.part"))
    assert len(named) >= 5
    left = 0
    train(scenes, tmp_path / "run", "image", truth=truth)
    expected = contents(runs["image"])
    actual = contents(tmp_path / "run")
    ours = {name for name in expected if not name.startswith("labelling/")}  # by other tests
    assert actual.keys() == ours
    assert [name for name in actual if actual[name] != expected[name]] == []


def test_equal_runs_have_equal_files_but_for_times(
    runs: dict[str, Path], scenes: Path, tmp_path: Path
) -> None:
    truth, again = load_evaluation(scenes, split="train"), tmp_path / "image"
    train(scenes, again, "image", truth=truth)
    before, after = contents(runs["image"]), contents(again)
    assert after.keys() == {name for name in before if not name.startswith("labelling/")}
    assert [name for name in after if after[name] != before[name]] == []
    for path in runs["image"].rglob(COSTS):  # then the reports are equal as well
        shutil.copy(path, again / path.relative_to(runs["image"]))
    pages = []
    for number, run in enumerate((runs["image"], again)):
        page = tmp_path / str(number) / "report.html"
        pages.append(write_report(run, truth=truth, out=page).read_bytes())
    assert pages[0] == pages[1]


LIMITED = """
import resource, sys
from annocoin.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), -1))
sys.argv = ["annocoin", *sys.argv[2:]]
main()
"""


@pytest.mark.parametrize("to", ["coco", "voc"])
def test_a_real_limit_of_the_file_size_is_one_line(scenes: Path, tmp_path: Path, to: Any) -> None:
    out = tmp_path / ("out.json" if to == "coco" else "out")
    command = [sys.executable, "-c", LIMITED, "2000", "convert", scenes, out, "--to", to]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert done.stderr == f"annocoin: {out}: cannot be written (File too large)\n"
    assert list(tmp_path.iterdir()) == []
