"""Images: safe paths, sizes and pixels. Files are untrusted and may be broken or claim any size."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from annocoin.errors import InputError, breaks_text, brief
from annocoin.files import open_regular
from annocoin.masks import Size

MAX_IMAGE_BYTES = 1 << 30
MAX_PIXELS = 100_000_000
"""Larger images are refused: a small file can claim any size and fill the memory when decoded."""

FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP")
"""Decoders in use: some of Pillow's others start external programs."""

ORIENTATION = 0x0112
"""The number of that tag in EXIF."""

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp")
BIT_DEPTHS = (8, 10, 12, 14, 16)
UNSUPPORTED = (".heic", ".heif", ".avif", ".gif", ".svg", ".pdf", ".raw", ".dng", ".cr2", ".nef")
"""Suffixes of other images, for messages."""

END_MARKERS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xae\x42\x60\x82"}


def read_image(source: str | Path | Image.Image | npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """An image as RGB: uint8 [H, W, 3].

    EXIF orientation is applied, grey and palette images become RGB, transparent pixels are blended
    with white. Values of 16-bit images are scaled from the bit depth in use, 10, 12, 14 or 16.

    Args:
        source: a file, a Pillow image, or an array uint8 [H, W], [H, W, 1], [H, W, 3] (RGB) or
            [H, W, 4] (RGBA).
    """
    if isinstance(source, str | Path):
        with open_image(Path(source)) as image:
            return _to_rgb(image)
    if isinstance(source, np.ndarray):
        return _to_rgb(_from_array(source))
    if isinstance(source, Image.Image):
        with _decoding("Pillow image"):
            _check_pixels(source.width, source.height, "Pillow image")
            return _to_rgb(source)
    raise InputError(f"image is {brief(source)}; expected a path, a Pillow image or an array")


def image_size(path: Path) -> Size:
    """(height, width) after EXIF orientation, from the file's header; a truncated file is refused.

    A JPEG or PNG with an end marker is not decoded, which makes this cheap.
    """
    with open_image(path) as image:
        if not _has_end_marker(path, image.format):
            image.load()
        width, height = image.size
        if image.getexif().get(ORIENTATION, 1) in (5, 6, 7, 8):  # rotated by 90 degrees
            width, height = height, width
        return height, width


def read_index_map(path: Path) -> npt.NDArray[np.uint8]:
    """A palette or grey PNG as its raw indices: uint8 [H, W] (VOC's segmentation maps)."""
    with open_image(path, formats=("PNG",)) as image:
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


def find_image(folder: Path, stem: str, where: str) -> Path:
    """The image file of that stem, with any known suffix."""
    base = safe_join(folder, stem, where)
    for suffix in SUFFIXES:
        for candidate in (base.with_name(base.name + s) for s in (suffix, suffix.upper())):
            if candidate.is_file():
                return candidate
    if base.suffix and (base.is_file() or base.suffix.lower() in UNSUPPORTED):
        found = "" if base.is_file() else "no such file, and "
        raise InputError(
            f"{where}: {base}: {found}images of this kind are not read; convert it to "
            f"{', '.join(SUFFIXES)}"
        )
    raise InputError(f"{where}: no image {base}.jpg (or {', '.join(SUFFIXES[1:])})")


def safe_join(folder: Path, name: str, where: str) -> Path:
    """`folder / name`, refusing names that lead out of the folder; symbolic links are followed."""
    parts = PurePosixPath(name.replace("\\", "/")).parts
    absolute = PurePosixPath(name).is_absolute() or bool(PureWindowsPath(name).drive)
    if not parts or absolute or parts[0] == "/" or ".." in parts or "\0" in name:
        raise InputError(f"{where}: file name {name!r}; expected a name inside {folder}")
    return folder.joinpath(*parts)


def check_file_name(name: str, where: str) -> None:
    """Raise if no list, CSV or XML file could hold a file name, or if it has no name but a suffix.

    Lists of images are read line by line and stripped: with blanks at its ends or a line break
    inside, a name would be another one.
    """
    for part in PurePosixPath(name).parts or ("",):
        stem = PurePosixPath(part).stem
        if part != part.strip() or stem != stem.strip() or any(map(breaks_text, part)):
            raise InputError(
                f"{where}: file name {name!r} with blanks at its ends, control characters or line "
                "breaks, or not in UTF-8; rename the file"
            )
    if part.lower() in ("", *SUFFIXES):
        raise InputError(f"{where}: file name {name!r} without a name; rename the file")


@contextmanager
def open_image(
    path: Path | str, file: Any = None, formats: tuple[str, ...] = FORMATS
) -> Iterator[Any]:
    """A Pillow image of at most `MAX_PIXELS`; any failure in the block is an `InputError`.

    Args:
        path: the file, or with `file` its name in messages.
        file: a binary file object to read instead.
    """
    with ExitStack() as stack, _decoding(path):
        if file is None:
            if not os.path.exists(path):
                raise InputError(f"{path}: no such image file")
            file = stack.enter_context(open_regular(path, MAX_IMAGE_BYTES))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's own, lower limit on the number of pixels
            opened = Image.open(file, formats=formats)
        with opened as image:
            _check_pixels(image.width, image.height, path)
            yield image


@contextmanager
def _decoding(name: Path | str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError(f"{name}: not an image that can be read") from None
    except Image.DecompressionBombError as error:
        raise InputError(f"{name}: not an image that can be read ({error})") from None
    except Exception as error:  # Pillow's decoders raise many kinds
        raise InputError(f"{name}: broken image ({error})") from None


def _check_pixels(width: int, height: int, name: Path | str) -> None:
    if not 0 < width * height <= MAX_PIXELS:
        raise InputError(f"{name}: {width} x {height} pixels; expected 1 to {MAX_PIXELS:,}")


def _to_rgb(image: Image.Image) -> npt.NDArray[np.uint8]:
    image.load()
    upright = ImageOps.exif_transpose(image) if image.getexif().get(ORIENTATION, 1) != 1 else image
    if upright.mode.startswith("I"):
        values = np.asarray(upright, dtype=np.float64)
        grey = np.clip(values * 255 / _maximum_of(values), 0, 255)
        return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
    if "A" in upright.mode or "transparency" in upright.info:
        upright = upright.convert("RGBA")
        upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright)
    return np.asarray(upright if upright.mode == "RGB" else upright.convert("RGB"))


def _maximum_of(values: npt.NDArray[np.float64]) -> int:
    """The greatest value of the bit depth in use: cameras store 10 to 14 bits in files of 16."""
    greatest = values.max(initial=0)
    return next((2**bits - 1 for bits in BIT_DEPTHS if greatest < 2**bits), 2 ** BIT_DEPTHS[-1] - 1)


def _from_array(array: npt.NDArray[Any]) -> Image.Image:
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or channels not in (1, 3, 4):
        raise InputError(
            f"image is an array {array.dtype} {list(array.shape)}; expected uint8 [H, W], "
            "[H, W, 1], [H, W, 3] or [H, W, 4]"
        )
    _check_pixels(array.shape[1], array.shape[0], "image array")
    return Image.fromarray(array[:, :, 0] if array.ndim == 3 and channels == 1 else array)


def _has_end_marker(path: Path, image_format: str | None) -> bool:
    marker = END_MARKERS.get(image_format or "")
    if marker is None:
        return False
    with open_regular(path) as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 64))
        return file.read().rstrip(b"\0").endswith(marker)
