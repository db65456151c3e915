"""Reading of regular files, digests, atomic writes of files and directories, and a lock."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import psutil
from filelock import FileLock, Timeout

from annocoin.errors import InputError, brief

MAX_TEXT_BYTES = 1 << 28
MAX_JSON_BYTES = 1 << 32
MAX_BINARY_BYTES = 1 << 40
"""Of files that are read: a sparse file can claim any size."""

FULL_DISK = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
DIGEST = "digest"
"""The key of a record's own digest."""

_TEMPORARY = re.compile(r"^\..+\.([0-9a-f]{8})-([0-9]+)-[^.]*\.part$", re.DOTALL)
"""Names of unfinished files and folders: of which machine and process."""


def open_regular(path: str | Path, limit: int = MAX_BINARY_BYTES) -> BinaryIO:
    """Open a file to read it; anything but a regular file of at most `limit` bytes is an error.

    Every file of a dataset is opened here: pipes would wait forever, and devices never end.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        _check_regular(os.stat(path), path, limit)
        file = os.fdopen(os.open(path, flags | getattr(os, "O_CLOEXEC", 0)), "rb")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # a name that no file can have
        raise InputError(f"{path}: cannot be read ({error})") from None
    try:
        _check_regular(os.fstat(file.fileno()), path, limit)
    except BaseException:
        file.close()
        raise
    return file


def read_bytes(path: str | Path, limit: int = MAX_BINARY_BYTES) -> bytes:
    """The content of a regular file."""
    with open_regular(path, limit) as file:
        try:
            return file.read()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        except MemoryError:
            size = os.fstat(file.fileno()).st_size
            raise InputError(f"{path}: {size:,} bytes do not fit into memory") from None


def read_text(path: Path, encoding: str = "utf-8-sig", limit: int = MAX_TEXT_BYTES) -> str:
    """The content of a text file, by default in UTF-8."""
    try:
        return read_bytes(path, limit).decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        name = "UTF-8" if encoding == "utf-8-sig" else encoding
        raise InputError(f"{path}: not a text file in {name}") from None


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank, stripped."""
    return [line.strip() for line in read_text(path).splitlines() if line.strip()]


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    text = read_text(path, limit=MAX_JSON_BYTES)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: broken JSON ({error})") from None


def read_record(path: Path) -> dict[str, Any]:
    """The content of a JSON file of `write_record`; a changed one is an error."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: damaged, found {brief(content)}")
    digest = content.pop(DIGEST, None)
    if digest is not None and digest != _content_digest(content):
        raise InputError(f"{path}: damaged, its content does not fit its digest")
    return content


def file_digest(path: Path) -> str:
    """The SHA-256 digest of a file's content."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def write_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file atomically: a temporary file in the same directory, fsync, rename."""
    if path.is_dir():
        raise InputError(f"{path}: a directory; give the name of a file")
    with reported(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _clean_once(path.parent)
        handle, temporary = tempfile.mkstemp(*_temporary_name(path), path.parent)
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


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object with a digest of itself, for `read_record`."""
    content = json.loads(json.dumps(dict(content), allow_nan=False))
    write_json(path, {**content, DIGEST: _content_digest(content)}, indent=1)


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory, renamed to `path` at the end of the block; removed on an error.

    `path` must not exist yet, or be an empty directory. Writes inside the block need not be atomic.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path}: exists already; give a new or empty folder")
    with reported(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _clean_once(path.parent)
        temporary = Path(tempfile.mkdtemp(*_temporary_name(path), path.parent))
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


def remove_unfinished(folder: Path) -> None:
    """Remove what killed processes left in a folder and below; the caller must hold its lock."""
    for parent, folders, names in os.walk(folder):
        for name in [name for name in (*folders, *names) if _TEMPORARY.match(name)]:
            _remove(Path(parent, name))
        folders[:] = [name for name in folders if not _TEMPORARY.match(name)]


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a lock file; if another process holds it, that is an `InputError`.

    The operating system releases the lock when the process ends, even if it is killed.
    """
    lock = FileLock(path, timeout=0)
    with reported(path):
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
def reported(path: Path) -> Iterator[None]:
    """Report an `OSError` of writing in the block with this path, such as a full disk."""
    try:
        yield
    except OSError as error:
        name = error.filename
        ours = not isinstance(name, str) or _is_temporary(Path(name)) or path.is_relative_to(name)
        ours |= error.errno in FULL_DISK  # of a copy, the error names the source
        if not ours:  # a file that is read
            raise
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None


def _check_regular(status: os.stat_result, path: str | Path, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe, a device or a socket"
        raise InputError(f"{path}: {kind}; expected a regular file")
    if status.st_size > limit:
        raise InputError(f"{path}: {status.st_size:,} bytes; expected at most {limit:,}")


def _content_digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _temporary_name(path: Path) -> tuple[str, str]:
    """Suffix and prefix of the name of an unfinished file or folder."""
    name = path.name.encode(errors="ignore")[:100].decode(errors="ignore")
    return ".part", f".{name}.{_machine()}-{os.getpid()}-"


@cache
def _machine() -> str:
    """A digest of the machine, and of the container if there is one: of where process ids count."""
    namespace = Path("/proc/self/ns/pid")
    content = f"{platform.node()} {os.readlink(namespace) if namespace.exists() else ''}"
    return hashlib.sha256(content.encode()).hexdigest()[:8]


@cache
def _clean_once(folder: Path) -> None:
    """Remove what killed processes of this machine left; once per folder and process."""
    for entry in os.scandir(folder) if folder.is_dir() else ():
        match = _TEMPORARY.match(entry.name)
        if match and match[1] == _machine() and not psutil.pid_exists(int(match[2])):
            _remove(Path(entry.path))


def _is_temporary(path: Path) -> bool:
    return any(_TEMPORARY.match(part) for part in path.parts)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
