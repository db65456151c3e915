"""The lines that long work prints without a terminal."""

from __future__ import annotations

import mmap
import time

import pytest

from annocoin import progress


def test_long_work_prints_an_estimate_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """100 items of six seconds, after a first one of a minute."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    for number in progress.track(range(100), "seeds"):
        clock[0] += 60 if number == 0 else 6
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "seeds: 100 to do, about 10 min"
    assert lines == ["seeds: 56 of 100, 4 min 24 s left"]


def test_short_work_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    for _ in progress.track(range(50), "seeds"):
        clock[0] += 1
    assert list(progress.track([], "nothing")) == []
    assert capsys.readouterr().err == ""


def test_memory_in_use() -> None:
    """A mapping of its own: the heap may hold as many free bytes. The kernel may count it late."""
    before = progress.memory_in_use()
    assert before > 1 << 20
    with mmap.mmap(-1, 256 << 20) as block:
        block.write(b"x" * len(block))
        waited_until = time.monotonic() + 30
        while progress.memory_in_use() - before < len(block) // 2:
            assert time.monotonic() < waited_until
            time.sleep(0.05)


def test_work_with_a_status_prints_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A hundred steps of ten seconds; a line every five minutes."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    for _ in progress.track(range(100), "training", lambda: "loss 0.5"):
        clock[0] += 10
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "training: 100 to do, about 17 min"
    assert len(lines) == 3
    assert lines[0] == "training: 36 of 100, loss 0.5, 11 min left"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (125, "2 min 5 s"),
        (2400, "40 min"),
        (3599, "1 h"),
        (8400, "2 h 20 min"),
        (3 * 86400 + 4 * 3600, "3 days 4 h"),
    ],
)
def test_durations_for_people(seconds: float, expected: str) -> None:
    assert progress.format_duration(seconds) == expected


def test_the_time_left_goes_by_the_speed_of_what_is_done() -> None:
    estimated = {"a": 60.0, "b": 600.0, "c": 600.0}
    assert progress.time_left(estimated, {"a": 120.0}) == "about 40 min left"  # twice as slow
    assert (
        progress.time_left(estimated, {"a": 60.0, "b": 600.0, "other": 9.0}) == "about 10 min left"
    )
    assert progress.time_left(estimated, {"a": 60.0, "b": 600.0, "c": 1.0}) == ""
    assert progress.time_left({}, {"a": 1.0}) == ""
    assert progress.time_left(estimated, {}) == ""
