"""The training loop on a network of one weight: schedule, loading, checkpoints, failures."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn

from annocoin.engine import checkpoint
from annocoin.engine.checkpoint import read_checkpoint, write_checkpoint
from annocoin.engine.distribution import ProcessGroup, single_process
from annocoin.engine.metrics import FileLogger, MemoryLogger
from annocoin.engine.trainer import (
    MOMENTUM,
    Batch,
    Schedule,
    Trainer,
    _Loaded,
    _pickled,
    batch_indices,
    epoch_order,
)
from annocoin.errors import InputError, Problems
from processes import is_running, wait_until

LR, MAX_GRAD_NORM = 0.1, 5.0


class Numbers:
    """Examples of one number each, plus a little noise that depends on the step."""

    def __init__(self, *values: float, unreadable: tuple[int, ...] = ()) -> None:
        self.values, self.unreadable = values or (1.0, 4.0, 2.0, 3.0, 2.5), unreadable

    def __len__(self) -> int:
        return len(self.values)

    def image_id(self, index: int) -> str:
        return f"{index}.jpg"

    def load(self, index: int, step: int) -> Tensor:
        if index in self.unreadable:
            raise InputError("broken image")
        return torch.tensor([self.values[index] + 0.01 * (step % 3)])


class Constant(nn.Module):
    """Learns the mean of the numbers; dropout draws random numbers in every step."""

    def __init__(self, dropout: float = 0.2) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.dropout = nn.Dropout(dropout)
        self.batches: list[list[float]] = []

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
        numbers = torch.cat(list(batch.examples))
        self.batches.append(numbers.tolist())
        error = self.dropout((self.weight - numbers).square()).mean()
        return {"near": error, "far": 0.5 * error}, {"count": float(len(numbers))}


def fit(
    net: nn.Module,
    examples: Any = None,
    *,
    steps: int = 12,
    name: str = "constant",
    lr: float = LR,
    schedule: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    options = {"workers": 0, **options}
    Trainer(**options).fit(
        net,
        Numbers() if examples is None else examples,
        [{"params": list(net.parameters()), "lr": lr}],
        Schedule(steps, 2, **{"max_grad_norm": MAX_GRAD_NORM, **(schedule or {})}),
        name=name,
    )


def test_every_step_is_logged_and_the_loss_falls() -> None:
    net, logger = Constant(), MemoryLogger()
    fit(net, steps=60, logger=logger)
    assert 1.5 < net.weight.item() < 3.5
    assert not net.training
    assert [line["step"] for line in logger.lines] == list(range(1, 61))
    first = logger.lines[0]
    assert set(first) == {"step", "loss", "near", "far", "count", "grad_norm"}
    assert first["loss"] == pytest.approx(first["near"] + first["far"])
    assert first["count"] == 2
    losses = [line["loss"] for line in logger.lines]
    assert sum(losses[-10:]) < sum(losses[:10])


def naive_lr_factor(step: int, steps: int, start: float, end: float) -> float:
    progress = start + (end - start) * (step + 0.5) / steps
    warm_up = progress / 0.05 if progress < 0.05 else 1.0
    return warm_up * (1 + math.cos(math.pi * progress)) / 2


@pytest.mark.parametrize("span", [(0.0, 1.0), (0.0, 0.25), (0.25, 1.0)])
def test_learning_rates_follow_the_formula(span: tuple[float, float], tmp_path: Path) -> None:
    """Linear warm-up and cosine decay; one training in two parts has the rates of a single one."""
    schedule, rates = Schedule(40, 1, span=span), []

    class Recorder(Constant):
        def forward(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
            rates.append(recorded.param_groups[0]["lr"])
            return super().forward(batch)

    recorded: torch.optim.Optimizer
    original = torch.optim.AdamW.__init__

    def remember(self: torch.optim.AdamW, *args: Any, **options: Any) -> None:
        nonlocal recorded
        original(self, *args, **options)
        recorded = self

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "__init__", remember)
        fit(Recorder(), steps=40, schedule={"span": span})
    expected = [naive_lr_factor(step, 40, *span) for step in range(40)]
    assert rates == pytest.approx([LR * factor for factor in expected])
    assert [schedule.lr_factor(step) for step in range(40)] == pytest.approx(expected)
    if span == (0.0, 1.0):
        assert rates[0] < 0.3 * LR < 0.99 * LR < max(rates)
        assert rates[-1] < 0.01 * LR


def test_a_learning_rate_with_milestones() -> None:
    """After the warm-up the full rate, a tenth from a half on, a hundredth from nine tenths on."""
    schedule = Schedule(40, 1, lr_milestones=(0.5, 0.9), lr_factors=(0.1, 0.01))
    factors = [schedule.lr_factor(step) for step in range(40)]
    assert factors[:2] == pytest.approx([0.25, 0.75])
    assert factors[2:] == [1.0] * 18 + [0.1] * 16 + [0.01] * 4


def naive_adam(batches: list[list[float]], decay: float, decoupled: bool) -> float:
    """Steps of Adam with a constant learning rate, without dropout; decay as a loss or apart."""
    weight = first = second = 0.0
    for step, numbers in enumerate(batches, start=1):
        lr = LR * min(1.0, (step - 0.5) / len(batches) / 0.05)
        slope = 1.5 * sum(2 * (weight - number) for number in numbers) / len(numbers)
        slope *= min(1.0, MAX_GRAD_NORM / (abs(slope) + 1e-6))
        if decoupled:
            weight -= lr * decay * weight
        else:
            slope += decay * weight
        first, second = 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope**2
        mean, square = first / (1 - 0.9**step), second / (1 - 0.999**step)
        weight -= lr * mean / (square**0.5 + 1e-8)
    return weight


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_the_weight_decay_of_adam_is_a_loss(optimizer: str) -> None:
    net = Constant(0.0)
    constant = {"lr_milestones": (0.999,), "lr_factors": (1.0,)}
    fit(net, steps=7, schedule={"optimizer": optimizer, "weight_decay": 0.5, **constant})
    expected = naive_adam(net.batches, 0.5, decoupled=optimizer == "adamw")
    assert net.weight.item() == pytest.approx(expected, rel=1e-4)
    other = naive_adam(net.batches, 0.5, decoupled=optimizer != "adamw")
    assert net.weight.item() != pytest.approx(other, rel=1e-3)


def test_gradients_are_not_clipped_without_a_norm() -> None:
    logger = MemoryLogger()
    nets = [Constant(0.0), Constant(0.0)]
    for net, norm in zip(nets, (None, 0.01), strict=True):
        sgd = {"optimizer": "sgd", "max_grad_norm": norm}
        fit(net, steps=1, lr=1e-3, schedule=sgd, logger=logger)
    assert nets[0].weight.item() > 10 * nets[1].weight.item() > 0


def naive_sgd(batches: list[list[float]], weight: float, speed: float) -> tuple[float, float]:
    """Steps of SGD with momentum and clipping, without dropout."""
    for step, numbers in enumerate(batches):
        slope = 1.5 * sum(2 * (weight - number) for number in numbers) / len(numbers)
        slope *= min(1.0, MAX_GRAD_NORM / (abs(slope) + 1e-6))
        speed = MOMENTUM * speed + slope
        weight -= LR * naive_lr_factor(step, len(batches), 0, 1) * speed
    return weight, speed


def test_sgd_has_momentum() -> None:
    net = Constant(0.0)
    fit(net, steps=5, schedule={"optimizer": "sgd"})
    weight, _ = naive_sgd(net.batches, 0.0, 0.0)
    assert net.weight.item() == pytest.approx(weight, rel=1e-5)


class Interrupted(Exception):
    pass


class FailingLogger(FileLogger):
    """Interrupts a training in a step, before its checkpoint is written."""

    def __init__(self, path: Path, step: int) -> None:
        super().__init__(path)
        self.step = step

    def log(self, figures: Any) -> None:
        super().log(figures)
        if figures["step"] == self.step:
            raise Interrupted


@pytest.mark.parametrize(
    ("step", "workers", "optimizer"),
    [*((step, 0, "adamw") for step in range(1, 13)), (6, 0, "sgd"), (2, 1, "sgd"), (7, 2, "adamw")],
)
def test_a_resumed_training_ends_with_the_same_bits(
    tmp_path: Path, step: int, workers: int, optimizer: str
) -> None:
    straight, logger, schedule = Constant(), MemoryLogger(), {"optimizer": optimizer}
    fit(straight, schedule=schedule, logger=logger)
    options: dict[str, Any] = {"schedule": schedule, "workers": workers}
    options |= {"checkpoint": tmp_path / "c.pt", "checkpoint_seconds": 0}
    with pytest.raises(Interrupted):
        fit(Constant(), logger=FailingLogger(tmp_path / "m.jsonl", step), **options)
    assert (tmp_path / "c.pt").exists() == (step > 1)
    resumed = Constant()
    torch.manual_seed(step)  # the state of the global generator has no influence
    fit(resumed, logger=FileLogger(tmp_path / "m.jsonl"), **options)
    assert torch.equal(resumed.weight, straight.weight)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert lines == logger.lines
    assert len(resumed.batches) == 13 - step, "steps with a checkpoint are not done again"
    again = Constant()
    fit(again, **options)
    assert torch.equal(again.weight, straight.weight)
    assert again.batches == []


def test_checkpoints_are_written_after_a_time_or_a_tenth_of_the_steps(tmp_path: Path) -> None:
    def saved_steps(seconds: float, cost: float) -> list[int]:
        """Those of 40 steps, of so many seconds each, after which a file is written."""
        now, written = 0.0, []
        optimizer = torch.optim.SGD([torch.ones(1)])

        def write(path: Path, state: dict[str, Any]) -> None:
            nonlocal now
            now += cost
            written.append(state["step"])

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint, "write_checkpoint", write)
            patch.setattr(checkpoint.time, "monotonic", lambda: now)
            checkpointer = checkpoint.Checkpointer(tmp_path / "c.pt", 100.0)
            for step in range(1, 41):
                now += seconds
                checkpointer.save(step, 40, "constant", Constant(), optimizer)
        return written

    assert saved_steps(1.0, 0.1) == list(range(4, 40, 4)), "each tenth but the last"
    assert saved_steps(1.0, 1.0) == [4, 24], "at most a twentieth of the time"
    assert saved_steps(60.0, 1.0) == list(range(2, 41, 2)), "every 100 seconds"
    fit(Constant(), checkpoint=tmp_path / "c.pt", checkpoint_seconds=100)
    assert read_checkpoint(tmp_path / "c.pt")["step"] >= 1


def test_weights_that_are_not_finite_after_the_last_step_are_refused() -> None:
    with pytest.raises(InputError, match=r"constant: the weights weight are not finite after"):
        fit(Constant(0.0), steps=1, lr=3e38, schedule={"optimizer": "sgd"})
    with pytest.raises(InputError, match="learning rate 1e\\+39"):
        fit(Constant(), lr=1e39)


@pytest.mark.parametrize("workers", [1, 2])
def test_loader_workers_change_no_bit_and_leave_no_process(workers: int) -> None:
    before = set(psutil.Process().children(recursive=True))
    alone, loaded = Constant(), Constant()
    fit(alone)
    fit(loaded, workers=workers)
    assert torch.equal(loaded.weight, alone.weight)
    assert loaded.batches == alone.batches
    wait_until(lambda: set(psutil.Process().children(recursive=True)) <= before)


@pytest.mark.parametrize("workers", [0, 1])
def test_examples_are_loaded_with_one_thread(workers: int) -> None:
    """Resizing an image has other bits with more threads, in loader processes there is one."""
    threads = []

    class Threads(Numbers):
        def load(self, index: int, step: int) -> Tensor:
            return torch.tensor([float(torch.get_num_threads())])

    class Counting(Constant):
        def forward(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, float]]:
            threads.append(torch.get_num_threads())
            return super().forward(batch)

    net, before = Counting(), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        fit(net, Threads(), steps=2, workers=workers)
    finally:
        torch.set_num_threads(before)
    assert threads == [3, 3]
    assert net.batches == [[1.0, 1.0]] * 2


def test_a_training_that_fails_leaves_no_process() -> None:
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(InputError):
        fit(Constant(), Numbers(1.0, math.inf), workers=2)
    gc.collect()
    wait_until(lambda: set(psutil.Process().children(recursive=True)) <= before)


KILLED = """
import os, time
import psutil, torch
from torch import nn
from annocoin.engine.trainer import Schedule, Trainer

