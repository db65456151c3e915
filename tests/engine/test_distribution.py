"""Process groups, devices, and numbers of worker processes."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from annocoin.engine import distribution
from annocoin.engine.distribution import (
    LAUNCHER_VARIABLES,
    MAX_LOADER_WORKERS,
    ProcessGroup,
    init_distributed,
    loader_workers,
    open_device,
    single_process,
    warn_of_slow_bfloat16,
    worker_processes,
)
from annocoin.engine.parallel import cores
from annocoin.errors import InputError
from processes import is_running, wait_until

PARENT = """
import subprocess, sys
child = (
    "import os; from annocoin.engine.distribution import exit_with_parent;"
    "print(flush=True); exit_with_parent(os.getppid())"
)
process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
process.stdout.readline()
print(process.pid, flush=True)
sys.stdin.readline()
"""


def group_of(rank: int = 0, world_size: int = 1, device: str = "cpu", nodes: int = 1) -> Any:
    fabric: Any = SimpleNamespace(
        global_rank=rank, world_size=world_size, device=torch.device(device)
    )
    return ProcessGroup(fabric, nodes)


def test_a_group_of_one_process() -> None:
    group = single_process()
    assert group.is_main
    assert (group.rank, group.world_size, group.device.type) == (0, 1, "cpu")
    assert list(group.shard(range(5))) == [0, 1, 2, 3, 4]
    assert group.all_reduce_mean({"a": 2.0}) == {"a": 2.0}
    group.barrier()
    group.raise_on_all_ranks(None)
    with pytest.raises(InputError, match="run: is locked"):
        group.raise_on_all_ranks("run: is locked")
    assert single_process() is group


@pytest.mark.parametrize(("items", "count"), [(7, 2), (2, 3), (0, 2), (8, 4)])
def test_shards_contain_every_item_once(items: int, count: int) -> None:
    shards = [group_of(rank, count).shard(range(items)) for rank in range(count)]
    assert sorted(item for shard in shards for item in shard) == list(range(items))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


def test_several_machines_need_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*LAUNCHER_VARIABLES, "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="set NODE_RANK and MASTER_ADDR"):
        init_distributed(nodes=2)
    monkeypatch.setenv("NODE_RANK", "1")
    with pytest.raises(InputError, match="set MASTER_ADDR on"):
        init_distributed(nodes=2)


def test_numbers_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert worker_processes(None) == worker_processes(None, single_process()) == cores()
    assert worker_processes(3) == worker_processes(3, single_process()) == 3
    gpu = group_of(device="cuda")
    assert worker_processes(None, gpu) == worker_processes(5, gpu) == 1
    with pytest.raises(InputError, match="jobs 0; expected at least 1"):
        worker_processes(0)
    monkeypatch.setattr(distribution, "cores", lambda: 12)
    assert worker_processes(None, group_of(0, 4)) == 3
    assert worker_processes(None, group_of(0, 4, nodes=2)) == 6
    assert loader_workers(group_of()) == 1
    assert loader_workers(gpu) == MAX_LOADER_WORKERS
    assert loader_workers(group_of(0, 4, "cuda")) == 3
    assert loader_workers(group_of(0, 12)) == 0, "no core is left for it"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 0}, "at least 1"),
        ({"nodes": 0}, "at least 1"),
        ({"device": "cuda:99"}, "cannot be used"),
        ({"device": "cpu:0", "devices": 2}, "single one"),
        ({"precision": "3-bit"}, "precision '3-bit'"),
    ],
)
def test_bad_options_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        init_distributed(**options)


def test_a_process_ends_when_its_parent_has_ended() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(2.5)  # it checks every second
        assert is_running(child)
        parent.kill()
    wait_until(lambda: not is_running(child), 20)


def test_names_of_devices() -> None:
    assert open_device("cpu") == torch.device("cpu")
    assert open_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(InputError, match="'abacus' cannot be used here"):
        open_device("abacus")


@pytest.mark.parametrize("supported", [False, True])
def test_a_note_where_bfloat16_is_emulated(
    supported: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    warn_of_slow_bfloat16(torch.device("cpu"))
    warn_of_slow_bfloat16(torch.device("cuda"))
    expected = "" if supported else distribution.SLOW_BFLOAT16 + "\n"
    assert capsys.readouterr().err == expected
