"""Metrics of a training: files that a resumed training continues."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from annocoin.engine.metrics import FileLogger, MemoryLogger
from annocoin.errors import InputError


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_lines_after_the_checkpoint_and_broken_ones_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(
        '{"step": 1, "loss": 2}\n{"step": 2, "loss": 2}\n{"step": 3, "loss": 2}\n{"step": 4, "lo'
    )
    logger = FileLogger(path)
    logger.start(2)
    logger.log({"step": 3, "loss": 1})
    logger.close()
    assert steps_in(path) == [1, 2, 3]
    assert json.loads(path.read_text().splitlines()[2])["loss"] == 1
    logger.start(0)
    logger.close()
    assert path.read_text() == ""


def test_a_file_that_claims_a_terabyte_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InputError, match="1,099,511,627,776 bytes; expected at most"):
        FileLogger(path).start(1)


def test_a_line_is_on_disk_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    logger = FileLogger(tmp_path / "folder" / "m.jsonl")
    logger.log({"step": 1, "loss": 2.5, "images": ["a"]})
    assert json.loads(logger.path.read_text()) == {"step": 1, "loss": 2.5, "images": ["a"]}
    logger.close()


def test_tensorboard_has_the_numbers_of_a_resumed_training(tmp_path: Path) -> None:
    for first, loss in ((0, 5.0), (2, 1.0)):
        logger = FileLogger(tmp_path / "m.jsonl", tmp_path / "tensorboard")
        logger.start(first)
        for step in range(first, 4):
            logger.log({"step": step + 1, "loss": loss, "images": ["a"]})
        logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["loss"]
    numbers = {event.step: event.value for event in events.Scalars("loss")}
    assert numbers == {1: 5.0, 2: 5.0, 3: 1.0, 4: 1.0}


def test_figures_in_memory() -> None:
    logger = MemoryLogger()
    for step in range(4):
        logger.log({"step": step + 1})
    logger.start(2)
    logger.log({"step": 3, "loss": 1})
    logger.close()
    assert logger.lines == [{"step": 1}, {"step": 2}, {"step": 3, "loss": 1}]
