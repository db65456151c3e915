"""IRN as a peer: confident pixels by the class maps of the seeds, training, and labels of a run.

See `annocoin.baselines.irn` for the method and what is simplified. All methods of a comparison
share regions and seeds, so the class maps are those of our own evidence, diffused over superpixels
up to boundaries, in place of the CRF.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from annocoin.baselines.irn import (
    IrnOptions,
    confident_labels,
    irn_instances,
    train_irn,
)
from annocoin.baselines.irn_network import IrnNetwork, read_irn, write_irn
from annocoin.baselines.peer import Peer, PeerInputs
from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.engine.config import Config
from annocoin.engine.randomness import seed_of, seeded
from annocoin.engine.trainer import Trainer
from annocoin.progress import track
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.classifier import read_classifier
from annocoin.seeds.evidence import class_shares
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation, ImageId, Instances

RADIUS, WALK_RADIUS, MIN_RADIUS = 10 / 512, 5 / 512, 3
"""Of pairs and of the random walk, in cells per pixel of the image's longer side, as published for
sides of 512 pixels; and the least of both, in cells."""


def irn_options(config: Config, images: int = 1) -> IrnOptions:
    """Options of IRN for a run; the steps of `config.baseline` as passes over `images`."""
    training = config.baseline
    size = training.size or config.classifier.size
    return IrnOptions(
        size=size,
        radius=max(MIN_RADIUS, round(RADIUS * size)),
        walk_radius=max(MIN_RADIUS, round(WALK_RADIUS * size)),
        epochs=max(1, round(training.steps * training.batch_size / images)),
        batch_size=training.batch_size,
        lr=training.lr,
        weight_decay=training.weight_decay,
        precision=config.classifier.precision,
    )


def evidence_maps(regions: RegionSet, seeds: Seeds, annotation: Annotation) -> Tensor:
    """Class maps of the J annotated classes, diffused over superpixels, in 0..1: [J, H, W].

    Squared: `class_shares` has the square root of class maps, for which IRN's thresholds are.
    """
    shares = class_shares(regions, seeds, annotation.distinct_labels).square()
    return shares[:, regions.superpixels.long()]


def train_relations(
    images: WeakDataset, inputs: PeerInputs, out: Path, *, seed: int, trainer: Trainer
) -> None:
    """Train IRN's network on the confident pixels of all images, and write it."""
    options = irn_options(inputs.config, len(images))
    labels: dict[ImageId, Tensor] = {}
    for image in track(images, "confident pixels"):
        with trainer.problems.caught(image.image_id):
            maps = evidence_maps(*inputs.of(image), image.annotation)
            confident = confident_labels(maps, image.annotation, options)
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
        self.inputs, self.options = inputs, irn_options(inputs.config)
        self.net = read_irn(inputs.given_network()).to(inputs.device)

    def __call__(self, image: WeakImage) -> Instances:
        maps = evidence_maps(*self.inputs.of(image), image.annotation)
        return irn_instances(self.net, image.pixels(), maps, image.annotation, self.options)


IRN = Peer(RelationLabeller, train_relations)
