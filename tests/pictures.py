"""Images on disk for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def picture(path: Path, size: tuple[int, int] = (10, 20)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), 128, np.uint8)).save(path)
    return path
