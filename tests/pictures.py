"""Images on disk for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

HUFFMAN_TABLE, RESERVED = b"\xff\xc4", b"\xff\xc8"
"""Markers of segments in a JPEG file."""


def picture(path: Path, size: tuple[int, int] = (10, 20)) -> Path:
    """A grey image of (height, width)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), 128, np.uint8)).save(path)
    return path


def break_jpeg(path: Path) -> None:
    """Make the pixels of an image unreadable; the sizes of image and file stay the same."""
    content = path.read_bytes()
    assert HUFFMAN_TABLE in content
    path.write_bytes(content.replace(HUFFMAN_TABLE, RESERVED))


def tagged_picture(root: Path, name: str, *tags: str) -> Path:
    """A dataset in `root` of one picture with tags."""
    picture(root / "images" / name)
    (root / "labels.csv").write_text(f"image,label\n{name},{';'.join(tags)}\n")
    return root
