"""One training loop, for the classifier, the conditional and the prediction network.

Everything depends on the initial weights and the number of the step: which images a batch has,
how they are augmented, what layers draw. So a training that was interrupted and resumed ends with
the same bits, whatever the number of loader workers.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import cv2
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset, Sampler

from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.engine.checkpoint import CHECKPOINT_SECONDS, Checkpointer
from annocoin.engine.distribution import (
    ProcessGroup,
    exit_with_parent,
    loader_workers,
    single_process,
)
from annocoin.engine.metrics import MetricsLogger
from annocoin.engine.parallel import single_thread
from annocoin.engine.randomness import generator_at, seed_of, seeded
from annocoin.errors import InputError, Problems, image_line
from annocoin.progress import track
from annocoin.types import ImageId

if TYPE_CHECKING:  # the configuration imports all networks, which reading a run does not need
    from annocoin.engine.network_config import OptimizerName

WARM_UP = 0.05
"""Fraction of the training in which the learning rate rises."""

MOMENTUM = 0.9
SHOWN_STEPS = 20
"""Whose mean loss the progress shows."""

Figures = dict[str, float]


class Examples(Protocol):
    """The images that a network is trained on, by position."""

    def __len__(self) -> int: ...
    def image_id(self, index: int) -> ImageId: ...
    def load(self, index: int, step: int) -> Any:
        """The example for a step, augmented; an image that cannot be used is an `InputError`."""


class ImageExamples:
    """Examples of the images of a dataset; subclasses load them."""

    def __init__(self, images: WeakDataset | Sequence[WeakImage]) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def image_id(self, index: int) -> ImageId:
        return self.images[index].image_id


class Batch:
    """The examples of a step. Not a dataclass: Fabric would walk through its fields."""

    def __init__(self, examples: Sequence[Any], step: int) -> None:
        self.examples, self.step = examples, step


class TrainingStep(Protocol):
    """A module that computes the losses of a batch, which are summed, and figures to be logged."""

    def __call__(self, batch: Batch) -> tuple[dict[str, Tensor], Figures]: ...


@dataclass(frozen=True)
class Schedule:
    """Length and optimizer of a training.

    Args:
        steps: number of optimizer steps.
        batch_size: images per step and process.
        optimizer: "adam", "adamw" or "sgd".
        weight_decay: of the optimizer.
        max_grad_norm: gradient clipping; None for none.
        span: the fraction of a longer training that these steps are, for the learning rate.
        lr_milestones, lr_factors: of the learning rate, see `lr_factor`.
        cpu_workers: loader processes of a training on a CPU, see `loader_workers`.
    """

    steps: int
    batch_size: int
    optimizer: OptimizerName = "adamw"
    weight_decay: float = 0.0
    max_grad_norm: float | None = None
    span: tuple[float, float] = (0.0, 1.0)
    lr_milestones: tuple[float, ...] = ()
    lr_factors: tuple[float, ...] = ()
    cpu_workers: int = 1

    def lr_factor(self, step: int) -> float:
        """The learning rate as a fraction of its maximum.

        A linear warm-up, then a cosine decay; or, with milestones, 1 up to the first of these
        fractions of the training and the factor of each from there on.
        """
        progress = self.span[0] + (self.span[1] - self.span[0]) * (step + 0.5) / self.steps
        warm_up = min(1.0, progress / WARM_UP)
        if self.lr_milestones:
            return warm_up * (1.0, *self.lr_factors)[bisect_right(self.lr_milestones, progress)]
        return warm_up * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


class Trainer:
    """Trains modules: data loading, optimizer, schedule, checkpoints, metrics, distribution.

    Args:
        group: the processes that train together; default this one, on the module's device.
        checkpoint: file that keeps the state now and then; where it exists, training resumes.
        checkpoint_seconds: time between checkpoints; 0 writes one after every step.
        logger: receives the figures of every step.
        problems: `Problems(skip=True)` replaces images that cannot be read by the next ones.
        workers: loader processes; 0 loads in this process; default see `loader_workers`.
    """

    def __init__(
        self,
        group: ProcessGroup | None = None,
        *,
        checkpoint: Path | None = None,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        logger: MetricsLogger | None = None,
        problems: Problems | None = None,
        workers: int | None = None,
    ) -> None:
        self.group, self.logger = group, logger
        self.checkpointer = Checkpointer(checkpoint, checkpoint_seconds)
        self.problems, self.workers = problems or Problems(), workers
        self.data_seconds = self.step_seconds = 0.0

    def fit(
        self,
        module: nn.Module,
        examples: Examples,
        parameters: Sequence[dict[str, Any]],
        schedule: Schedule,
        *,
        name: str,
        seed: int = 0,
    ) -> None:
        """Train a module.

        Args:
            module: a `TrainingStep`.
            parameters: parameter groups, each with its maximum learning rate "lr".
            name: of this training, for messages and random numbers: another name draws others.
        """
        group = self.group or single_process(str(next(module.parameters()).device))
        optimizer = _optimizer(schedule, parameters)
        first = self.checkpointer.resume(name, module, optimizer)
        scheduler = LambdaLR(optimizer, schedule.lr_factor, last_epoch=first - 1)
        if self.logger is not None and group.is_main:
            self.logger.start(first)
        module.train()
        wrapped, wrapped_optimizer = group.setup(module, optimizer)
        batches = self._batches(examples, schedule, first, group, (seed, name))
        steps, recent = range(first, schedule.steps), deque[float]([], SHOWN_STEPS)
        for step in track(steps, name, partial(_loss_of, recent)) if group.is_main else steps:
            started = time.perf_counter()
            batch, image_ids = self._next(batches, step)
            loaded = time.perf_counter()
            with seeded(seed_of(seed, name, "layers", step, group.rank), group.device):
                losses, figures = wrapped(batch)
            loss = torch.stack([value.float() for value in losses.values()]).sum()
            figures = {"loss": loss.item(), **{k: v.item() for k, v in losses.items()}, **figures}
            wrapped_optimizer.zero_grad()
            group.fabric.backward(loss)
            norm = group.fabric.clip_gradients(
                wrapped,
                wrapped_optimizer,
                max_norm=math.inf if schedule.max_grad_norm is None else schedule.max_grad_norm,
                error_if_nonfinite=False,
            )
            figures["grad_norm"] = float(norm)  # type: ignore[arg-type]
            means = group.all_reduce_mean(figures)
            if not _is_finite(means):  # the same on all ranks: all of them stop
                raise InputError(_not_finite(name, step, figures, image_ids))
            wrapped_optimizer.step()
            scheduler.step()
            recent.append(means["loss"])
            if group.is_main:
                if self.logger is not None:
                    self.logger.log({"step": step + 1, **means})
                self.checkpointer.save(step + 1, schedule.steps, name, module, optimizer)
            self.data_seconds += loaded - started
            self.step_seconds += time.perf_counter() - started
        _check_weights(module, name)
        module.eval()
        if self.logger is not None and group.is_main:
            self.logger.close()

    def _batches(
        self,
        examples: Examples,
        schedule: Schedule,
        first: int,
        group: ProcessGroup,
        where: tuple[int | str, ...],
    ) -> Iterator[Any]:
        if not len(examples):
            raise InputError(f"{where[-1]}: no images to train on")
        default = loader_workers(group, schedule.cpu_workers)
        workers = default if self.workers is None else self.workers
        workers = min(workers, schedule.steps - first)
        sampler = _StepSampler(first, schedule, len(examples), group, where)
        dataset = _Loadable(examples, self.problems.skip)
        return iter(
            DataLoader(
                dataset,
                batch_sampler=sampler,
                num_workers=workers,
                collate_fn=_pickled if workers else list,
                prefetch_factor=2 if workers else None,
                worker_init_fn=_init_worker,
                generator=torch.Generator(),  # or it would draw from the global one
            )
        )

    def _next(self, batches: Iterator[Any], step: int) -> tuple[Batch, list[ImageId]]:
        with single_thread():  # as in loader processes: resized images depend on it
            content = next(batches)
        loaded: list[_Loaded] = pickle.loads(content) if isinstance(content, bytes) else content
        for item in loaded:
            for image_id, reason in item.unreadable:
                with self.problems.caught(image_id):
                    raise InputError(reason)
            if item.example is None:
                raise InputError(f"no image can be used; {item.unreadable[0][1]}")
        return Batch([item.example for item in loaded], step), [item.image_id for item in loaded]


def batch_indices(
    step: int, batch_size: int, count: int, group: ProcessGroup, *where: int | str
) -> list[int]:
    """The images of this process's batch at a step: all images in a new order in each epoch.

    N processes have together the batch that one process with N times the batch size would have.

    Args:
        count: number of images.
        where: identifies the order, such as (seed, name).
    """
    first = step * batch_size * group.world_size + group.rank * batch_size
    numbers = range(first, first + batch_size)
    return [epoch_order(n // count, count, *where)[n % count] for n in numbers]


@lru_cache(maxsize=4)
def epoch_order(epoch: int, count: int, *where: int | str) -> list[int]:
    """A random order of `count` images."""
    generator = generator_at(*where, "order", epoch)
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    return order


class _StepSampler(Sampler[list[tuple[int, int]]]):
    """For every step the (step, index) of the images of this process's batch."""

    def __init__(
        self,
        first: int,
        schedule: Schedule,
        count: int,
        group: ProcessGroup,
        where: tuple[int | str, ...],
    ) -> None:
        self.first, self.schedule, self.count = first, schedule, count
        self.group, self.where = group, where

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in range(self.first, self.schedule.steps):
            size = self.schedule.batch_size
            indices = batch_indices(step, size, self.count, self.group, *self.where)
            yield [(step, index) for index in indices]


