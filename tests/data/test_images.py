from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from annocoin.data.images import find_image, image_size, read_image, read_index_map, safe_join
from annocoin.errors import InputError

GRADIENT = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)


def bomb(path: Path) -> Path:
    """A PNG of a few bytes that claims 60,000 x 60,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return path


def test_rgb_is_read_as_it_is(tmp_path: Path) -> None:
    Image.fromarray(GRADIENT).save(tmp_path / "a.png")
    assert np.array_equal(read_image(tmp_path / "a.png"), GRADIENT)
    assert image_size(tmp_path / "a.png") == (6, 8)


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "CMYK", "I;16", "F"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    suffix = "tif" if mode in ("CMYK", "F") else "png"
    path = tmp_path / f"a.{suffix}"
    if mode == "I;16":
        Image.fromarray(GRADIENT[:, :, 0].astype(np.uint16) * 257).save(path)
    else:
        Image.fromarray(GRADIENT).convert(mode).save(path)
    pixels = read_image(path)
    assert (pixels.shape, pixels.dtype) == ((6, 8, 3), np.uint8)
    if mode == "I;16":
        assert np.array_equal(pixels[:, :, 0], GRADIENT[:, :, 0])


@pytest.mark.parametrize(
    ("greatest", "expected"),
    [(255, 255), (200, 200), (1023, 255), (4095, 255), (16000, 249), (65535, 255)],
)
def test_the_bit_depth_in_use_is_scaled(tmp_path: Path, greatest: int, expected: int) -> None:
    """A camera's 12 bits in a file of 16 must not be nearly black."""
    values = np.zeros((4, 6), np.uint16)
    values[1, 2] = greatest
    Image.fromarray(values).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png")[1, 2].tolist() == [expected] * 3


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "LA", "RGBA", "CMYK", "I;16", "F"])
def test_a_pillow_image_is_read_as_its_file(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("a.tif" if mode in ("CMYK", "F") else "a.png")
    image = Image.fromarray(GRADIENT).convert("RGB" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.fromarray(GRADIENT[:, :, 0].astype(np.uint16) * 257)
    image.save(path)
    assert np.array_equal(read_image(image), read_image(path))
    assert np.array_equal(read_image(str(path)), read_image(path))
    assert image.getpixel((0, 0)) is not None  # still open


def test_a_pillow_image_is_rotated_by_its_exif_orientation(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(GRADIENT).save(tmp_path / "a.png", exif=exif)
    with Image.open(tmp_path / "a.png") as image:
        assert np.array_equal(read_image(image), np.rot90(GRADIENT, -1))


def test_arrays_of_one_three_and_four_channels() -> None:
    grey = GRADIENT[:, :, 0]
    assert np.array_equal(read_image(GRADIENT), GRADIENT)
    assert np.array_equal(read_image(GRADIENT[:, ::-1]), GRADIENT[:, ::-1])  # not contiguous
    for array in (grey, grey[:, :, None]):
        assert np.array_equal(read_image(array), np.stack([grey] * 3, axis=2))
    opaque = np.dstack([GRADIENT, np.full_like(grey, 255)])
    assert np.array_equal(read_image(opaque), GRADIENT)
    assert read_image(np.zeros((2, 2, 4), np.uint8)).min() == 255


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (np.zeros((4, 4, 3)), "float64"),
        (np.zeros((4, 4, 3), np.uint16), "uint16"),
        (np.zeros((4, 4, 2), np.uint8), r"\[4, 4, 2\]"),
        (np.zeros((1, 4, 4, 3), np.uint8), "expected uint8"),
        (np.zeros(4, np.uint8), "expected uint8"),
        (np.zeros((0, 4, 3), np.uint8), "4 x 0 pixels"),
        (np.zeros((20_000, 5_001), bool).view(np.uint8), "5001 x 20000 pixels"),
        (Image.new("RGB", (0, 3)), "0 x 3 pixels"),
        (b"\xff\xd8", "expected a path"),
        (None, "expected a path"),
    ],
)
def test_other_sources_are_refused(source: Any, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        read_image(source)


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((2, 2, 4), np.uint8)).save(tmp_path / "a.png")
    assert read_image(tmp_path / "a.png").min() == 255


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(GRADIENT).save(tmp_path / "a.jpg", exif=exif)
    assert image_size(tmp_path / "a.jpg") == (8, 6)
    assert read_image(tmp_path / "a.jpg").shape == (8, 6, 3)


@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "webp"])
def test_a_file_cut_short_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for read in (image_size, read_image):
        with pytest.raises(InputError, match=r"broken image|not an image") as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_padding_after_the_end_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    Image.fromarray(GRADIENT).save(path)
    path.write_bytes(path.read_bytes() + b"\0" * 10)
    assert image_size(path) == (6, 8)


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff\xd8\xff"])
def test_what_is_no_image_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.jpg").write_bytes(content)
    for read in (image_size, read_image):
        with pytest.raises(InputError, match=r"a\.jpg: "):
            read(tmp_path / "a.jpg")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such image"):
        image_size(tmp_path / "a.jpg")


def test_a_decompression_bomb_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = bomb(tmp_path / "a.png")
    for read in (image_size, read_image, read_index_map):
        with pytest.raises(InputError, match=r"a\.png: "):
            read(path)


def test_one_pixel_is_an_image(tmp_path: Path) -> None:
    Image.fromarray(GRADIENT[:1, :1]).save(tmp_path / "a.jpg")
    assert image_size(tmp_path / "a.jpg") == (1, 1)


def test_an_index_map_keeps_its_numbers_and_colours_are_refused(tmp_path: Path) -> None:
    Image.fromarray(GRADIENT[:, :, 0]).convert("P").save(tmp_path / "a.png")
    Image.fromarray(GRADIENT).save(tmp_path / "b.png")
    assert np.array_equal(read_index_map(tmp_path / "a.png"), GRADIENT[:, :, 0])
    with pytest.raises(InputError, match="palette"):
        read_index_map(tmp_path / "b.png")


@pytest.mark.parametrize(
    "name",
    ["../a.jpg", "/etc/passwd", "a/../../b.jpg", "..", "", "..\\a.jpg", "C:\\a.jpg", "a\0.jpg"],
)
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="expected a name inside"):
        safe_join(tmp_path, name, "file.csv:3")


@pytest.mark.parametrize("name", ["a.jpg", "b/c.jpg", "a..b.jpg", "..a.jpg", "ö ü.png"])
def test_names_inside_the_folder_are_joined(tmp_path: Path, name: str) -> None:
    assert safe_join(tmp_path, name, "file.csv:3") == tmp_path / name


def test_an_image_is_found_by_its_stem(tmp_path: Path) -> None:
    for name in ("a.JPG", "b.c.png"):
        Image.fromarray(GRADIENT).save(tmp_path / name)
    assert find_image(tmp_path, "a", "here").name == "a.JPG"
    assert find_image(tmp_path, "b.c", "here").name == "b.c.png"
    with pytest.raises(InputError, match="no image"):
        find_image(tmp_path, "b", "here")


def test_only_decoders_of_images_run(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EOF\n")
    with pytest.raises(InputError, match="not an image"):
        read_image(tmp_path / "a.jpg")


def test_a_large_image_is_read_without_a_warning(tmp_path: Path) -> None:
    Image.new("1", (10_000, 9_500)).save(tmp_path / "a.png")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert image_size(tmp_path / "a.png") == (9_500, 10_000)
