"""Seeds and their files: round trips, damaged files, seeds of another annotation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from annocoin import masks
from annocoin.errors import InputError
from annocoin.seeds.seed_set import (
    FORMAT,
    SeedFolder,
    Seeds,
    annotation_digest,
    read_seeds,
    seeds_are_current,
    write_seeds,
)
from annocoin.types import Annotation, WeakLabel

TAGS = Annotation((160, 240), tuple(WeakLabel(label) for label in (1, 2, 3)))
BOXES = Annotation(
    TAGS.size, tuple(WeakLabel(label, box=(0.0, 0.0, 50.0 + label, 60.0)) for label in (1, 2, 3))
)


def example(count: int = 3) -> Seeds:
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


def test_indexing_selects_from_every_field() -> None:
    seeds = example()
    seeds = replace(seeds, labels=torch.tensor([1, 2, 1]))
    selected = seeds[seeds.labels == 1]
    for name in ("labels", "points", "scores", "annotation_index", "responses", "maps"):
        assert torch.equal(getattr(selected, name), getattr(seeds, name)[[0, 2]]), name
    assert seeds[1].labels.tolist() == [2]
    assert len(seeds[:0]) == 0
    assert [int(seed.annotation_index) for seed in seeds] == [0, 1, 2]
    assert torch.allclose(seeds.responses_in_image().sum(dim=(1, 2)), torch.ones(3))
    assert seeds.maps_in_image().shape == (3, 160, 240)
    with pytest.raises(ValueError, match="scores of shape"):
        replace(seeds, scores=torch.zeros(2))
    with pytest.raises(ValueError, match="maps of shape"):
        replace(seeds, maps=torch.zeros(3, 4))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_written_seeds_are_read_back(tmp_path: Path, count: int) -> None:
    seeds = example(count)
    write_seeds(tmp_path / "a.npz", seeds, TAGS)
    again = read_seeds(tmp_path / "a.npz")
    assert again.size == seeds.size
    for name in ("labels", "points", "scores", "annotation_index", "maps"):
        assert torch.equal(getattr(again, name), getattr(seeds, name)), name
    # The square root of a response has 255 steps.
    assert torch.allclose(again.responses.sum(dim=(1, 2)), torch.ones(count))
    maximum = seeds.responses.amax(dim=(1, 2), keepdim=True) if count else torch.ones(1)
    assert bool(((again.responses - seeds.responses).abs() <= 0.02 * maximum).all())
    write_seeds(tmp_path / "b.npz", again, TAGS)
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
def test_invalid_arrays_are_refused(
    tmp_path: Path, name: str, value: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> None:
    path = tmp_path / "a.npz"
    write_seeds(path, example(), TAGS)
    with np.load(path) as file:
        fields = {key: file[key] for key in (*FORMAT.fields, "version")}
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
    write_seeds(path, example(), TAGS)
    with np.load(path) as file:
        fields = {key: file[key] for key in FORMAT.fields}
    np.savez_compressed(path, **fields, version=np.asarray(FORMAT.version + 1))
    with pytest.raises(
        InputError, match=f"version {FORMAT.version + 1}, this annocoin reads {FORMAT.version}"
    ):
        read_seeds(path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="not a file of seeds"):
        read_seeds(path)


@pytest.fixture
def folder(tmp_path: Path) -> SeedFolder:
    """A folder with seeds for the tags of image "a"."""
    with SeedFolder.writing(tmp_path / "seeds", {}, [("a", "a.npz")]) as files:
        write_seeds(files["a"], example(), TAGS)
    return SeedFolder(tmp_path / "seeds")


def test_seeds_of_another_supervision_are_refused(folder: SeedFolder) -> None:
    """The boxes have the classes and the order of the tags, so that the class check passes."""
    folder["a"].check_for(BOXES)
    folder.check("a", TAGS)
    with pytest.raises(
        InputError,
        match=r"seeds: the seeds of image 'a' were made for another annotation or supervision; "
        r"run `annocoin seeds` with the same --supervision",
    ):
        folder.check("a", BOXES)
    assert seeds_are_current(folder.files["a"], TAGS)
    assert not seeds_are_current(folder.files["a"], BOXES)


def test_the_check_reads_only_the_digest(folder: SeedFolder) -> None:
    path = folder.files["a"]
    with np.load(path) as file:
        fields = {key: file[key] for key in ("annotation", "version")}
    np.savez_compressed(path, **fields)
    folder.check("a", TAGS)
    path.write_bytes(b"nonsense")
    assert not seeds_are_current(path, TAGS)
    with pytest.raises(InputError, match=r"a\.npz: not a file of seeds"):
        folder.check("a", TAGS)


SQUARE = masks.encode(np.ones((1, 160, 240), np.uint8))[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda label: replace(label, label=4),
        lambda label: replace(label, box=(0.0, 0.0, 50.0, 61.0)),
        lambda label: replace(label, point=(1.0, 2.0)),
        lambda label: replace(label, mask=SQUARE),
        lambda label: replace(label, crowd=True),
    ],
)
def test_the_digest_depends_on_classes_and_locations(
    change: Callable[[WeakLabel], WeakLabel],
) -> None:
    first, *rest = BOXES
    digest = annotation_digest(BOXES)
    assert len(digest) == 16
    assert annotation_digest(Annotation(BOXES.size, (change(first), *rest))) != digest
    assert annotation_digest(Annotation(BOXES.size, (replace(first, score=0.5), *rest))) == digest
    assert annotation_digest(Annotation(BOXES.size, (*rest, first))) != digest
    assert annotation_digest(Annotation((240, 240), BOXES.weak_labels)) != digest


def test_the_digest_does_not_depend_on_class_names() -> None:
    """Files stay current when a Python class is renamed."""
    renamed = type("Renamed", (WeakLabel,), {})
    assert repr(renamed(1)).startswith("Renamed(")
    subclass = Annotation(TAGS.size, tuple(renamed(label) for label in (1, 2, 3)))
    assert annotation_digest(subclass) == annotation_digest(TAGS) == "ce5977826d1a1ff7"
