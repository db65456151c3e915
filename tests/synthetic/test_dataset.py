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


def test_same_seed_same_bytes_and_other_seed_other_bytes(tmp_path: Path) -> None:
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


def test_what_is_written_is_what_was_painted(scenes: Path) -> None:
    truth = load_evaluation(scenes)
    assert truth.classes == CLASSES
    for index, image_id in enumerate(truth):
        scene = render_scene(3, index, (64, 64))
        found = truth.truth(image_id)
        assert found.labels.tolist() == list(scene.labels)
        for k, mask in enumerate(found.dense().numpy(), start=1):
            assert np.array_equal(mask, scene.ids == k)


def test_splits_part_the_images(scenes: Path) -> None:
    ids = {s: [i.image_id for i in load_weak(scenes, split=s)] for s in ("train", "val")}
    assert (len(ids["train"]), len(ids["val"])) == (7, 1)
    assert [i.image_id for i in load_weak(scenes, split="trainval")] == ids["train"] + ids["val"]


@pytest.mark.parametrize("wrong", [{"images": 0}, {"size": 20}, {"seed": -1}])
def test_impossible_wishes_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="expected 1 or more images"):
        write_synthetic(tmp_path / "out", **wrong)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()
