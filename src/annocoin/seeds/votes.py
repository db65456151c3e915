"""How well regions match seeds: evidence, soft votes, and soft labels of superpixels.

A peak lies on the most discriminative part of an object, and that part is often a region itself.
Selecting one region is therefore error-prone. The regions that contain the peak, weighted by their
objectness and by the evidence inside them, are a better estimate of the object's extent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from annocoin.regions.algebra import outlines
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.seed_set import Seeds

SHARPNESS = 4.0
AREA_WEIGHT = 0.2
MIN_SCORE, MIN_EDGE = 0.05, 0.02
"""Of the votes: the inverse temperature, and constants of `log_objectness`."""


def vote(
    regions: RegionSet,
    seeds: Seeds,
    compatible: Tensor | None = None,
    *,
    sharpness: float = SHARPNESS,
) -> Tensor:
    """Distribution of each seed's vote over the regions, float32 [N, P]; rows sum to 1.

    Candidates are the regions that contain the peak and no peak of another class; if there are
    none, those that contain the peak; if there are none, all. The weight of a candidate combines
    its objectness, the share of the response and the mean class probability inside it.

    Args:
        compatible: the regions that a seed may vote for, bool [N, P]; default all. A row without
            any gets no votes.
        sharpness: inverse temperature of the softmax over candidates.
    """
    if len(seeds) == 0 or len(regions) == 0:
        return torch.zeros(len(seeds), len(regions))
    contains = regions.contains(seeds.points).T
    if compatible is None:
        compatible = torch.ones_like(contains)
    rows = []
    for row, label, allowed in zip(contains, seeds.labels, compatible, strict=True):
        other_class = contains[seeds.labels != label].any(dim=0)
        rows.append(first_nonempty(allowed & row & ~other_class, allowed & row, allowed))
    evidence = response_inside(regions, seeds) + probability_inside(regions, seeds)
    logits = sharpness * (log_objectness(regions) + evidence)
    return torch.where(torch.stack(rows), logits, -torch.inf).softmax(dim=1).nan_to_num(0)


def log_objectness(regions: RegionSet) -> Tensor:
    """How much regions resemble whole objects, the logarithm of a product, float32 [P].

    Combines the region's score, the mean edge strength along its outline, and a mild preference for
    large regions that do not fill the image.
    """
    on_outline = outlines(regions.membership, regions.elements).float()
    edge = (regions.edge_strength @ on_outline) / (regions.lengths @ on_outline).clamp(min=1)
    area = regions.areas / regions.superpixels.numel()
    return (
        0.5 * (regions.scores.clamp(min=0) + MIN_SCORE).log()
        + 0.5 * (edge + MIN_EDGE).log()
        + AREA_WEIGHT * area.log()
        + (1 - area).clamp(min=1e-3).log()
    )


def response_inside(regions: RegionSet, seeds: Seeds) -> Tensor:
    """The share of each seed's response in each region, [N, P]; favours large regions."""
    # Maps at the image's resolution are large: one seed at a time, here and below.
    rows = [regions.pool(seed.responses_in_image(), over="sum")[:, 0] for seed in seeds]
    return torch.stack(rows) if rows else torch.zeros(0, len(regions))


def probability_inside(regions: RegionSet, seeds: Seeds) -> Tensor:
    """The mean probability of each seed's class in each region, [N, P]; favours small regions."""
    rows = [regions.pool(seed.maps_in_image().sigmoid(), over="region")[:, 0] for seed in seeds]
    return torch.stack(rows) if rows else torch.zeros(0, len(regions))


def soft_labels(regions: RegionSet, seeds: Seeds, votes: Tensor, labels: tuple[int, ...]) -> Tensor:
    """Class distribution of every superpixel by votes [N, P]: [J+1, S], sums to 1.

    Row 0 is the background. The value of a class is the maximum over its seeds.
    """
    per_seed = votes @ regions.membership.to(votes.dtype)
    distribution = per_seed.new_zeros(len(labels) + 1, per_seed.shape[1])
    for row, label in zip(distribution[1:], labels, strict=True):
        if (seeds.labels == label).any():
            row[:] = per_seed[seeds.labels == label].amax(dim=0)
    distribution[0] = (1 - distribution.amax(dim=0)).clamp(min=0)
    return distribution / distribution.sum(dim=0, keepdim=True).clamp(min=1e-6)


def first_nonempty(*selections: Tensor) -> Tensor:
    """The first of several bool [P] that is true anywhere; else the last."""
    return next((selection for selection in selections if selection.any()), selections[-1])
