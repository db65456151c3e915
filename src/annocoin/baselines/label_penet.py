"""Label-PEnet: sequential label propagation and enhancement (Ge et al., ICCV 2019), from tags.

A cascade of modules, each of which makes finer labels for the next: classes of the image by a
multi-label classifier; regions of each class by multiple instance learning, with the class maps of
the first as a prior (detection); instances by a classifier that learns from the best regions of the
detection and replaces them by better ones of its own, twice (refinement); and masks by a Mask R-CNN
that learns from the refined instances.

Detection is that of WSDDN: a region's score is the product of a softmax over classes and a softmax
over regions, to which the log class share of the region is added; the sum over regions is the score
of the image. Refinement is that of OICR: regions that overlap a best region are of its class.

Simplified: the modules are heads on frozen features of the run's classifier, trained together from
coarse to fine instead of in several passes forward and backward; features are means over a region
and over its surroundings, instead of RoI pooling; the masks of instances are the regions
themselves, instead of maps of gradients refined in each region.
"""

from __future__ import annotations

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
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.evidence import class_shares
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation, Instances

KIND = "label-penet"
WIDTH = 256
REFINEMENTS = 2
MAX_REGIONS = 300
"""Of an image, the first ones: those of the highest objectness."""

POSITIVE_IOU = 0.5
"""A region is of the class of a best region that it overlaps by this IoU, in refinement."""

KEPT_SHARE = 0.5
"""Further regions of a class need this share of the score of the best one."""

NMS = 0.3
"""Of two regions of one class, the intersection over the smaller area must not exceed this."""

MIN_SHARE = 0.02


