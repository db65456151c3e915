"""The images of each round: all if the trainings see all, otherwise parts of a random order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.engine.config import Config
from annocoin.engine.prediction_training import RoundImages
from annocoin.engine.presets import preset
from annocoin.types import Annotation, WeakLabel


def dataset(count: int) -> WeakDataset:
    images = tuple(
        WeakImage(f"{i}", Path(f"{i}.jpg"), Annotation((8, 8), (WeakLabel(1),)))
        for i in range(count)
    )
    return WeakDataset(("cat",), (1,), "image", images)


def config(steps: int, final_steps: int, *, rounds: int = 2, batch_size: int = 3) -> Config:
    base = preset("voc-r50", ("cat",))
    training = replace(
        base.prediction.training, steps=steps, final_steps=final_steps, batch_size=batch_size
    )
    return replace(base, rounds=rounds, prediction=replace(base.prediction, training=training))


def ids(images: WeakDataset) -> list[int]:
    return [int(str(image.image_id)) for image in images]


def test_trainings_that_see_every_image_use_all() -> None:
    images = RoundImages(dataset(12), config(4, 10))
    for number in (1, 2, 3):
        assert images.of_round(number) is images.dataset
    assert images.used is images.dataset


def test_without_a_last_training_there_are_images_for_the_last_samples() -> None:
    images = RoundImages(dataset(50), config(4, 0))
    assert len(images.of_round(3)) == len(images.of_round(1)) == 12


def test_rounds_use_different_parts() -> None:
    images = RoundImages(dataset(50), config(4, 10))
    first, second, last = (ids(images.of_round(number)) for number in (1, 2, 3))
    assert (len(first), len(second), len(last)) == (12, 12, 30)
    assert not set(first) & set(second)
    assert set(first) | set(second) <= set(last)
    assert ids(images.used) == last == sorted(last)
    assert first != list(range(12))  # a random part


def test_the_order_starts_again_at_its_end() -> None:
    images = RoundImages(dataset(20), config(4, 1))
    first, second, last = (set(ids(images.of_round(number))) for number in (1, 2, 3))
    assert len(first | second) == 20
    assert len(first & second) == 4
    assert last <= first


@pytest.mark.parametrize("rounds", [0, 1])
def test_more_processes_see_more_images(rounds: int) -> None:
    options = config(1, 2, rounds=rounds)
    assert len(RoundImages(dataset(50), options).used) == 6
    assert len(RoundImages(dataset(50), options, world_size=2).used) == 12


def test_the_teacher_decides_what_rounds_see() -> None:
    options = preset("voc-cpu", ("cat",))
    assert options.teacher is not None
    training = replace(options.teacher.training, steps=2, batch_size=5)
    options = replace(options, teacher=replace(options.teacher, training=training))
    assert len(RoundImages(dataset(50), options).of_round(1)) == 10


def test_the_random_seed_decides_which() -> None:
    options = config(4, 4)
    parts = [ids(RoundImages(dataset(50), replace(options, seed=s)).used) for s in (0, 0, 1)]
    assert parts[0] == parts[1] != parts[2]
