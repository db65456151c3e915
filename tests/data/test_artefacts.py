"""Folders of arrays: the index, the lock, and files that are damaged or of another version."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from annocoin.data.artefacts import ArrayFormat, Arrays, ArtefactFolder
from annocoin.errors import InputError

FORMAT = ArrayFormat("numbers", "annocoin count", 3, {"values": ((None, 2), ("int64",))})


class NumberFolder(ArtefactFolder[int]):
    index_name = "numbers.json"
    command = "`annocoin count`"

    def read(self, path: Path) -> int:
        return FORMAT.read(path, total)


def total(arrays: Arrays) -> int:
    if (arrays["values"] < 0).any():
        raise ValueError("negative values")
    return int(arrays["values"].sum())


def write(path: Path, *values: int) -> None:
    FORMAT.write(path, {"values": np.asarray(values, dtype=np.int64).reshape(-1, 2)})


def test_a_folder_grows_and_is_read_by_image_id(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with NumberFolder.writing(out, {"limit": 5}, [("a", "x/a.npz"), (7, "b.npz")]) as files:
        assert files == {"a": out / "x" / "a.npz", 7: out / "b.npz"}
        assert NumberFolder.paths(out, [("a", "x/a.npz"), (7, "b.npz")]) == files
        write(files["a"], 1, 2)
    folder = NumberFolder(out)
    assert dict(folder) == {"a": 3}  # the other file was not written
    assert (folder.provenance, folder.name("a")) == ({"limit": 5}, "x/a.npz")
    with NumberFolder.writing(out, {"limit": 5}, [(7, "b.npz")]) as files:
        write(files[7], 4, 5)
    assert dict(NumberFolder(out)) == {"a": 3, 7: 9}


def test_an_interruption_does_not_change_the_order_of_the_index(tmp_path: Path) -> None:
    names = [(name, f"{name}.npz") for name in "cab"]
    for out, written in ((tmp_path / "straight", "cab"), (tmp_path / "resumed", "a")):
        with NumberFolder.writing(out, {}, names) as files:
            for name in written:
                write(files[name], 1, 2)
    with NumberFolder.writing(tmp_path / "resumed", {}, names) as files:
        for name in "cb":
            write(files[name], 1, 2)
    indices = [tmp_path / name / "numbers.json" for name in ("straight", "resumed")]
    assert indices[0].read_bytes() == indices[1].read_bytes()
    assert list(NumberFolder(tmp_path / "resumed")) == ["c", "a", "b"]


def test_a_folder_that_another_writer_holds(tmp_path: Path) -> None:
    with (
        NumberFolder.writing(tmp_path / "out", {}, []),
        pytest.raises(InputError, match="another process"),
        NumberFolder.writing(tmp_path / "out", {}, []),
    ):
        pass


@pytest.mark.parametrize(
    ("provenance", "names", "expected"),
    [
        ({"limit": 6}, [("a", "a.npz")], "made with limit 5, now it is 6"),
        ({"limit": 5, "new": 1}, [("a", "a.npz")], "made with new None, now it is 1"),
        ({"limit": 5}, [("b", "a.npz")], r"a\.npz is of image 'a', not 'b'"),
        ({"limit": 5}, [("b", "b.npz"), ("c", "b.npz")], r"b\.npz is of image 'b', not 'c'"),
        ({"limit": 5}, [("b", "../b.npz")], "a name inside"),
    ],
)
def test_a_folder_of_other_options_or_images(
    tmp_path: Path, provenance: dict[str, Any], names: list[tuple[str, str]], expected: str
) -> None:
    with NumberFolder.writing(tmp_path, {"limit": 5}, [("a", "a.npz")]) as files:
        write(files["a"], 1, 2)
    with (
        pytest.raises(InputError, match=expected),
        NumberFolder.writing(tmp_path, provenance, names),
    ):
        pass
    assert dict(NumberFolder(tmp_path)) == {"a": 3}


@pytest.mark.parametrize("scales", [(), (1.0, 1.5)])
def test_the_same_options_are_the_same_after_json(
    tmp_path: Path, scales: tuple[float, ...]
) -> None:
    """JSON has lists, no tuples."""
    provenance = {"scales": scales, "size": None}
    with NumberFolder.writing(tmp_path, provenance, [("a", "a.npz")]) as files:
        write(files["a"], 1, 2)
    with NumberFolder.writing(tmp_path, provenance, [("a", "a.npz"), ("b", "b.npz")]) as files:
        write(files["b"], 3, 4)
    assert dict(NumberFolder(tmp_path)) == {"a": 3, "b": 7}
    with (
        pytest.raises(InputError, match=r"made with scales .*, now it is .*2\.0"),
        NumberFolder.writing(tmp_path, {"scales": (2.0,)}, []),
    ):
        pass


def test_folders_without_index(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no numbers\.json in it; make it with `annocoin count`"):
        NumberFolder(tmp_path)
    (tmp_path / "mine").write_text("x")
    with (
        pytest.raises(InputError, match="exists and holds no"),
        NumberFolder.writing(tmp_path, {}, []),
    ):
        pass
    index = {"provenance": {}, "images": [{"image_id": "a", "file": "../a.npz"}]}
    (tmp_path / "numbers.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="a name inside"):
        NumberFolder(tmp_path)


@pytest.mark.parametrize(
    ("version", "arrays", "expected"),
    [
        (2, {"values": np.zeros((1, 2), np.int64)}, "version 2, this annocoin reads 3"),
        (3, {}, "values"),
        (3, {"values": np.zeros((1, 3), np.int64)}, r"values is int64 \(1, 3\)"),
        (3, {"values": np.zeros(2, np.int64)}, r"values is int64 \(2,\)"),
        (3, {"values": np.zeros((1, 2))}, "values is float64"),
        (3, {"values": np.full((1, 2), -1)}, "negative values"),
        (3, {"values": np.asarray([None])}, "damaged"),
    ],
)
def test_files_of_another_format(
    tmp_path: Path, version: int, arrays: dict[str, Any], expected: str
) -> None:
    path = tmp_path / "a.npz"
    content = io.BytesIO()
    np.savez_compressed(content, version=np.asarray(version), **arrays)
    path.write_bytes(content.getvalue())
    with pytest.raises(InputError, match=expected) as caught:
        FORMAT.read(path, total)
    assert "delete it and run `annocoin count` again" in str(caught.value)
    assert FORMAT.is_current(path) == (expected == "negative values")


def test_files_that_are_missing_or_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    assert not FORMAT.is_current(path)
    with pytest.raises(InputError, match="no such file; make numbers with `annocoin count`"):
        FORMAT.read(path, total)
    write(path, 1, 2)
    assert FORMAT.is_current(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert not FORMAT.is_current(path)
    with pytest.raises(InputError, match="not a file of numbers"):
        FORMAT.read(path, total)
