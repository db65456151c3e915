"""The regions of a dataset: made by several processes, interrupted, gone on with, exported."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch

from annocoin import masks as rle
from annocoin.data.loading import load_labelled
from annocoin.engine.dataset_stages import make_regions
from annocoin.errors import InputError, Problems
from annocoin.files import exclusive_lock
from annocoin.regions.proposals import RegionOptions
from annocoin.regions.storage import RegionFolder, export_regions
from pictures import picture
from processes import interruptible

Run = Callable[..., Any]
OPTIONS = RegionOptions("gradient", limit=40)


@pytest.fixture(scope="module")
def made(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Regions of the eight scenes, made in this process."""
    out = tmp_path_factory.mktemp("made") / "regions"
    make_regions(load_labelled(scenes), out, OPTIONS, jobs=1)
    return out


def same(first: RegionFolder, second: RegionFolder) -> bool:
    return set(first) == set(second) and all(
        torch.equal(first[i].membership, second[i].membership)
        and torch.equal(first[i].superpixels, second[i].superpixels)
        and torch.equal(first[i].edge_strength, second[i].edge_strength)
        for i in first
    )


def test_every_image_has_its_regions(scenes: Path, made: Path) -> None:
    folder = RegionFolder(made)
    labelled = load_labelled(scenes)
    assert list(folder) == [image.image_id for image in labelled]
    assert all(folder[image.image_id].size == image.annotation.size for image in labelled)
    assert {len(regions) <= 40 for regions in folder.values()} == {True}


def test_processes_make_the_same_and_the_rest_is_left_alone(
    annocoin: Run, scenes: Path, made: Path, tmp_path: Path
) -> None:
    out = tmp_path / "regions"
    words = ("--out", out, "--jobs", 2, "--limit", 40, "--boundaries", "gradient")
    outcome = annocoin("regions", scenes, *words)
    assert (outcome.code, outcome.err) == (0, "")
    assert "regions of 8 images" in outcome.out
    assert same(RegionFolder(made), RegionFolder(out))
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("*.npz")}
    removed, damaged, *untouched = stamps
    removed.unlink()
    damaged.write_bytes(b"nonsense")
    assert len(RegionFolder(out)) == 7
    assert annocoin("regions", *words, scenes).code == 0  # options may come first
    assert same(RegionFolder(made), RegionFolder(out))
    assert all(path.stat().st_mtime_ns == stamps[path] for path in untouched)


def test_killed_at_any_moment_the_same_command_goes_on(
    scenes: Path, made: Path, tmp_path: Path
) -> None:
    out = tmp_path / "regions"
    command = [sys.executable, "-m", "annocoin", "regions", str(scenes), "--out", str(out)]
    command += ["--jobs", "2", "--limit", "40", "--boundaries", "gradient"]
    process = subprocess.Popen(command, start_new_session=True)
    while not list(out.glob("*.npz")) and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert list(out.glob("*.npz"))
    subprocess.run(command, check=True, capture_output=True)
    assert same(RegionFolder(made), RegionFolder(out))


def test_other_options_need_another_folder(scenes: Path, made: Path) -> None:
    with pytest.raises(InputError, match="made with limit 40, now it is 50"):
        make_regions(load_labelled(scenes), made, RegionOptions("gradient", 50))
    with pytest.raises(InputError, match="made with boundaries gradient"):
        make_regions(load_labelled(scenes), made, RegionOptions("network", 40))


def test_another_split_joins_the_folder(scenes: Path, tmp_path: Path) -> None:
    out = tmp_path / "regions"
    for split in ("val", "train"):
        make_regions(load_labelled(scenes, split=split), out, OPTIONS, jobs=1)
    assert set(RegionFolder(out)) == {image.image_id for image in load_labelled(scenes)}


def test_another_dataset_with_the_same_names_is_refused(scenes: Path, tmp_path: Path) -> None:
    picture(tmp_path / "data/images/x.png")
    (tmp_path / "data/labels.csv").write_text("image,label\nx.png,cat\n")
    labelled = load_labelled(tmp_path / "data")
    make_regions(labelled, tmp_path / "out", OPTIONS, jobs=1)
    index = tmp_path / "out/regions.json"
    text = index.read_text()
    assert '"x"' in text
    index.write_text(text.replace('"x"', '"y"'))
    with pytest.raises(InputError, match=r"x\.png\.npz is of image 'y', not 'x'"):
        make_regions(labelled, tmp_path / "out", OPTIONS, jobs=1)


