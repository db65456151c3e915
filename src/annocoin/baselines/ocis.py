"""OCIS: object counting and instance segmentation (Cholakkal et al., CVPR 2019), tags with counts.

A network predicts a density map for every class: high at one point of each object, and in sum the
number of objects. It is trained with the number of objects of each class where that is at most
`MAX_COUNT`, which people see without counting; greater numbers are only known to be greater. The
peaks of the density maps, as many as there are objects, are propagated back to their responses, as
in PRM, and the region is retrieved that fits the response and has a density of one.

Losses (`density_losses`): at the peaks of the class maps, as many as objects, the density is high
(spatial loss); where a class is absent, it is low everywhere; the sum is the count, or more than
`MAX_COUNT` (global loss).

Simplified: the density network starts from the run's classifier, whose class maps give the peaks of
the spatial loss, instead of two branches that are trained together; its sum is penalised as an
absolute difference, and all losses have the weight 1.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from annocoin.backbones import Precision, resize_longest_side
from annocoin.baselines.peer import Peer, PeerInputs, fit_network
from annocoin.data.dataset import MAX_COUNT, WeakDataset, WeakImage
from annocoin.engine.randomness import seed_of
from annocoin.engine.trainer import Batch, Figures, ImageExamples, Trainer
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.classifier import (
    Classifier,
    find_peaks,
    read_classifier,
    write_classifier,
)
from annocoin.seeds.retrieval import response_scores, retrieve
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.seeder import Seeder
from annocoin.types import Annotation, Instances

DENSITY_WEIGHT = 0.2
"""Of the difference of a region's density from one, in its score; a perfect fit to the response
scores about 1."""

UNKNOWN = -1
"""The count of a class that is present, in a number that is not known."""


def density_losses(density: Tensor, maps: Tensor, counts: Tensor) -> dict[str, Tensor]:
    """The losses of the density maps of B images.

    Args:
        density: logits of the density of a cell, [B, C, h, w].
        maps: class maps, [B, C, h, w], whose peaks show where objects are.
        counts: objects of each class, at most `MAX_COUNT` + 1 (for more), or `UNKNOWN`: [B, C].
    """
    present, absent = counts != 0, counts == 0
    peaks = highest_peaks(maps, counts)
    on_peaks = (F.softplus(-density) * peaks).sum(dim=(2, 3)) / peaks.sum(dim=(2, 3)).clamp(min=1)
    elsewhere = F.softplus(density).mean(dim=(2, 3))
    total = density.sigmoid().sum(dim=(2, 3))
    exact = (total - counts).abs() * ((counts > 0) & (counts <= MAX_COUNT))
    many = (MAX_COUNT + 1 - total).clamp(min=0) * (counts > MAX_COUNT)
    some = (1 - total).clamp(min=0) * (counts == UNKNOWN)
    share = present.sum().clamp(min=1)
    return {
        "loss_spatial": (on_peaks * present).sum() / share,
        "loss_absent": (elsewhere * absent).sum() / absent.sum().clamp(min=1),
        "loss_count": (exact + many + some).sum() / share / MAX_COUNT,
    }


def highest_peaks(maps: Tensor, counts: Tensor) -> Tensor:
    """The peaks of class maps that stand for objects, float [B, C, h, w] of 0 and 1.

    As many of the highest ones as there are objects; one, if their number is not known.
    """
    peaks = find_peaks(maps)
    values = torch.where(peaks, maps, -torch.inf).flatten(2)
    order = values.argsort(dim=2, descending=True)
    places = torch.arange(order.shape[2], device=order.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(2, order, places)
    wanted = torch.where(counts == UNKNOWN, 1, counts)[..., None]
    return ((rank < wanted) & values.isfinite()).view(maps.shape).to(maps.dtype)


def counts_of(annotation: Annotation, classes: int) -> Tensor:
    """The counts of an annotation's tags, int64 [C]."""
    counts = torch.zeros(classes, dtype=torch.int64)
    for label in annotation:
        counts[label.label - 1] = UNKNOWN if label.count is None else label.count
    return counts


