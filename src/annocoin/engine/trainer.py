"""The loop in which a network learns: the same for both, for one process and for many."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from annocoin import files
from annocoin.engine.distribution import ProcessGroup, single_process
from annocoin.engine.metrics import Log
from annocoin.engine.randomness import generator_at, seed_of, seeded
from annocoin.errors import InputError, brief
from annocoin.progress import track
from annocoin.types import ImageId

Figures = dict[str, float]

OptimizerName = Literal["adamw", "sgd"]

MOMENTUM = 0.9
"""Of SGD."""


class Batch:
    """What a learner gets for a step, and which images that is.

    No dataclass: Fabric goes through those, and refuses some.
    """

    def __init__(self, image_ids: tuple[ImageId, ...], content: tuple[Any, ...]) -> None:
        self.image_ids, self.content = image_ids, content


class Learner(Protocol):
    """A module whose forward gives the losses of a batch, to be summed, and other figures."""

    def __call__(self, *content: Any) -> tuple[dict[str, Tensor], Figures]: ...


@dataclass(frozen=True)
class Support:
    """What a training stands on: all of it can be left out.

    Args:
        group: the processes.
        keeper: of checkpoints.
        log: where figures go.
    """

    group: ProcessGroup | None = None
    keeper: Checkpointer | None = None
    log: Log | None = None


def learn(
    learner: nn.Module,
    groups: Sequence[dict[str, Any]],
    batch_at: Callable[[int, ProcessGroup], Batch],
    *,
    steps: int,
    weight_decay: float,
    clip: float,
    doing: str,
    optimizer_name: OptimizerName = "adamw",
    part: tuple[float, float] = (0.0, 1.0),
    seed: int = 0,
    support: Support | None = None,
) -> None:
    """Steps of an optimizer; all depends on the weights at the start and on the step's number.

    Args:
        learner: a `Learner`.
        groups: of weights, each with its greatest learning rate "lr".
        batch_at: this process's batch of a step.
        clip: the greatest norm of a gradient.
        doing: a name, for messages, and for what is drawn: other names, other draws.
        part: from which to which share of a longer training this is, for the learning rate.
        seed: of what the learner's own layers draw, such as dropout.
    """
    support = support or Support()
    group = support.group or single_process(str(next(learner.parameters()).device))
    rates = [float(group["lr"]) for group in groups]
    optimizer = _optimizer(optimizer_name, groups, weight_decay)
    first = support.keeper.resume(learner, optimizer) if support.keeper else 0
    if support.log is not None and group.is_main:
        support.log.start(first)
    learner.train()
    joined, optimizer = group.setup(_Step(learner), optimizer)
    left = range(first, steps)
    for step in track(left, doing) if group.is_main else left:
        for options, rate in zip(optimizer.param_groups, rates, strict=True):
            progress = part[0] + (part[1] - part[0]) * (step + 0.5) / steps
            options["lr"] = rate * rate_share(progress)
        batch = batch_at(step, group)
        with seeded(seed_of(seed, doing, "layers", step, group.rank), group.device):
            losses, figures = joined(batch)
        loss = torch.stack([own.float() for own in losses.values()]).sum()
        figures = {"loss": loss.item()} | {k: v.item() for k, v in losses.items()} | figures
        optimizer.zero_grad()
        group.fabric.backward(loss)
        norm = group.fabric.clip_gradients(
            joined, optimizer, max_norm=clip, error_if_nonfinite=False
        )
        figures["gradient"] = float(norm)  # type: ignore[arg-type]
        means = group.all_reduce_mean(figures)
        if not _is_finite(means):  # the same in all processes: all stop
            raise InputError(f"{doing}: {_where(step, batch, figures)}; lower the learning rate")
        optimizer.step()
        if group.is_main:
            if support.log is not None:
                support.log.note({"step": step + 1, **means})
            if support.keeper is not None:
                support.keeper.keep(step + 1, learner, optimizer)
    learner.eval()
    if support.log is not None and group.is_main:
        support.log.close()


def _optimizer(
    name: OptimizerName, groups: Sequence[dict[str, Any]], weight_decay: float
) -> torch.optim.Optimizer:
    """Not fused: on a processor that mixes up gradients of another memory format (torch 2.15)."""
    if name == "sgd":
        return torch.optim.SGD(
            list(groups), momentum=MOMENTUM, weight_decay=weight_decay, foreach=True
        )
    return torch.optim.AdamW(list(groups), weight_decay=weight_decay, foreach=True)


class _Step(nn.Module):
    """A learner that takes a batch as one thing."""

    def __init__(self, learner: nn.Module) -> None:
        super().__init__()
        self.learner = learner

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], Figures]:
        found: tuple[dict[str, Tensor], Figures] = self.learner(*batch.content)
        return found


def _is_finite(figures: Figures) -> bool:
    return math.isfinite(figures["loss"]) and math.isfinite(figures["gradient"])


def _where(step: int, batch: Batch, figures: Figures) -> str:
    if _is_finite(figures):
        return f"the loss of another process is not finite at step {step + 1}"
    return (
        f"the loss is {figures['loss']} at step {step + 1}, images {list(batch.image_ids)}, "
        f"{figures}"
    )


def batch_indices(
    step: int, batch: int, count: int, group: ProcessGroup, *place: int | str
) -> list[int]:
    """The images of a step for this process: the dataset in another order each time round.

    Many processes have together what one process with their batches together would have.

    Args:
        count: of images.
        place: where the order is used, such as (seed, "prediction", round).
    """
    together = batch * group.world_size
    first = step * together + group.rank * batch
    numbers = range(first, first + batch)
    orders = {epoch: order(epoch, count, *place) for epoch in {n // count for n in numbers}}
    return [orders[number // count][number % count] for number in numbers]


def order(epoch: int, count: int, *place: int | str) -> list[int]:
    """The places of `count` images in the order of an epoch."""
    generator = generator_at(*place, "order", epoch)
    found: list[int] = torch.randperm(count, generator=generator).tolist()
    return found


EVERY = 60.0
"""Seconds between checkpoints."""


class Checkpointer:
    """Keeps the state of one training in a file, now and then.

    Args:
        path: the file.
        every: seconds; 0 keeps every step.
    """

    def __init__(self, path: Path, every: float = EVERY) -> None:
        self.path, self.every = path, every
        self._kept = time.monotonic()

    def resume(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Bring both to where the file is, if there is one; gives the steps that are done."""
        if not self.path.exists():
            return 0
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            net.load_state_dict(state["net"])
            optimizer.load_state_dict(state["optimizer"])
            return int(state["step"])
        except Exception as error:  # a damaged file raises many kinds
            raise InputError(
                f"{self.path}: no checkpoint of this training ({brief(str(error))}); delete it"
            ) from None

    def keep(self, step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write the state after so many steps, if it is time to."""
        if time.monotonic() - self._kept < self.every:
            return
        content = io.BytesIO()
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, content)
        files.write_bytes(self.path, content.getbuffer())
        self._kept = time.monotonic()


WARM_UP = 0.05
"""The share of the training in which the rate rises."""


def rate_share(progress: float) -> float:
    """The share of the greatest learning rate at this share of the training, both 0..1."""
    return min(1.0, progress / WARM_UP) * 0.5 * (1 + math.cos(math.pi * progress))
