"""Seeds on disk: the same again, small, and no damage unnoticed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from annocoin.errors import InputError
from annocoin.seeds.seed_set import FIELDS, VERSION, Seeds, read_seeds, write_seeds


def some(count: int = 3) -> Seeds:
    generator = torch.Generator().manual_seed(1)
    responses = torch.rand(count, 20, 30, generator=generator) ** 4
    return Seeds(
        size=(160, 240),
        labels=torch.arange(count) + 1,
        points=torch.rand(count, 2, generator=generator) * 160,
        scores=torch.randn(count, generator=generator),
        annotation_index=torch.arange(count),
        responses=responses / responses.sum(dim=(1, 2), keepdim=True),
        maps=torch.randn(count, 5, 8, generator=generator),
    )


@pytest.mark.parametrize("count", [0, 1, 3])
def test_what_is_written_is_read(tmp_path: Path, count: int) -> None:
    seeds = some(count)
    write_seeds(tmp_path / "a.npz", seeds)
    again = read_seeds(tmp_path / "a.npz")
    assert again.size == seeds.size
    for name in ("labels", "points", "scores", "annotation_index", "maps"):
        assert torch.equal(getattr(again, name), getattr(seeds, name)), name
    # Responses are kept in 255 steps of their root.
    assert torch.allclose(again.responses.sum(dim=(1, 2)), torch.ones(count))
    greatest = seeds.responses.amax(dim=(1, 2), keepdim=True) if count else torch.ones(1)
    assert bool(((again.responses - seeds.responses).abs() <= 0.02 * greatest).all())
    write_seeds(tmp_path / "b.npz", again)
    assert torch.allclose(read_seeds(tmp_path / "b.npz").responses, again.responses, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels", np.zeros(3, np.int64)),
        ("points", np.full((3, 2), 500, np.float32)),
        ("points", np.full((3, 2), np.nan, np.float32)),
        ("scores", np.full(3, np.inf, np.float32)),
        ("scores", np.zeros(2, np.float32)),
        ("scores", np.zeros(3, np.float64)),
        ("responses", np.zeros((3, 4, 4), np.uint8)),
        ("annotation_index", np.full(3, -1, np.int64)),
        ("maps", np.zeros((2, 4, 4), np.float32)),
        ("size", np.asarray([0, 5])),
    ],
)
def test_what_cannot_be_seeds_is_refused(
    tmp_path: Path, name: str, value: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> None:
    path = tmp_path / "a.npz"
    write_seeds(path, some())
    with np.load(path) as file:
        fields = {key: file[key] for key in (*FIELDS, "version")}
    np.savez_compressed(path, **{**fields, name: value})
    with pytest.raises(InputError, match=r"a\.npz: not a file of seeds"):
        read_seeds(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file; make seeds with `annocoin seeds`"):
        read_seeds(tmp_path / "none.npz")
    path = tmp_path / "a.npz"
    path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="not a file of seeds"):
        read_seeds(path)
    write_seeds(path, some())
    with np.load(path) as file:
        fields = {key: file[key] for key in FIELDS}
    np.savez_compressed(path, **fields, version=np.asarray(VERSION + 1))
    with pytest.raises(InputError, match=f"version {VERSION + 1}, this annocoin reads {VERSION}"):
        read_seeds(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="not a file of seeds"):
        read_seeds(path)
