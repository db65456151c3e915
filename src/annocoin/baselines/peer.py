"""What a peer of the paper's table 1 is: how it labels images, and the network that it may train.

All peers have the same images, regions, seeds, prediction network and number of steps; they differ
in how they make the labels that the prediction network is trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from annocoin.backbones import resize_longest_side
from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.engine.config import Config
from annocoin.engine.trainer import Examples, Schedule, Trainer
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.class_maps import halve_stride
from annocoin.seeds.classifier import read_classifier
from annocoin.seeds.seed_set import SeedFolder, Seeds
from annocoin.types import Instances

MAX_GRAD_NORM = 5.0


@dataclass(frozen=True)
class PeerInputs:
    """What a peer may use beside images and weak labels.

    Args:
        config: of the run.
        regions, seeds: of the images; None if the method needs none.
        classifier: the file of the image classifier; None if the run has none.
        network: the file of the network that `Peer.train` wrote; None before that.
        device: of the networks.
    """

    config: Config
    regions: RegionFolder | None = None
    seeds: SeedFolder | None = None
    classifier: Path | None = None
    network: Path | None = None
    device: str = "cpu"

    def of(self, image: WeakImage) -> tuple[RegionSet, Seeds]:
        """The regions and seeds of an image."""
        assert self.seeds is not None, "the method declares that it needs no seeds"
        return self.regions_of(image), self.seeds[image.image_id]

    def regions_of(self, image: WeakImage) -> RegionSet:
        """The regions of an image."""
        assert self.regions is not None, "the method declares that it needs no regions"
        return self.regions[image.image_id]

    def given_classifier(self) -> Path:
        """The file of the classifier."""
        assert self.classifier is not None, "the method declares that it needs no classifier"
        return self.classifier

    def given_network(self) -> Path:
        """The file of the peer's own network."""
        assert self.network is not None, "the method declares that it has no network"
        return self.network


class FrozenFeatures:
    """Features of the run's classifier, which peers build on; they are not trained further.

    Computed at `baseline.size`, and in the precision of the classifier's training.
    """

    def __init__(self, inputs: PeerInputs) -> None:
        net = read_classifier(inputs.given_classifier())
        self.size = inputs.config.baseline.size or net.architecture.size
        self.bfloat16 = inputs.config.classifier.precision == "bf16"
        net = halve_stride(net).to(inputs.device).requires_grad_(False)
        self.net = net.to(memory_format=torch.channels_last)
        self.channels = int(self.net.head.in_channels)

    def resized(self, image: WeakImage) -> Tensor:
        """An image as they are computed from it: float32 [3, H, W] in 0..1."""
        return resize_longest_side(image.pixels(), self.size)

    @torch.no_grad()
    def __call__(self, pixels: Tensor) -> Tensor:
        """The features [F, h, w] of an image [3, H, W] in 0..1."""
        images = pixels[None].to(self.net.mean.device)
        images = images.contiguous(memory_format=torch.channels_last)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bfloat16):
            features: Tensor = self.net.trunk((images - self.net.mean) / self.net.std)[0]
        return features.float()


def fit_network(
    step: nn.Module, net: nn.Module, examples: Examples, config: Config, seed: int, trainer: Trainer
) -> None:
    """Train the network of a peer by `config.baseline`.

    Args:
        step: a `TrainingStep`.
        net: whose parameters are trained.
    """
    training = config.baseline
    schedule = Schedule(
        training.steps,
        training.batch_size,
        weight_decay=training.weight_decay,
        max_grad_norm=MAX_GRAD_NORM,
    )
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    groups = [{"params": weights, "lr": training.lr}]
    trainer.fit(step, examples, groups, schedule, name=config.method, seed=seed)
    net.eval()


class Labeller(Protocol):
    """Labels images; made once in each process."""

    def __call__(self, image: WeakImage) -> Instances:
        """The instances of an image by its weak labels."""


class TrainNetwork(Protocol):
    """Trains the network of a peer and writes its file, on the main process."""

    def __call__(
        self, images: WeakDataset, inputs: PeerInputs, out: Path, *, seed: int, trainer: Trainer
    ) -> None: ...


@dataclass(frozen=True)
class Peer:
    """A peer.

    Args:
        labeller: makes a process's labeller.
        train: trains the network that the labeller needs; None without one.
        targets: makes what the prediction network is trained on, if that is not the labels: the
            labels are then made with the trained prediction network as `PeerInputs.network`.
    """

    labeller: Callable[[PeerInputs], Labeller]
    train: TrainNetwork | None = None
    targets: Callable[[PeerInputs], Labeller] | None = None
