"""Results of one stage for the images of a dataset: a folder of .npz files and its index."""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from annocoin import files
from annocoin.data.images import safe_join
from annocoin.data.parsing import field
from annocoin.errors import InputError
from annocoin.files import exclusive_lock, read_record, write_bytes, write_record
from annocoin.types import ImageId

LOCK = ".lock"
STAGE_FILES = "files"
"""Folder of the files in the folder of a run's stage, by which they can be named as well."""

MAX_BYTES = 1 << 28
MAX_BITS = 1 << 28
"""Of a file when unpacked, and of its packed bits: a small file can claim any size."""

T = TypeVar("T")
Arrays = dict[str, npt.NDArray[Any]]
Fields = Mapping[str, tuple[tuple[int | None, ...], tuple[str, ...]]]
"""Name, shape (None: any length) and dtypes of each array of a file."""


class ArtefactFolder(Mapping[ImageId, T]):
    """The files of a folder by image id, read on access.

    A subclass names the folder's index file, the command that writes such folders, and files that
    may be there before.
    """

    index_name: ClassVar[str]
    command: ClassVar[str]
    companions: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.path / self.index_name).is_file() and (self.path / STAGE_FILES).is_dir():
            self.path /= STAGE_FILES
        index = self.path / self.index_name
        if not index.is_file():
            raise InputError(
                f"{self.path}: no {self.index_name} in it; make it with {self.command}"
            )
        content = read_record(index)
        self.provenance: dict[str, Any] = field(content, "provenance", dict, str(index))
        self.files: dict[ImageId, Path] = {}
        self.listed: dict[str, ImageId] = {}  # by file, also those that are not written yet
        for entry in field(content, "images", list, str(index)):
            image_id: Any = field(entry, "image_id", object, str(index))
            name = field(entry, "file", str, str(index))
            file = safe_join(self.path, name, str(index))
            if isinstance(image_id, str | int):
                self.listed[name] = image_id
                if file.is_file():
                    self.files[image_id] = file

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {len(self)} images)"

    @abstractmethod
    def read(self, path: Path) -> T:
        """The content of one file."""

    def __getitem__(self, image_id: ImageId) -> T:
        return self.read(self.files[image_id])

    def __contains__(self, image_id: object) -> bool:
        return image_id in self.files

    def __iter__(self) -> Iterator[ImageId]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)

    def digest(self) -> dict[str, Any]:
        """The provenance of the folder, and a digest of its files by name and size."""
        sizes = [(i, self.name(i), path.stat().st_size) for i, path in self.files.items()]
        digest = hashlib.sha256(repr(sizes).encode()).hexdigest()
        return {"provenance": self.provenance, "files": digest}

    def name(self, image_id: ImageId) -> str:
        """The path of an image's file in the folder, with "/" as separator."""
        return self.files[image_id].relative_to(self.path).as_posix()

    @classmethod
    @contextmanager
    def writing(
        cls, out: Path, provenance: Mapping[str, Any], names: Iterable[tuple[ImageId, str]]
    ) -> Iterator[dict[ImageId, Path]]:
        """Lock the folder, add the images to its index, and yield the file to write for each.

        A folder of another provenance or with other content is an error, and so is a second process
        that calls this; several processes may write the files if one holds the folder (`paths`).

        Args:
            provenance: options and inputs of the stage, as JSON holds them.
            names: the images' ids and the names of their files.
        """
        if out.exists() and not (out.is_dir() and cls._may_write(out)):
            raise InputError(
                f"{out}: exists and holds no {cls.index_name}; give a new or empty folder"
            )
        with exclusive_lock(out / LOCK):
            files.remove_unfinished(out)
            paths = cls.paths(out, names)
            cls._write_index(out, provenance, paths)
            yield paths

    @staticmethod
    def paths(out: Path, names: Iterable[tuple[ImageId, str]]) -> dict[ImageId, Path]:
        """The file of each image, as `writing` yields them, without lock and index."""
        return {image_id: safe_join(out, name, str(out)) for image_id, name in names}

    @classmethod
    def _may_write(cls, folder: Path) -> bool:
        names = {path.name for path in folder.iterdir()}
        visible = {name for name in names if not name.startswith(".")}
        return cls.index_name in visible or visible <= cls.companions

    @classmethod
    def _write_index(
        cls, out: Path, provenance: Mapping[str, Any], files: Mapping[ImageId, Path]
    ) -> None:
        index = out / cls.index_name
        provenance = json.loads(json.dumps(dict(provenance)))  # tuples are lists in the index
        ids: dict[str, ImageId] = {}  # by file
        if index.exists() and len(existing := cls(out)):
            for name, value in provenance.items():
                if existing.provenance.get(name) != value:
                    raise InputError(
                        f"{out}: made with {name} {existing.provenance.get(name)}, now it is "
                        f"{value}; give another --out, or the same options"
                    )
            ids = existing.listed  # all, in their order: an interruption must not change it
        new: dict[str, ImageId] = {}
        for image_id, path in files.items():
            file = path.relative_to(out).as_posix()
            owner = ids[file] if file in ids and path.exists() else new.setdefault(file, image_id)
            if owner != image_id:
                raise InputError(
                    f"{out}: {file} is of image {owner!r}, not {image_id!r}; "
                    "use a different --out for each dataset, and one file per image"
                )
        images = [{"image_id": i, "file": file} for file, i in {**ids, **new}.items()]
        write_record(index, {"provenance": dict(provenance), "images": images})


