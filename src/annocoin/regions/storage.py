"""Region sets on disk: one compressed file an image, versioned, checked when it is read."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from annocoin import atomic
from annocoin.data.images import MAX_PIXELS
from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet

VERSION = 1
LARGEST = 1 << 31
"""Bytes that a file may hold when unpacked: a small one can claim any size."""

FIELDS = {
    "shape": ((4,), ("int64",)),
    "superpixels": ((None, None), ("int16", "int32")),
    "membership": ((None,), ("uint8",)),
    "scores": ((None,), ("float32",)),
    "masses": ((None,), ("float32",)),
}
"""Name, shape and types of what a file holds: the map as steps along its rows, M in bits."""


def write_regions(path: str | Path, regions: RegionSet) -> None:
    """Write a region set as .npz, whole or not at all. Tens of kB for a photograph."""
    ids = regions.superpixels.cpu().numpy()
    members = regions.membership.cpu().numpy()
    # Steps between neighbours are mostly 0, and neighbouring bits mostly equal: both compress well.
    steps = np.diff(ids, axis=1, prepend=0)
    small = np.abs(steps).max() <= np.iinfo(np.int16).max
    content = io.BytesIO()
    np.savez_compressed(
        content,
        version=np.asarray(VERSION, dtype=np.int64),
        shape=np.asarray([*ids.shape, *members.shape], dtype=np.int64),
        superpixels=steps.astype(np.int16 if small else np.int32),
        membership=np.packbits(members),
        scores=regions.scores.cpu().numpy(),
        masses=regions.masses.cpu().numpy(),
    )
    atomic.write_bytes(Path(path), content.getvalue())


def read_regions(path: str | Path) -> RegionSet:
    """Read what `write_regions` wrote; anything else is an `InputError`."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; make regions with `annocoin regions`")
    try:
        version = _version(path)
        if version != VERSION:
            raise ValueError(f"version {version}, this annocoin reads {VERSION}")
        with np.load(path, allow_pickle=False) as file:
            return _decode({name: file[name] for name in FIELDS})
    except Exception as error:  # a damaged zip raises many kinds
        reason = "damaged" if "pickle" in str(error) else error
        raise InputError(
            f"{path}: not a file of regions ({reason}); delete it and run `annocoin regions` again"
        ) from None


def is_current(path: Path) -> bool:
    """Whether a file is there and of this version; its content is not looked at."""
    try:
        return path.is_file() and _version(path) == VERSION
    except Exception:  # as above
        return False


def _version(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
            raise ValueError("larger than any region set")
    with np.load(path, allow_pickle=False) as file:
        return int(file["version"])


def _decode(fields: dict[str, npt.NDArray[Any]]) -> RegionSet:
    for name, (shape, types) in FIELDS.items():
        found = fields[name]
        fits = len(shape) == found.ndim and all(
            want is None or want == got for want, got in zip(shape, found.shape, strict=True)
        )
        if not fits or found.dtype.name not in types:
            raise ValueError(f"{name} is {found.dtype} {found.shape}")
    height, width, count, superpixels = (int(value) for value in fields["shape"])
    if fields["superpixels"].shape != (height, width) or height * width > MAX_PIXELS:
        raise ValueError(f"a map {fields['superpixels'].shape} for an image {(height, width)}")
    fits = count >= 0 and 1 <= superpixels <= height * width
    if not fits or fields["membership"].size != -(-count * superpixels // 8):
        raise ValueError(f"{fields['membership'].size} bytes for {count} x {superpixels} bits")
    if (fields["masses"] < 0).any():
        raise ValueError("negative masses")
    bits = np.unpackbits(fields["membership"], count=count * superpixels)
    return RegionSet.of(
        np.cumsum(fields["superpixels"], axis=1, dtype=np.int64),
        bits.reshape(count, superpixels),
        scores=fields["scores"],
        masses=fields["masses"],
    )
