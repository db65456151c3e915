"""Training of the image classifier from tags: multi-label, with peak stimulation."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.transforms import v2

from annocoin.backbones import IMAGENET_MEAN, SCRATCH, resize_longest_side
from annocoin.data.dataset import WeakDataset
from annocoin.engine.distribution import single_process, warn_of_slow_bfloat16
from annocoin.engine.network_config import ClassifierOptions
from annocoin.engine.randomness import seed_of, seeded
from annocoin.engine.trainer import Batch, Figures, ImageExamples, Schedule, Trainer
from annocoin.errors import Problems
from annocoin.files import file_digest
from annocoin.progress import track
from annocoin.seeds.classifier import (
    Classifier,
    ClassifierArchitecture,
    peak_scores,
    tag_average_precision,
)

NAME = "classifier"
SCALES = (0.7, 1.25)
"""The longer side of an image, as a factor of the side of the training square."""

COLOUR_JITTER = 0.3
MEASURED_IMAGES = 500
"""The most training images on which the tag mAP is measured."""


def train_classifier(
    dataset: WeakDataset,
    options: ClassifierOptions | None = None,
    *,
    seed: int = 0,
    trainer: Trainer | None = None,
) -> Classifier:
    """Train a classifier on the classes that the annotations name.

    Args:
        trainer: with its process group, checkpoint and metrics.
    """
    options, trainer = options or ClassifierOptions(), trainer or Trainer()
    group = trainer.group or single_process()
    if options.precision == "bf16":
        warn_of_slow_bfloat16(group.device)
    architecture = ClassifierArchitecture(
        dataset.classes, options.backbone, options.stride_in_1x1, options.size
    )
    with seeded(seed_of(seed, "classifier weights")):
        net = Classifier(architecture, options.weights)
    net = net.to(group.device).to(memory_format=torch.channels_last)
    for module in list(net.trunk)[: options.frozen_layers]:
        module.requires_grad_(False)
    backbone = [weight for weight in net.trunk.parameters() if weight.requires_grad]
    parameters = [{"params": list(net.head.parameters()), "lr": options.head_lr}]
    if backbone:
        parameters.append({"params": backbone, "lr": options.backbone_lr})
    images_per_step = options.batch_size * group.world_size
    schedule = Schedule(
        steps=math.ceil(options.epochs * len(dataset) / images_per_step),
        batch_size=options.batch_size,
        weight_decay=options.weight_decay,
    )
    examples = _ClassifierExamples(dataset, options.size, seed)
    trainer.fit(
        _ClassifierStep(net, options, schedule.steps),
        examples,
        parameters,
        schedule,
        name=NAME,
        seed=seed,
    )
    return net.eval()


def provenance(options: ClassifierOptions, dataset: WeakDataset, seed: int) -> dict[str, Any]:
    """All that a trained classifier depends on, for the files that keep it."""
    tags = [[image.image_id, image.annotation.distinct_labels] for image in dataset]
    digest = hashlib.sha256(json.dumps([dataset.classes, tags]).encode()).hexdigest()[:12]
    weights = Path(options.weights)
    if weights.is_file():
        options = replace(options, weights=file_digest(weights))
    return {**asdict(options), "seed": seed, "images": digest}


@torch.inference_mode()
def predict_tags(
    net: Classifier, dataset: WeakDataset, problems: Problems | None = None
) -> tuple[Tensor, Tensor]:
    """Class scores (logits) and tags (0 or 1) of every readable image, both [N, C]."""
    net.eval()
    device, problems = net.mean.device, problems or Problems()
    scores, tags = [], []
    for image in track(dataset.images, "tags"):
        with problems.caught():
            pixels = resize_longest_side(image.pixels(), net.architecture.size)[None].to(device)
            pixels = pixels.contiguous(memory_format=torch.channels_last)
            scores.append(net.scores(net(pixels))[0].cpu())
            tags.append(tags_of(image.annotation.distinct_labels, len(dataset.classes)))
    empty = torch.zeros(0, len(dataset.classes))
    return torch.stack(scores) if scores else empty, torch.stack(tags) if tags else empty


def tag_map(net: Classifier, dataset: WeakDataset, problems: Problems | None = None) -> float:
    """Mean average precision of the classifier's scores for the dataset's tags."""
    scores, tags = predict_tags(net, dataset, problems)
    return float(tag_average_precision(scores, tags.bool()).nanmean())


def tags_of(labels: tuple[int, ...], classes: int) -> Tensor:
    """Classes 1..C as a float32 vector [C] of 0 and 1."""
    tags = torch.zeros(classes)
    tags[[label - 1 for label in labels]] = 1
    return tags


class _ClassifierExamples(ImageExamples):
    """Augmented images, float32 [3, size, size] in 0..1, and their tags [C]."""

    def __init__(self, dataset: WeakDataset, size: int, seed: int) -> None:
        super().__init__(dataset)
        self.classes, self.seed = len(dataset.classes), seed
        self.augment = v2.Compose(
            [
                v2.RandomHorizontalFlip(),
                v2.ColorJitter(COLOUR_JITTER, COLOUR_JITTER, COLOUR_JITTER),
                v2.ScaleJitter((size, size), SCALES),
                # cuts at most a fifth of the longer side, so that tags mostly stay true
                v2.RandomCrop(
                    size, pad_if_needed=True, fill=[round(255 * mean) for mean in IMAGENET_MEAN]
                ),
                v2.ToDtype(torch.float32, scale=True),
            ]
        )

    def load(self, index: int, step: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        pixels = torch.from_numpy(image.pixels().copy()).permute(2, 0, 1)
        with seeded(seed_of(self.seed, NAME, "augmentation", step, str(image.image_id))):
            pixels = self.augment(pixels)
        return pixels, tags_of(image.annotation.distinct_labels, self.classes)


class _ClassifierStep(nn.Module):
    def __init__(self, net: Classifier, options: ClassifierOptions, steps: int) -> None:
        super().__init__()
        self.net, self.options = net, options
        self.first_peak_step = round((1 - options.peak_fraction) * steps)

    def train(self, mode: bool = True) -> _ClassifierStep:
        """Training mode; but pretrained batch normalisation keeps its statistics."""
        super().train(mode)
        if self.options.weights != SCRATCH:
            for module in self.net.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], Figures]:
        device = self.net.mean.device
        pixels = torch.stack([pixels for pixels, _ in batch.examples]).to(device)
        tags = torch.stack([tags for _, tags in batch.examples]).to(device)
        bfloat16 = self.options.precision == "bf16"
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            maps = self.net(pixels.contiguous(memory_format=torch.channels_last))
        if batch.step < self.first_peak_step:
            scores = maps.float().mean(dim=(-2, -1))
        else:
            scores = peak_scores(maps.float(), sharpness=self.options.peak_sharpness)
        return {"loss_tags": F.binary_cross_entropy_with_logits(scores, tags)}, {}
