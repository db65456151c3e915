"""Regions and seeds of a dataset: several processes, interruptions, bad images, imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image

from annocoin import masks
from annocoin.data.dataset import WeakDataset
from annocoin.data.loading import load_evaluation, load_labelled, load_weak
from annocoin.data.predictions import read_predictions
from annocoin.engine import image_stages
from annocoin.engine.conditional_dataset import preparation_options
from annocoin.engine.image_stages import (
    CHECKPOINT,
    CLASSIFIER_FILE,
    METRICS,
    Execution,
    make_classifier,
    make_regions,
    make_seeds,
)
from annocoin.engine.presets import classifier_options, preset
from annocoin.engine.trainer import Checkpointer
from annocoin.errors import InputError, Problems
from annocoin.evaluation.evaluator import evaluate
from annocoin.files import exclusive_lock
from annocoin.regions.proposals import RegionOptions
from annocoin.regions.storage import RegionFolder, export_regions
from annocoin.seeds.classifier import (
    Classifier,
    ClassifierArchitecture,
    read_classifier,
    write_classifier,
)
from annocoin.seeds.retrieval import METHODS
from annocoin.seeds.seed_set import SeedFolder
from annocoin.seeds.seeder import Seeder, SeedOptions
from annocoin.types import Annotation, WeakLabel
from engine.worlds import Artefacts
from pictures import picture
from processes import interruptible, wait_until

Run = Callable[..., Any]
OPTIONS = RegionOptions("gradient", limit=60)
SERIAL = Execution(jobs=1)
TINY = classifier_options("tiny", size=64, epochs=2, batch_size=4)
TINY_FLAGS = [
    "--preset", "synthetic", "--set", "classifier.size=64", "--set", "classifier.epochs=2",
    "--set", "classifier.batch_size=4", "--set", "classifier.head_lr=3e-3",
    "--set", "classifier.backbone_lr=3e-3",
]  # fmt: skip


def skipping() -> Execution:
    return Execution(jobs=1, problems=Problems(skip=True))


def same_regions(first: RegionFolder, second: RegionFolder) -> bool:
    return set(first) == set(second) and all(
        torch.equal(first[i].membership, second[i].membership)
        and torch.equal(first[i].superpixels, second[i].superpixels)
        and torch.equal(first[i].edge_strength, second[i].edge_strength)
        for i in first
    )


def same_seeds(first: SeedFolder, second: SeedFolder) -> bool:
    names = ("labels", "points", "scores", "annotation_index", "responses", "maps")
    return set(first) == set(second) and all(
        torch.equal(getattr(first[i], name), getattr(second[i], name))
        for i in first
        for name in names
    )


def grey_images(root: Path, *names: str) -> Path:
    """A dataset of grey images with the tag "cat"."""
    for name in names:
        picture(root / "images" / name)
    lines = ["image,label", *(f"{name},cat" for name in names)]
    (root / "labels.csv").write_text("\n".join(lines) + "\n")
    return root


def test_every_image_has_its_regions(scenes: Path, artefacts: Artefacts) -> None:
    labelled = load_labelled(scenes)
    assert list(artefacts.regions) == [image.image_id for image in labelled]
    for image in labelled:
        regions = artefacts.regions[image.image_id]
        assert regions.size == image.annotation.size
        assert len(regions) <= 60


def test_several_processes_compute_the_same_and_only_what_is_missing(
    annocoin: Run, scenes: Path, artefacts: Artefacts, tmp_path: Path
) -> None:
    out = tmp_path / "regions"
    command = ("--out", out, "--limit", 60, "--boundaries", "gradient")
    outcome = annocoin("regions", scenes, *command, "--jobs", 2)
    assert (outcome.code, outcome.err) == (0, "")
    assert "regions of 8 images" in outcome.out
    assert same_regions(artefacts.regions, RegionFolder(out))
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("*.npz")}
    removed, damaged, *untouched = stamps
    removed.unlink()
    damaged.write_bytes(b"nonsense")
    assert len(RegionFolder(out)) == 7
    assert annocoin("regions", *command, scenes, "--jobs", 1).code == 0, "options may come first"
    assert same_regions(artefacts.regions, RegionFolder(out))
    assert all(path.stat().st_mtime_ns == stamps[path] for path in untouched)


def test_a_few_images_are_processed_without_other_processes(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pool(*args: Any, **options: Any) -> None:
        raise AssertionError("a pool of processes")

    monkeypatch.setattr("annocoin.engine.parallel.ProcessPoolExecutor", no_pool)
    assert len(make_regions(load_labelled(scenes), tmp_path / "r", OPTIONS)) == 8
    with pytest.raises(AssertionError, match="a pool"):
        make_regions(load_labelled(scenes), tmp_path / "s", OPTIONS, Execution(jobs=2))


def test_a_killed_command_is_resumed_by_the_same_command(
    scenes: Path, artefacts: Artefacts, tmp_path: Path
) -> None:
    out = tmp_path / "regions"
    command = [sys.executable, "-m", "annocoin", "regions", str(scenes), "--out", str(out)]
    command += ["--jobs", "2", "--limit", "60", "--boundaries", "gradient"]
    process = subprocess.Popen(command, start_new_session=True)
    wait_until(lambda: bool(list(out.glob("*.npz"))) or process.poll() is not None)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert list(out.glob("*.npz"))
    make_regions(load_labelled(scenes), out, OPTIONS, SERIAL)
    assert same_regions(artefacts.regions, RegionFolder(out))


def test_other_options_of_regions_need_another_folder(
    scenes: Path, artefacts: Artefacts, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelled, folder = load_labelled(scenes), artefacts.regions.path
    with pytest.raises(InputError, match="made with limit 60, now it is 50"):
        make_regions(labelled, folder, RegionOptions("gradient", 50))
    with pytest.raises(InputError, match="made with boundaries gradient"):
        make_regions(labelled, folder, RegionOptions("network", 60))
    monkeypatch.setattr("annocoin.engine.image_stages._weights_digest", lambda: "others")
    with pytest.raises(InputError, match="made with weights"):
        make_regions(labelled, folder, OPTIONS)


def test_another_split_is_added_to_the_folder(scenes: Path, tmp_path: Path) -> None:
    out = tmp_path / "regions"
    for split in ("val", "train"):
        make_regions(load_labelled(scenes, split=split), out, OPTIONS, SERIAL)
    assert set(RegionFolder(out)) == {image.image_id for image in load_labelled(scenes)}


def test_another_dataset_with_the_same_file_names_is_refused(tmp_path: Path) -> None:
    labelled = load_labelled(grey_images(tmp_path / "data", "x.png"))
    make_regions(labelled, tmp_path / "out", OPTIONS, SERIAL)
    index = tmp_path / "out/regions.json"
    content = json.loads(index.read_text())
    content["images"][0]["image_id"] = "y"
    with pytest.raises(InputError, match="damaged, its content does not fit its digest"):
        index.write_text(json.dumps(content)), RegionFolder(tmp_path / "out")
    del content["digest"]
    index.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"x\.png\.npz is of image 'y', not 'x'"):
        make_regions(labelled, tmp_path / "out", OPTIONS, SERIAL)


def test_a_folder_with_other_files_is_not_written_to(scenes: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="give a new or empty folder"):
        make_regions(load_labelled(scenes), tmp_path, OPTIONS)
    with pytest.raises(InputError, match=r"no regions\.json"):
        RegionFolder(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_bad_image_stops_the_work_or_is_skipped(tmp_path: Path) -> None:
    labelled = load_labelled(grey_images(tmp_path / "data", "a.png", "b.png", "c.png"))
    (tmp_path / "data/images/b.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(InputError, match=r"b\.png"):
        make_regions(labelled, tmp_path / "out", OPTIONS, SERIAL)
    execution = skipping()
    folder = make_regions(labelled, tmp_path / "out", OPTIONS, execution)
    assert sorted(map(str, folder)) == ["a", "c"]
    assert len(execution.problems.skipped) == 1
    assert "b.png" in execution.problems.skipped[0]


def test_a_failed_attempt_leaves_a_folder_for_any_options(scenes: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected one of network, gradient"):
        RegionOptions("canny")  # type: ignore[arg-type]
    (tmp_path / "sam").mkdir()
    labelled = load_labelled(scenes)
    source = RegionOptions("gradient", source=f"coco:{tmp_path / 'sam'}")
    with pytest.raises(InputError, match="no such file"):
        make_regions(labelled, tmp_path / "out", source, SERIAL)
    assert len(make_regions(labelled, tmp_path / "out", OPTIONS, SERIAL)) == 8


def test_a_changed_file_of_imported_proposals_needs_another_folder(
    annocoin: Run, scenes: Path, artefacts: Artefacts, tmp_path: Path
) -> None:
    file = tmp_path / "m.json"
    export_regions(artefacts.regions, file, limit=2)
    command = ("regions", scenes, "--out", tmp_path / "r", "--boundaries", "gradient", "--jobs", 1)
    assert annocoin(*command, "--from", f"coco:{file}").code == 0
    assert annocoin(*command, "--from", f"coco:{file.parent / '.' / file.name}").code == 0
    os.utime(file, (1, 1))
    outcome = annocoin(*command, "--from", f"coco:{file}")
    assert outcome.code == 2
    assert "made with source" in outcome.err


def test_a_training_does_not_import_proposals(artefacts: Artefacts, tmp_path: Path) -> None:
    options = RegionOptions("gradient", source="mcg:folder")
    with pytest.raises(InputError, match="imported with `annocoin regions`"):
        make_regions(artefacts.weak["image"], tmp_path / "r", options)


def test_a_folder_with_a_lock_only_is_empty(scenes: Path, tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    split = load_labelled(scenes, split="val")
    assert len(make_regions(split, tmp_path, OPTIONS, SERIAL)) == len(split)


def test_a_second_process_is_refused(scenes: Path, artefacts: Artefacts) -> None:
    labelled, folder = load_labelled(scenes), artefacts.regions.path
    with exclusive_lock(folder / ".lock"), pytest.raises(InputError, match="another process"):
        make_regions(labelled, folder, OPTIONS)
    assert len(make_regions(labelled, folder, OPTIONS)) == 8


def test_a_full_disk_is_not_skipped(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, regions: object) -> None:
        raise InputError(f"{path}: cannot be written (No space left on device)")

    monkeypatch.setattr("annocoin.engine.image_stages.write_regions", full)
    with pytest.raises(InputError, match="No space"):
        make_regions(load_labelled(scenes), tmp_path / "r", OPTIONS, skipping())


def die(*task: object) -> None:
    os._exit(9)


def test_a_worker_that_dies_is_one_line(
    scenes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("annocoin.engine.parallel._call_worker", die)
    with pytest.raises(InputError, match="a worker process died"):
        make_regions(load_labelled(scenes), tmp_path / "r", OPTIONS, Execution(jobs=2))


def test_a_name_with_a_backslash(tmp_path: Path) -> None:
    picture(tmp_path / "s/a.png")
    content = {
        "images": [{"id": 7, "file_name": "s\\a.png", "height": 10, "width": 20}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [],
    }
    (tmp_path / "d.json").write_text(json.dumps(content))
    labelled = load_labelled(tmp_path / "d.json", images=tmp_path)
    folder = make_regions(labelled, tmp_path / "out", OPTIONS, SERIAL)
    assert folder[7].size == (10, 20)


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal to a process group")
def test_ctrl_c_is_one_line_and_leaves_complete_files(scenes: Path, tmp_path: Path) -> None:
    out = tmp_path / "regions"
    command = [sys.executable, "-m", "annocoin", "regions", str(scenes), "--out", str(out)]
    with interruptible([*command, "--jobs", "2"], start_new_session=True) as process:
        wait_until((out / "regions.json").exists)
        time.sleep(1.0)  # the workers are starting
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors.splitlines() == ["annocoin: interrupted; the same command continues"]
    assert len(RegionFolder(out)) < 8


@pytest.mark.parametrize("number", [0, -1])
def test_numbers_below_one_are_refused(scenes: Path, tmp_path: Path, number: int) -> None:
    with pytest.raises(InputError, match="at least 1"):
        make_regions(load_labelled(scenes), tmp_path / "r", OPTIONS, Execution(jobs=number))
    with pytest.raises(InputError, match="at least 1"):
        make_regions(load_labelled(scenes), tmp_path / "s", RegionOptions("gradient", number))
    assert not (tmp_path / "s").exists()


def test_exported_regions_are_imported_exactly(
    annocoin: Run, scenes: Path, artefacts: Artefacts, tmp_path: Path
) -> None:
    file, folder = tmp_path / "masks.json", artefacts.regions
    outcome = annocoin("regions", "export", folder.path, "--out", file)
    assert (outcome.code, outcome.err) == (0, "")
    entries = json.loads(file.read_text())
    assert len(entries) == sum(len(regions) for regions in folder.values())
    assert set(entries[0]) == {"image_id", "segmentation", "score", "bbox"}
    for entry in entries[:: len(entries) // 20]:
        mask = masks.from_json(entry["segmentation"], (64, 64), "test")
        x0, y0, x1, y1 = masks.boxes([mask])[0].tolist()
        assert entry["bbox"] == [x0, y0, x1 - x0, y1 - y0]
    command = ("--from", f"coco:{file}", "--boundaries", "gradient", "--jobs", 1)
    outcome = annocoin("regions", scenes, "--out", tmp_path / "back", *command)
    assert (outcome.code, outcome.err) == (0, "")
    back = RegionFolder(tmp_path / "back")
    for image_id in folder:
        ours, theirs = folder[image_id], back[image_id]
        assert torch.equal(ours.masks(), theirs.masks()), "in the same order"
        assert theirs.scores.tolist() == pytest.approx(ours.scores.tolist(), abs=1e-6)
        assert torch.equal(ours.edge_strength_between() > 0, theirs.edge_strength_between() > 0)


def test_only_the_best_regions_are_exported(artefacts: Artefacts, tmp_path: Path) -> None:
    folder = artefacts.regions
    with pytest.raises(InputError, match=r"regions\.json"):
        export_regions(folder, folder.path / "regions.json")
    with pytest.raises(InputError, match="at least 1"):
        export_regions(folder, tmp_path / "m.json", limit=0)
    assert export_regions(folder, tmp_path / "m.json", limit=3) == 24
    entries = json.loads((tmp_path / "m.json").read_text())
    first = next(iter(folder))
    scores = [entry["score"] for entry in entries if entry["image_id"] == first]
    assert scores == pytest.approx(folder[first].scores[:3].tolist(), abs=1e-5)


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
    command = ("--from", f"mcg:{tmp_path / 'mcg'}", "--boundaries", "gradient", "--jobs", 1)
    assert annocoin("regions", scenes, "--out", out, *command).code == 0
    regions = next(iter(RegionFolder(out).values()))
    assert torch.equal(regions.masks()[0], torch.from_numpy(ids == 1))
    next((tmp_path / "mcg").iterdir()).write_bytes(b"broken")
    outcome = annocoin("regions", scenes, "--out", tmp_path / "again", *command)
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    assert "broken .mat file" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing", "--out", "x"), "no such file or folder"),
        (("{scenes}",), "--out"),
        (("{scenes}", "--out", "{tmp}/r", "--from", "sams:x"), "expected mcg:DIR or coco:FILE"),
        (("{scenes}", "--out", "{tmp}/r", "--boundaries", "canny"), "expected one of network"),
        (("{scenes}", "--out", "{tmp}/r", "--jobs", "0"), "at least 1"),
        (("show", "nothing.png", "--out", "{tmp}/x.png"), "nothing.png"),
        (("show", "{tmp}/a.png", "--out", "{tmp}/x.gif"), "ends in .png or .jpg"),
        (("show", "{tmp}/a.png", "--out", "{tmp}/a.png"), "that is the input"),
        (("show", "{tmp}/a.png", "--out", "{tmp}/x.png", "--limit", "0"), "at least 1"),
        (("export", "{tmp}", "--out", "{tmp}/x.json"), "no regions.json"),
    ],
)
def test_bad_arguments_of_regions_are_one_line(
    annocoin: Run, scenes: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    picture(tmp_path / "a.png")
    outcome = annocoin("regions", *(a.format(scenes=scenes, tmp=tmp_path) for a in arguments))
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


def test_help_lists_the_subcommands(annocoin: Run) -> None:
    for arguments in (("regions",), ("regions", "--help")):
        outcome = annocoin(*arguments)
        assert (outcome.code, outcome.err) == (0, "")
        assert all(name in outcome.out for name in ("make", "show", "export"))


def test_regions_of_an_image_are_drawn(annocoin: Run, scenes: Path, tmp_path: Path) -> None:
    image = next((scenes / "JPEGImages").iterdir())
    out = tmp_path / "shown.png"
    outcome = annocoin("regions", "show", image, "--out", out, "--limit", 30)
    assert (outcome.code, outcome.err) == (0, "")
    assert "30 regions" in outcome.out
    assert out.stat().st_size > 10_000


def test_from_tags_to_pseudo_labels_by_command(
    annocoin: Run, scenes: Path, artefacts: Artefacts, tmp_path: Path
) -> None:
    out = tmp_path / "seeds"
    regions = artefacts.regions.path
    command = ("seeds", scenes, "--regions", regions, "--out", out, "--jobs", 1, *TINY_FLAGS)
    outcome = annocoin(*command, "--validation-split", "val")
    assert (outcome.code, outcome.err) == (0, "")
    assert "classifier: tag map" in outcome.out
    assert "validation" in outcome.out
    assert "seeds of 8 images" in outcome.out
    lines = [json.loads(line) for line in (out / METRICS).read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert sorted(path.name for path in out.iterdir() if path.suffix != ".npz") == [
        ".lock",
        METRICS,
        CLASSIFIER_FILE,
        *sorted(f"labels-{method}.json" for method in METHODS),
        "seeds.json",
    ]
    weak, truth = load_weak(scenes), load_evaluation(scenes)
    folder = SeedFolder(out)
    for method in METHODS:
        pseudo_labels = read_predictions(out / f"labels-{method}.json", truth)
        for image in weak:
            labels = set(pseudo_labels[image.image_id].labels.tolist())
            assert labels == set(image.annotation.distinct_labels)
            assert set(folder[image.image_id].labels.tolist()) == labels
        assert 0 <= evaluate(pseudo_labels, truth, thresholds=(0.25,)).mean[0.25] <= 1
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("*.npz")}
    again = annocoin(*command, "--validation-split", "val")
    assert again.out.splitlines()[-4:] == outcome.out.splitlines()[-4:]
    assert "classifier:" not in again.out, "nothing is left to do"
    assert stamps == {path: path.stat().st_mtime_ns for path in out.glob("*.npz")}
    figure = tmp_path / "figure.png"
    show = ("seeds", "show", out, scenes, "--regions", regions, "--out", figure, "--count", 2)
    assert annocoin(*show).code == 0
    assert Image.open(figure).width > 4 * 320
    outcome = annocoin(*show, "--supervision", "box")
    assert (outcome.code, "with the same --supervision" in outcome.err) == (2, True)


@pytest.mark.skipif(sys.platform == "win32", reason="kills a process group")
def test_seeds_are_resumed_after_a_kill(scenes: Path, artefacts: Artefacts, tmp_path: Path) -> None:
    out, straight = tmp_path / "seeds", tmp_path / "straight"
    weak, regions = artefacts.weak["image"], artefacts.regions
    make_classifier(weak, straight, TINY)
    make_seeds(weak, regions, straight, classifier=straight / CLASSIFIER_FILE, execution=SERIAL)
    arguments = (scenes, "--regions", regions.path, "--out", out, *TINY_FLAGS, "--jobs", 1)
    command = [sys.executable, "-m", "annocoin", "seeds", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    with subprocess.Popen(command, start_new_session=True, env=environment) as process:
        wait_until(lambda: any(out.glob("*.npz")))
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    make_classifier(weak, out, TINY)
    make_seeds(weak, regions, out, classifier=out / CLASSIFIER_FILE, execution=SERIAL)
    assert same_seeds(SeedFolder(straight), SeedFolder(out))
    assert not list(out.glob(CHECKPOINT.format("*")))
    assert (out / METRICS).read_bytes() == (straight / METRICS).read_bytes()


@pytest.mark.parametrize("supervision", ["box", "point", "mixed"])
def test_every_label_has_a_seed_at_its_location(artefacts: Artefacts, supervision: str) -> None:
    for image in artefacts.weak[supervision]:
        seeds = artefacts.seeds[supervision][image.image_id]
        assert sorted(seeds.annotation_index.tolist()) == list(range(len(image.annotation)))
        assert torch.allclose(seeds.responses.sum(dim=(1, 2)), torch.ones(len(seeds)))
        pairs = zip(seeds.annotation_index.tolist(), seeds.points.tolist(), strict=True)
        for index, (x, y) in pairs:
            box = image.annotation[index].box
            assert box is None or (box[0] <= x <= box[2] and box[1] <= y <= box[3])


def test_other_options_of_seeds_need_another_folder(artefacts: Artefacts, tmp_path: Path) -> None:
    weak, regions, out = artefacts.weak, artefacts.regions, artefacts.seeds["image"].path
    options: dict[str, Any] = {"classifier": artefacts.classifier, "execution": SERIAL}
    with pytest.raises(InputError, match=r"made with threshold 0\.\d+, now it is 0\.9"):
        make_seeds(weak["image"], regions, out, SeedOptions(threshold=0.9), **options)
    with pytest.raises(InputError, match="made with supervision image, now it is box"):
        make_seeds(weak["box"], regions, out, **options)
    other = tmp_path / "other.safetensors"
    write_classifier(other, Classifier(read_classifier(artefacts.classifier).architecture))
    with pytest.raises(InputError, match="made with classifier"):
        make_seeds(weak["image"], regions, out, classifier=other, execution=SERIAL)
    with exclusive_lock(out / ".lock"), pytest.raises(InputError, match="another process"):
        make_seeds(weak["image"], regions, out, **options)


def test_seeds_with_map_scales_are_computed_once(artefacts: Artefacts, tmp_path: Path) -> None:
    weak, options = artefacts.weak["image"][:3], SeedOptions(map_scales=(1.0, 1.5))
    arguments = (weak, artefacts.regions, tmp_path / "s", options)
    first = make_seeds(*arguments, classifier=artefacts.classifier, execution=SERIAL)
    plain = artefacts.seeds["image"]
    for image_id in first:
        assert torch.equal(first[image_id].points, plain[image_id].points)
        assert first[image_id].maps.shape[1:] == (24, 24), "96 pixels, stride 4"
    stamps = {path: path.stat().st_mtime_ns for path in first.files.values()}
    again = make_seeds(*arguments, classifier=artefacts.classifier, execution=SERIAL)
    assert stamps == {path: path.stat().st_mtime_ns for path in again.files.values()}
    with pytest.raises(InputError, match=r"made with map_scales .*1\.5.*, now it is"):
        make_seeds(
            *arguments[:3],
            replace(options, map_scales=(1.0,)),
            classifier=artefacts.classifier,
            execution=SERIAL,
        )


def test_a_classifier_of_another_training_is_refused(artefacts: Artefacts, tmp_path: Path) -> None:
    weak, once = artefacts.weak["image"], replace(TINY, epochs=1)
    assert set(make_classifier(weak, tmp_path, once, validation=weak[:2])) == {
        "tag_map",
        "validation_tag_map",
    }
    assert make_classifier(weak, tmp_path, once) == {}
    with pytest.raises(InputError, match="trained with epochs 1, now it is 2"):
        make_classifier(weak, tmp_path, TINY)
    with pytest.raises(InputError, match="trained with seed 0, now it is 1"):
        make_classifier(weak, tmp_path, once, seed=1)
    with pytest.raises(InputError, match="trained with images"):
        make_classifier(weak[:5], tmp_path, once)
    (tmp_path / CLASSIFIER_FILE).write_bytes(b"nonsense")
    with pytest.raises(InputError, match="damaged"):
        make_classifier(weak, tmp_path, once)


def test_tags_are_measured_on_some_training_and_all_validation_images(
    artefacts: Artefacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weak, measured = artefacts.weak["image"], []

    def count_images(net: Classifier, dataset: WeakDataset, problems: Problems) -> float:
        measured.append(len(dataset))
        return 0.0

    monkeypatch.setattr(image_stages, "MEASURED_IMAGES", 3)
    monkeypatch.setattr(image_stages, "tag_map", count_images)
    make_classifier(weak[:4], tmp_path, replace(TINY, epochs=1), validation=weak[3:])
    assert measured == [3, 5]


@pytest.mark.parametrize("change", [{"epochs": 3}, {"head_lr": 0.1}, {"peak_sharpness": 2.0}])
def test_a_checkpoint_of_a_training_with_other_options_is_not_used(
    artefacts: Artefacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    weak = artefacts.weak["image"]
    save = Checkpointer.save

    def interrupted(self: Checkpointer, step: int, *args: Any) -> None:
        self.seconds = 0
        save(self, step, *args)
        if step == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_classifier(weak, tmp_path / "a", TINY)
    other = replace(TINY, **change)
    make_classifier(weak, tmp_path / "b", other)
    make_classifier(weak, tmp_path / "a", other)
    first, second = (read_classifier(tmp_path / name / CLASSIFIER_FILE) for name in "ab")
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert not list((tmp_path / "a").glob(CHECKPOINT.format("*")))


def test_a_changed_annotation_gets_new_seeds(artefacts: Artefacts, tmp_path: Path) -> None:
    weak, regions, out = artefacts.weak["box"], artefacts.regions, tmp_path / "s"
    options: dict[str, Any] = {"classifier": artefacts.classifier, "execution": SERIAL}
    folder = make_seeds(weak, regions, out, **options)
    stamps = {i: path.stat().st_mtime_ns for i, path in folder.files.items()}
    image = max(weak, key=lambda image: len(image.annotation))
    fewer = replace(image, annotation=image.annotation[1:])
    changed = replace(weak, images=tuple(fewer if i is image else i for i in weak))
    again = make_seeds(changed, regions, out, **options)
    new = [i for i, path in again.files.items() if path.stat().st_mtime_ns != stamps[i]]
    assert new == [image.image_id]
    assert len(again[image.image_id]) == len(image.annotation) - 1


def test_image_ids_may_be_numbers_from_zero(
    annocoin: Run, scenes: Path, artefacts: Artefacts, tmp_path: Path
) -> None:
    assert annocoin("convert", scenes, tmp_path / "c.json", "--to", "coco").code == 0
    content = json.loads((tmp_path / "c.json").read_text())
    numbers = {image["id"]: number for number, image in enumerate(content["images"])}
    for image in content["images"]:
        image["id"] = numbers[image["id"]]
    for annotation in content["annotations"]:
        annotation["image_id"] = numbers[annotation["image_id"]]
    (tmp_path / "c.json").write_text(json.dumps(content))
    weak = load_weak(tmp_path / "c.json", images=scenes / "JPEGImages")[:2]
    regions = make_regions(weak, tmp_path / "r", RegionOptions("gradient", 20), SERIAL)
    seeds = make_seeds(
        weak, regions, tmp_path / "s", classifier=artefacts.classifier, execution=SERIAL
    )
    assert set(regions) == set(seeds) == {0, 1}


def test_bad_arguments_of_seeds_are_one_line(
    annocoin: Run, scenes: Path, artefacts: Artefacts, tmp_path: Path
) -> None:
    outcome = annocoin("seeds", scenes, "--regions", tmp_path, "--out", tmp_path / "s")
    assert (outcome.code, "make it with `annocoin regions`" in outcome.err) == (2, True)
    command = ("seeds", scenes, "--regions", artefacts.regions.path, "--out", tmp_path / "s")
    for extra, reason in {
        ("--set", "classifier.backbone=resnet51"): "backbone 'resnet51'",
        ("--set", "seeds.threshold=2"): "expected 0 to 1",
        ("--set", "seeds.rule=guided"): "expected one of conserving, published",
        ("--classifier", tmp_path / "none"): "no such file",
        ("--set", "classifier.epochs=0"): "epochs 0",
        ("--seed", -1): "-1",
        ("--set", "classifier.frozen_layers=-1"): "expected at least 0",
        ("--classifier", artefacts.classifier, "--seed", 3): "leave out the options of training",
        ("--supervision", "scribble"): "expected one of image",
        ("--device", "quantum"): "device",
    }.items():
        outcome = annocoin(*command, *extra)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1), (extra, outcome.err)
        assert reason in outcome.err
        assert not list((tmp_path / "s").rglob("*.safetensors")), extra


def test_images_without_regions_are_reported(
    scenes: Path, artefacts: Artefacts, tmp_path: Path
) -> None:
    weak = artefacts.weak["image"]
    other = tmp_path / "other.safetensors"
    write_classifier(other, Classifier(ClassifierArchitecture(("cat",), "tiny")))
    with pytest.raises(InputError, match="a classifier of"):
        make_seeds(weak, artefacts.regions, tmp_path / "s", classifier=other)
    regions = make_regions(
        load_labelled(scenes)[:3], tmp_path / "fewer", RegionOptions("gradient", 20), SERIAL
    )
    options: dict[str, Any] = {"classifier": artefacts.classifier}
    with pytest.raises(InputError, match="no regions of image"):
        make_seeds(weak, regions, tmp_path / "t", **options)
    execution = skipping()
    seeds = make_seeds(weak, regions, tmp_path / "t", **options, execution=execution)
    assert (len(seeds), len(execution.problems.skipped)) == (3, 5)
    with pytest.raises(InputError, match=r"no usable image; .*no regions of image"):
        make_seeds(weak[4:], regions, tmp_path / "u", **options, execution=skipping())


def test_a_bad_image_is_skipped_in_training_and_for_seeds(tmp_path: Path) -> None:
    data = grey_images(tmp_path / "data", "a.png", "b.png")
    regions = make_regions(load_labelled(data), tmp_path / "r", RegionOptions("gradient"), SERIAL)
    weak = load_weak(data)
    (data / "images/b.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(InputError, match=r"b\.png"):
        make_classifier(weak, tmp_path / "s", TINY)
    execution = skipping()
    make_classifier(weak, tmp_path / "s", TINY, execution=execution)
    classifier = tmp_path / "s" / CLASSIFIER_FILE
    with pytest.raises(InputError, match=r"b\.png"):
        make_seeds(weak, regions, tmp_path / "s", classifier=classifier, execution=SERIAL)
    options: Any = {"classifier": classifier, "execution": execution}
    assert list(make_seeds(weak, regions, tmp_path / "s", **options)) == ["a"]
    skipped = execution.problems.skipped
    assert skipped
    assert all("b.png" in line for line in skipped)
    assert len(skipped) == 1, "met several times, and reported once"


def test_images_of_any_shape_have_seeds(artefacts: Artefacts) -> None:
    seeder = Seeder(read_classifier(artefacts.classifier))
    for height, width in ((1, 1), (3, 500), (700, 20), (64, 64)):
        image = np.full((height, width, 3), 127, np.uint8)
        seeds = seeder(image, Annotation((height, width), (WeakLabel(1), WeakLabel(3))))
        assert set(seeds.labels.tolist()) == {1, 3}
        assert torch.allclose(seeds.responses.sum(dim=(1, 2)), torch.ones(len(seeds)))
    with pytest.raises(InputError, match="class 9; the classifier has 6"):
        seeder(np.zeros((8, 8, 3), np.uint8), Annotation((8, 8), (WeakLabel(9),)))


def test_the_seed_of_an_annotated_mask_is_inside(artefacts: Artefacts) -> None:
    mask = np.zeros((1, 40, 40), np.uint8)
    mask[0, 5:12, 20:33] = 1
    weak_label = WeakLabel(2, mask=masks.encode(mask)[0])
    seeds = Seeder(read_classifier(artefacts.classifier))(
        np.zeros((40, 40, 3), np.uint8), Annotation((40, 40), (weak_label,))
    )
    x, y = seeds.points[0].long().tolist()
    assert mask[0, y, x]


def test_regions_in_bfloat16(annocoin: Run, scenes: Path, tmp_path: Path) -> None:
    """Another precision needs another folder; full precision is that of folders without one."""
    single = load_labelled(scenes)[:1]
    full = make_regions(single, tmp_path / "r", RegionOptions(limit=20), SERIAL)
    assert "precision" not in full.provenance
    command = ("regions", scenes, "--limit", 20, "--jobs", 1, "--precision", "bf16-mixed")
    outcome = annocoin(*command, "--out", tmp_path / "r")
    assert (outcome.code, outcome.err.count("precision")) == (2, 1)
    assert annocoin(*command, "--out", tmp_path / "b").code == 0
    half = RegionFolder(tmp_path / "b")
    assert half.provenance["precision"] == "bf16"
    first, second = (folder[single[0].image_id].edge_strength for folder in (full, half))
    assert first.shape != second.shape or not torch.equal(first, second)
    outcome = annocoin(*command, "--out", tmp_path / "s", "--from", "sam:a.onnx,b.onnx")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "--precision" in outcome.err


def test_examples_depend_on_whether_boxes_allow_extra_regions() -> None:
    config = preset("synthetic", ("cat",)).conditional
    changed = replace(config, box_allows_extra=True)
    assert preparation_options(config) != preparation_options(changed)
    other = replace(config, annotated_boxes=False)
    assert preparation_options(config) == preparation_options(other)
