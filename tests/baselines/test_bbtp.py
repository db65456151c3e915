"""BBTP: Mask R-CNN whose masks are learned from boxes alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from annocoin.baselines.bbtp import bbtp_losses, box_instances
from annocoin.data.loading import load_weak
from annocoin.engine.metrics import MemoryLogger
from annocoin.engine.network_config import PredictionConfig, PredictionTraining
from annocoin.engine.prediction_training import train_prediction
from annocoin.engine.pseudo_labels import PseudoLabels
from annocoin.engine.trainer import Trainer
from annocoin.errors import InputError
from annocoin.prediction.networks import PredictionArchitecture, build_network
from annocoin.prediction.soft_losses import LossOptions
from annocoin.types import Annotation, WeakLabel


def test_instances_fill_their_boxes() -> None:
    labels = (
        WeakLabel(2, box=(1.0, 2.0, 4.0, 3.0)),
        WeakLabel(1, box=(0.0, 0.0, 6.0, 5.0), crowd=True),
        WeakLabel(3, box=(4.5, 0.5, 6.0, 5.0)),
    )
    instances = box_instances(Annotation((5, 6), labels))
    assert instances.labels.tolist() == [2, 3]
    assert instances.boxes.tolist() == [[1, 2, 4, 3], [4.5, 0.5, 6, 5]]
    assert instances.dense()[0].nonzero().tolist() == [[2, 1], [2, 2], [2, 3]]
    assert instances.areas.tolist() == [3, 10]
    assert len(box_instances(Annotation((5, 6)))) == 0


def test_a_tag_is_refused() -> None:
    with pytest.raises(InputError, match="label without box"):
        box_instances(Annotation((5, 6), (WeakLabel(1),)))


def test_the_losses_are_mask_rcnns_but_for_masks() -> None:
    options = bbtp_losses(LossOptions(rois_per_image=8, mask_weight=2.0))
    assert options == LossOptions(
        rois_per_image=8, mask_weight=2.0, masks="projection", pointwise=True
    )


def test_a_network_learns_from_boxes(scenes: Path) -> None:
    """Its mask loss falls, and only boxes are read: two images, without masks."""
    weak = load_weak(scenes, "box")
    images = weak[:2]
    labels = {
        image.image_id: PseudoLabels.single(box_instances(image.annotation)) for image in images
    }
    config = PredictionConfig(
        PredictionArchitecture(
            weak.classes, "tiny", min_size=64, max_size=96, fpn_channels=16,
            representation_size=32, mask_layers=1, anchor_size=20, rpn_top_n=50,
        ),
        LossOptions(anchors_per_image=16, rois_per_image=8),
        PredictionTraining(batch_size=2, lr=3e-3, frozen_layers=4),
    )  # fmt: skip
    config = replace(config, losses=bbtp_losses(config.losses))
    torch.manual_seed(0)
    net, logger = build_network(config.architecture, "imagenet"), MemoryLogger()
    trainer = Trainer(logger=logger, workers=0)
    train_prediction(net, config, images, labels, steps=40, trainer=trainer)
    masks = [line["loss_mask"] for line in logger.lines]
    assert sum(masks[-10:]) < 0.8 * sum(masks[:10])
    assert "mask_entropy" not in logger.lines[0]
