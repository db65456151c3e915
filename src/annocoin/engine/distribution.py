"""Devices and distribution, through Lightning Fabric: the same code for one process and many."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import psutil
import torch
from torch import Tensor, nn

from annocoin.engine.heartbeat import Heartbeat, connect_to_store, is_connection_error
from annocoin.engine.parallel import cores
from annocoin.errors import InputError, check_choice, check_positive

if TYPE_CHECKING:
    from lightning_fabric import Fabric

AUTO = "auto"
PRECISIONS = ("32-true", "bf16-mixed")
SLOW_BFLOAT16 = (
    "note: this processor has no bfloat16 arithmetic; full precision (32) is far faster on it"
)
MAX_LOADER_WORKERS = 8

TIMEOUT = timedelta(days=7)
"""Of collective operations: rank 0 may evaluate or write for long while the others wait; for
processes that have died see `ProcessGroup.watched`."""

JOIN_MINUTES = 30
"""In which all machines must have started."""

MASTER_PORT = "29500"
LAUNCHER_VARIABLES = {"LOCAL_RANK", "SLURM_NTASKS"}
"""Environment variables of launchers: torchrun, Slurm, or Fabric's own."""

T = TypeVar("T")


class ProcessGroup:
    """The processes that work on one run, from the view of one of them.

    Args:
        fabric: Lightning Fabric, launched.
        nodes: number of machines.
        precision: of training.
    """

    def __init__(self, fabric: Fabric, nodes: int = 1, precision: str = "32-true") -> None:
        self.fabric, self.nodes, self.precision = fabric, nodes, precision
        self._blocks = 0

    @property
    def rank(self) -> int:
        return self.fabric.global_rank

    @property
    def world_size(self) -> int:
        return self.fabric.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes the files that exist once."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        return self.fabric.device

    @property
    def cores_per_process(self) -> int:
        return max(1, cores() * self.nodes // self.world_size)

    def shard(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of the items."""
        return items[self.rank :: self.world_size]

    def barrier(self) -> None:
        self.fabric.barrier()

    def broadcast(self, value: T) -> T:
        """Rank 0's value, in all processes."""
        received: T = self.fabric.broadcast(value)
        return received

    def raise_on_all_ranks(self, problem: str | None) -> None:
        """Raise rank 0's problem, if it has one, in all processes."""
        message = self.broadcast(problem)
        if message is not None:
            raise InputError(message)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Work in which no process outlives the others: each ends with a line when one has ended.

        All processes leave the block together.
        """
        if self.world_size == 1:
            yield
            return
        self._blocks += 1
        _stop_observer()
        with Heartbeat(
            self.rank,
            self.world_size,
            connect_to_store,
            str(self._blocks),
            dead_children=self._dead_children,
        ):
            yield
            self.barrier()

    def _dead_children(self) -> list[str]:
        """The processes that Fabric has started here and that have died."""
        processes = getattr(self.fabric.strategy.launcher, "procs", [])
        codes = [(number, process.poll()) for number, process in enumerate(processes, start=1)]
        return [f"process {number} has died ({code})" for number, code in codes if code]

    def setup(
        self, module: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[Any, torch.optim.Optimizer]:
        """The module with gradients averaged over all processes, and its optimizer."""
        return self.fabric.setup(module, optimizer)

    def all_reduce_mean(self, values: dict[str, float]) -> dict[str, float]:
        """Means of the values over all processes."""
        if self.world_size == 1:
            return values
        numbers = torch.tensor(list(values.values()), dtype=torch.float64, device=self.device)
        means = self.fabric.all_reduce(numbers, reduce_op="mean")
        assert isinstance(means, Tensor)
        return dict(zip(values, means.tolist(), strict=True))


def worker_processes(jobs: int | None, group: ProcessGroup | None = None) -> int:
    """Processes of a stage that goes image by image: `jobs`, or one per core.

    With a GPU it is one: each would have its own copy of the network there.
    """
    if jobs is not None:
        check_positive("jobs", jobs)
    if group is not None and group.device.type != "cpu":
        return 1
    if jobs is not None:
        return jobs
    return cores() if group is None else group.cores_per_process


def loader_workers(group: ProcessGroup, cpu_workers: int = 1) -> int:
    """Processes that load training examples: several for a GPU.

    Args:
        cpu_workers: on a CPU with several cores. They take time from the network, so that it is 0
            where loading is a small part of a step.
    """
    if group.device.type == "cpu":
        return min(cpu_workers, group.cores_per_process - 1)
    return min(MAX_LOADER_WORKERS, group.cores_per_process)


@cache
def single_process(device: str = "cpu", precision: str = "32-true") -> ProcessGroup:
    """A group of this process alone."""
    return init_distributed(device=device, precision=precision)


def init_distributed(
    *, devices: int = 1, nodes: int = 1, device: str = "cpu", precision: str = "32-true"
) -> ProcessGroup:
    """Start the other processes, if any; each of them runs the same command.

    Args:
        devices: processes per machine.
        nodes: machines.
        device: "cpu", "cuda", "mps", or a single one such as "cuda:1".
        precision: "32-true", or "bf16-mixed", bfloat16 autocast.
    """
    check_choice("precision", precision, PRECISIONS)
    check_positive("devices", devices)
    check_positive("nodes", nodes)
    if nodes > 1:
        _check_rendezvous(nodes)
        _choose_interface()
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if 0 < local_rank < torch.cuda.device_count():
        torch.cuda.set_device(local_rank)  # or each process would open the first GPU as well
    target = open_device(device)
    if precision == "bf16-mixed":
        warn_of_slow_bfloat16(target)
    several = devices * nodes > 1
    if target.index is not None and several:
        raise InputError(f"device {device!r} is a single one; use {target.type} with --devices")
    from lightning_fabric import Fabric  # takes seconds, which other commands need not wait for
    from lightning_fabric.strategies.ddp import DDPStrategy

    ddp = DDPStrategy(find_unused_parameters=True, timeout=TIMEOUT) if several else "auto"
    single = target.index is None or target.type == "cpu"
    try:
        fabric = Fabric(
            accelerator=target.type,
            devices=devices if single else [target.index],
            num_nodes=nodes,
            precision=precision,  # type: ignore[arg-type]
            strategy=ddp,
        )
    except (ValueError, RuntimeError) as error:
        raise InputError(f"--devices {devices} --precision {precision}: {error}") from None
    if target.type == "cpu" and devices > 1:  # threads of processes that share cores would compete
        torch.set_num_threads(max(1, cores() // devices))
    if local_rank > 0:
        threading.Thread(target=exit_with_parent, args=(os.getppid(),), daemon=True).start()
    with _joining(nodes) if several else nullcontext():
        fabric.launch()
    return ProcessGroup(fabric, nodes, precision)


def open_device(name: str) -> torch.device:
    """The device "cpu", "cuda:1", "mps", ...; "auto" is a GPU where there is one.

    A device that cannot be used is an `InputError`.
    """
    if name == AUTO:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except Exception as error:  # every backend has its own kinds
        reason = str(error).split("\n", 1)[0][:120]
        raise InputError(f"device {name!r} cannot be used here ({reason}); try cpu") from None
    return device


def warn_of_slow_bfloat16(device: torch.device) -> None:
    """Print a note where a processor only emulates bfloat16.

    ResNet-50, forward and backward, took 20 times as long as in full precision with AVX2 only.
    """
    if device.type == "cpu" and not has_bfloat16():
        print(SLOW_BFLOAT16, file=sys.stderr, flush=True)


def has_bfloat16() -> bool:
    """Whether the processor computes in bfloat16, instead of emulating it."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _check_rendezvous(nodes: int) -> None:
    """Raise unless a launcher or the user says where the machines meet: they would wait forever."""
    if LAUNCHER_VARIABLES & set(os.environ):
        return
    missing = [name for name in ("NODE_RANK", "MASTER_ADDR") if name not in os.environ]
    if missing:
        raise InputError(
            f"--nodes {nodes}: set {' and '.join(missing)} on each machine (NODE_RANK: its number, "
            "from 0; MASTER_ADDR: the address of machine 0)"
        )
    os.environ.setdefault("MASTER_PORT", MASTER_PORT)


def _choose_interface() -> None:
    """Let gloo use the network interface towards machine 0.

    Its default is that of this machine's name, which often is 127.0.0.1 or 127.0.1.1 here: the
    other machines could not connect.
    """
    address = os.environ.get("MASTER_ADDR")
    if not address:  # Slurm's is known later
        return
    try:
        family, kind, _, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as connection:
            connection.connect(target)  # chooses the route; nothing is sent
            here = connection.getsockname()[0]
    except OSError as error:
        raise InputError(f"MASTER_ADDR {address!r}: cannot be reached ({error.strerror})") from None
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == here for entry in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def _stop_observer() -> None:
    """End Fabric's thread that kills this process, without a line, when one of its children ends.

    `Heartbeat` replaces it.
    """
    for thread in threading.enumerate():
        if thread.name == "child-process-observer":
            thread._child_processes = []  # type: ignore[attr-defined]


@contextmanager
def _joining(nodes: int) -> Iterator[None]:
    """The start of a process group: one line if others do not come, or cannot be reached."""
    where = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    if nodes > 1:
        print(f"waiting for {nodes} machines at {where}", file=sys.stderr, flush=True)

    def give_up() -> None:
        print(
            f"annocoin: not all of {nodes} machines have come to {where} in {JOIN_MINUTES} minutes;"
            " start the same command on all of them",
            file=sys.stderr,
            flush=True,
        )
        os._exit(2)

    timer = threading.Timer(60 * JOIN_MINUTES, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    except RuntimeError as error:
        if not is_connection_error(error):
            raise
        raise InputError(f"{where}: the processes cannot connect ({error})") from None
    finally:
        timer.cancel()


def exit_with_parent(parent: int) -> None:
    """End this process when the one that started it has ended: it would wait for it forever."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