class Examples:
    def __len__(self): return 10
    def image_id(self, index): return index
    def load(self, index, step): return torch.zeros(1_000_000)  # more than a pipe holds

class Step(nn.Linear):
    def forward(self, batch):
        print(*(child.pid for child in psutil.Process().children()), flush=True)
        time.sleep(600)

net = Step(1, 1)
parameters = [{"params": list(net.parameters()), "lr": 1.0}]
Trainer(workers=2).fit(net, Examples(), parameters, Schedule(99, 1), name="killed")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="kills a process")
def test_loader_processes_end_when_the_training_is_killed() -> None:
    """Also while they send a batch that nobody receives any more."""
    command = [sys.executable, "-c", KILLED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        workers = [int(number) for number in training.stdout.readline().split()]
        assert len(workers) == 2
        time.sleep(0.5)  # until they wait to send
        training.kill()
    wait_until(lambda: not any(map(is_running, workers)), 20)


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_images_are_replaced_by_the_next_and_reported_once(workers: int) -> None:
    examples, problems, logger = Numbers(unreadable=(1, 2)), Problems(skip=True), MemoryLogger()
    net, reference = Constant(), Constant()
    fit(net, examples, problems=problems, logger=logger, workers=workers)
    fit(reference, Numbers(1.0, 3.0, 3.0, 3.0, 2.5))  # 1 and 2 are replaced by 3
    assert net.batches == reference.batches
    assert sorted(problems.skipped) == [f"image '{i}.jpg': broken image" for i in (1, 2)]
    assert all(line["count"] == 2 for line in logger.lines)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_stops_the_training_with_its_id(workers: int) -> None:
    examples = Numbers(unreadable=(3,))
    position = epoch_order(0, len(examples), 0, "constant").index(3)
    net = Constant()
    with pytest.raises(InputError, match=r"^image '3\.jpg': broken image$"):
        fit(net, examples, workers=workers)
    assert len(net.batches) == position // 2, "steps before that image are done"


@pytest.mark.parametrize("workers", [0, 1])
def test_without_a_readable_image_one_line_says_so(workers: int) -> None:
    examples = Numbers(1.0, 2.0, unreadable=(0, 1))
    with pytest.raises(InputError, match=r"^no image can be used; image '\d\.jpg': broken image$"):
        fit(Constant(), examples, problems=Problems(skip=True), workers=workers)


def test_a_training_needs_images() -> None:
    class Empty(Numbers):
        def __len__(self) -> int:
            return 0

    with pytest.raises(InputError, match="constant: no images to train on"):
        fit(Constant(), Empty())


def damaged(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def no_checkpoint(path: Path) -> None:
    path.write_bytes(b"not a checkpoint")


def other_content(path: Path) -> None:
    write_checkpoint(path, {"name": "constant", "step": 1})


def other_network(path: Path) -> None:
    write_checkpoint(path, {**read_checkpoint(path), "module": {"weights": torch.zeros(3)}})


def code(path: Path) -> None:
    content = pickle.dumps(damaged, protocol=2)
    path.write_bytes(hashlib.sha256(content).digest() + content)


def flipped(path: Path) -> None:
    """One bit of a weight, which torch does not notice."""
    content = bytearray(path.read_bytes())
    weight = bytes(read_checkpoint(path)["module"]["weight"].numpy().tobytes())
    content[content.index(weight) + 3] ^= 0x40
    path.write_bytes(content)


@pytest.mark.parametrize(
    "change", [damaged, no_checkpoint, other_content, other_network, code, flipped]
)
def test_a_bad_checkpoint_is_refused_in_one_line(
    change: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "c.pt"
    fit(Constant(), checkpoint=path, checkpoint_seconds=0)
    change(path)
    with pytest.raises(InputError, match=r"c\.pt: not a checkpoint of this .*; delete it, and "):
        fit(Constant(), checkpoint=path)


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": tmp_path / "c.pt", "checkpoint_seconds": 0}
    fit(Constant(), name="round 1", **options)
    with pytest.raises(InputError, match="it is of 'round 1'"):
        fit(Constant(), name="round 2", **options)


def test_a_loss_that_is_not_finite_names_step_images_and_losses() -> None:
    examples = Numbers(1.0, 2.0, math.inf, 2.0)
    step = epoch_order(0, 4, 0, "constant").index(2) // 2 + 1
    with pytest.raises(
        InputError,
        match=rf"constant: the loss is inf at step {step}, images \[.*'2\.jpg'.*'far': inf.*"
        "lower the learning rate",
    ):
        fit(Constant(0.0), examples)


def test_a_loss_that_is_not_finite_in_another_process_stops_this_one() -> None:
    class OfTwo(ProcessGroup):
        def all_reduce_mean(self, values: dict[str, float]) -> dict[str, float]:
            return {**values, "loss": math.nan}

    net = Constant()
    with pytest.raises(InputError, match="loss of another process is not finite at step 1"):
        fit(net, group=OfTwo(single_process().fabric))
    assert net.weight.item() == 0, "the optimizer did not step"


def test_gradients_are_clipped() -> None:
    net, logger = Constant(0.0), MemoryLogger()
    fit(net, Numbers(1e6), steps=1, schedule={"max_grad_norm": 0.5}, logger=logger)
    assert logger.lines[0]["grad_norm"] == pytest.approx(3e6, rel=1e-4), "before clipping"
    assert net.weight.grad is not None
    assert net.weight.grad.abs().item() == pytest.approx(0.5)


class FakeGroup:
    """The rank and the number of processes, without processes."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size


@pytest.mark.parametrize(("batch_size", "count"), [(1, 3), (2, 5), (4, 4), (3, 2)])
def test_batches_of_two_processes_are_that_of_one_with_twice_the_size(
    batch_size: int, count: int
) -> None:
    order: list[int] = []
    for step in range(7):
        one = batch_indices(step, 2 * batch_size, count, FakeGroup(0, 1), 0, "x")  # type: ignore[arg-type]
        two = [batch_indices(step, batch_size, count, FakeGroup(r, 2), 0, "x") for r in range(2)]  # type: ignore[arg-type]
        assert two[0] + two[1] == one
        order += one
    for epoch in range(len(order) // count):
        assert sorted(order[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert epoch_order(0, 20, 0, "x") != epoch_order(1, 20, 0, "x") != epoch_order(1, 20, 0, "y")


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(3, 4, 5),
        torch.rand(3, 4, 5).permute(2, 0, 1),
        torch.rand(6, 4)[::2, 1:],
        torch.rand(2, 3, 4).flip(2),
        torch.ones(4).expand(3, 4),
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.tensor([[True, False], [False, True]]),
        torch.zeros(0, 4),
        torch.zeros(3, 0, dtype=torch.bool),
        torch.tensor(3.5),
        torch.tensor(7),
        torch.arange(5, dtype=torch.uint8),
        torch.rand(2, requires_grad=True),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)} {tensor.stride()}",
)
def test_tensors_of_a_batch_survive_the_way_from_a_worker(tensor: Tensor) -> None:
    batch = [_Loaded({"tensors": (tensor, tensor.clone())}, "a.jpg", ("b.jpg: broken",))]
    (loaded,) = pickle.loads(_pickled(batch))
    assert (loaded.image_id, loaded.unreadable) == ("a.jpg", ("b.jpg: broken",))
    for found in loaded.example["tensors"]:
        assert found.dtype == tensor.dtype
        assert found.shape == tensor.shape
        assert torch.equal(found, tensor)
        found += found  # it can be written to
