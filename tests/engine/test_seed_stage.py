"""The seeds of a dataset: made by several processes, interrupted, gone on with, shown."""

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
import torch
from PIL import Image

from annocoin import masks
from annocoin.data.loading import load_evaluation, load_labelled, load_weak
from annocoin.data.predictions import read_predictions
from annocoin.engine.classifier_training import options_for
from annocoin.engine.dataset_stages import first_labels, make_regions, make_seeds
from annocoin.errors import InputError, Problems
from annocoin.evaluation.evaluator import evaluate
from annocoin.files import exclusive_lock
from annocoin.regions.proposals import RegionOptions
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.classifier import (
    Classifier,
    ClassifierArchitecture,
    read_classifier,
    write_classifier,
)
from annocoin.seeds.seed_set import SeedFolder
from annocoin.seeds.seeder import Seeder, SeedOptions
from annocoin.types import Annotation, WeakLabel
from pictures import picture

Run = Callable[..., Any]
TINY = options_for("tiny", size=64, epochs=2, batch=4)
WORDS = ("--backbone", "tiny", "--size", 64, "--epochs", 2, "--batch", 4)


@pytest.fixture(scope="module")
def regions(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("regions") / "regions"
    make_regions(load_labelled(scenes), out, RegionOptions("gradient", limit=60), jobs=1)
    return out


@pytest.fixture(scope="module")
def classifier(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained one, which serves as well where only the machinery is looked at."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("classifier") / "c.safetensors"
    write_classifier(
        path, Classifier(ClassifierArchitecture(load_weak(scenes).classes, "tiny", size=64))
    )
    return path


def same(first: SeedFolder, second: SeedFolder) -> bool:
    return set(first) == set(second) and all(
        torch.equal(getattr(first[i], name), getattr(second[i], name))
        for i in first
        for name in ("labels", "points", "scores", "weak_labels", "responses", "maps")
    )


def test_from_tags_to_first_labels_by_command(
    annocoin: Run, scenes: Path, regions: Path, tmp_path: Path
) -> None:
    out = tmp_path / "seeds"
    words = (scenes, "--regions", regions, "--out", out, *WORDS)
    outcome = annocoin("seeds", *words, "--jobs", 2, "--validation-split", "val")
    assert (outcome.code, outcome.err) == (0, "")
    assert "epoch 2: loss" in outcome.out
    assert "in validation" in outcome.out
    assert "seeds of 8 images" in outcome.out
    lines = [json.loads(line) for line in (out / "classifier.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert sorted(path.name for path in out.iterdir() if path.suffix != ".npz") == [
        ".lock", "classifier.jsonl", "classifier.safetensors",
        "labels-combined.json", "labels-objectness.json", "labels-response.json",
        "labels-votes.json", "seeds.json",
    ]  # fmt: skip
    weak, truth = load_weak(scenes), load_evaluation(scenes)
    folder = SeedFolder(out)
    for way in ("votes", "combined", "objectness", "response"):
        found = read_predictions(out / f"labels-{way}.json", truth)
        for image in weak:  # consistent with the annotation: no class without a label
            labels = set(found[image.image_id].labels.tolist())
            assert labels == set(image.annotation.distinct_labels)
            assert set(folder[image.image_id].labels.tolist()) == labels
        assert 0 <= evaluate(found, truth, thresholds=(0.25,)).mean[0.25] <= 1
    # A second run has nothing to do, and says the same.
    stamps = {path: path.stat().st_mtime_ns for path in out.glob("*.npz")}
    again = annocoin("seeds", *words, "--jobs", 1, "--validation-split", "val")
    assert again.out.splitlines()[-4:] == outcome.out.splitlines()[-4:]
    assert "epoch" not in again.out
    assert stamps == {path: path.stat().st_mtime_ns for path in out.glob("*.npz")}
    shown = tmp_path / "sheet.png"
    words = ("show", out, scenes, "--regions", regions, "--out", shown, "--count", 2)
    assert annocoin("seeds", *words).code == 0
    assert Image.open(shown).width > 4 * 320
    outcome = annocoin("seeds", *words, "--supervision", "box")
    assert (outcome.code, "made with --supervision image" in outcome.err) == (2, True)


def test_killed_at_any_moment_the_same_command_goes_on(
    scenes: Path, regions: Path, tmp_path: Path
) -> None:
    out, straight = tmp_path / "seeds", tmp_path / "straight"
    weak = load_weak(scenes)
    make_seeds(weak, RegionFolder(regions), straight, classifier=TINY, jobs=1)
    words = [str(word) for word in (scenes, "--regions", regions, "--out", out, *WORDS)]
    command = [sys.executable, "-m", "annocoin", "seeds", *words, "--jobs", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    for sign in ("classifier.part.safetensors", "*.npz"):
        process = subprocess.Popen(command, start_new_session=True, env=environment)
        while not list(out.glob(sign)) and process.poll() is None:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert list(out.glob(sign))
    subprocess.run(command, check=True, capture_output=True, env=environment)
    assert same(SeedFolder(straight), SeedFolder(out))
    assert not list(out.glob("classifier.part*"))
    first, second = (
        [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
        for lines in ((f / "classifier.jsonl").read_text().splitlines() for f in (straight, out))
    )
    assert first == second


@pytest.mark.parametrize("supervision", ["box", "point", "mixed"])
def test_other_supervision(
    scenes: Path, regions: Path, classifier: Path, tmp_path: Path, supervision: Any
) -> None:
    weak = load_weak(scenes, supervision)
    folder = make_seeds(weak, RegionFolder(regions), tmp_path / "s", classifier=classifier, jobs=1)
    labels = first_labels(weak, RegionFolder(regions), folder, jobs=1)
    for image in weak:
        seeds = folder[image.image_id]
        assert sorted(seeds.annotation_index.tolist()) == list(range(len(image.annotation)))
        assert len(labels[image.image_id]) == len(image.annotation)
        assert torch.allclose(seeds.responses.sum(dim=(1, 2)), torch.ones(len(seeds)))
        for weak_label, (x, y) in zip(
            seeds.annotation_index.tolist(), seeds.points.tolist(), strict=True
        ):
            box = image.annotation[weak_label].box
            assert box is None or (box[0] <= x <= box[2] and box[1] <= y <= box[3])


def test_other_options_need_another_folder(
    scenes: Path, regions: Path, classifier: Path, tmp_path: Path
) -> None:
    weak, folder = load_weak(scenes), RegionFolder(regions)
    out = tmp_path / "s"
    make_seeds(weak, folder, out, classifier=classifier, jobs=1)
    with pytest.raises(InputError, match=r"made with threshold 0\.\d+, now it is 0\.9"):
        make_seeds(weak, folder, out, SeedOptions(threshold=0.9), classifier=classifier)
    with pytest.raises(InputError, match="made with supervision image, now it is box"):
        make_seeds(load_weak(scenes, "box"), folder, out, classifier=classifier)
    with pytest.raises(InputError, match="made with classifier"):
        make_seeds(weak, folder, out, classifier=TINY)
    with exclusive_lock(out / ".lock"), pytest.raises(InputError, match="another process"):
        make_seeds(weak, folder, out, classifier=classifier)


def test_a_classifier_of_another_training_is_not_taken(
    scenes: Path, regions: Path, tmp_path: Path
) -> None:
    weak, folder, out = load_weak(scenes), RegionFolder(regions), tmp_path / "s"
    make_seeds(weak, folder, out, classifier=TINY, jobs=1)
    for path in out.glob("*.npz"):  # as if it had been killed before the first seeds
        path.unlink()
    other = replace(TINY, epochs=1)
    with pytest.raises(InputError, match="of a training with epochs 2, now it is 1"):
        make_seeds(weak, folder, out, classifier=other, jobs=1)
    assert len(make_seeds(weak, folder, out, classifier=TINY, jobs=1)) == 8


def test_a_changed_annotation_has_new_seeds(
    scenes: Path, regions: Path, classifier: Path, tmp_path: Path
) -> None:
    weak, folder, out = load_weak(scenes, "box"), RegionFolder(regions), tmp_path / "s"
    made = make_seeds(weak, folder, out, classifier=classifier, jobs=1)
    stamps = {i: path.stat().st_mtime_ns for i, path in made.files.items()}
    image = max(weak, key=lambda image: len(image.annotation))
    fewer = replace(image, annotation=image.annotation[1:])
    override = replace(weak, images=tuple(fewer if i is image else i for i in weak))
    again = make_seeds(override, folder, out, classifier=classifier, jobs=1)
    new = [i for i, path in again.files.items() if path.stat().st_mtime_ns != stamps[i]]
    assert new == [image.image_id]
    assert len(again[image.image_id]) == len(image.annotation) - 1


def test_numbers_are_good_names_for_images(
    annocoin: Run, scenes: Path, classifier: Path, tmp_path: Path
) -> None:
    """COCO's ids may begin at 0."""
    assert annocoin("convert", scenes, tmp_path / "c.json", "--to", "coco").code == 0
    content = json.loads((tmp_path / "c.json").read_text())
    for number, image in enumerate(content["images"]):
        for weak_label in content["annotations"]:
            weak_label["image_id"] = (
                number if weak_label["image_id"] == image["id"] else weak_label["image_id"]
            )
        image["id"] = number
    (tmp_path / "c.json").write_text(json.dumps(content))
    images = scenes / "JPEGImages"
    labelled = load_labelled(tmp_path / "c.json", images=images)[:2]
    made = make_regions(labelled, tmp_path / "r", RegionOptions("gradient", 20), jobs=1)
    weak = load_weak(tmp_path / "c.json", images=images)[:2]
    seeds = make_seeds(weak, made, tmp_path / "s", classifier=classifier, jobs=1)
    assert set(first_labels(weak, made, seeds, jobs=1)) == {0, 1}


def test_bad_input(
    annocoin: Run, scenes: Path, regions: Path, classifier: Path, tmp_path: Path
) -> None:
    weak, folder = load_weak(scenes), RegionFolder(regions)
    outcome = annocoin("seeds", scenes, "--regions", tmp_path, "--out", tmp_path / "s")
    assert (outcome.code, "make it with `annocoin regions`" in outcome.err) == (2, True)
    words = ("seeds", scenes, "--regions", regions, "--out", tmp_path / "s")
    for extra, reason in {
        ("--backbone", "resnet51"): "backbone 'resnet51'",
        ("--threshold", 2): "expected 0 to 1",
        ("--rule", "guided"): "expected one of conserving, published",
        ("--classifier", tmp_path / "none"): "no such file",
        ("--epochs", 0): "epochs 0",
        ("--seed", -1): "expected 0 or more",
        ("--frozen", -1): "expected 0 or more",
        ("--classifier", classifier, "--epochs", 3): "leave out the options of training",
        ("--supervision", "scribble"): "expected one of image",
        ("--device", "quantum"): "device",
    }.items():
        outcome = annocoin(*words, *extra)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
        assert reason in outcome.err
    other = tmp_path / "other.safetensors"
    write_classifier(other, Classifier(ClassifierArchitecture(("cat",), "tiny")))
    with pytest.raises(InputError, match="a classifier of"):
        make_seeds(weak, folder, tmp_path / "s", classifier=other)
    fewer = tmp_path / "fewer"
    make_regions(load_labelled(scenes)[:3], fewer, RegionOptions("gradient", 20), jobs=1)
    with pytest.raises(InputError, match="no regions of image"):
        make_seeds(weak, RegionFolder(fewer), tmp_path / "t", classifier=classifier)
    problems = Problems(skip=True)
    made = make_seeds(
        weak, RegionFolder(fewer), tmp_path / "t", classifier=classifier, problems=problems, jobs=1
    )
    assert (len(made), len(problems.skipped)) == (3, 5)


def test_a_bad_image_is_skipped(tmp_path: Path, classifier: Path) -> None:
    for name in ("a.png", "b.png"):
        picture(tmp_path / "data/images" / name)
    (tmp_path / "data/labels.csv").write_text("image,class\na.png,cat\nb.png,cat\n")
    labelled = load_labelled(tmp_path / "data")
    folder = make_regions(labelled, tmp_path / "r", RegionOptions("gradient"), jobs=1)
    weak = load_weak(tmp_path / "data")
    (tmp_path / "data/images/b.png").write_bytes(b"\x89PNG broken")
    one = tmp_path / "one.safetensors"
    write_classifier(one, Classifier(ClassifierArchitecture(("cat",), "tiny", size=64)))
    with pytest.raises(InputError, match=r"b\.png"):
        make_seeds(weak, folder, tmp_path / "s", classifier=one, jobs=1)
    problems = Problems(skip=True)
    made = make_seeds(weak, folder, tmp_path / "s", classifier=one, jobs=1, problems=problems)
    assert list(made) == ["a"]
    problems = Problems(skip=True)
    made = make_seeds(weak, folder, tmp_path / "t", classifier=TINY, jobs=1, problems=problems)
    assert list(made) == ["a"]
    assert len(problems.skipped) == 1, "met in training, and for seeds, and told once"
    with pytest.raises(InputError, match=r"b\.png"):
        make_seeds(weak, folder, tmp_path / "u", classifier=TINY, jobs=1)


def test_images_of_any_shape(classifier: Path) -> None:
    seed = Seeder(read_classifier(classifier))
    for height, width in ((1, 1), (3, 500), (700, 20), (64, 64)):
        image = np.full((height, width, 3), 127, np.uint8)
        seeds = seed(image, Annotation((height, width), (WeakLabel(1), WeakLabel(3))))
        assert {1, 3} == set(seeds.labels.tolist())
        assert torch.allclose(seeds.responses.sum(dim=(1, 2)), torch.ones(len(seeds)))
    with pytest.raises(InputError, match="class 9; the classifier has 6"):
        seed(np.zeros((8, 8, 3), np.uint8), Annotation((8, 8), (WeakLabel(9),)))


def test_a_mask_given_as_label_is_its_own_seed(classifier: Path) -> None:
    mask = np.zeros((1, 40, 40), np.uint8)
    mask[0, 5:12, 20:33] = 1
    weak_label = WeakLabel(2, mask=masks.encode(mask)[0])
    seeds = Seeder(read_classifier(classifier))(
        np.zeros((40, 40, 3), np.uint8), Annotation((40, 40), (weak_label,))
    )
    x, y = seeds.points[0].long().tolist()
    assert mask[0, y, x]
