"""Work in many processes, with real ones."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from annocoin.engine.parallel import BadItem, cores, work_through
from annocoin.errors import InputError, Problems
from processes import interruptible, is_running, wait_until

SLEEPING_WORKERS = """
import os, sys, time
from annocoin.errors import Problems
from annocoin.engine.parallel import work_through

class Sleeper:
    def __call__(self, number):
        with open(f"{sys.argv[1]}/{os.getpid()}", "a", buffering=1) as file:
            file.write("1")
            file.flush()
            time.sleep(600)

if __name__ == "__main__":
    work_through([(n,) for n in range(4)], Sleeper, "sleeping", jobs=2, problems=Problems())
"""


class Doubler:
    def __call__(self, number: int) -> tuple[int, int] | BadItem:
        if number % 2:
            return BadItem(f"{number} is odd")
        return 2 * number, torch.get_num_threads()


class MatrixProduct:
    def __call__(self) -> list[int]:
        np.ones((9, 9)) @ np.ones((9, 9))
        return [library["num_threads"] for library in threadpool_info()]


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    assert torch.get_num_threads() == 3
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(("jobs", "threads"), [(1, 3), (2, 1)])
def test_results_are_in_the_order_of_the_tasks(jobs: int, threads: int) -> None:
    tasks, problems = [(number,) for number in (4, 0, 3, 2)], Problems(skip=True)
    seen: list[tuple[int, int]] = []
    results = work_through(
        tasks, Doubler, "doubling", jobs=jobs, problems=problems, on_result=seen.append
    )
    assert results == seen == [(8, threads), (0, threads), (4, threads)]
    assert problems.skipped == ["3 is odd"]
    single = work_through(tasks[:1], Doubler, "doubling", jobs=jobs, problems=problems)
    assert single == [(8, threads)], "one task is done here, with the threads of a worker"


def test_no_library_of_a_worker_has_threads_of_its_own() -> None:
    with threadpool_limits(3):
        tasks, problems = [(), ()], Problems()
        for threads in work_through(tasks, MatrixProduct, "products", jobs=2, problems=problems):
            assert set(threads) == {1}
        (threads,) = work_through(tasks[:1], MatrixProduct, "products", jobs=2, problems=problems)
        assert 1 in threads
        assert max(library["num_threads"] for library in threadpool_info()) == 3


def test_a_bad_item_stops_the_work() -> None:
    with pytest.raises(InputError, match="3 is odd"):
        work_through([(2,), (3,)], Doubler, "doubling", jobs=1, problems=Problems())


def refuse() -> None:
    raise InputError("weights cannot be read")


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_worker_that_cannot_be_made_is_reported(jobs: int) -> None:
    with pytest.raises(InputError, match=r"^weights cannot be read$"):
        work_through([(1,), (2,)], refuse, "", jobs=jobs, problems=Problems(skip=True))  # type: ignore[arg-type]
    assert work_through([], refuse, "", jobs=jobs, problems=Problems()) == []  # type: ignore[arg-type]


def test_cores() -> None:
    assert cores() >= 1


@pytest.fixture
def sleeping(tmp_path: Path) -> tuple[list[str], Path]:
    """A command whose two workers sleep, and the folder with a file named by each one's id."""
    script, folder = tmp_path / "sleeping.py", tmp_path / "workers"
    script.write_text(SLEEPING_WORKERS)
    folder.mkdir()
    return [sys.executable, str(script), str(folder)], folder


def test_ctrl_c_does_not_wait_for_tasks(sleeping: tuple[list[str], Path]) -> None:
    command, folder = sleeping
    with interruptible(command) as process:
        wait_until(lambda: len(list(folder.iterdir())) == 2)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    workers = [int(path.name) for path in folder.iterdir()]
    assert len(workers) == 2
    assert all(path.read_text() == "1" for path in folder.iterdir()), "one task each was started"
    assert not any(map(is_running, workers))


def test_workers_end_when_their_parent_is_killed(sleeping: tuple[list[str], Path]) -> None:
    command, folder = sleeping
    with subprocess.Popen(command) as process:
        wait_until(lambda: len(list(folder.iterdir())) == 2)
        workers = [int(path.name) for path in folder.iterdir()]
        assert all(map(is_running, workers))
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(map(is_running, workers)), 20)
