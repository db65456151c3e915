"""Processes that notice the death, the failure and the silence of others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from annocoin.cli import CPP_LOG
from annocoin.engine.heartbeat import CONTINUES, Heartbeat, is_connection_error
from annocoin.errors import InputError

LIMIT = 4.0
PATIENCE = LIMIT + 30
LOST = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer"


def work(rank: int, port: int, dead: list[str], orders: Connection, errors: Path) -> None:
    """A process in a watched block, which obeys an order."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), sys.stderr.fileno())
    open_store = partial(dist.TCPStore, "127.0.0.1", port, timeout=timedelta(seconds=60))
    server = open_store(is_master=True, wait_for_workers=False) if rank == 0 else None
    connect = partial(open_store, is_master=False)
    with Heartbeat(rank, 2, connect, limit=LIMIT, dead_children=lambda: dead):
        orders.send("started")
        order = orders.recv()
        if order == "fail":
            raise InputError("image 'a': broken")
        if order == "lose":
            raise RuntimeError(LOST)
    orders.send("ended")
    orders.recv()
    del server


class Watched:
    """One of two processes, from outside."""

    def __init__(self, context: Any, rank: int, port: int, errors: Path, dead: list[str]) -> None:
        self.orders, theirs = context.Pipe()
        self.errors = errors
        self.process = context.Process(target=work, args=(rank, port, dead, theirs, errors))
        self.process.start()

    def answer(self) -> Any:
        assert self.orders.poll(60)
        return self.orders.recv()

    def ending(self) -> tuple[int, str]:
        """Exit code and message, after it must have ended."""
        self.process.join(PATIENCE)
        return self.process.exitcode, self.errors.read_text().strip()


Start = Callable[..., list[Watched]]


@pytest.fixture(scope="module")
def fork_server() -> Any:
    """Forks processes that have torch imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch.distributed", "annocoin.engine.heartbeat"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(*CPP_LOG)
        context.Process(target=int).start()
    return context


@pytest.fixture
def start(fork_server: Any, tmp_path: Path) -> Iterator[Start]:
    processes: list[Watched] = []

    def start_two(dead: list[str] | None = None) -> list[Watched]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for rank in range(2):
            errors = tmp_path / f"{rank}.txt"
            processes.append(Watched(fork_server, rank, port, errors, dead or []))
        assert dead or [process.answer() for process in processes] == ["started"] * 2
        return processes

    yield start_two
    for process in processes:
        process.process.kill()
        process.process.join()


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_ends_when_another_one_dies_or_is_silent(
    start: Start, victim: int, sign: signal.Signals
) -> None:
    processes = start()
    os.kill(processes[victim].process.pid, sign)
    code, line = processes[1 - victim].ending()
    assert code == 2, line
    assert line.count("\n") == 0
    closed = (victim, sign) == (0, signal.SIGKILL)  # the store says so at once
    reason = "process 0 has ended" if closed else f"no sign of life of process {victim} for 4 s"
    assert line.startswith(f"annocoin: {reason}")
    assert line.endswith(CONTINUES)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_waits_prints_why_another_one_has_failed(start: Start, victim: int) -> None:
    processes = start()
    processes[victim].orders.send("fail")
    code, line = processes[1 - victim].ending()
    assert code == 2
    assert line.startswith(f"annocoin: process {victim} on ")
    assert line.endswith("has stopped: image 'a': broken")
    assert processes[victim].ending()[1].endswith("InputError: image 'a': broken")


def test_a_lost_connection_is_one_line(start: Start) -> None:
    process, _ = start()
    process.orders.send("lose")
    assert process.ending()[1].endswith(f"InputError: another process has ended; {CONTINUES}")


def test_processes_that_leave_the_block_are_not_watched_any_more(start: Start) -> None:
    processes = start()
    for process in processes:
        process.orders.send("end")
        assert process.answer() == "ended"
    processes[0].process.kill()
    processes[1].process.join(LIMIT + 1)
    assert processes[1].process.is_alive()


def test_a_dead_child_ends_its_parent(start: Start) -> None:
    process, _ = start(["process 9 has died (-9)"])
    assert process.ending() == (2, f"annocoin: process 9 has died (-9); {CONTINUES}")


def test_errors_of_communication() -> None:
    assert is_connection_error(dist.DistNetworkError("refused"))
    assert is_connection_error(RuntimeError(LOST))
    assert not is_connection_error(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_connection_error(InputError("gloo.jpg: broken"))
