"""Training of the prediction network on pseudo labels, with the conditional network fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN

from annocoin.backbones import Precision
from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.engine.config import Config
from annocoin.engine.distribution import warn_of_slow_bfloat16
from annocoin.engine.network_config import PredictionConfig
from annocoin.engine.pseudo_labels import PseudoLabels
from annocoin.engine.randomness import generator_at, seed_of
from annocoin.engine.trainer import Batch, Figures, ImageExamples, Schedule, Trainer
from annocoin.errors import InputError, Problems
from annocoin.objective.diversity import GAMMA
from annocoin.prediction.networks import (
    ResizedImage,
    batch_images,
    freeze_backbone,
    make_masks_class_agnostic,
    resize_shortest_side,
)
from annocoin.prediction.soft_losses import SoftLosses
from annocoin.prediction.soft_targets import SoftTargets
from annocoin.progress import track
from annocoin.types import ImageId


def train_prediction(
    net: MaskRCNN,
    config: PredictionConfig,
    images: Sequence[WeakImage],
    labels: Mapping[ImageId, PseudoLabels],
    *,
    steps: int,
    span: tuple[float, float] = (0.0, 1.0),
    gamma: float = GAMMA,
    name: str = "",
    seed: int = 0,
    trainer: Trainer | None = None,
) -> None:
    """Train a prediction network on the samples of the conditional distribution.

    Minimises DIV(Pr_p, Pr_c) - (1 - gamma) DIV(Pr_p, Pr_p).

    Args:
        labels: pseudo labels by image id; images without any are left out.
        span: the fraction of the training over all rounds that these steps are, for the schedule.
        name: such as the round; another name draws other images.
    """
    usable = [image for image in images if image.image_id in labels]
    if not usable:
        raise InputError("no image has pseudo labels to train the prediction network on")
    name, training = f"prediction network {name}".strip(), config.training
    trainer = trainer or Trainer()
    if training.precision == "bf16":
        warn_of_slow_bfloat16(next(net.parameters()).device)
    net.to(memory_format=torch.channels_last)  # faster on CPUs, ResNets in bfloat16 above all
    freeze_backbone(net, training.frozen_layers)
    backbone = [weight for weight in net.backbone.body.parameters() if weight.requires_grad]
    pretrained = {id(weight) for weight in backbone}
    heads = [w for w in net.parameters() if w.requires_grad and id(w) not in pretrained]
    trainer.fit(
        _PredictionStep(SoftLosses(net, config.losses, gamma), training.precision),
        _PredictionExamples(usable, labels, config, seed, name),
        [
            {"params": heads, "lr": training.lr},
            {"params": backbone, "lr": training.lr * training.backbone_lr_factor},
        ],
        Schedule(
            steps,
            training.batch_size,
            optimizer=training.optimizer,
            weight_decay=training.weight_decay,
            max_grad_norm=training.max_grad_norm,
            span=span,
            lr_milestones=training.lr_milestones,
            lr_factors=training.lr_factors,
            cpu_workers=0,
        ),
        name=name,
        seed=seed,
    )
    if config.losses.class_agnostic_masks:
        make_masks_class_agnostic(net)
    net.eval()


class RoundImages:
    """The images that each round needs: as many as its training sees, others in other rounds.

    What images need is computed for these only, so that a large dataset costs no more than its
    trainings can use.
    """

    def __init__(self, dataset: WeakDataset, config: Config, world_size: int = 1) -> None:
        self.dataset, self.seed = dataset, config.seed
        of_round = config.labelling_network.training
        last = config.prediction.training
        self.seen = [of_round.steps * of_round.batch_size * world_size] * config.rounds
        final_steps = last.final_steps or last.steps  # without a last training, as many as a round
        self.seen.append(final_steps * last.batch_size * world_size)

    def of_round(self, number: int) -> WeakDataset:
        """The images of a round, 1..R, or of the last training, R + 1.

        Rounds take one part after the other of a random order of the images, and start again at its
        end; the last training takes the first ones.
        """
        count, total = self.seen[number - 1], len(self.dataset)
        if count >= total:
            return self.dataset
        first = sum(self.seen[: number - 1]) if number < len(self.seen) else 0
        order = torch.randperm(total, generator=generator_at(self.seed, "images of rounds"))
        chosen = order[torch.arange(first, first + count) % total].tolist()
        return self.dataset.subset({self.dataset.images[i].image_id for i in chosen})

    @cached_property
    def used(self) -> WeakDataset:
        """The images of any round."""
        parts = [self.of_round(number + 1) for number in range(len(self.seen))]
        used = {image.image_id for part in parts for image in part}
        return self.dataset if len(used) == len(self.dataset) else self.dataset.subset(used)

    def option(self, images: WeakDataset) -> dict[str, str]:
        """What a stage depends on if it processes only a part of the dataset."""
        return {} if len(images) == len(self.dataset) else {"images": images.digest()}


def labels_from_masks(dataset: WeakDataset, problems: Problems) -> dict[ImageId, PseudoLabels]:
    """The annotated masks as labels, for full supervision, without those of crowds.

    Where bad images are skipped, each is opened now: training would meet them one by one.
    """
    labels = {}
    for image in track(dataset, "opening images") if problems.skip else dataset:
        with problems.caught():
            if problems.skip:
                image.pixels()
            instances = image.annotation.instances()
            labels[image.image_id] = PseudoLabels.single(instances[~instances.crowd])
    return labels


class _Example(NamedTuple):
    image: ResizedImage
    targets: SoftTargets
    seed: int


class _PredictionExamples(ImageExamples):
    """Images with soft targets, mirrored and scaled at random."""

    def __init__(
        self,
        images: Sequence[WeakImage],
        labels: Mapping[ImageId, PseudoLabels],
        config: PredictionConfig,
        seed: int,
        name: str,
    ) -> None:
        super().__init__(images)
        self.labels, self.config = labels, config
        self.where = (seed, name)

    def load(self, index: int, step: int) -> _Example:
        image = self.images[index]
        where = (*self.where, step, str(image.image_id))
        low, high = self.config.training.scale_range
        scale = low + (high - low) * float(torch.rand((), generator=generator_at(*where, "scale")))
        architecture = self.config.architecture
        resized = resize_shortest_side(
            image.pixels(), round(architecture.min_size * scale), architecture.max_size
        )
        smaller = resized.size[0] < resized.original_size[0]
        targets = self.labels[image.image_id].soft_targets(resized.size if smaller else None)
        if smaller:  # the targets are at the network's size then
            resized = ResizedImage(resized.pixels, resized.size)
        if seed_of(*where, "mirror") % 2:
            resized, targets = resized.mirrored(), targets.mirrored()
        return _Example(resized, targets, seed_of(*where, "sampling"))


class _PredictionStep(nn.Module):
    def __init__(self, losses: SoftLosses, precision: Precision) -> None:
        super().__init__()
        self.losses, self.precision = losses, precision

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], Figures]:
        device = next(self.losses.parameters()).device
        images = [example.image for example in batch.examples]
        # without it, an autocast of the whole run (--precision) stays as it is
        bf16 = torch.autocast(device.type, torch.bfloat16)
        with bf16 if self.precision == "bf16" else nullcontext():
            losses = self.losses(
                batch_images(images, device),
                [example.targets.to(device) for example in batch.examples],
                [image.scale.to(device) for image in images],
                [torch.Generator().manual_seed(example.seed) for example in batch.examples],
            )
        return losses, {}
