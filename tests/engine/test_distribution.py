"""Who computes what, and that nobody waits for a process that has ended."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from annocoin.engine.distribution import (
    MANAGED,
    ProcessGroup,
    init_distributed,
    workers,
)
from annocoin.engine.parallel import cores
from annocoin.errors import InputError
from processes import is_running, within

STARTER = """
import subprocess, sys
waiting = "import os; from annocoin.engine.distribution import _end_with_first as end; end(os.getppid())"
print(subprocess.Popen([sys.executable, "-c", waiting]).pid, flush=True)
sys.stdin.readline()
"""


def test_a_party_of_one_has_everything() -> None:
    group = single_process()
    assert group.is_main
    assert list(group.shard(range(5))) == [0, 1, 2, 3, 4]
    assert group.all_reduce_mean({"a": 2.0}) == {"a": 2.0}
    group.barrier()
    group.raise_on_all_ranks(None)
    with pytest.raises(InputError, match="run: is taken"):
        group.raise_on_all_ranks("run: is taken")


class Fabric:
    """Says which of how many processes this is."""

    def __init__(self, rank: int, count: int) -> None:
        self.global_rank, self.world_size = rank, count


@pytest.mark.parametrize(("items", "count"), [(7, 2), (2, 3), (0, 2), (8, 4)])
def test_shares_together_are_everything_each_once(items: int, count: int) -> None:
    shares = [ProcessGroup(Fabric(r, count)).share(range(items)) for r in range(count)]  # type: ignore[arg-type]
    assert sorted(own for share in shares for own in share) == list(range(items))
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_machines_must_know_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*MANAGED, "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="set NODE_RANK and MASTER_ADDR"):
        init_distributed(nodes=2)
    monkeypatch.setenv("NODE_RANK", "1")
    with pytest.raises(InputError, match="set MASTER_ADDR on"):
        init_distributed(nodes=2)


def test_workers_are_as_many_as_asked_but_one_on_a_gpu() -> None:
    assert workers(None) == workers(None, single_process()) == cores()
    assert workers(3) == workers(3, single_process()) == 3
    assert workers(None, device="cuda:1") == workers(5, device="cuda:1") == 1
    with pytest.raises(InputError, match="at least 1"):
        workers(0)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"devices": 0}, "at least 1"),
        ({"nodes": 0}, "at least 1"),
        ({"device": "cuda:99"}, "cannot be used"),
        ({"device": "cpu:0", "devices": 2}, "single one"),
        ({"precision": "3-bit"}, "precision '3-bit'"),
    ],
)
def test_what_cannot_be_gathered_is_one_line(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        init_distributed(**asked)


def test_a_process_ends_with_the_one_that_started_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        started = int(starter.stdout.readline())
        time.sleep(8)  # it has had the time to begin, and to end by mistake
        assert is_running(started)
        starter.kill()
    within(20, lambda: not is_running(started))