class CascadeNetwork(nn.Module):
    """Heads for the detection and the refinements of P regions.

    Args:
        channels: of the features of a region, see `features_of_regions`.
        classes: C.
    """

    def __init__(self, channels: int, classes: int, width: int = WIDTH) -> None:
        super().__init__()
        self.arguments = {"channels": channels, "classes": classes, "width": width}
        self.body = nn.Sequential(
            nn.LayerNorm(channels),
            nn.Linear(channels, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
        )
        self.classification = nn.Linear(width, classes)
        self.detection = nn.Linear(width, classes)
        self.refinements = nn.ModuleList(nn.Linear(width, 1 + classes) for _ in range(REFINEMENTS))

    def forward(self, features: Tensor, prior: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Scores of regions for classes by the detection [P, C], and logits of each refinement.

        Args:
            features: of the regions, [P, F].
            prior: log class shares of the regions, [P, C].
        """
        hidden = self.body(features)
        classes = self.classification(hidden).softmax(dim=1)
        detected = classes * (self.detection(hidden) + prior).softmax(dim=0)
        return detected, [refine(hidden) for refine in self.refinements]


def cascade_losses(
    detected: Tensor, refined: list[Tensor], iou: Tensor, labels: list[int]
) -> dict[str, Tensor]:
    """The losses of one image.

    Args:
        detected: [P, C].
        refined: logits [P, 1+C] of each refinement.
        iou: of the regions, [P, P].
        labels: the classes of the image, 1..C.
    """
    tags = detected.new_zeros(detected.shape[1])
    tags[[label - 1 for label in labels]] = 1
    total = detected.sum(dim=0).clamp(1e-6, 1 - 1e-6)
    losses = {"loss_detection": F.binary_cross_entropy(total, tags, reduction="sum")}
    scores = detected.detach()
    for number, logits in enumerate(refined, start=1):
        targets, weights = refinement_targets(scores, iou, labels)
        loss = F.cross_entropy(logits, targets, reduction="none")
        losses[f"loss_refinement{number}"] = (weights * loss).sum()
        scores = logits.detach().softmax(dim=1)[:, 1:]
    return losses


def refinement_targets(scores: Tensor, iou: Tensor, labels: list[int]) -> tuple[Tensor, Tensor]:
    """Classes of regions, 0 for the background, and their weights, which sum to 1, both [P].

    The region of the highest score of each class, and those that overlap it, are of that class; the
    weight of a region is the score of the best region that it overlaps most. Objects and background
    have the same weight in all: most regions are background.
    """
    closest = iou.new_zeros(len(iou))
    targets = torch.zeros(len(iou), dtype=torch.int64, device=iou.device)
    weights = iou.new_zeros(len(iou))
    for label in labels:
        best = int(scores[:, label - 1].argmax())
        nearer = iou[best] > closest
        targets = torch.where(nearer & (iou[best] >= POSITIVE_IOU), label, targets)
        targets = torch.where(nearer & (iou[best] < POSITIVE_IOU), 0, targets)
        weights = torch.where(nearer, scores[best, label - 1], weights)
        closest = torch.maximum(closest, iou[best])
    weights = torch.where(closest > 0, weights, weights.max()).clamp(min=1e-6)
    for part in (targets > 0, targets == 0):
        weights = torch.where(part, 0.5 * weights / (weights * part).sum().clamp(min=1e-6), weights)
    return targets, weights


def features_of_regions(regions: RegionSet, features: Tensor) -> Tensor:
    """Means over each region and over its surroundings, and its shape: [P, 2F + 3].

    Args:
        features: of the image, [F, h, w].
    """
    means = regions.superpixel_means(features)
    areas = regions.superpixel_areas.float()
    parts = []
    for members in (regions.membership.float(), regions.rings().float()):
        weights = members * areas
        parts.append(weights @ means.T / weights.sum(dim=1, keepdim=True).clamp(min=1))
    share = regions.areas[:, None] / regions.superpixels.numel()
    boxes = regions.boxes
    sides = (boxes[:, 2:] - boxes[:, :2]).prod(dim=1, keepdim=True).clamp(min=1)
    shape = torch.cat([share.sqrt(), regions.areas[:, None] / sides, regions.scores[:, None]], 1)
    return torch.cat([*parts, shape], dim=1)


def log_shares(regions: RegionSet, seeds: Seeds, annotation: Annotation, classes: int) -> Tensor:
    """The log of the mean class share of each region, [P, C]; the least for absent classes."""
    prior = torch.full((len(regions), classes), MIN_SHARE)
    labels = annotation.distinct_labels
    shares = class_shares(regions, seeds, labels)
    areas = regions.superpixel_areas.float()
    inside = (regions.membership * areas) @ shares.T / regions.areas[:, None]
    prior[:, [label - 1 for label in labels]] = inside.clamp(min=MIN_SHARE)
    return prior.log()


def select_instances(scores: Tensor, overlap: Tensor, labels: tuple[int, ...]) -> list[list[int]]:
    """The regions of each class by falling score, at least one, that do not overlap.

    Args:
        scores: [P, C].
        overlap: intersection over the smaller area, [P, P].
    """
    chosen = []
    for label in labels:
        of_class, kept = scores[:, label - 1], list[int]()
        for region in of_class.argsort(descending=True, stable=True).tolist():
            if of_class[region] < KEPT_SHARE * of_class.max():
                break
            if all(overlap[region, other] <= NMS for other in kept):
                kept.append(region)
        chosen.append(kept)
    return chosen


def train_cascade(
    images: WeakDataset, inputs: PeerInputs, out: Path, *, seed: int, trainer: Trainer
) -> None:
    """Train the cascade, and write it."""
    features = FrozenFeatures(inputs)
    with seeded(seed_of(seed, "label-penet weights")):
        net = CascadeNetwork(2 * features.channels + 3, len(images.classes)).to(inputs.device)
    tagged = [image for image in images if len(image.annotation)]
    examples = _CascadeExamples(tagged, inputs, features, len(images.classes))
    fit_network(_CascadeStep(net, features), net, examples, inputs.config, seed, trainer)
    if trainer.group is None or trainer.group.is_main:
        write_network(out, net, KIND, net.arguments, {"method": KIND})


class CascadeLabeller:
    """The regions of the highest scores by the last refinement."""

    def __init__(self, inputs: PeerInputs) -> None:
        def build(fields: dict[str, Any]) -> CascadeNetwork:
            return CascadeNetwork(**fields)

        self.inputs = inputs
        command = f"annocoin train --method {KIND}"
        self.net = read_network(inputs.given_network(), KIND, build, command).to(inputs.device)
        self.features = FrozenFeatures(inputs)

    @torch.inference_mode()
    def __call__(self, image: WeakImage) -> Instances:
        regions, seeds = self.inputs.of(image)
        regions, labels = regions[:MAX_REGIONS], image.annotation.distinct_labels
        if not labels or len(regions) == 0:
            return Instances(size=regions.size, masks=[], labels=[])
        features = self.features(self.features.resized(image)).cpu()
        prior = log_shares(regions, seeds, image.annotation, len(self.inputs.config.classes))
        pooled = features_of_regions(regions, features)
        _, refined = self.net(pooled.to(self.inputs.device), prior.to(self.inputs.device))
        scores = refined[-1].softmax(dim=1)[:, 1:].cpu()
        contained = regions.containment()
        chosen = select_instances(scores, torch.maximum(contained, contained.T), labels)
        pairs = zip(labels, chosen, strict=True)
        flat = [(label, region) for label, kept in pairs for region in kept]
        return Instances(
            size=regions.size,
            masks=regions[[region for _, region in flat]].rles(),
            labels=[label for label, _ in flat],
            scores=[float(scores[region, label - 1]) for label, region in flat],
        )


class _Example(NamedTuple):
    pixels: Tensor
    regions: RegionSet
    prior: Tensor
    labels: list[int]


class _CascadeExamples(ImageExamples):
    def __init__(
        self, images: list[WeakImage], inputs: PeerInputs, features: FrozenFeatures, classes: int
    ) -> None:
        super().__init__(images)
        self.inputs, self.features, self.classes = inputs, features, classes

    def load(self, index: int, step: int) -> _Example:
        image = self.images[index]
        regions, seeds = self.inputs.of(image)
        regions = regions[:MAX_REGIONS]
        prior = log_shares(regions, seeds, image.annotation, self.classes)
        labels = list(image.annotation.distinct_labels)
        return _Example(self.features.resized(image), regions, prior, labels)


class _CascadeStep(nn.Module):
    def __init__(self, net: CascadeNetwork, features: FrozenFeatures) -> None:
        super().__init__()
        self.net, self.features = net, features

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], Figures]:
        sums: dict[str, Tensor] = {}
        for example in batch.examples:
            if len(example.regions) == 0:
                continue
            features = self.features(example.pixels)
            regions = example.regions.to(features.device)
            pooled = features_of_regions(regions, features)
            detected, refined = self.net(pooled, example.prior.to(features.device))
            losses = cascade_losses(detected, refined, regions.iou(), example.labels)
            for name, loss in losses.items():
                sums[name] = sums.get(name, loss.new_zeros(())) + loss / len(batch.examples)
        return sums, {}


LABEL_PENET = Peer(CascadeLabeller, train_cascade)
