"""Files of strangers: pipes and devices, broken run lengths, memory bombs, names, any damage."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from annocoin import files, masks
from annocoin.data.conversion import write_dataset
from annocoin.data.dataset import LabelledImage, LabelledImages
from annocoin.data.images import read_image
from annocoin.data.loading import load_labelled
from annocoin.data.predictions import read_predictions
from annocoin.engine.pseudo_labels import LABELS, PseudoLabelFolder, PseudoLabels, TableFolder
from annocoin.engine.pseudo_labels import write_pseudo_labels as write_labels
from annocoin.errors import InputError, Problems, printable
from annocoin.network_files import write_network
from annocoin.prediction.networks import PREDICTION_KIND, read_prediction
from annocoin.regions.importers import read_mat
from annocoin.types import Annotation, Instances, WeakLabel

TESTS = Path(__file__).parent.parent
PATHS = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
ENVIRONMENT = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """End a test that waits for a pipe."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(300)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_few_hundred_damaged_files() -> None:
    """`make fuzz` reads ten thousand."""
    done = subprocess.run(
        [sys.executable, TESTS / "hostile" / "fuzz.py", "300", "0"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    signal.alarm(0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 cases of 20 kinds" in done.stdout
    assert " 0 failed" in done.stdout


def one_image(tmp_path: Path, kind: Any) -> Path:
    Image.fromarray(np.full((12, 16, 3), 90, dtype=np.uint8)).save(tmp_path / "a.png")
    label = WeakLabel(1, mask=masks.encode(np.ones((1, 12, 16)))[0])
    image = LabelledImage("a", "a.png", tmp_path / "a.png", Annotation((12, 16), (label,)))
    out = tmp_path / ("c.json" if kind in ("coco", "results") else kind)
    write_dataset(LabelledImages.of(("cat",), [image]), out, kind)
    return out


@pytest.mark.parametrize("special", ["pipe", "/dev/zero", "loop", "terabyte"])
@pytest.mark.parametrize("kind", ["voc", "yolo", "labelme", "folder", "coco", "results"])
def test_only_regular_files_are_opened(kind: str, special: str, tmp_path: Path) -> None:
    dataset = one_image(tmp_path, kind)
    (tmp_path / "other").mkdir()
    reference = load_labelled(one_image(tmp_path / "other", "voc"))
    paths = [dataset] if dataset.is_file() else [p for p in dataset.rglob("*") if p.is_file()]
    for path in paths:
        kept = path.rename(tmp_path / "kept")
        if special == "pipe":
            os.mkfifo(path)
        elif special == "terabyte":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        else:
            path.symlink_to(special if special != "loop" else path.name)
        try:
            if kind == "results":
                read_predictions(dataset, reference)
            else:
                for image in load_labelled(dataset, kind=kind):  # type: ignore[arg-type]
                    assert image.path is None or read_image(image.path).any()
        except InputError:
            pass
        else:  # a file that need not exist
            assert path.suffix in (".txt", ".png"), path
        path.unlink()
        kept.rename(path)


def pseudo_labels(**changes: Any) -> dict[str, Any]:
    """The arrays of a file, changed."""
    dense = np.zeros((2, 9, 10), dtype=bool)
    dense[0, 2:5, 3:7], dense[1, 5:, :4] = True, True
    counts = [rle["counts"] for rle in masks.encode(dense)]
    arrays = {
        "size": np.asarray([9, 10]),
        "labels": np.asarray([1, 2]),
        "boxes": np.zeros((2, 4)),
        "scores": np.ones(2),
        "confidence": np.ones(2),
        "rle_counts": np.frombuffer(b"".join(counts), dtype=np.uint8),
        "rle_lengths": np.asarray([len(count) for count in counts]),
        "members": np.ones((3, 2), dtype=bool),
        "consensus": np.asarray(0),
    }
    return {**arrays, **changes}


def run_lengths(*texts: bytes) -> dict[str, Any]:
    return {
        "rle_counts": np.frombuffer(b"".join(texts), dtype=np.uint8),
        "rle_lengths": np.asarray([len(text) for text in texts]),
    }


@pytest.mark.parametrize(
    "changes",
    [
        run_lengths(b"1" * 200 + b"o", b"1" * 20 + b"o"),  # stops inside a number
        run_lengths(b"Z2", b"Z2"),
        {"rle_lengths": np.asarray([2**62, 2**62])},
        {"rle_lengths": np.asarray([-3, 5])},
        {"rle_lengths": np.asarray([1, 1])},
        {"size": np.asarray([10, 10])},
        {"size": np.asarray([-9, -10])},
        {"size": np.asarray([2**40, 2**40])},
        {"members": np.ones((3, 5), dtype=bool)},
        {"members": np.ones((0, 2), dtype=bool)},
        {"consensus": np.asarray(3)},
        {"consensus": np.asarray(-1)},
        {"boxes": np.full((2, 4), np.nan)},
    ],
)
def test_pseudo_labels_are_checked_before_pycocotools(changes: Any, tmp_path: Path) -> None:
    with PseudoLabelFolder.writing(tmp_path, {}, [("a", "a.npz")]) as paths:
        LABELS.write(paths["a"], pseudo_labels())
    assert len(PseudoLabelFolder(tmp_path)["a"].consensus_instances()) == 2
    LABELS.write(tmp_path / "a.npz", pseudo_labels(**changes))
    with pytest.raises(InputError, match=r"a\.npz: not a file of pseudo labels"):
        PseudoLabelFolder(tmp_path)["a"].consensus_instances().dense()


def test_arrays_are_bounded_before_they_are_read(tmp_path: Path) -> None:
    with TableFolder.writing(tmp_path, {}, [("a", "a.npz")]):
        np.savez_compressed(
            tmp_path / "a.npz", version=np.asarray(2), table=np.zeros((1 << 14, 1 << 14), "float16")
        )
    assert (tmp_path / "a.npz").stat().st_size < 1 << 20
    with pytest.raises(InputError, match="larger than any such file"):
        TableFolder(tmp_path)["a"]


def test_mat_files_are_bounded_before_they_are_read(tmp_path: Path) -> None:
    content = {"superpixels": np.zeros((1 << 14, 1 << 12)), "labels": np.zeros(1)}
    scipy.io.savemat(tmp_path / "m.mat", content, do_compression=True)
    assert (tmp_path / "m.mat").stat().st_size < 1 << 20
    with pytest.raises(InputError, match="when unpacked"):
        read_mat(tmp_path / "m.mat", (8, 8))


def test_the_shapes_of_a_network_are_compared_before_it_is_built(tmp_path: Path) -> None:
    """With 60,000 units, the linear layers alone would have 14 GB."""
    architecture = {"classes": ["cat"], "backbone": "tiny", "representation_size": 60_000}
    write_network(tmp_path / "n", torch.nn.Linear(2, 2), PREDICTION_KIND, architecture)
    with pytest.raises(InputError, match=r"not a prediction network .*is None, expected \("):
        read_prediction(tmp_path / "n")


BAD_NAMES = [
    " a.png", "a.png ", "a .png", "x/ a.png", "a\nb.png", "a\x1b[31m.png", "a\x85.png",
    "a\u2028.png", "a\u202e.png", ".png", "x/.jpg", "", "a\udcff.png", "a\0.png",
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_lists_cannot_hold_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="rename the file") as caught:
        LabelledImage("a", name, None, Annotation((2, 2)))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "name", ["a.png", "dir/a b.png", "été.jpg", "a\u202f3.png", "写真.png", "a"]
)
def test_other_names_are_not(name: str) -> None:
    assert LabelledImage("a", name, None, Annotation((2, 2))).file_name == name


@pytest.mark.parametrize(
    "name", [" a.png", "a\n.png", "\x1b]0;title\x07.png", ".png", b"a\xff.png"]
)
@pytest.mark.parametrize("kind", ["labelme", "yolo"])
def test_conversion_refuses_or_skips_such_files(
    name: str | bytes, kind: str, tmp_path: Path, annocoin: Callable[..., Any]
) -> None:
    dataset = one_image(tmp_path, kind)
    (picture,) = dataset.rglob("*.png")
    target = os.path.join(os.fsencode(picture.parent), os.fsencode(name))
    if kind == "labelme":
        text = (dataset / "a.json").read_text()
        escaped = files.json.dumps(os.fsdecode(name))
        (dataset / "a.json").write_text(text.replace('"a.png"', escaped))
    os.rename(picture, target)
    for flags in ((), ("--skip-bad",)):
        done = annocoin("convert", dataset, tmp_path / "out.json", "--to", "coco", *flags)
        assert done.code == 2
        assert all(line.isprintable() for line in (done.out + done.err).splitlines())
        assert not (tmp_path / "out.json").exists()


def test_messages_hold_no_control_characters() -> None:
    assert str(InputError("a\x1b[31m\nb\udc80\u202e")) == "a\\x1b[31m b\\udc80\\u202e"
    assert printable("été 写真 a\u00a0b") == "été 写真 a\u00a0b"
    assert len(str(InputError("x" * 10_000))) < 1100
    assert Problems().skipped == []


def test_a_round_trip_of_pseudo_labels(tmp_path: Path) -> None:
    dense = np.zeros((1, 9, 10), dtype=bool)
    dense[0, 2:5, 3:7] = True
    labels = PseudoLabels.single(Instances(size=(9, 10), masks=dense, labels=[1]))
    with PseudoLabelFolder.writing(tmp_path, {}, [("a", "a.npz")]) as paths:
        write_labels(paths["a"], labels)
    assert PseudoLabelFolder(tmp_path)["a"].instances == labels.instances
