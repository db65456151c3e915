"""What a classifier says about regions: where a peak comes from, and where its class is likely."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from annocoin.regions import RegionSet
from annocoin.seeds.seed_set import Seeds


def response_inside(regions: RegionSet, seeds: Seeds) -> Tensor:
    """The share of each seed's response in each region, [N, P]; it wants large regions."""
    return _each(regions, seeds, lambda seed: regions.pool(seed.responses_in_image(), over="sum"))


def likelihood_inside(regions: RegionSet, seeds: Seeds) -> Tensor:
    """The mean probability of each seed's class in each region, [N, P]; it wants pure regions."""
    return _each(
        regions, seeds, lambda seed: regions.pool(seed.maps_in_image().sigmoid(), over="region")
    )


def _each(regions: RegionSet, seeds: Seeds, pooled: Callable[[Seeds], Tensor]) -> Tensor:
    """Maps are large, so one seed at a time."""
    rows = [pooled(seed)[:, 0] for seed in seeds]
    return torch.stack(rows) if rows else torch.zeros(0, len(regions))
