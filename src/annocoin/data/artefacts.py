"""What was made for the images of a dataset: a folder with a file for each, and how it was made."""

from __future__ import annotations

import io
import zipfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from annocoin.data.images import inside
from annocoin.data.parsing import field
from annocoin.engine.distribution import ProcessGroup
from annocoin.errors import InputError
from annocoin.files import only_one, read_json, write_bytes, write_json
from annocoin.types import ImageId

T = TypeVar("T")
LOCK = ".lock"


class ArtefactFolder(Mapping[ImageId, T]):
    """The files of a folder by image id, read when asked for.

    A subclass says what the folder's index is called and which command makes it.
    """

    index_name: ClassVar[str]
    command: ClassVar[str]

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        index = self.path / self.index_name
        if not index.is_file():
            raise InputError(
                f"{self.path}: no {self.index_name} in it; make it with {self.command}"
            )
        content = read_json(index)
        self.made: dict[str, Any] = field(content, "made", dict, str(index))
        self.files: dict[ImageId, Path] = {}
        for entry in field(content, "images", list, str(index)):
            image_id: Any = field(entry, "image_id", object, str(index))
            file = inside(self.path, field(entry, "file", str, str(index)), str(index))
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

    def name(self, image_id: ImageId) -> str:
        """Where an image's file lies in the folder, with "/" between folders."""
        return self.files[image_id].relative_to(self.path).as_posix()

    @classmethod
    @contextmanager
    def writing(
        cls,
        out: Path,
        made: Mapping[str, Any],
        names: Iterable[tuple[ImageId, str]],
        group: ProcessGroup | None = None,
    ) -> Iterator[dict[ImageId, Path]]:
        """Hold the folder; gives the file of each image, to be written to.

        A second process is refused, unless it is of the same group: then each writes some files.

        The images join the folder's index. A folder whose files were made in another way is an
        error, and so is one that holds something else.

        Args:
            made: how the files are made: names and values that JSON can hold.
            names: the images' ids and the names of their files.
        """
        if group is not None and not group.is_main:
            group.barrier()
            yield {image_id: inside(out, name, str(out)) for image_id, name in names}
            group.barrier()
            return
        if out.exists() and not (out.is_dir() and cls._is_ours(out)):
            raise InputError(
                f"{out}: exists and holds no {cls.index_name}; give a new or empty folder"
            )
        with only_one(out / LOCK):
            files = cls._write_index(out, made, names)
            if group is not None:
                group.barrier()
            yield files
            if group is not None:
                group.barrier()

    @classmethod
    def _is_ours(cls, folder: Path) -> bool:
        names = {path.name for path in folder.iterdir()}
        return cls.index_name in names or all(name.startswith(".") for name in names)

    @classmethod
    def _write_index(
        cls, out: Path, made: Mapping[str, Any], names: Iterable[tuple[ImageId, str]]
    ) -> dict[ImageId, Path]:
        index = out / cls.index_name
        owners: dict[str, ImageId] = {}
        if index.exists() and len(there := cls(out)):
            for name, value in made.items():
                if there.made.get(name) != value:
                    raise InputError(
                        f"{out}: made with {name} {there.made.get(name)}, now it is {value}; "
                        "give another --out, or the same options"
                    )
            owners = {f.relative_to(out).as_posix(): i for i, f in there.files.items()}
        files = {}
        for image_id, name in names:
            path = inside(out, name, str(out))
            file = path.relative_to(out).as_posix()
            if owners.setdefault(file, image_id) != image_id:
                raise InputError(
                    f"{out}: {file} is of image {owners[file]!r}, not {image_id!r}; "
                    "give each dataset its own --out, and each image its own file"
                )
            files[image_id] = path
        listed = [{"image_id": image_id, "file": file} for file, image_id in owners.items()]
        write_json(index, {"made": dict(made), "images": listed}, indent=1)
        return files


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
    write_bytes(path, content.getvalue())


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
        _check_fields(arrays, fields)
        return decode(arrays)
    except Exception as error:  # a damaged zip raises many kinds
        reason = "damaged" if "pickle" in str(error) else error
        raise InputError(
            f"{path}: not a file of {what} ({reason}); delete it and run `{made}` again"
        ) from None


def has_version(path: Path, version: int) -> bool:
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


def _check_fields(arrays: Arrays, fields: Fields) -> None:
    for name, (shape, types) in fields.items():
        found = arrays[name]
        fits = len(shape) == found.ndim and all(
            want is None or want == got for want, got in zip(shape, found.shape, strict=True)
        )
        if not fits or found.dtype.name not in types:
            raise ValueError(f"{name} is {found.dtype} {found.shape}")