def test_a_folder_of_something_else_is_not_written_to(scenes: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="give a new or empty folder"):
        make_regions(load_labelled(scenes), tmp_path, OPTIONS)
    with pytest.raises(InputError, match=r"no regions\.json"):
        RegionFolder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_bad_image_stops_the_work_or_is_skipped(tmp_path: Path, jobs: int) -> None:
    for name in ("a.png", "b.png", "c.png"):
        picture(tmp_path / "data/images" / name)
    (tmp_path / "data/labels.csv").write_text("image,label\na.png,cat\nb.png,cat\nc.png,cat\n")
    labelled = load_labelled(tmp_path / "data")
    (tmp_path / "data/images/b.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(InputError, match=r"b\.png"):
        make_regions(labelled, tmp_path / "out", OPTIONS, jobs=jobs)
    problems = Problems(skip=True)
    folder = make_regions(labelled, tmp_path / "out", OPTIONS, jobs=jobs, problems=problems)
    assert sorted(map(str, folder)) == ["a", "c"]
    assert len(problems.skipped) == 1


def test_an_attempt_that_made_nothing_binds_nobody(scenes: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected one of network, gradient"):
        RegionOptions("canny")  # type: ignore[arg-type]
    (tmp_path / "sam").mkdir()
    labelled = load_labelled(scenes)
    source = RegionOptions("gradient", source=f"coco:{tmp_path / 'sam'}")
    with pytest.raises(InputError, match="no such file"):
        make_regions(labelled, tmp_path / "out", source, jobs=1)
    assert len(make_regions(labelled, tmp_path / "out", OPTIONS, jobs=1)) == 8


def test_other_weights_need_another_folder(
    scenes: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("annocoin.engine.dataset_stages._weights_digest", lambda: "others")
    with pytest.raises(InputError, match="made with weights"):
        make_regions(load_labelled(scenes), made, OPTIONS)


def test_another_import_file_needs_another_folder(
    annocoin: Run, scenes: Path, made: Path, tmp_path: Path
) -> None:
    file = tmp_path / "m.json"
    export_regions(RegionFolder(made), file, limit=2)
    words = ("regions", scenes, "--out", tmp_path / "r", "--boundaries", "gradient", "--jobs", 1)
    assert annocoin(*words, "--from", f"coco:{file}").code == 0
    assert annocoin(*words, "--from", f"coco:{file.parent / '.' / file.name}").code == 0
    os.utime(file, (1, 1))
    outcome = annocoin(*words, "--from", f"coco:{file}")
    assert outcome.code == 2
    assert "made with source" in outcome.err


def test_a_lock_alone_is_an_empty_folder(scenes: Path, tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    split = load_labelled(scenes, split="val")
    assert len(make_regions(split, tmp_path, OPTIONS, jobs=1)) == len(split)


def test_two_at_once_are_refused(scenes: Path, made: Path) -> None:
    with exclusive_lock(made / ".lock"), pytest.raises(InputError, match="another process"):
        make_regions(load_labelled(scenes), made, OPTIONS)
    assert len(make_regions(load_labelled(scenes), made, OPTIONS)) == 8


def test_a_disk_that_cannot_be_written_to_is_not_skipped(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, regions: object) -> None:
        raise InputError(f"{path}: cannot be written (No space left on device)")

    monkeypatch.setattr("annocoin.engine.dataset_stages.write_regions", full)
    with pytest.raises(InputError, match="No space"):
        make_regions(
            load_labelled(scenes), tmp_path / "r", OPTIONS, jobs=1, problems=Problems(skip=True)
        )


def die(*task: object) -> None:
    os._exit(9)


def test_a_worker_that_dies_is_one_line(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("annocoin.engine.parallel._work", die)
    labelled = load_labelled(scenes)
    with pytest.raises(InputError, match="a worker process died"):
        make_regions(labelled, tmp_path / "r", OPTIONS, jobs=2)


def test_a_name_with_another_slash_is_found_again(tmp_path: Path) -> None:
    picture(tmp_path / "s/a.png")
    content = {
        "images": [{"id": 7, "file_name": "s\\a.png", "height": 10, "width": 20}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [],
    }
    (tmp_path / "d.json").write_text(json.dumps(content))
    labelled = load_labelled(tmp_path / "d.json", images=tmp_path)
    folder = make_regions(labelled, tmp_path / "out", OPTIONS, jobs=1)
    assert 7 in folder
    assert folder[7].size == (10, 20)


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal to a group")
def test_ctrl_c_is_one_line_and_leaves_whole_files(scenes: Path, tmp_path: Path) -> None:
    out = tmp_path / "regions"
    command = [sys.executable, "-m", "annocoin", "regions", str(scenes), "--out", str(out)]
    with interruptible([*command, "--jobs", "2"], start_new_session=True) as process:
        while not (out / "regions.json").exists() and process.poll() is None:
            time.sleep(0.02)
        time.sleep(1.0)  # the workers are starting
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.splitlines() == ["annocoin: interrupted; nothing half-written is left"]
    assert len(RegionFolder(out)) < 8


@pytest.mark.parametrize("jobs", [0, -1])
def test_numbers_must_make_sense(scenes: Path, tmp_path: Path, jobs: int) -> None:
    with pytest.raises(InputError, match="at least 1"):
        make_regions(load_labelled(scenes), tmp_path / "r", OPTIONS, jobs=jobs)
    with pytest.raises(InputError, match="at least 1"):
        make_regions(load_labelled(scenes), tmp_path / "r", RegionOptions("gradient", jobs))
    assert not (tmp_path / "r").exists()


def test_export_and_import_are_exact(
    annocoin: Run, scenes: Path, made: Path, tmp_path: Path
) -> None:
    file = tmp_path / "masks.json"
    outcome = annocoin("regions", "export", made, "--out", file)
    assert (outcome.code, outcome.err) == (0, "")
    entries = json.loads(file.read_text())
    folder = RegionFolder(made)
    assert len(entries) == sum(len(regions) for regions in folder.values())
    assert set(entries[0]) == {"image_id", "segmentation", "score", "bbox"}
    for entry in entries[:: len(entries) // 20]:
        mask = rle.from_json(entry["segmentation"], (64, 64), "test")
        x0, y0, x1, y1 = rle.boxes([mask])[0].tolist()
        assert entry["bbox"] == [x0, y0, x1 - x0, y1 - y0]
    words = ("--from", f"coco:{file}", "--boundaries", "gradient", "--jobs", 1)
    outcome = annocoin("regions", scenes, "--out", tmp_path / "back", *words)
    assert (outcome.code, outcome.err) == (0, "")
    back = RegionFolder(tmp_path / "back")
    for image_id in folder:
        ours, theirs = folder[image_id], back[image_id]
        assert torch.equal(ours.masks(), theirs.masks())  # in the same order
        assert theirs.scores.tolist() == pytest.approx(ours.scores.tolist(), abs=1e-6)
        assert torch.equal(ours.edge_strength_between() > 0, theirs.edge_strength_between() > 0)


def test_the_best_regions_alone_are_exported(made: Path, tmp_path: Path) -> None:
    folder = RegionFolder(made)
    with pytest.raises(InputError, match="lies in the folder of regions"):
        export_regions(folder, made / "regions.json")
    with pytest.raises(InputError, match="at least 1"):
        export_regions(folder, tmp_path / "m.json", limit=0)
    assert export_regions(folder, tmp_path / "m.json", limit=3) == 24
    entries = json.loads((tmp_path / "m.json").read_text())
    first = next(iter(folder))
    own = [e["score"] for e in entries if e["image_id"] == first]
    assert own == pytest.approx(folder[first].scores[:3].tolist(), abs=1e-5)


def test_mcg_files_become_regions(annocoin: Run, scenes: Path, tmp_path: Path) -> None:
    cells = np.empty((2, 1), dtype=object)
    cells[0, 0], cells[1, 0] = np.array([[1]]), np.array([[1, 2]])
    ids = np.ones((64, 64), np.uint32)
    ids[:, 32:] = 2
    (tmp_path / "mcg").mkdir()
    for image in load_labelled(scenes):
        path = tmp_path / "mcg" / f"{image.image_id}.mat"
        scipy.io.savemat(path, {"superpixels": ids, "labels": cells, "scores": [[0.9], [0.1]]})
    out = tmp_path / "regions"
    words = ("--from", f"mcg:{tmp_path / 'mcg'}", "--boundaries", "gradient", "--jobs", 1)
    assert annocoin("regions", scenes, "--out", out, *words).code == 0
    regions = next(iter(RegionFolder(out).values()))
    assert torch.equal(regions.masks()[0], torch.from_numpy(ids == 1))
    next((tmp_path / "mcg").iterdir()).write_bytes(b"broken")
    outcome = annocoin("regions", scenes, "--out", tmp_path / "again", *words)
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    assert "broken .mat file" in outcome.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nothing", "--out", "x"), "no such file or folder"),
        (("{scenes}",), "--out"),
        (("{scenes}", "--out", "{tmp}/r", "--from", "sam:x"), "expected mcg:DIR or coco:FILE"),
        (("{scenes}", "--out", "{tmp}/r", "--boundaries", "canny"), "expected one of network"),
        (("{scenes}", "--out", "{tmp}/r", "--jobs", "0"), "at least 1"),
        (("show", "nothing.png", "--out", "{tmp}/x.png"), "no such image file"),
        (("show", "{tmp}/a.png", "--out", "{tmp}/x.gif"), "ends in .png or .jpg"),
        (("show", "{tmp}/a.png", "--out", "{tmp}/a.png"), "that is the input"),
        (("show", "{tmp}/a.png", "--out", "{tmp}/x.png", "--limit", "0"), "at least 1"),
        (("export", "{tmp}", "--out", "{tmp}/x.json"), "no regions.json"),
    ],
)
def test_bad_words_are_one_line(
    annocoin: Run, scenes: Path, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    picture(tmp_path / "a.png")
    filled = [word.format(scenes=scenes, tmp=tmp_path) for word in words]
    outcome = annocoin("regions", *filled)
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_help_names_all_three(annocoin: Run) -> None:
    for words in (("regions",), ("regions", "--help")):
        outcome = annocoin(*words)
        assert (outcome.code, outcome.err) == (0, "")
        assert all(word in outcome.out for word in ("make", "show", "export"))


def test_an_image_is_shown(annocoin: Run, scenes: Path, tmp_path: Path) -> None:
    image = next((scenes / "JPEGImages").iterdir())
    out = tmp_path / "shown.png"
    outcome = annocoin("regions", "show", image, "--out", out, "--limit", 30)
    assert (outcome.code, outcome.err) == (0, "")
    assert "30 regions" in outcome.out
    assert out.stat().st_size > 10_000
