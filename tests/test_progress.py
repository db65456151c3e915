"""The line that long work prints without a terminal."""

from __future__ import annotations

import pytest

from annocoin import progress


def test_long_work_prints_an_estimate_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """100 items of six seconds, after a first one of a minute."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    for number in progress.track(range(100), "seeds"):
        clock[0] += 60 if number == 0 else 6
    assert capsys.readouterr().err == "seeds: 100 to do, about 10 min\n"


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
    before = progress.memory_in_use()
    block = bytearray(b"x" * (64 << 20))
    assert before > 1 << 20
    assert progress.memory_in_use() - before > len(block) // 2
