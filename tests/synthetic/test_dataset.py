from __future__ import annotations

import filecmp
from pathlib import Path

import numpy as np
import pytest

from annocoin.data.loading import load_evaluation, load_weak
from annocoin.errors import InputError
from annocoin.synthetic.creatures import CLASSES
from annocoin.synthetic.dataset import render_scene, write_synthetic


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_files_depend_on_the_seed_alone(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_synthetic(tmp_path / name, images=3, size=48, seed=seed)
    names = files(tmp_path / "a")
    assert names == files(tmp_path / "b") != files(tmp_path / "c")
    same, different, broken = filecmp.cmpfiles(tmp_path / "a", tmp_path / "b", names, shallow=False)
    assert (sorted(same), different, broken) == (names, [], [])


def test_a_longer_dataset_begins_with_the_shorter_one(tmp_path: Path) -> None:
    for name, images in (("a", 2), ("b", 4)):
        write_synthetic(tmp_path / name, images=images, size=48, seed=1)
    for folder in ("JPEGImages", "Annotations", "SegmentationObject"):
        for path in (tmp_path / "a" / folder).iterdir():
            assert filecmp.cmp(path, tmp_path / "b" / folder / path.name, shallow=False)


def test_written_masks_equal_the_rendered_ones(scenes: Path) -> None:
    truth = load_evaluation(scenes)
    assert truth.classes == CLASSES
    for index, image_id in enumerate(truth):
        scene = render_scene(3, index, (64, 64))
        instances = truth.truth(image_id)
        assert instances.labels.tolist() == list(scene.labels)
        for k, mask in enumerate(instances.dense().numpy(), start=1):
            assert np.array_equal(mask, scene.ids == k)


def test_train_and_val_partition_the_images(scenes: Path) -> None:
    ids = {s: [i.image_id for i in load_weak(scenes, split=s)] for s in ("train", "val")}
    assert (len(ids["train"]), len(ids["val"])) == (7, 1)
    assert [i.image_id for i in load_weak(scenes, split="trainval")] == ids["train"] + ids["val"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": 0}, "images 0; expected at least 1"),
        ({"size": 20}, "an image of 20 x 20; expected sides of 48 or more"),
        ({"seed": -1}, "seed -1, index 0; expected 0 or more"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_synthetic(tmp_path / "out", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
