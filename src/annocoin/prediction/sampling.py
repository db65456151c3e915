"""Which boxes a step learns from, and how much each of them counts.

A training on one labelling draws some of the boxes with an instance, at random, and fills up with
boxes without one, of which there are many more. With K samples the mean over their draws is wanted,
for the price of one draw. A box that stands for an instance in half of the samples would be drawn
as such in most of those, and in the others hardly ever: so little does it count as background.
"""

from __future__ import annotations

import torch
from torch import Tensor

from annocoin.prediction.soft_targets import Shares


def draw(
    shares: Shares, most: int, positive: int, generator: torch.Generator, *, rows: int | None = None
) -> tuple[Tensor, Shares]:
    """Positions of about `most` of N boxes, int64 [n], and their shares times what they count.

    In the mean over draws every box counts as often as in the mean over its samples' own draws, if
    all samples have as many boxes with an instance. Boxes of a single labelling count 1.

    Args:
        shares: what the N boxes stand for.
        most: boxes in a sample's draw.
        positive: those of them with an instance, at most.
        rows: about so many boxes with an instance in some sample, at most; default `positive`. The
            fewer, the more each counts.
        generator: on the processor, whatever the boxes' device.
    """
    rows = positive if rows is None else min(rows, positive)
    often = shares.instances.sum(dim=1)
    with_instance, without = float(often.sum()), float(shares.background.sum())
    wanted = min(float(positive), with_instance)
    as_instance = wanted / max(with_instance, 1e-6)
    as_background = min(1.0, (most - wanted) / max(without, 1e-6))
    chance = (often * (rows / max(with_instance, 1e-6))).clamp(max=1)
    first = _by_chance(chance, generator)
    other = ((often == 0) & (shares.background > 0)).nonzero()[:, 0]
    rest = other[_some(len(other), max(0, most - len(first)), generator).to(other.device)]
    chance[rest] = len(rest) / max(1, len(other))
    chosen = torch.cat([first, rest])
    counts = 1 / chance[chosen]
    return chosen, Shares(
        shares.instances[chosen] * (as_instance * counts)[:, None],
        shares.background[chosen] * (as_background * counts),
    )


def _by_chance(chance: Tensor, generator: torch.Generator) -> Tensor:
    """Positions chosen with these probabilities [N]; their number is the probabilities' sum, or
    the whole number beside it."""
    places = ((chance > 0) & (chance < 1)).nonzero()[:, 0]
    places = places[_some(len(places), len(places), generator).to(places.device)]
    own = chance[places].double()
    ends = own.cumsum(dim=0) + torch.rand((), generator=generator, dtype=torch.float64).item()
    reached = ends.floor() > (ends - own).floor()
    return torch.cat([(chance >= 1).nonzero()[:, 0], places[reached]])


def _some(count: int, most: int, generator: torch.Generator) -> Tensor:
    """At most so many of the positions 0..count-1, in any order."""
    return torch.randperm(count, generator=generator)[:most]