def train_density(
    images: WeakDataset, inputs: PeerInputs, out: Path, *, seed: int, trainer: Trainer
) -> None:
    """Train the density network, and write it as a classifier with density maps."""
    options = inputs.config.classifier
    reference = read_classifier(inputs.given_classifier()).to(inputs.device)
    net = read_classifier(inputs.given_classifier()).to(inputs.device)
    for module in list(net.trunk)[: options.frozen_layers]:
        module.requires_grad_(False)
    size = inputs.config.baseline.size or net.architecture.size
    examples = _DensityExamples(images, size, seed)
    step = _DensityStep(net, reference.requires_grad_(False), options.precision)
    fit_network(step, net, examples, inputs.config, seed, trainer)
    if trainer.group is None or trainer.group.is_main:
        write_classifier(out, net, {"method": "ocis"})


class DensityLabeller:
    """The region of each peak of the density maps, as many as there are objects."""

    def __init__(self, inputs: PeerInputs) -> None:
        self.inputs = inputs
        net = read_classifier(inputs.given_network())
        size = inputs.config.baseline.size or net.architecture.size  # densities are per cell
        options = replace(inputs.config.seeds, responses="peaks", map_scales=(), size=size)
        self.seeder = Seeder(net, options, device=inputs.device)

    def __call__(self, image: WeakImage) -> Instances:
        regions = self.inputs.regions_of(image)
        seeds = self.seeder(image.pixels(), image.annotation)
        if len(seeds) == 0 or len(regions) == 0:
            return Instances(size=regions.size, masks=[], labels=[])
        scores = response_scores(regions, seeds) - DENSITY_WEIGHT * density_error(regions, seeds)
        retrieved = retrieve(regions, seeds, image.annotation, scores=scores)
        return retrieved.instances(regions, seeds)


def density_error(regions: RegionSet, seeds: Seeds) -> Tensor:
    """How much the density in each region differs from one object of each seed's class, [N, P].

    The density maps, whose cells sum to the number of objects, are interpolated to the image.
    """
    rows = []
    for seed in seeds:
        cells = seed.maps.shape[1] * seed.maps.shape[2]
        share = cells / (regions.size[0] * regions.size[1])
        density = share * seed.maps_in_image().sigmoid()
        rows.append((regions.pool(density, over="sum")[:, 0] - 1).abs().clamp(max=1))
    return torch.stack(rows)


class _DensityExample(NamedTuple):
    pixels: Tensor  # float32 [3, size, size]
    counts: Tensor  # int64 [C]


class _DensityExamples(ImageExamples):
    """Images at one size, padded to squares and mirrored at random: counts stay true."""

    def __init__(self, images: WeakDataset, size: int, seed: int) -> None:
        super().__init__(images)
        self.classes, self.size, self.seed = len(images.classes), size, seed

    def load(self, index: int, step: int) -> _DensityExample:
        image = self.images[index]
        resized = resize_longest_side(image.pixels(), self.size)
        if seed_of(self.seed, "ocis", "mirror", step, str(image.image_id)) % 2:
            resized = resized.flip(2)
        pixels = torch.full((3, self.size, self.size), 0.5)
        pixels[:, : resized.shape[1], : resized.shape[2]] = resized
        return _DensityExample(pixels, counts_of(image.annotation, self.classes))


class _DensityStep(nn.Module):
    def __init__(self, net: Classifier, reference: Classifier, precision: Precision = "32") -> None:
        super().__init__()
        self.net, self.reference, self.precision = net, reference, precision

    def train(self, mode: bool = True) -> _DensityStep:
        """Batch normalisation keeps the statistics of the classifier."""
        super().train(False)
        return self

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], Figures]:
        device = self.net.mean.device
        pixels = torch.stack([example.pixels for example in batch.examples]).to(device)
        counts = torch.stack([example.counts for example in batch.examples]).to(device)
        pixels = pixels.contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            with torch.no_grad():
                maps = self.reference(pixels)
            density = self.net(pixels)
        return density_losses(density.float(), maps.float(), counts), {}


OCIS = Peer(DensityLabeller, train_density)
