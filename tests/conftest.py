from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from annocoin.cli import main

torch.set_num_threads(1)  # tests run in parallel, one per core
settings.register_profile("no-deadline", deadline=None)  # the machine may be busy
settings.load_profile("no-deadline")


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight small synthetic scenes in VOC layout; tests must not change them."""
    from annocoin.synthetic.dataset import write_synthetic

    root = tmp_path_factory.mktemp("scenes") / "voc"
    write_synthetic(root, images=8, size=64, seed=3)
    return root


@pytest.fixture
def annocoin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """Runs the command line in this process."""

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["annocoin", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), printed.out, printed.err)

    return run
