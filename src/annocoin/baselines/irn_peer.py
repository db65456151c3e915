"""IRN as a peer: class maps and confident pixels of all images, training, and labels of a run.

See `annocoin.baselines.irn` for the method and what is simplified.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from annocoin.baselines.irn import IrnOptions, confident_labels, irn_instances, train_irn
from annocoin.baselines.irn_network import IrnNetwork, read_irn, write_irn
from annocoin.baselines.peer import Peer, PeerInputs
from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.engine.config import Config
from annocoin.engine.randomness import seed_of, seeded
from annocoin.engine.trainer import Trainer
from annocoin.progress import track
from annocoin.seeds.class_maps import ClassMapper
from annocoin.seeds.classifier import read_classifier
from annocoin.types import ImageId, Instances

SCALES = (0.5, 1.0, 1.5, 2.0)
"""Of the inputs for the class maps, relative to the classifier's training, as published."""


class AnnotatedMaps:
    """Class maps of an image's annotated classes, over scales and mirrored."""

    def __init__(self, inputs: PeerInputs) -> None:
        classifier = read_classifier(inputs.given_classifier()).to(inputs.device)
        sizes = [max(32, round(scale * classifier.architecture.size)) for scale in SCALES]
        bfloat16 = inputs.config.classifier.precision == "bf16"
        self.mapper = ClassMapper(classifier, sizes, mirror=True, dense=True, bfloat16=bfloat16)

    def __call__(self, image: WeakImage) -> Tensor:
        """Logits [J, h, w] of the classes `image.annotation.distinct_labels`."""
        labels = image.annotation.distinct_labels
        return self.mapper(image.pixels())[[label - 1 for label in labels]]


def irn_options(config: Config, images: int = 1) -> IrnOptions:
    """Options of IRN for a run; the steps of `config.baseline` as passes over `images`."""
    training = config.baseline
    return IrnOptions(
        size=training.size or config.classifier.size,
        epochs=max(1, math.ceil(training.steps * training.batch_size / images)),
        batch_size=training.batch_size,
        lr=training.lr,
        weight_decay=training.weight_decay,
        precision=config.classifier.precision,
    )


def train_relations(
    images: WeakDataset, inputs: PeerInputs, out: Path, *, seed: int, trainer: Trainer
) -> None:
    """Train IRN's network on the confident pixels of all images, and write it."""
    options, maps = irn_options(inputs.config, len(images)), AnnotatedMaps(inputs)
    labels: dict[ImageId, Tensor] = {}
    for image in track(images, "confident pixels"):
        with trainer.problems.caught(image.image_id):
            pixels, annotation = image.pixels(), image.annotation
            confident = confident_labels(pixels, maps(image), annotation, options)
            labels[image.image_id] = confident.to(torch.int8)
    with seeded(seed_of(seed, "irn weights")):
        net = IrnNetwork.from_classifier(read_classifier(inputs.given_classifier()))
    net.to(inputs.device)
    train_irn(net, images, labels, options, seed=seed, trainer=trainer)
    if trainer.group is None or trainer.group.is_main:
        write_irn(out, net, {"method": "irn"})


class RelationLabeller:
    """The instances that IRN separates in the class maps of an image."""

    def __init__(self, inputs: PeerInputs) -> None:
        self.maps, self.options = AnnotatedMaps(inputs), irn_options(inputs.config)
        self.net = read_irn(inputs.given_network()).to(inputs.device)

    def __call__(self, image: WeakImage) -> Instances:
        maps = self.maps(image)
        return irn_instances(self.net, image.pixels(), maps, image.annotation, self.options)


IRN = Peer(RelationLabeller, train_relations)
