"""Region sets on disk: one compressed file an image, versioned, checked when it is read."""

from __future__ import annotations

import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from annocoin import atomic
from annocoin.data.images import MAX_PIXELS
from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet

VERSION = 1
FIELDS = {
    "version": ((), "iu"),
    "shape": ((4,), "iu"),
    "superpixels": ((None, None), "iu"),
    "membership": ((None,), "u"),
    "scores": ((None,), "f"),
    "masses": ((None,), "f"),
}
"""Name, shape and kind of what a file holds: the map as steps along its rows, M in bits."""


def write_regions(path: Path, regions: RegionSet) -> None:
    """Write a region set as .npz, whole or not at all. Tens of kB for a photograph."""
    ids = regions.superpixels.cpu().numpy()
    members = regions.membership.cpu().numpy()
    # Steps between neighbours are mostly 0, and neighbouring bits mostly equal: both compress well.
    steps = np.diff(ids, axis=1, prepend=0)
    small = np.abs(steps).max() <= np.iinfo(np.int16).max
    content = io.BytesIO()
    np.savez_compressed(
        content,
        version=np.asarray(VERSION),
        shape=np.asarray([*ids.shape, *members.shape]),
        superpixels=steps.astype(np.int16 if small else np.int32),
        membership=np.packbits(members),
        scores=regions.scores.cpu().numpy(),
        masses=regions.masses.cpu().numpy(),
    )
    atomic.write_bytes(path, content.getvalue())


def read_regions(path: Path) -> RegionSet:
    """Read what `write_regions` wrote; anything else is an `InputError`."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return _decode({name: file[name] for name in FIELDS})
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; make regions with `annocoin regions`") from None
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: not a file of regions ({error}); make it again") from None


def _decode(fields: dict[str, npt.NDArray[Any]]) -> RegionSet:
    version = fields["version"]
    if version.shape != () or int(version) != VERSION:
        raise ValueError(f"version {version}; this annocoin reads {VERSION}")
    for name, (shape, kinds) in FIELDS.items():
        found = fields[name]
        fits = len(shape) == found.ndim and all(
            want is None or want == got for want, got in zip(shape, found.shape, strict=True)
        )
        if not fits or found.dtype.kind not in kinds:
            raise ValueError(f"{name} is {found.dtype} {found.shape}")
    height, width, count, superpixels = (int(value) for value in fields["shape"])
    if fields["superpixels"].shape != (height, width) or height * width > MAX_PIXELS:
        raise ValueError(f"a map {fields['superpixels'].shape} for an image {(height, width)}")
    if count < 0 or superpixels < 1 or fields["membership"].size != -(-count * superpixels // 8):
        raise ValueError(f"{fields['membership'].size} bytes for {count} x {superpixels} bits")
    bits = np.unpackbits(fields["membership"], count=count * superpixels)
    return RegionSet.of(
        np.cumsum(fields["superpixels"], axis=1, dtype=np.int32),
        bits.reshape(count, superpixels),
        scores=fields["scores"],
        masses=fields["masses"],
    )
