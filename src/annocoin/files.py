"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from annocoin.errors import InputError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path` through a temporary file beside it: no reader sees a part of it."""
    if path.is_dir():
        raise InputError(f"{path}: a directory; give the name of a file")
    with _named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any, *, indent: int | None = None) -> None:
    """Write `content` as JSON; NaN and infinity, which JSON does not have, are an error."""
    write_bytes(path, json.dumps(content, allow_nan=False, indent=indent).encode())


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `path` if the block ends well, and vanishes if not.

    `path` must not exist yet, or be an empty folder. Inside the block plain writes will do.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path}: exists already; give a new or empty folder")
    with _named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        if hasattr(os, "sync"):  # the name must not reach the disk before what it stands for
            os.sync()
        os.chmod(temporary, 0o777 & ~_umask())
        if path.exists():
            path.rmdir()
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def only_one(path: Path) -> Iterator[None]:
    """Hold `path` as a lock; if another process holds it, that is an `InputError`.

    The system gives it back when a process ends, however it ends. The file stays.
    """
    with _named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    with file:
        try:
            if sys.platform == "win32":
                msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
            else:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(
                f"{path.parent}: another process is writing there; wait for it, or stop it"
            ) from None
        yield


def refuse_input(out: Path, *inputs: Path | None) -> None:
    """Raise if writing to `out` would destroy what is being read."""
    if any(path is not None and out.resolve() == path.resolve() for path in inputs):
        raise InputError(f"{out}: that is the input; write to another place")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors name the file that was asked for, not the temporary one."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_text(path: Path) -> str:
    """The whole file as text."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not a text file in UTF-8") from None


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank, stripped."""
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    try:
        return json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: broken JSON ({error})") from None
