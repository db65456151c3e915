"""One process or many with the same code: who computes which part, and how they come together."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from annocoin.engine.parallel import cores
from annocoin.errors import InputError, check_choice, check_positive

if TYPE_CHECKING:
    from lightning_fabric import Fabric
import sys

PRECISIONS = ("32-true", "bf16-mixed")

PATIENCE = timedelta(days=7)
"""How long processes wait for one another: one of them may train a classifier meanwhile."""

PORT = "29500"
"""Where machines meet, if MASTER_PORT does not say so: each would choose another one."""

MANAGED = {"LOCAL_RANK", "SLURM_NTASKS"}
"""Set by what starts processes itself: torchrun, Slurm, or the first process."""

T = TypeVar("T")


class ProcessGroup:
    """The processes that work on one run, as one of them sees it.

    Args:
        fabric: Lightning Fabric, launched.
        nodes: how many machines they are on.
        precision: of training.
    """

    def __init__(self, fabric: Fabric, nodes: int = 1, precision: str = "32-true") -> None:
        self.fabric, self.nodes, self.precision = fabric, nodes, precision

    @property
    def rank(self) -> int:
        return self.fabric.global_rank

    @property
    def world_size(self) -> int:
        return self.fabric.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes what there is only one of."""
        return self.rank == 0

    @property
    def device(self) -> torch.device:
        return self.fabric.device

    @property
    def workers_per_process(self) -> int:
        """How many num_workers each of them may have, so that all cores of a machine are used."""
        return max(1, cores() * self.nodes // self.world_size)

    def shard(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of the items; all parts together are all of them, each once."""
        return items[self.rank :: self.world_size]

    def barrier(self) -> None:
        """Go on when all have come here."""
        self.fabric.barrier()

    def raise_on_all_ranks(self, problem: str | None) -> None:
        """Raise in all processes what the first one has found wrong, if anything."""
        found = self.fabric.broadcast(problem)
        if found is not None:
            raise InputError(found)

    def setup(
        self, learner: nn.Module, optimizer: torch.optim.Optimizer
    ) -> tuple[Any, torch.optim.Optimizer]:
        """A learner whose gradients are means over all processes, and its optimizer."""
        return self.fabric.setup(learner, optimizer)

    def all_reduce_mean(self, values: dict[str, float]) -> dict[str, float]:
        """Means over all processes of numbers that each of them has."""
        if self.world_size == 1:
            return values
        numbers = torch.tensor(list(values.values()), dtype=torch.float64, device=self.device)
        together = self.fabric.all_reduce(numbers, reduce_op="mean")
        assert isinstance(together, Tensor)
        return dict(zip(values, together.tolist(), strict=True))


def num_workers(asked: int | None, group: ProcessGroup | None = None, device: str = "cpu") -> int:
    """How many processes of each of the group's go through images: as asked, or one for each core.

    Where a network computes on a GPU it is one: each would have its own copy of it there.
    """
    if asked is not None:
        check_positive("jobs", asked)
    if torch.device(device).type != "cpu":
        return 1
    if asked is not None:
        return asked
    return cores() if group is None else group.workers_per_process


@cache
def single_process(device: str = "cpu", precision: str = "32-true") -> ProcessGroup:
    """A group of one process."""
    return init_distributed(device=device, precision=precision)


def init_distributed(
    *, devices: int = 1, nodes: int = 1, device: str = "cpu", precision: str = "32-true"
) -> ProcessGroup:
    """Start the other processes, if there are to be any; each of them runs the same command.

    Args:
        devices: how many on each machine.
        nodes: how many machines.
        device: "cpu", "cuda", "mps", or one of several such as "cuda:1".
        precision: "32-true", or "bf16-mixed", which computes in bfloat16 where that is safe.
    """
    check_choice("precision", precision, PRECISIONS)
    check_positive("devices", devices)
    check_positive("nodes", nodes)
    if nodes > 1:
        _check_meeting(nodes)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if 0 < local < torch.cuda.device_count():
        torch.cuda.set_device(local)  # or each process would open the first GPU as well
    place = open_device(device)
    if precision == "bf16-mixed":
        warn_of_slow_bfloat16(place)
    from lightning_fabric import Fabric  # takes seconds, which other commands need not wait for
    from lightning_fabric.strategies.ddp import DDPStrategy

    if place.index is not None and devices * nodes > 1:
        raise InputError(f"device {device!r} is a single one; say {place.type} with --devices")
    several = devices * nodes > 1
    try:
        fabric = Fabric(
            accelerator=place.type,
            devices=devices if place.index is None or place.type == "cpu" else [place.index],
            num_nodes=nodes,
            precision=precision,  # type: ignore[arg-type]
            strategy=DDPStrategy(find_unused_parameters=True, timeout=PATIENCE)
            if several
            else "auto",
        )
    except (ValueError, RuntimeError) as error:
        raise InputError(f"--devices {devices} --precision {precision}: {error}") from None
    if place.type == "cpu" and devices > 1:  # processes that share cores must not fight for them
        torch.set_num_threads(max(1, cores() // devices))
    if local > 0:
        threading.Thread(target=_end_with_first, args=(os.getppid(),), daemon=True).start()
    fabric.launch()
    return ProcessGroup(fabric, nodes, precision)


def _check_meeting(nodes: int) -> None:
    """Raise unless machines know one another, by a manager's word or a user's: they would wait."""
    if MANAGED & set(os.environ):
        return
    missing = [name for name in ("NODE_RANK", "MASTER_ADDR") if name not in os.environ]
    if missing:
        raise InputError(
            f"--nodes {nodes}: set {' and '.join(missing)} on each machine (NODE_RANK: its number, "
            "from 0; MASTER_ADDR: the address of machine 0)"
        )
    os.environ.setdefault("MASTER_PORT", PORT)


def _end_with_first(starter: int) -> None:
    """End this process when the one that started it has ended: nobody would come to meet it."""
    while os.getppid() == starter:
        time.sleep(1)
    os._exit(1)


AUTO = "auto"
SLOW = "note: this processor has no bfloat16 arithmetic; full precision (32) is far faster on it"


def open_device(name: str) -> torch.device:
    """The device of that name, "cpu", "cuda:1" or "mps"; one that cannot be used is an error.

    "auto" is a GPU where there is one.
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
    """Say so where bfloat16 is to be computed by a processor that can only imitate it.

    ResNet-50, forward and back, took 20 times as long as in full precision on one with AVX2 alone.
    """
    if device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        print(SLOW, file=sys.stderr, flush=True)
