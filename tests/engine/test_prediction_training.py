"""Training of the prediction network on pseudo labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision.models.detection import MaskRCNN

from annocoin.data.dataset import WeakDataset
from annocoin.data.loading import load_weak
from annocoin.engine.metrics import MemoryLogger
from annocoin.engine.network_config import PredictionConfig, PredictionTraining
from annocoin.engine.prediction_training import _PredictionExamples, train_prediction
from annocoin.engine.pseudo_labels import PseudoLabels
from annocoin.engine.trainer import Trainer
from annocoin.errors import InputError, Problems
from annocoin.prediction.networks import PredictionArchitecture, build_network
from annocoin.prediction.soft_losses import LossOptions
from annocoin.types import ImageId

Labels = dict[ImageId, PseudoLabels]


@pytest.fixture(scope="module")
def weak(scenes: Path) -> WeakDataset:
    return load_weak(scenes, "mask")


@pytest.fixture(scope="module")
def labels(weak: WeakDataset) -> Labels:
    return {image.image_id: PseudoLabels.single(image.annotation.instances()) for image in weak}


@pytest.fixture(scope="module")
def config(weak: WeakDataset) -> PredictionConfig:
    return PredictionConfig(
        PredictionArchitecture(
            weak.classes, "tiny", min_size=64, max_size=96, fpn_channels=16,
            representation_size=32, mask_layers=1, anchor_size=20, rpn_top_n=50,
        ),
        LossOptions(anchors_per_image=16, rois_per_image=8),
        PredictionTraining(batch_size=2, lr=1e-3, frozen_layers=4),
    )  # fmt: skip


def network(config: PredictionConfig) -> MaskRCNN:
    torch.manual_seed(0)
    return build_network(config.architecture, "imagenet")


def train(config: PredictionConfig, weak: Any, labels: Labels, **options: Any) -> MaskRCNN:
    net = options.pop("net", None) or network(config)
    options = {"steps": 4, "trainer": Trainer(workers=0), **options}
    train_prediction(net, config, weak, labels, **options)
    return net


def assert_same_weights(first: MaskRCNN, second: MaskRCNN) -> None:
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_the_loss_falls(config: PredictionConfig, weak: WeakDataset, labels: Labels) -> None:
    logger = MemoryLogger()
    net = train(
        config, weak[:2], labels, steps=40, trainer=Trainer(logger=logger, workers=0), gamma=1.0
    )
    losses = [line["loss"] for line in logger.lines]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    assert {"loss_classifier", "loss_mask", "loss_box_reg", "grad_norm"} <= set(logger.lines[0])
    assert not net.training


@pytest.mark.parametrize(("step", "workers"), [(1, 0), (2, 2), (3, 1)])
def test_a_resumed_training_ends_with_the_same_bits(
    config: PredictionConfig,
    weak: WeakDataset,
    labels: Labels,
    tmp_path: Path,
    step: int,
    workers: int,
) -> None:
    class Interrupted(Exception):
        pass

    class Failing(MemoryLogger):
        def log(self, figures: Any) -> None:
            if figures["step"] == step + 1:
                raise Interrupted

    jitter = replace(config, training=replace(config.training, scale_range=(1.1, 1.4)))
    straight = train(jitter, weak, labels)
    options: Any = {"checkpoint": tmp_path / "c.pt", "checkpoint_seconds": 0, "workers": workers}
    with pytest.raises(Interrupted):
        train(jitter, weak, labels, trainer=Trainer(logger=Failing(), **options))
    torch.manual_seed(7)
    assert_same_weights(train(jitter, weak, labels, trainer=Trainer(**options)), straight)


def test_learning_rates_of_backbone_and_heads(
    config: PredictionConfig, weak: WeakDataset, labels: Labels
) -> None:
    config = replace(config, training=replace(config.training, backbone_lr_factor=0.1))
    net = network(config)
    start = network(config).state_dict()
    rates = []

    class Recorder(Trainer):
        def fit(self, module: Any, examples: Any, parameters: Any, *rest: Any, **more: Any) -> None:
            rates.extend(group["lr"] for group in parameters)
            super().fit(module, examples, parameters, *rest, **more)

    train_prediction(net, config, weak, labels, steps=2, trainer=Recorder(workers=0))
    assert rates == pytest.approx([1e-3, 1e-4])
    trained = net.state_dict()
    layers = list(dict.fromkeys(n.split(".")[2] for n in trained if n.startswith("backbone.body")))
    for name, value in trained.items():
        if name.startswith("backbone.body") and name.endswith("0.weight"):
            frozen = layers.index(name.split(".")[2]) < 4
            assert not frozen or torch.equal(value, start[name]), name
    changed = [n for n in trained if not torch.equal(trained[n], start[n])]
    assert any(name.startswith("backbone.body") for name in changed)


def test_images_without_labels_are_left_out(
    config: PredictionConfig, weak: WeakDataset, labels: Labels
) -> None:
    some = {image.image_id: labels[image.image_id] for image in weak[::2]}
    expected = train(config, weak[::2].images, some)
    assert_same_weights(train(config, weak, some), expected)
    with pytest.raises(InputError, match="no image has pseudo labels"):
        train(config, weak, {})


def test_an_image_that_became_unreadable_is_skipped_or_named(
    config: PredictionConfig, weak: WeakDataset, labels: Labels, tmp_path: Path
) -> None:
    (tmp_path / "b.jpg").write_bytes(weak[5].path.read_bytes()[:-600])
    broken = replace(weak[5], path=tmp_path / "b.jpg")
    images = [*weak[:5], broken, *weak[6:]]
    with pytest.raises(InputError, match=str(broken.image_id)):
        train(config, images, labels)
    problems = Problems(skip=True)
    train(config, images, labels, trainer=Trainer(workers=0, problems=problems))
    assert len(problems.skipped) == 1
    assert str(broken.image_id) in problems.skipped[0]


def test_damaged_pseudo_labels_are_named(
    config: PredictionConfig, weak: WeakDataset, labels: Labels
) -> None:
    class Damaged(dict[ImageId, PseudoLabels]):
        def __getitem__(self, image_id: ImageId) -> PseudoLabels:
            raise InputError("a.npz: not a file of pseudo labels")

    with pytest.raises(InputError, match=r"image '.*': a\.npz: not a file of pseudo labels"):
        train(config, weak, Damaged(labels))


def test_examples_are_mirrored_and_scaled_with_their_targets(
    config: PredictionConfig, weak: WeakDataset, labels: Labels
) -> None:
    jitter = replace(config, training=replace(config.training, scale_range=(0.5, 1.5)))
    examples = _PredictionExamples(weak, labels, jitter, 0, "x")
    assert examples.image_id(3) == weak[3].image_id
    sizes, mirrored = set(), set()
    box = labels[weak[0].image_id].instances.boxes[0]
    for step in range(12):
        image, targets, seed = examples.load(0, step)
        again = examples.load(0, step)
        assert torch.equal(image.pixels, again.image.pixels)
        assert seed == again.seed
        sizes.add(image.size)
        assert 32 <= min(image.size) <= 96
        masks = targets.masks[0]
        ys, xs = masks.nonzero().unbind(dim=1)
        tight = torch.stack([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1]).float()
        pixel = max(1.0, masks.shape[1] / 64)
        assert (tight - targets.boxes[0]).abs().max() <= 2 * pixel, "masks and boxes agree"
        scale = masks.shape[1] / 64
        mirrored.add(bool((targets.boxes[0, 0] - box[0] * scale).abs() > 2))
        in_network = targets.boxes[0] * image.scale
        assert in_network[2] <= image.size[1] + 1
        assert masks.shape[0] <= 64, "never more pixels than the image has"
    assert len(sizes) > 6
    assert mirrored == {False, True}


def test_class_agnostic_masks_are_equal_for_all_classes(
    config: PredictionConfig, weak: WeakDataset, labels: Labels
) -> None:
    losses = replace(config.losses, class_agnostic_masks=True)
    net = train(replace(config, losses=losses), weak, labels, steps=1)
    weight = net.roi_heads.mask_predictor.mask_fcn_logits.weight
    assert torch.equal(weight, weight[:1].expand_as(weight))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_every_optimizer_trains(
    config: PredictionConfig, weak: WeakDataset, labels: Labels, optimizer: Any
) -> None:
    config = replace(config, training=replace(config.training, optimizer=optimizer))
    net = train(config, weak, labels, steps=1)
    trained = net.roi_heads.box_predictor.cls_score.weight
    assert not torch.equal(trained, network(config).roi_heads.box_predictor.cls_score.weight)


def test_bfloat16_of_one_network(
    config: PredictionConfig, weak: WeakDataset, labels: Labels
) -> None:
    """Close to full precision, and not the same; weights stay in full precision."""
    losses = {}
    for precision in ("32", "bf16"):
        logger = MemoryLogger()
        training = replace(config.training, precision=precision)
        trainer = Trainer(workers=0, logger=logger)
        net = train(replace(config, training=training), weak, labels, steps=1, trainer=trainer)
        assert {weight.dtype for weight in net.parameters()} == {torch.float32}
        losses[precision] = logger.lines[0]["loss"]
    assert losses["bf16"] != losses["32"]
    assert losses["bf16"] == pytest.approx(losses["32"], rel=0.05)
