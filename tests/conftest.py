from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from annocoin.cli import main
from annocoin.synthetic.dataset import write_synthetic

torch.set_num_threads(1)  # tests run side by side, one a core
settings.register_profile("unhurried", deadline=None)  # a busy machine is no failure
settings.load_profile("unhurried")


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight small synthetic scenes in VOC layout; not to be override."""
    root = tmp_path_factory.mktemp("scenes") / "voc"
    write_synthetic(root, images=8, size=64, seed=3)
    return root


@pytest.fixture
def annocoin(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Outcome]:
    """The command line, in this process."""

    def run(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["annocoin", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), printed.out, printed.err)

    return run
