"""Results of one stage for the images of a dataset: a folder of .npz files and its index."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from annocoin.data.images import safe_join
from annocoin.data.parsing import field
from annocoin.errors import InputError
from annocoin.files import exclusive_lock, read_json, write_bytes, write_json
from annocoin.types import ImageId

LOCK = ".lock"
MAX_BYTES = 1 << 31
"""Of a file when unpacked: a small file can claim any size."""

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
        index = self.path / self.index_name
        if not index.is_file():
            raise InputError(
                f"{self.path}: no {self.index_name} in it; make it with {self.command}"
            )
        content = read_json(index)
        self.provenance: dict[str, Any] = field(content, "provenance", dict, str(index))
        self.files: dict[ImageId, Path] = {}
        for entry in field(content, "images", list, str(index)):
            image_id: Any = field(entry, "image_id", object, str(index))
            file = safe_join(self.path, field(entry, "file", str, str(index)), str(index))
            if isinstance(image_id, str | int) and file.is_file():
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
        files = hashlib.sha256(repr(sizes).encode()).hexdigest()
        return {"provenance": self.provenance, "files": files}

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
            files = cls.paths(out, names)
            cls._write_index(out, provenance, files)
            yield files

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
            ids = {existing.name(image_id): image_id for image_id in existing}
        for image_id, path in files.items():
            file = path.relative_to(out).as_posix()
            if ids.setdefault(file, image_id) != image_id:
                raise InputError(
                    f"{out}: {file} is of image {ids[file]!r}, not {image_id!r}; "
                    "use a different --out for each dataset, and one file per image"
                )
        images = [{"image_id": image_id, "file": file} for file, image_id in ids.items()]
        write_json(index, {"provenance": dict(provenance), "images": images}, indent=1)


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
            version = _read_version(path)
            if version != self.version:
                raise ValueError(f"version {version}, this annocoin reads {self.version}")
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in self.fields}
            self._check(arrays)
            return decode(arrays)
        except Exception as error:  # a damaged zip file raises many kinds
            reason = "damaged" if "pickle" in str(error) else error
            raise InputError(
                f"{path}: not a file of {self.content} ({reason}); "
                f"delete it and run `{self.command}` again"
            ) from None

    def is_current(self, path: Path) -> bool:
        """Whether a file exists and has this version; its arrays are not checked."""
        try:
            return path.is_file() and _read_version(path) == self.version
        except Exception:  # as above
            return False

    def _check(self, arrays: Arrays) -> None:
        for name, (shape, dtypes) in self.fields.items():
            array = arrays[name]
            fits = array.ndim == len(shape) and all(
                length in (None, actual) for length, actual in zip(shape, array.shape, strict=True)
            )
            if not fits or array.dtype.name not in dtypes:
                raise ValueError(f"{name} is {array.dtype} {array.shape}")


def _read_version(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MAX_BYTES:
            raise ValueError("larger than any such file")
    with np.load(path, allow_pickle=False) as file:
        return int(file["version"])
