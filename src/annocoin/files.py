"""Reading text and JSON, atomic writes of files and directories, and a lock between processes."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from annocoin.errors import InputError


def read_text(path: Path) -> str:
    """The content of a text file in UTF-8."""
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


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file atomically: a temporary file in the same directory, fsync, rename."""
    if path.is_dir():
        raise InputError(f"{path}: a directory; give the name of a file")
    with _reporting(path):
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
    """Write `content` as JSON, atomically; NaN and infinity are an error."""
    write_bytes(path, json.dumps(content, allow_nan=False, indent=indent).encode())


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory, renamed to `path` at the end of the block; removed on an error.

    `path` must not exist yet, or be an empty directory. Writes inside the block need not be atomic.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path}: exists already; give a new or empty folder")
    with _reporting(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield temporary
        if hasattr(os, "sync"):  # the content must reach the disk before the name
            os.sync()
        os.chmod(temporary, 0o777 & ~_umask())
        if path.exists():
            path.rmdir()
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a lock file; if another process holds it, that is an `InputError`.

    The operating system releases the lock when the process ends, even if it is killed.
    """
    lock = FileLock(path, timeout=0)
    with _reporting(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except Timeout:
            raise InputError(
                f"{path.parent}: another process is writing there; wait for it, or stop it"
            ) from None
    try:
        yield
    finally:
        lock.release()


def refuse_input(out: Path, *inputs: Path | None) -> None:
    """Raise if writing to `out` would overwrite one of the inputs."""
    if any(path is not None and out.resolve() == path.resolve() for path in inputs):
        raise InputError(f"{out}: that is the input; write to another path")


@contextmanager
def _reporting(path: Path) -> Iterator[None]:
    """Report an `OSError` with this path instead of the temporary one."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror})") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def file_digest(path: Path) -> str:
    """The SHA-256 digest of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
