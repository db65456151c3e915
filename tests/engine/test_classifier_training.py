"""Training of the image classifier: it learns, resumes exactly, and can be distributed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import load_file

from annocoin.backbones import build_backbone
from annocoin.data.dataset import WeakDataset
from annocoin.data.loading import load_weak
from annocoin.engine.classifier_training import (
    _ClassifierExamples,
    predict_tags,
    provenance,
    tag_map,
    tags_of,
    train_classifier,
)
from annocoin.engine.metrics import MemoryLogger
from annocoin.engine.network_config import ClassifierOptions
from annocoin.engine.presets import classifier_options
from annocoin.engine.trainer import Trainer
from annocoin.errors import InputError, Problems
from annocoin.seeds.classifier import Classifier

QUICK = ClassifierOptions(backbone="tiny", size=64, epochs=3, batch_size=4)

TWO_PROCESSES = """
import sys
import torch
from annocoin.data.loading import load_weak
from annocoin.engine.classifier_training import train_classifier
from annocoin.engine.network_config import ClassifierOptions
from annocoin.engine.distribution import init_distributed
from annocoin.engine.trainer import Trainer
from annocoin.seeds.classifier import write_classifier

torch.set_num_threads(1)
group = init_distributed(devices=2)
options = ClassifierOptions(backbone="tiny", size=64, epochs=3, batch_size=2)
net = train_classifier(load_weak(sys.argv[1]), options, trainer=Trainer(group, workers=0))
write_classifier(f"{sys.argv[2]}/{group.rank}.safetensors", net)
"""


@pytest.fixture(scope="module")
def weak(scenes: Path) -> WeakDataset:
    return load_weak(scenes)


@pytest.fixture(scope="module")
def straight(weak: WeakDataset) -> Classifier:
    return train_classifier(weak, QUICK, trainer=Trainer(workers=0))


def assert_same_weights(first: Classifier, second: Classifier) -> None:
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_augmentation_depends_on_seed_step_and_image_only(weak: WeakDataset) -> None:
    examples = _ClassifierExamples(weak, 48, seed=0)
    pixels, tags = examples.load(1, 5)
    assert pixels.shape == (3, 48, 48)
    assert pixels.dtype == torch.float32
    assert 0 <= float(pixels.min()) < float(pixels.max()) <= 1
    assert (tags.nonzero()[:, 0] + 1).tolist() == list(weak[1].annotation.distinct_labels)
    torch.manual_seed(1)
    assert torch.equal(pixels, examples.load(1, 5)[0])
    assert torch.equal(pixels, _ClassifierExamples(weak[1:2], 48, seed=0).load(0, 5)[0])
    assert not torch.equal(pixels, examples.load(1, 6)[0])
    assert not torch.equal(pixels, _ClassifierExamples(weak, 48, seed=1).load(1, 5)[0])


def test_tags_and_provenance(scenes: Path, weak: WeakDataset, tmp_path: Path) -> None:
    assert tags_of((1, 3), 4).tolist() == [1, 0, 1, 0]
    assert tags_of((), 2).tolist() == [0, 0]
    assert provenance(QUICK, weak, 0) == provenance(QUICK, load_weak(scenes, "box"), 0)
    assert provenance(QUICK, weak, 0) != provenance(QUICK, weak[:7], 0)
    assert provenance(QUICK, weak, 0) != provenance(QUICK, weak, 1)
    assert provenance(QUICK, weak, 0) != provenance(replace(QUICK, epochs=1), weak, 0)
    digests = []
    for name, content in (("a", b"1"), ("b", b"1"), ("c", b"2")):
        (tmp_path / name).write_bytes(content)
        options = replace(QUICK, weights=str(tmp_path / name))
        digests.append(provenance(options, weak, 0)["weights"])
    assert digests[0] == digests[1] != digests[2], "files of weights count by their content"


def test_training_learns(weak: WeakDataset) -> None:
    """Few images in many epochs: the classifier must fit them."""
    logger = MemoryLogger()
    options = classifier_options("tiny", size=64, epochs=40, batch_size=4)
    net = train_classifier(weak, options, trainer=Trainer(logger=logger, workers=0))
    losses = [line["loss"] for line in logger.lines]
    assert len(losses) == 80
    assert sum(losses[-8:]) < 0.7 * sum(losses[:8])
    assert not net.training
    scores, tags = predict_tags(net, weak)
    assert scores.shape == tags.shape == (8, 6)
    assert tag_map(net, weak) > 0.8


def test_unreadable_images_have_no_predicted_tags(weak: WeakDataset, tmp_path: Path) -> None:
    net = train_classifier(
        weak, ClassifierOptions(backbone="tiny", size=64, epochs=1), trainer=Trainer(workers=0)
    )
    broken = replace(weak[0], path=tmp_path / "none.jpg")
    dataset = replace(weak, images=(broken, *weak[1:]))
    problems = Problems(skip=True)
    scores, _ = predict_tags(net, dataset, problems)
    assert len(scores) == 7
    assert len(problems.skipped) == 1
    with pytest.raises(InputError, match=r"none\.jpg"):
        predict_tags(net, dataset)


@pytest.mark.parametrize(("step", "workers"), [(1, 0), (2, 1), (5, 2)])
def test_a_resumed_training_ends_with_the_same_weights(
    weak: WeakDataset, straight: Classifier, tmp_path: Path, step: int, workers: int
) -> None:
    class Interrupted(Exception):
        pass

    class Failing(MemoryLogger):
        def log(self, figures: Any) -> None:
            super().log(figures)
            if figures["step"] == step + 1:
                raise Interrupted

    options: Any = {"checkpoint": tmp_path / "c.pt", "checkpoint_seconds": 0, "workers": workers}
    with pytest.raises(Interrupted):
        train_classifier(weak, QUICK, trainer=Trainer(logger=Failing(), **options))
    torch.manual_seed(99)
    logger = MemoryLogger()
    resumed = train_classifier(weak, QUICK, trainer=Trainer(logger=logger, **options))
    assert [line["step"] for line in logger.lines] == list(range(step + 1, 7))
    assert_same_weights(resumed, straight)


def test_loader_workers_change_no_bit(weak: WeakDataset, straight: Classifier) -> None:
    assert_same_weights(train_classifier(weak, QUICK, trainer=Trainer(workers=2)), straight)


@pytest.mark.skipif(sys.platform == "win32", reason="gloo between processes of one machine")
def test_two_processes_train_as_one_with_twice_the_batch(
    scenes: Path, straight: Classifier, tmp_path: Path
) -> None:
    """Processes with gloo: equal weights on both ranks, those of one process up to rounding."""
    script = tmp_path / "two.py"
    script.write_text(TWO_PROCESSES)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(scenes), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    for name, value in straight.state_dict().items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=1e-3, atol=1e-5)


def test_frozen_layers_and_pretrained_statistics_stay(weak: WeakDataset, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = tmp_path / "r18.pth"
    torch.save(torchvision.models.resnet18().state_dict(), weights)
    options = ClassifierOptions(
        "resnet18", str(weights), size=64, epochs=1, batch_size=4, frozen_layers=5
    )
    net = train_classifier(weak, options, trainer=Trainer(workers=0))
    trained = net.trunk.state_dict()
    for name, value in build_backbone("resnet18", weights).state_dict().items():
        stays = name.startswith(("conv1", "bn1", "layer1")) or "running" in name
        assert torch.equal(trained[name], value) == (stays or "num_batches" in name), name


def test_stochastic_layers_depend_on_the_seed_only(weak: WeakDataset) -> None:
    options = ClassifierOptions("efficientnet_b0", "none", size=64, epochs=1, batch_size=8)
    first = train_classifier(weak[:2], options, trainer=Trainer(workers=0))
    torch.rand(3)
    second = train_classifier(weak[:2], options, trainer=Trainer(workers=0))
    assert_same_weights(first, second)


def test_peak_stimulation_starts_in_the_last_part_of_the_training(weak: WeakDataset) -> None:
    """Until then the class scores, and with them the losses, are the same."""
    losses = []
    for fraction in (0.0, 0.5):
        logger = MemoryLogger()
        options = replace(QUICK, epochs=2, peak_fraction=fraction)
        train_classifier(weak, options, trainer=Trainer(logger=logger, workers=0))
        losses.append([line["loss"] for line in logger.lines])
    assert losses[0][:2] == losses[1][:2]
    assert losses[0][2] != losses[1][2]


def test_a_loss_that_is_not_finite_stops(weak: WeakDataset) -> None:
    options = replace(QUICK, head_lr=1e30)
    with pytest.raises(InputError, match=r"the loss is \S+ at step \d, images .*lower"):
        train_classifier(weak, options, trainer=Trainer(workers=0))


def test_an_image_that_cannot_be_read_is_named_or_skipped(
    weak: WeakDataset, tmp_path: Path
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"nothing")
    broken = replace(weak[2], path=tmp_path / "broken.jpg", image_id="number 2")
    dataset = replace(weak, images=(*weak[:2], broken, *weak[3:]))
    with pytest.raises(InputError, match=r"image 'number 2': .*broken\.jpg"):
        train_classifier(dataset, QUICK, trainer=Trainer(workers=0))
    problems = Problems(skip=True)
    train_classifier(dataset, QUICK, trainer=Trainer(workers=0, problems=problems))
    assert len(problems.skipped) == 1
    assert "number 2" in problems.skipped[0]
