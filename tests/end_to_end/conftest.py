"""One small finished run per kind of supervision, for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from annocoin.data.loading import load_evaluation
from end_to_end.quick import train

SUPERVISION = ("image", "box", "point", "mask")


@pytest.fixture(scope="session")
def runs(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs by supervision; tests must not change them, but for what is done again."""
    root = tmp_path_factory.mktemp("runs")
    truth = load_evaluation(scenes, split="train")
    for supervision in SUPERVISION:
        train(scenes, root / supervision, supervision, truth=truth)
    return {supervision: root / supervision for supervision in SUPERVISION}
