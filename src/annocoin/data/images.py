"""Image files from strangers: inside their folder, whole, and of a size that fits in memory."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from annocoin.errors import InputError
from annocoin.masks import Size

MAX_PIXELS = 100_000_000
"""Larger images are refused: a small file can claim any size and fill the memory when decoded."""

FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP")
"""Only these decoders run: by its content a file could choose one that starts other programs."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")


def inside(folder: Path, name: str, where: str) -> Path:
    """`folder / name`, refusing names that lead out of the folder.

    Only the name is judged; links that the owner of the folder put there are followed.
    """
    parts = PurePosixPath(name.replace("\\", "/")).parts
    absolute = PurePosixPath(name).is_absolute() or bool(PureWindowsPath(name).drive)
    if not parts or absolute or parts[0] == "/" or ".." in parts or "\0" in name:
        raise InputError(f"{where}: file name {name!r}; expected a name inside {folder}")
    return folder.joinpath(*parts)


def find_image(folder: Path, stem: str, where: str) -> Path:
    """The image file of that stem, whatever its ending."""
    base = inside(folder, stem, where)
    for suffix in SUFFIXES:
        for candidate in (base.with_name(base.name + s) for s in (suffix, suffix.upper())):
            if candidate.is_file():
                return candidate
    raise InputError(f"{where}: no image {base}.jpg (or {', '.join(SUFFIXES[1:])})")


def image_size(path: Path) -> Size:
    """(height, width) as seen upright, from the file's head; a file cut short is refused.

    A JPEG or PNG that ends as it should is not decoded, so that this stays cheap.
    """
    with opened(path) as image:
        if not _ends_well(path, image.format):
            image.load()
        width, height = image.size
        if image.getexif().get(0x0112, 1) in (5, 6, 7, 8):  # the camera was held sideways
            width, height = height, width
        return height, width


def read_image(path: Path) -> npt.NDArray[np.uint8]:
    """The image upright, as RGB: uint8 [H, W, 3].

    Grey and palette images become RGB, transparency is laid on white, 16-bit values are scaled.
    """
    with opened(path) as image:
        image.load()
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I"):
            values = np.asarray(upright, dtype=np.float64)
            grey = np.clip(values / 257 if values.max(initial=0) > 255 else values, 0, 255)
            return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
        if "A" in upright.mode or "transparency" in upright.info:
            upright = upright.convert("RGBA")
            upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright)
        return np.asarray(upright.convert("RGB"))


def read_index_map(path: Path) -> npt.NDArray[np.uint8]:
    """A palette or grey PNG as its raw indices: uint8 [H, W] (VOC's segmentation maps)."""
    with opened(path, formats=("PNG",)) as image:
        if image.mode not in ("P", "L"):
            raise InputError(
                f"{path}: image of mode {image.mode}; expected a PNG with a palette or 8-bit grey"
            )
        image.load()
        return np.asarray(image)


def copy_image(path: Path, folder: Path, stem: str) -> Path:
    """Copy an image file into `folder` under a new stem, checking that it can be decoded."""
    read_image(path)
    target = folder / (stem + path.suffix)
    shutil.copyfile(path, target)
    return target


@contextmanager
def opened(path: Path | str, file: Any = None, formats: tuple[str, ...] = FORMATS) -> Iterator[Any]:
    """A Pillow image of a bearable size; whatever is wrong with it is an `InputError`.

    `path` is the file, or with `file` (bytes of an image) its name in messages.
    """
    file = path if file is None else file
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own, milder limit on the number of pixels
            source = Image.open(file, formats=formats)
        with source as image:
            if image.width * image.height > MAX_PIXELS:
                raise InputError(
                    f"{path}: {image.width} x {image.height} pixels; "
                    f"at most {MAX_PIXELS:,} are read"
                )
            yield image
    except FileNotFoundError:
        raise InputError(f"{path}: no such image file") from None
    except (UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: not an image that can be read ({error})") from None
    except InputError:
        raise
    except Exception as error:  # Pillow's decoders raise whatever they stumble over
        raise InputError(f"{path}: broken image ({error})") from None


def _ends_well(path: Path, kind: str | None) -> bool:
    marker = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xae\x42\x60\x82"}.get(kind or "")
    if marker is None:
        return False
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 64))
        return file.read().rstrip(b"\0").endswith(marker)
