from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import read_regions, write_regions
from regions.worlds import World, worlds

FIELDS = ["superpixels", "membership", "scores", "elements", "lengths", "edge_strength"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("regions")


@given(world=worlds())
def test_round_trip(folder: Path, world: World) -> None:
    path = folder / "a.npz"
    write_regions(path, world.regions)
    regions = read_regions(path)
    for name in FIELDS:
        assert torch.equal(getattr(regions, name), getattr(world.regions, name)), name


def test_many_superpixels_are_stored_in_int32(tmp_path: Path) -> None:
    ids = np.arange(40_000)[::-1].reshape(2, 20_000).copy()
    ids[0], ids[1] = ids[0][::-1].copy(), ids[1]
    regions = RegionSet.of(ids, np.ones((1, 40_000)))
    write_regions(tmp_path / "a.npz", regions)
    assert torch.equal(read_regions(tmp_path / "a.npz").superpixels, regions.superpixels)


def test_a_photograph_takes_tens_of_kilobytes(tmp_path: Path) -> None:
    """600 superpixels of 20 x 15 pixels, 1,000 regions that are unions of neighbours."""
    rows, columns = np.mgrid[:360, :500]
    ids = rows // 18 * 30 + np.minimum(columns // 17, 29)
    rng = np.random.default_rng(0)
    y, x = np.divmod(np.arange(600), 30)
    centre, radius = rng.random((1000, 2, 1)) * (20, 30)[0], rng.uniform(1, 12, (1000, 1))
    members = np.hypot(y - centre[:, 0], x - 1.5 * centre[:, 1]) < radius
    members[np.arange(1000), rng.integers(0, 600, 1000)] = True
    write_regions(tmp_path / "a.npz", RegionSet.of(ids, members, edges=rng.random(ids.shape)))
    assert (tmp_path / "a.npz").stat().st_size < 80_000


def modified(path: Path, **changes: Any) -> Path:
    with np.load(path) as file:
        fields = {name: file[name] for name in file.files} | changes
    content = io.BytesIO()
    np.savez_compressed(content, **{k: v for k, v in fields.items() if v is not None})
    path.write_bytes(content.getvalue())
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": np.asarray(9)}, "version 9"),
        ({"version": np.asarray([1, 1])}, "delete it"),
        ({"version": np.asarray(1), "edge_strength": None}, "version 1"),
        ({"scores": np.array([np.nan, 1], np.float32)}, "NaN"),
        ({"edge_strength": np.full(1, -1, np.float32)}, "negative"),
        ({"shape": np.asarray([2, 3, 0, 2**40])}, "bits"),
        ({"membership": np.zeros(1, np.uint16)}, "membership"),
        ({"superpixels": np.full((2, 3), 2**32, np.int64)}, "superpixels"),
        ({"scores": None}, "scores"),
        ({"scores": np.ones(7, np.float32)}, "scores"),
        ({"scores": np.ones((2, 2), np.float32)}, "scores"),
        ({"edge_strength": np.ones(50, np.float32)}, "edge_strength"),
        ({"shape": np.asarray([2, 3, 2])}, "shape"),
        ({"shape": np.asarray([2, 4, 2, 2])}, "map"),
        ({"shape": np.asarray([2, 3, 200, 2])}, "bits"),
        ({"shape": np.asarray([2, 3, -1, 2])}, "bits"),
        ({"superpixels": np.full((2, 3), 9, np.int16)}, "each used"),
        ({"superpixels": np.ones((2, 3))}, "superpixels"),
        ({"membership": np.asarray(["x"], dtype=object)}, "damaged"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.npz"
    write_regions(path, RegionSet.of(np.array([[0, 0, 1]] * 2), np.eye(2)))
    with pytest.raises(InputError, match=message) as error:
        read_regions(modified(path, **changes))
    assert str(path) in str(error.value)


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_a_truncated_or_foreign_file_is_one_line(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.npz"
    write_regions(path, RegionSet.of(np.array([[0, 0, 1]] * 2), np.eye(2)))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match="delete it"):
        read_regions(path)
    path.write_text("not a zip")
    with pytest.raises(InputError, match="delete it"):
        read_regions(path)
    np.save(path.open("wb"), np.ones(3))
    with pytest.raises(InputError, match="delete it"):
        read_regions(path)
    with pytest.raises(InputError, match="no such file"):
        read_regions(tmp_path / "b.npz")


def test_random_damage_is_one_line_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write_regions(path, RegionSet.of(np.array([[0, 0, 1]] * 2), np.eye(2)))
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        data[rng.integers(len(data))] ^= 1 << rng.integers(8)
        path.write_bytes(data)
        try:
            read_regions(path)
        except InputError:
            refused += 1
    assert refused > 100
