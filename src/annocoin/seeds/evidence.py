"""The evidence of class maps for regions: where the classes are, and which regions fit that.

Unlike votes, which start from peaks, this needs no peak on an object.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.votes import log_objectness

CONTRAST_WEIGHT = 4.0
EXTENT_WEIGHT = 4.0
"""Weights of the terms of `region_evidence` relative to the logarithm of objectness."""

AREA_THRESHOLD = 0.5
"""A superpixel belongs to the area of a class if its class share is greater."""

EDGE_WEIGHT = 8.0
"""A border with mean boundary probability e conducts exp(-EDGE_WEIGHT e) per pixel side."""

FIDELITY = 0.01
"""How strongly a superpixel keeps its own value, per pixel of its side."""


def class_shares(regions: RegionSet, seeds: Seeds, labels: Sequence[int]) -> Tensor:
    """How much each superpixel belongs to each class, in 0..1: [J, S].

    The positive part of a class map relative to its maximum, its square root (maps are highest on
    the most discriminative part of an object), diffused up to the boundaries of the image; the
    greatest value of a class is 1. A class without seeds or positive values has 0.
    """
    shares = torch.zeros(len(labels), regions.membership.shape[1])
    for row, label in zip(shares, labels, strict=True):
        of_class = (seeds.labels == label).nonzero()[:1, 0]
        if len(of_class):
            values = _relative(regions.superpixel_means(seeds.maps[of_class]).clamp(min=0))
            row[:] = _relative(diffuse(regions, values.sqrt()))[0]
    return shares


def region_evidence(regions: RegionSet, shares: Tensor) -> Tensor:
    """The evidence for each region as an instance of each class, [P, J].

    The sum of: the logarithm of objectness; the contrast of the mean class share inside the region
    with that in the superpixels around it; the IoU of the region with the whole area of the class.

    Args:
        shares: from `class_shares`, [J, S].
    """
    if not len(shares):
        return torch.zeros(len(regions), 0)
    areas, members = regions.superpixel_areas.float(), regions.membership.float()
    inside = (members * areas) @ shares.T / regions.areas[:, None]
    rings = regions.rings() * areas
    around = rings @ shares.T / rings.sum(dim=1, keepdim=True).clamp(min=1)
    in_class = (shares > AREA_THRESHOLD) & (shares == shares.amax(dim=0, keepdim=True))
    class_areas = in_class * areas
    common = members @ class_areas.T
    union = regions.areas[:, None] + class_areas.sum(dim=1) - common
    evidence = CONTRAST_WEIGHT * (inside - around) + EXTENT_WEIGHT * common / union
    return log_objectness(regions)[:, None] + evidence


def share_labels(shares: Tensor) -> Tensor:
    """Class distribution of every superpixel by class shares [J, S]: [J+1, S], sums to 1.

    Row 0 is the background, whose share is what the greatest one of a class leaves.
    """
    background = 1 - shares.amax(dim=0) if len(shares) else torch.ones(shares.shape[1])
    distribution = torch.cat([background[None], shares])
    return distribution / distribution.sum(dim=0, keepdim=True)


def diffuse(
    regions: RegionSet,
    values: Tensor,
    *,
    edge_weight: float = EDGE_WEIGHT,
    fidelity: float = FIDELITY,
) -> Tensor:
    """Spread values over adjacent superpixels, except across boundaries: [C, S] to [C, S].

    Gives the y that minimises, for superpixels s of area a_s with value x_s,

    fidelity sum_s sqrt(a_s) (y_s - x_s)^2 + sum_(s,t) l_st exp(-edge_weight e_st) (y_s - y_t)^2

    where l_st is the length of the border between s and t, and e_st the mean boundary probability
    on it. The result is a weighted mean of the values: it lies between their extremes, and where no
    boundary separates superpixels they get nearly the same value. It does not depend on the
    resolution of the image.
    """
    if not (edge_weight >= 0 and fidelity > 0):
        raise InputError(
            f"edge_weight {edge_weight}, fidelity {fidelity}; expected 0 or more, and above 0"
        )
    count = regions.membership.shape[1]
    if values.ndim != 2 or values.shape[1] != count:
        raise ValueError(f"values of shape {tuple(values.shape)}; expected [C, {count}]")
    # double precision: conductances differ by many orders of magnitude
    strength, lengths = regions.edge_strength.double(), regions.lengths.double()
    conductance = lengths * torch.exp(-edge_weight * strength / lengths.clamp(min=1))
    first, second = regions.elements.T
    weights = conductance.new_zeros(count, count)
    weights[first, second] = conductance
    weights[second, first] = conductance
    own = fidelity * regions.superpixel_areas.double().sqrt()
    system = torch.diag(weights.sum(dim=1) + own) - weights
    solution = torch.linalg.solve(system, own[:, None] * values.T.double())
    return solution.T.to(values.dtype)


def _relative(values: Tensor) -> Tensor:
    """Values [C, S] divided by the maximum of each row; 0 where that is 0."""
    return values / values.amax(dim=1, keepdim=True).clamp(min=1e-6)
