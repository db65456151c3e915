"""IAM: instance activation maps (Zhu et al., CVPR 2019), from tags.

The response of a peak covers the part of an object that the classifier looks at. A network learns
to fill in the rest: from the response of one peak, and the features of the image, to the extent of
the whole instance. Its targets are the regions that PRM retrieves for the peak, weighted by their
scores; every single one is noisy, but over many images the network learns what they have in common.
The region that overlaps the activation of a peak most is the instance.

Simplified: the network is a few convolutions on frozen features of the run's classifier, with the
response and the class map as further channels, instead of a decoder that is trained with it; the
targets are the weighted mean of the regions instead of regions drawn at random.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from annocoin.baselines.peer import FrozenFeatures, Peer, PeerInputs, fit_network
from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.engine.randomness import seed_of, seeded
from annocoin.engine.trainer import Batch, Figures, ImageExamples, Trainer
from annocoin.network_files import read_network, write_network
from annocoin.progress import track
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.retrieval import response_scores, retrieve
from annocoin.seeds.seed_set import Seeds
from annocoin.types import ImageId, Instances

KIND = "iam"
WIDTH = 64
TARGET_SIDE = 48
"""Longer side of targets and activations, in cells."""

TARGET_REGIONS = 10
SHARPNESS = 10.0
"""Regions of a target, and the inverse temperature of their weights by PRM's score."""

MAX_PEAKS = 4
"""Of an image in a step, the highest ones first."""


class ActivationNetwork(nn.Module):
    """From features, response and class map to the logits of an instance's extent.

    Args:
        channels: F, of the features.
    """

    def __init__(self, channels: int, width: int = WIDTH) -> None:
        super().__init__()
        self.channels, self.width = channels, width
        self.reduce = nn.Conv2d(channels, width, 1)
        self.fill = nn.Sequential(
            _layer(width + 2, width, 1),
            _layer(width, width, 2),
            _layer(width, width, 4),
            _layer(width, width, 1),
            nn.Conv2d(width, 1, 1),
        )

    def forward(self, features: Tensor, cues: Tensor) -> Tensor:
        """The extents of N instances of one image, logits [N, h, w].

        Args:
            features: of the image, [F, *, *].
            cues: response and class map of each peak, [N, 2, h, w], see `cues_of`.
        """
        size = cues.shape[-2:]
        reduced = F.interpolate(self.reduce(features[None]), size, mode="bilinear")
        joined = torch.cat([reduced.expand(len(cues), -1, -1, -1), cues], dim=1)
        logits: Tensor = self.fill(joined)[:, 0]
        return logits


def cues_of(seeds: Seeds) -> Tensor:
    """Responses and class maps of seeds, relative to their maxima: [N, 2, h, w] in 0..1."""
    size = _grid(seeds.size)
    responses = F.interpolate(seeds.responses[:, None], size, mode="bilinear")
    maps = F.interpolate(seeds.maps[:, None].clamp(min=0), size, mode="bilinear")
    both = torch.cat([responses.sqrt(), maps], dim=1)  # a few cells have most of a response
    return both / both.amax(dim=(2, 3), keepdim=True).clamp(min=1e-6)


def extents_of(regions: RegionSet, seeds: Seeds) -> Tensor:
    """The weighted mean of the regions that PRM retrieves for each seed: [N, h, w] in 0..1."""
    size = _grid(seeds.size)
    scores = response_scores(regions, seeds)
    best, order = scores.topk(min(TARGET_REGIONS, len(regions)), dim=1)
    weights = (SHARPNESS * best).softmax(dim=1)
    rows = []
    for weight, chosen in zip(weights, order, strict=True):
        dense = regions[chosen].masks().float()
        cells = F.interpolate(dense[None], size, mode="area")[0]
        rows.append((weight[:, None, None] * cells).sum(dim=0))
    return torch.stack(rows)


def overlap_scores(regions: RegionSet, activations: Tensor) -> Tensor:
    """The soft IoU of regions with activations [N, h, w] in 0..1, at the image's size: [N, P]."""
    rows = []
    for activation in activations:
        dense = F.interpolate(activation[None, None], regions.size, mode="bilinear")[0]
        common = regions.pool(dense, over="sum")[:, 0]
        rows.append(common / (regions.areas + dense.sum() - common))
    return torch.stack(rows)


