"""Training of the image classifier: it learns, resumes exactly, and refuses bad options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision

from annocoin.backbones import build_backbone
from annocoin.data.loading import load_weak
from annocoin.engine.classifier_training import (
    ClassifierOptions,
    augmented,
    options_for,
    predict_tags,
    tag_map,
    tag_matrix,
    tags_fingerprint,
    train_classifier,
)
from annocoin.errors import InputError

QUICK = ClassifierOptions(backbone="tiny", size=64, epochs=3, batch=4)


def test_augmentation_depends_on_its_numbers_only() -> None:
    image = np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)
    one = augmented(image, 64, np.random.default_rng([1, 2, 3]))
    assert one.shape == (3, 64, 64)
    assert torch.equal(one, augmented(image, 64, np.random.default_rng([1, 2, 3])))
    assert not torch.equal(one, augmented(image, 64, np.random.default_rng([1, 2, 4])))
    shapes = {augmented(image, s, np.random.default_rng(s)).shape for s in range(32, 60)}
    assert len(shapes) == 28
    assert 0 <= float(one.min()) <= float(one.max()) <= 1


def test_tags_and_their_fingerprint(scenes: Path) -> None:
    weak = load_weak(scenes)
    tags = tag_matrix(weak)
    for row, image in zip(tags.tolist(), weak, strict=True):
        assert [i + 1 for i, on in enumerate(row) if on] == list(image.annotation.distinct_labels)
    assert tag_map(tags, weak) == 1
    assert tags_fingerprint(weak) == tags_fingerprint(load_weak(scenes, "box"))
    assert tags_fingerprint(weak) != tags_fingerprint(weak[:7])


def test_training_learns(scenes: Path) -> None:
    """Few images, seen often: the classifier must come to know them."""
    weak = load_weak(scenes)
    lines: list[dict[str, Any]] = []
    options = options_for("tiny", size=64, epochs=40, batch=4)
    net = train_classifier(weak, options, validation=weak[:2], log=lines.append)
    assert [line["epoch"] for line in lines] == list(range(1, 41))
    assert lines[-1]["loss"] < 0.7 * lines[0]["loss"]
    assert set(lines[0]) == {"epoch", "loss", "training_tag_map", "validation_tag_map", "seconds"}
    assert tag_map(predict_tags(net, weak), weak) > 0.8


def test_an_interrupted_training_ends_as_if_it_had_not_been(scenes: Path, tmp_path: Path) -> None:
    weak = load_weak(scenes)
    straight = train_classifier(weak, QUICK)
    file = tmp_path / "part.safetensors"

    def stop(figures: dict[str, Any]) -> None:
        if figures["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_classifier(weak, QUICK, checkpoint=file, log=stop)
    torch.manual_seed(99)  # what was drawn elsewhere does not matter
    lines: list[dict[str, Any]] = []
    resumed = train_classifier(weak, QUICK, checkpoint=file, log=lines.append)
    assert [line["epoch"] for line in lines] == [2, 3]
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_checkpoint_of_something_else_is_refused(scenes: Path, tmp_path: Path) -> None:
    weak = load_weak(scenes)
    file = tmp_path / "part.safetensors"
    once = ClassifierOptions(backbone="tiny", size=64, epochs=1, batch=4)
    train_classifier(weak, once, checkpoint=file)
    with pytest.raises(InputError, match="epochs 1, now it is 3"):
        train_classifier(weak, QUICK, checkpoint=file)
    with pytest.raises(InputError, match=r"images .* now it is"):
        train_classifier(weak[:5], once, checkpoint=file)
    file.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="damaged"):
        train_classifier(weak, once, checkpoint=file)


def test_frozen_parts_and_given_statistics_stay(scenes: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = tmp_path / "r18.pth"
    torch.save(torchvision.models.resnet18().state_dict(), weights)
    options = ClassifierOptions("resnet18", str(weights), size=64, epochs=1, batch=4, frozen=5)
    net = train_classifier(load_weak(scenes), options)
    start = build_backbone("resnet18", weights)
    learnt = net.trunk.state_dict()
    for name, value in start.state_dict().items():
        stays = name.startswith(("conv1", "bn1", "layer1")) or "running" in name
        assert torch.equal(learnt[name], value) == (stays or "num_batches" in name), name


def test_layers_dropped_at_random_are_a_matter_of_the_seed(scenes: Path, tmp_path: Path) -> None:
    options = ClassifierOptions("efficientnet_b0", "none", size=64, epochs=1, batch=8)
    weak = load_weak(scenes)[:2]
    first = train_classifier(weak, options).state_dict()
    torch.rand(3)
    second = train_classifier(weak, options).state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_tiny_backbone_keeps_only_layers_that_came_with_weights() -> None:
    assert options_for("tiny").frozen == 7
    assert options_for("tiny", backbone_weights="none").frozen == 0
    assert options_for("resnet50", epochs=3) == ClassifierOptions(epochs=3)


def test_a_loss_that_is_no_number_stops(scenes: Path) -> None:
    options = ClassifierOptions(backbone="tiny", size=64, epochs=2, batch=4, head_rate=1e30)
    with pytest.raises(InputError, match=r"loss is (nan|inf) in epoch \d at images .*lower"):
        train_classifier(load_weak(scenes), options)


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"batch": 0}, {"precision": "8"}, {"stimulated": 2.0}, {"seed": -1}],
)
def test_bad_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        ClassifierOptions(**wrong)
