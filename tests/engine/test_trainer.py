"""The loop both networks learn in, its checkpoints and metrics, on a network of one number."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from annocoin.engine.distribution import ProcessGroup, single_process
from annocoin.engine.metrics import MemoryLogger, Metrics
from annocoin.engine.trainer import (
    MOMENTUM,
    Batch,
    Checkpointer,
    OptimizerName,
    Support,
    batch_indices,
    learn,
    order,
    rate_share,
)
from annocoin.errors import InputError


class Line(nn.Module):
    """Learns the number that batches hold."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, numbers: Tensor) -> tuple[dict[str, Tensor], dict[str, float]]:
        apart = (self.weight - numbers).square().mean()
        return {"near": apart, "far": apart * 0.5}, {"seen": float(len(numbers))}


def batch_at(step: int, group: ProcessGroup) -> Batch:
    return Batch((f"image {step}",), (torch.tensor([1.0, 3.0 + step % 2]),))


def train(
    net: nn.Module, steps: int = 12, optimizer_name: OptimizerName = "adamw", **support: Any
) -> None:
    learn(
        net, [{"params": list(net.parameters()), "lr": 0.1}], batch_at,
        steps=steps, weight_decay=0.0, clip=5.0, doing="line", optimizer_name=optimizer_name,
        support=Support(**support),
    )  # fmt: skip


def test_it_learns_and_notes_every_step() -> None:
    net, noted = Line(), MemoryLogger()
    train(net, 60, log=noted)
    assert 1 < net.weight.item() < 3
    assert [line["step"] for line in noted.lines] == list(range(1, 61))
    assert noted.lines[-1]["loss"] < noted.lines[0]["loss"]
    first = noted.lines[0]
    assert first["loss"] == pytest.approx(first["near"] + first["far"])
    assert first["seen"] == 2


def test_sgd_has_momentum() -> None:
    net, noted = Line(), MemoryLogger()
    train(net, 3, "sgd", log=noted)
    at, speed = 0.0, 0.0
    for step in range(3):
        slope = 1.5 * (2 * at - 1 - (3 + step % 2))  # of 1.5 times the mean of two squares
        slope *= min(1.0, 5.0 / (abs(slope) + 1e-6))
        speed = MOMENTUM * speed + slope
        at -= 0.1 * rate_share((step + 0.5) / 3) * speed
    assert net.weight.item() == pytest.approx(at, rel=1e-5)


@pytest.mark.parametrize("optimizer_name", ["adamw", "sgd"])
@pytest.mark.parametrize("cut", [1, 5, 11])
def test_interrupted_anywhere_it_ends_the_same(
    tmp_path: Path, cut: int, optimizer_name: OptimizerName
) -> None:
    straight, noted = Line(), MemoryLogger()
    train(straight, optimizer_name=optimizer_name, log=noted)

    class Stop(Exception):
        pass

    class Failing(Metrics):
        def note(self, figures: Any) -> None:
            super().note(figures)
            if figures["step"] == cut + 1:  # after the checkpoint of step `cut`
                raise Stop

    with pytest.raises(Stop):
        train(
            Line(), optimizer_name=optimizer_name, keeper=Checkpointer(tmp_path / "c.pt", 0),
            log=Failing(tmp_path / "m.jsonl"),
        )  # fmt: skip
    again = Line()
    train(
        again, optimizer_name=optimizer_name, keeper=Checkpointer(tmp_path / "c.pt", 0),
        log=Metrics(tmp_path / "m.jsonl"),
    )  # fmt: skip
    assert torch.equal(again.weight, straight.weight)
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert lines == noted.lines


def test_a_line_cut_in_the_middle_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1, "loss": 2}\n{"step": 2, "lo')
    metrics = Metrics(path)
    metrics.start(1)
    metrics.note({"step": 2, "loss": 1})
    metrics.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_checkpoint_of_something_else_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "c.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match="delete it"):
        train(Line(), keeper=Checkpointer(tmp_path / "c.pt", 0))
    torch.save({"net": {}, "optimizer": {}, "step": 1}, tmp_path / "c.pt")
    with pytest.raises(InputError, match="delete it"):
        train(Line(), keeper=Checkpointer(tmp_path / "c.pt", 0))


def test_a_loss_that_is_no_number_stops_with_all_there_is_to_know() -> None:
    def bad(step: int, group: ProcessGroup) -> Batch:
        return Batch(("cat.jpg",), (torch.tensor([math.inf if step == 2 else 1.0]),))

    net = Line()
    with pytest.raises(InputError, match=r"inf at step 3, images \['cat.jpg'\].*'far': inf"):
        learn(
            net, [{"params": [net.weight], "lr": 0.1}], bad,
            steps=5, weight_decay=0.0, clip=5.0, doing="line",
        )  # fmt: skip


def test_what_happens_to_another_process_stops_all() -> None:
    class OfTwo(ProcessGroup):
        def mean(self, values: dict[str, float]) -> dict[str, float]:
            return {**values, "loss": math.nan}

    net = Line()
    with pytest.raises(InputError, match="loss of another process is not finite at step 1"):
        train(net, group=OfTwo(single_process().fabric))
    assert net.weight.item() == 0, "no step is made with it"


def test_gradients_are_clipped() -> None:
    def far(step: int, group: ProcessGroup) -> Batch:
        return Batch(("a",), (torch.tensor([1e6]),))

    noted = MemoryLogger()
    net = Line()
    learn(
        net, [{"params": [net.weight], "lr": 0.1}], far,
        steps=1, weight_decay=0.0, clip=0.5, doing="line", support=Support(log=noted),
    )  # fmt: skip
    assert noted.lines[0]["gradient"] == pytest.approx(3e6, rel=1e-4), "the norm before it"
    assert net.weight.grad is not None
    assert net.weight.grad.abs().item() == pytest.approx(0.5)


def test_the_rate_rises_and_falls() -> None:
    shares = [rate_share((step + 0.5) / 100) for step in range(100)]
    assert shares[0] < 0.2
    assert max(shares) > 0.99
    assert shares[-1] < 0.01


class Two:
    """One of two processes, as far as shares go."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count


@pytest.mark.parametrize(("batch", "count"), [(1, 3), (2, 5), (4, 4), (3, 2)])
def test_processes_together_see_what_one_with_their_batches_sees(batch: int, count: int) -> None:
    seen: list[int] = []
    for step in range(7):
        one = batch_indices(step, 2 * batch, count, Two(0, 1), 0, "x")  # type: ignore[arg-type]
        two = [batch_indices(step, batch, count, Two(rank, 2), 0, "x") for rank in range(2)]  # type: ignore[arg-type]
        assert two[0] + two[1] == one
        seen += one
    for epoch in range(len(seen) // count):
        assert sorted(seen[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert order(0, 20, 0, "x") != order(1, 20, 0, "x") != order(1, 20, 0, "y")
