"""Arrays on disk: one compressed file, versioned, written whole, checked when it is read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from annocoin import atomic
from annocoin.errors import InputError

T = TypeVar("T")
Arrays = dict[str, npt.NDArray[Any]]
Fields = Mapping[str, tuple[tuple[int | None, ...], tuple[str, ...]]]
"""Name, shape (None: any length) and types of each array of a file."""

LARGEST = 1 << 31
"""Bytes that a file may hold when unpacked: a small one can claim any size."""


def write_arrays(path: Path, version: int, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays as .npz, whole or not at all."""
    content = io.BytesIO()
    everything: Any = {"version": np.asarray(version, dtype=np.int64), **arrays}
    np.savez_compressed(content, **everything)
    atomic.write_bytes(path, content.getvalue())


def read_arrays(
    path: Path, version: int, fields: Fields, decode: Callable[[Arrays], T], *, what: str, made: str
) -> T:
    """`decode` what `write_arrays` wrote; anything else is an `InputError`.

    Args:
        decode: makes the object; a `ValueError` in it says what is wrong with the arrays.
        what: what the file holds, for messages.
        made: the command that makes it.
    """
    if not path.is_file():
        raise InputError(f"{path}: no such file; make {what} with `{made}`")
    try:
        found = _version(path)
        if found != version:
            raise ValueError(f"version {found}, this annocoin reads {version}")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in fields}
        _check(arrays, fields)
        return decode(arrays)
    except Exception as error:  # a damaged zip raises many kinds
        reason = "damaged" if "pickle" in str(error) else error
        raise InputError(
            f"{path}: not a file of {what} ({reason}); delete it and run `{made}` again"
        ) from None


def is_current(path: Path, version: int) -> bool:
    """Whether a file is there and of this version; its content is not looked at."""
    try:
        return path.is_file() and _version(path) == version
    except Exception:  # as above
        return False


def _version(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > LARGEST:
            raise ValueError("larger than any such file")
    with np.load(path, allow_pickle=False) as file:
        return int(file["version"])


def _check(arrays: Arrays, fields: Fields) -> None:
    for name, (shape, types) in fields.items():
        found = arrays[name]
        fits = len(shape) == found.ndim and all(
            want is None or want == got for want, got in zip(shape, found.shape, strict=True)
        )
        if not fits or found.dtype.name not in types:
            raise ValueError(f"{name} is {found.dtype} {found.shape}")