@dataclass(frozen=True)
class ArrayFormat:
    """A kind of .npz file with a version and checked arrays.

    Args:
        content: what the files hold, for messages.
        command: that writes them, for messages.
        version: files of another version are not read.
        fields: the arrays.
    """

    content: str
    command: str
    version: int
    fields: Fields

    def write(self, path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write arrays as compressed .npz, atomically."""
        file = io.BytesIO()
        named: Any = {"version": np.asarray(self.version, dtype=np.int64), **arrays}
        if sum(array.nbytes for array in named.values()) > MAX_BYTES - (1 << 16):  # for headers
            raise InputError(f"{path}: too large for {self.content}; use smaller images")
        np.savez_compressed(file, **named)
        write_bytes(path, file.getvalue())

    def read(self, path: Path, decode: Callable[[Arrays], T]) -> T:
        """`decode` the arrays of a file; one that is not of this format is an `InputError`.

        Args:
            decode: makes the object; a `ValueError` in it names what is wrong with the arrays.
        """
        if not path.is_file():
            raise InputError(f"{path}: no such file; make {self.content} with `{self.command}`")
        try:
            with files.open_regular(path) as file:
                version = self._check_headers(file)
                if version != self.version:
                    raise ValueError(f"version {version}, this annocoin reads {self.version}")
                file.seek(0)
                with np.load(file, allow_pickle=False) as archive:
                    arrays = {name: archive[name] for name in self.fields}
            return decode(arrays)
        except Exception as error:  # a damaged zip file raises many kinds
            reason = "damaged" if "pickle" in str(error) else str(error)[:200]
            raise InputError(
                f"{path}: not a file of {self.content} ({reason}); "
                f"delete it and run `{self.command}` again"
            ) from None

    def is_current(self, path: Path) -> bool:
        """Whether a file exists, has this version and is whole, by its checksums."""
        try:
            with files.open_regular(path) as file:
                current = self._check_headers(file) == self.version
                with zipfile.ZipFile(file) as archive:
                    return current and archive.testzip() is None
        except Exception:  # as above
            return False

    def _check_headers(self, file: BinaryIO) -> int:
        """The version of a file, after a check of shapes and sizes, before arrays are read."""
        with zipfile.ZipFile(file) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > MAX_BYTES:
                raise ValueError("larger than any such file")
            version = _read_version(archive)
            for name, (shape, dtypes) in self.fields.items() if version == self.version else ():
                entry = archive.getinfo(f"{name}.npy")
                actual, dtype, start = _read_header(archive, entry)
                fits = len(actual) == len(shape) and all(
                    length in (None, n) for length, n in zip(shape, actual, strict=True)
                )
                if not fits or dtype.name not in dtypes:
                    raise ValueError(f"{name} is {dtype} {actual}")
                if start + math.prod(actual) * dtype.itemsize != entry.file_size:
                    raise ValueError(f"{name} is cut off")
            return version


def unpack_bits(packed: npt.NDArray[np.uint8], shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """The bits of an array of a file, 0 or 1, uint8 of that shape."""
    count = math.prod(shape)
    if count > MAX_BITS or packed.size != -(-count // 8):
        raise ValueError(f"{packed.size} bytes for {' x '.join(map(str, shape))} bits")
    return np.unpackbits(packed, count=count).reshape(shape)


def _read_version(archive: zipfile.ZipFile) -> int:
    entry = archive.getinfo("version.npy")
    shape, dtype, start = _read_header(archive, entry)
    if shape or dtype.kind not in "iu" or entry.file_size != start + dtype.itemsize:
        raise ValueError(f"version is {dtype} {shape}")
    return int(np.frombuffer(archive.read(entry)[start:], dtype)[0])


def _read_header(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo
) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape and dtype of an array, and where its values start."""
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"arrays of the format {version}")
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject:
            raise ValueError("damaged")
        return shape, dtype, file.tell()