def train_activations(
    images: WeakDataset, inputs: PeerInputs, out: Path, *, seed: int, trainer: Trainer
) -> None:
    """Train the network on the regions that PRM retrieves, and write it."""
    features = FrozenFeatures(inputs)
    targets: dict[ImageId, _Target] = {}
    for image in track(images, "retrieving targets"):
        with trainer.problems.caught(image.image_id):
            regions, seeds = inputs.of(image)
            if len(regions) and len(seeds):
                best = seeds[seeds.scores.argsort(descending=True, stable=True)[:MAX_PEAKS]]
                targets[image.image_id] = _Target(cues_of(best), extents_of(regions, best))
    with seeded(seed_of(seed, "iam weights")):
        net = ActivationNetwork(features.channels).to(inputs.device)
    usable = [image for image in images if image.image_id in targets]
    examples = _ActivationExamples(usable, targets, features, seed)
    fit_network(_ActivationStep(net, features), net, examples, inputs.config, seed, trainer)
    if trainer.group is None or trainer.group.is_main:
        architecture = {"channels": net.channels, "width": net.width}
        write_network(out, net, KIND, architecture, {"method": "iam"})


class ActivationLabeller:
    """The region that overlaps the activation of each peak most."""

    def __init__(self, inputs: PeerInputs) -> None:
        def build(fields: dict[str, Any]) -> ActivationNetwork:
            return ActivationNetwork(**fields)

        self.inputs = inputs
        self.net = read_network(inputs.given_network(), KIND, build, "annocoin train --method iam")
        self.net.to(inputs.device)
        self.features = FrozenFeatures(inputs)

    @torch.inference_mode()
    def __call__(self, image: WeakImage) -> Instances:
        regions, seeds = self.inputs.of(image)
        if len(seeds) == 0 or len(regions) == 0:
            return Instances(size=regions.size, masks=[], labels=[])
        features = self.features(self.features.resized(image))
        logits = self.net(features, cues_of(seeds).to(features.device)).cpu()
        scores = overlap_scores(regions, logits.sigmoid())
        retrieved = retrieve(regions, seeds, image.annotation, scores=scores)
        return retrieved.instances(regions, seeds)


class _Target(NamedTuple):
    cues: Tensor  # [N, 2, h, w]
    extents: Tensor  # [N, h, w]


class _Example(NamedTuple):
    pixels: Tensor  # [3, H, W]
    target: _Target


class _ActivationExamples(ImageExamples):
    def __init__(
        self,
        images: list[WeakImage],
        targets: Mapping[ImageId, _Target],
        features: FrozenFeatures,
        seed: int,
    ) -> None:
        super().__init__(images)
        self.targets, self.features, self.seed = targets, features, seed

    def load(self, index: int, step: int) -> _Example:
        image = self.images[index]
        pixels, (cues, extents) = self.features.resized(image), self.targets[image.image_id]
        if seed_of(self.seed, "iam", "mirror", step, str(image.image_id)) % 2:
            pixels, cues, extents = pixels.flip(2), cues.flip(3), extents.flip(2)
        return _Example(pixels, _Target(cues, extents))


class _ActivationStep(nn.Module):
    def __init__(self, net: ActivationNetwork, features: FrozenFeatures) -> None:
        super().__init__()
        self.net, self.features = net, features

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], Figures]:
        losses = []
        for example in batch.examples:
            features = self.features(example.pixels)
            cues, extents = (part.to(features.device) for part in example.target)
            logits = self.net(features, cues)
            losses.append(F.binary_cross_entropy_with_logits(logits, extents))
        return {"loss_extent": torch.stack(losses).mean()}, {}


def _grid(size: tuple[int, int]) -> tuple[int, int]:
    """Cells of an image."""
    scale = TARGET_SIDE / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _layer(channels: int, width: int, dilation: int) -> nn.Sequential:
    convolution = nn.Conv2d(channels, width, 3, padding=dilation, dilation=dilation)
    return nn.Sequential(convolution, nn.GroupNorm(8, width), nn.ReLU())


IAM = Peer(ActivationLabeller, train_activations)