class _Loaded(NamedTuple):
    """An example, and why images before it in the order could not be used."""

    example: Any
    image_id: ImageId
    unreadable: tuple[tuple[ImageId, str], ...] = ()


class _Loadable(Dataset[_Loaded]):
    """Examples by (step, index); one that cannot be read is replaced by the next, or returned."""

    def __init__(self, examples: Examples, skip: bool) -> None:
        self.examples, self.skip = examples, skip

    def __getitem__(self, key: tuple[int, int]) -> _Loaded:
        step, first = key
        unreadable: list[tuple[ImageId, str]] = []
        for offset in range(len(self.examples)):
            index = (first + offset) % len(self.examples)
            image_id = self.examples.image_id(index)
            try:
                return _Loaded(self.examples.load(index, step), image_id, tuple(unreadable))
            except (InputError, OSError) as error:
                unreadable.append((image_id, image_line(error, image_id)))
                if not self.skip:
                    break
        return _Loaded(None, image_id, tuple(unreadable))


class _Pickler(pickle.Pickler):
    """Pickles tensors as arrays: no file descriptors, no shared memory, whose limits are small."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor:
            return torch.from_numpy, (value.detach().contiguous().numpy(),)
        return NotImplemented


def _pickled(batch: list[_Loaded]) -> bytes:
    content = io.BytesIO()
    _Pickler(content, protocol=5).dump(batch)
    return content.getvalue()


def _init_worker(_: int) -> None:
    cv2.setNumThreads(0)  # torch sets its own number of threads in workers
    # torch's workers wait forever if the parent is killed while they send a batch
    threading.Thread(target=exit_with_parent, args=(os.getppid(),), daemon=True).start()


def _optimizer(schedule: Schedule, groups: Sequence[dict[str, Any]]) -> torch.optim.Optimizer:
    """Not fused: on CPUs that confuses gradients of another memory format (torch 2.15)."""
    highest = max(group["lr"] for group in groups)
    if highest > torch.finfo(torch.float32).max:
        raise InputError(f"learning rate {highest:g}; expected a number that a network can hold")
    options: dict[str, Any] = {"weight_decay": schedule.weight_decay, "foreach": True}
    if schedule.optimizer == "sgd":
        return torch.optim.SGD(list(groups), lr=1.0, momentum=MOMENTUM, **options)
    kind = torch.optim.Adam if schedule.optimizer == "adam" else torch.optim.AdamW
    return kind(list(groups), **options)


def _check_weights(module: nn.Module, name: str) -> None:
    """Raise if the last step made weights that are not finite; those before, the loss shows."""
    for weight, value in module.state_dict().items():
        if not bool(value.isfinite().all()):
            raise InputError(
                f"{name}: the weights {weight} are not finite after the last step; "
                "lower the learning rate"
            )


def _is_finite(figures: Figures) -> bool:
    return math.isfinite(figures["loss"]) and math.isfinite(figures["grad_norm"])


def _loss_of(recent: Sequence[float]) -> str:
    """The mean loss of recent steps, for the progress."""
    return f"loss {sum(recent) / len(recent):.3f}" if recent else ""


def _not_finite(name: str, step: int, figures: Figures, image_ids: Sequence[ImageId]) -> str:
    if _is_finite(figures):
        return f"{name}: the loss of another process is not finite at step {step + 1}"
    return (
        f"{name}: the loss is {figures['loss']} at step {step + 1}, images {list(image_ids)}, "
        f"{figures}; lower the learning rate"
    )
