"""Which boxes a step learns from: some with an instance, the rest without, chosen at random."""

from __future__ import annotations

import torch
from torch import Tensor


def choose(
    with_instance: Tensor, without: Tensor, most: int, positive: int, generator: torch.Generator
) -> Tensor:
    """Positions of at most `most` boxes, the first of them with an instance: int64 [n].

    Args:
        with_instance, without: bool [N]; boxes that are neither are never chosen.
        positive: so many have an instance, at most; fewer leave more room for the rest.
        generator: on the processor, whatever the boxes' device.
    """
    chosen = _some(with_instance, positive, generator)
    return torch.cat([chosen, _some(without, most - len(chosen), generator)])


def _some(allowed: Tensor, most: int, generator: torch.Generator) -> Tensor:
    places = allowed.nonzero()[:, 0]
    if len(places) <= most:
        return places
    return places[torch.randperm(len(places), generator=generator)[:most].to(places.device)]
