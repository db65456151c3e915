"""Work in many processes, with real ones."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from annocoin.engine.parallel import BadItem, work_through
from annocoin.errors import InputError, Problems
from processes import interruptible, is_running, within

LONG = """
import os, sys, time
from annocoin.errors import Problems
from annocoin.engine.parallel import work_through

class Sleeper:
    def __call__(self, place):
        with open(f"{sys.argv[1]}/{os.getpid()}", "a", buffering=1) as file:
            file.write("1")
            file.flush()
            time.sleep(600)

if __name__ == "__main__":
    work_through([(n,) for n in range(4)], Sleeper, "sleeping", jobs=2, problems=Problems())
"""


class Doubler:
    def __call__(self, number: int) -> int | BadItem:
        return BadItem(f"{number} is odd") if number % 2 else 2 * number


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_the_tasks(jobs: int) -> None:
    tasks = [(number,) for number in (4, 0, 2)]
    assert work_through(tasks, Doubler, "doubling", jobs=jobs, problems=Problems()) == [8, 0, 4]
    with pytest.raises(InputError, match="3 is odd"):
        work_through([(2,), (3,)], Doubler, "doubling", jobs=jobs, problems=Problems())
    problems = Problems(skip=True)
    assert work_through([(2,), (3,)], Doubler, "", jobs=jobs, problems=problems) == [4]
    assert problems.skipped == ["3 is odd"]


class Threads:
    def __call__(self) -> int:
        return torch.get_num_threads()


def test_a_task_that_is_left_is_done_as_by_the_workers() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        found = [
            work_through([()] * tasks, Threads, "counting", jobs=jobs, problems=Problems())
            for tasks, jobs in ((2, 2), (1, 2), (1, 1))
        ]
        assert found == [[1, 1], [1], [3]]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_ctrl_c_waits_for_no_task(tmp_path: Path) -> None:
    script, folder = tmp_path / "long.py", tmp_path / "workers"
    script.write_text(LONG)
    folder.mkdir()
    with interruptible([sys.executable, str(script), str(folder)]) as process:
        within(60, lambda: len(list(folder.iterdir())) == 2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in said
    workers = [int(path.name) for path in folder.iterdir()]
    assert len(workers) == 2
    assert all(path.read_text() == "1" for path in folder.iterdir())  # others were not begun
    assert not any(map(is_running, workers))


def test_workers_end_with_the_process_that_is_killed(tmp_path: Path) -> None:
    script, folder = tmp_path / "long.py", tmp_path / "workers"
    script.write_text(LONG)
    folder.mkdir()
    with subprocess.Popen([sys.executable, str(script), str(folder)]) as process:
        within(60, lambda: len(list(folder.iterdir())) == 2)
        workers = [int(path.name) for path in folder.iterdir()]
        assert all(map(is_running, workers))
        process.send_signal(signal.SIGKILL)
    within(20, lambda: not any(map(is_running, workers)))
