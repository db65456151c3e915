"""Votes: how much each region may be the object that a seed shows. First labels, but soft.

A peak lies on the most telling part of an object, and that part is often a fine region itself. No
single choice is safe; but the regions around a peak, each heard in proportion to how much it looks
like a whole object, tend to agree about its extent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from annocoin.regions import RegionSet
from annocoin.regions.algebra import outlines
from annocoin.seeds.evidence import likelihood_inside, response_inside
from annocoin.seeds.seed_set import Seeds

SHARPNESS = 4.0
AREA = 0.2
LEAST_SCORE, LEAST_EDGE = 0.05, 0.02


def vote(
    regions: RegionSet,
    seeds: Seeds,
    admissible: Tensor | None = None,
    *,
    sharpness: float = SHARPNESS,
) -> Tensor:
    """The share of each seed's vote that each region gets, float32 [N, P]; rows sum to 1.

    Candidates are the regions that contain the peak and no peak of another class, as far as there
    are any. They are heard by how much they look like whole objects and how much of the seed's
    response and class is in them.

    Args:
        admissible: the only regions that a seed may vote for, bool [N, P]; where there is none, the
            seed has no vote.
        sharpness: how much more the better regions are heard.
    """
    if len(seeds) == 0 or len(regions) == 0:
        return torch.zeros(len(seeds), len(regions))
    holds = regions.contains(seeds.points).T
    if admissible is None:
        admissible = torch.ones_like(holds)
    rows = []
    for own, label, may in zip(holds, seeds.labels, admissible, strict=True):
        foreign = holds[seeds.labels != label].any(dim=0)
        rows.append(first_that_leaves_any(may & own & ~foreign, may & own, may))
    evidence = response_inside(regions, seeds) + likelihood_inside(regions, seeds)
    likely = sharpness * (wholeness(regions) + evidence)
    return torch.where(torch.stack(rows), likely, -torch.inf).softmax(dim=1).nan_to_num(0)


def wholeness(regions: RegionSet) -> Tensor:
    """How much regions look like whole objects, a logarithm, float32 [P].

    Made of the region's own score, the mean edge along its outline, and a mild preference for large
    ones that do not fill the image.
    """
    on_outline = outlines(regions.membership, regions.elements).float()
    edge = (regions.masses @ on_outline) / (regions.lengths @ on_outline).clamp(min=1)
    area = regions.areas / regions.superpixels.numel()
    return (
        0.5 * (regions.scores.clamp(min=0) + LEAST_SCORE).log()
        + 0.5 * (edge + LEAST_EDGE).log()
        + AREA * area.log()
        + (1 - area).clamp(min=1e-3).log()
    )


def soft_labels(regions: RegionSet, seeds: Seeds, votes: Tensor, labels: tuple[int, ...]) -> Tensor:
    """How much every superpixel belongs to each class, by votes [N, P]: [J+1, S], summing to 1.

    Row 0 is the background; a class has what the seed of it that wants the superpixel most gives.
    """
    wanted = votes @ regions.membership.to(votes.dtype)
    classes = greatest_of_class(wanted, seeds, labels)
    taken = torch.cat([wanted.new_zeros(1, wanted.shape[1]), classes]).amax(dim=0, keepdim=True)
    shares = torch.cat([1 - taken, classes]).clamp(min=0)
    return shares / shares.sum(dim=0, keepdim=True).clamp(min=1e-6)


def greatest_of_class(
    values: Tensor, seeds: Seeds, labels: tuple[int, ...], without: float = 0.0
) -> Tensor:
    """The greatest value that a seed of each class has, [J, X], of values [N, X].

    Args:
        without: for classes that have no seed.
    """
    rows = []
    for label in labels:
        own = values[seeds.labels == label]
        missing = values.new_full((values.shape[1],), without)
        rows.append(own.amax(dim=0) if len(own) else missing)
    return torch.stack(rows) if rows else values.new_zeros(0, values.shape[1])


def first_that_leaves_any(*choices: Tensor) -> Tensor:
    """The first of some bool [P] that is true anywhere; else the last."""
    return next((choice for choice in choices if choice.any()), choices[-1])
