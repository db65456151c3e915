"""Which boxes a step learns from, and how much each of them counts.

A training on one labelling draws some of the boxes with an instance, at random, and fills up with
boxes without one, of which there are many more. With K samples a box may stand for an instance in
some of them only.

Where regions are proposed, the mean over the samples' own draws is wanted, for the price of one:
`draw`. Such a box would be drawn with its instance in most of those samples, and in the others
hardly ever: so little does it count as background, or nothing doubtful would be proposed. Where
classes are told apart, it counts once, with all it stands for: `choose`. Its class becomes as
probable as it is among the samples, and doubt lowers a score instead of hiding an object.
"""

from __future__ import annotations

import torch
from torch import Tensor

from annocoin.prediction.soft_targets import Shares


def draw(
    shares: Shares, most: int, positive: int, generator: torch.Generator
) -> tuple[Tensor, Shares]:
    """Positions of about `most` of N boxes, int64 [n], and their shares times what they count.

    In the mean over draws every box counts as often as in the mean over its samples' own draws, if
    all samples have as many boxes with an instance. Boxes of a single labelling count 1.

    Args:
        shares: what the N boxes stand for.
        most: boxes in a sample's draw.
        positive: those of them with an instance, at most.
        generator: on the processor, whatever the boxes' device.
    """
    often = shares.instances.sum(dim=1)
    with_instance, without = float(often.sum()), float(shares.background.sum())
    wanted = min(float(positive), with_instance)
    as_instance = wanted / max(with_instance, 1e-6)
    as_background = min(1.0, (most - wanted) / max(without, 1e-6))
    chance = (often * (positive / max(with_instance, 1e-6))).clamp(max=1)
    first = _by_chance(chance, generator)
    other = ((often == 0) & (shares.background > 0)).nonzero()[:, 0]
    rest = _some(other, max(0, most - len(first)), generator)
    chance[rest] = len(rest) / max(1, len(other))
    chosen = torch.cat([first, rest])
    counts = 1 / chance[chosen]
    return chosen, Shares(
        shares.instances[chosen] * (as_instance * counts)[:, None],
        shares.background[chosen] * (as_background * counts),
    )


def choose(
    shares: Shares, most: int, positive: int, generator: torch.Generator
) -> tuple[Tensor, Shares]:
    """Positions of at most `most` of N boxes, int64 [n], and their shares as they are.

    Args:
        shares: what the N boxes stand for.
        positive: so many stand for an instance in some sample, at most, and come first; fewer leave
            more room for the rest.
        generator: on the processor, whatever the boxes' device.
    """
    often = shares.instances.sum(dim=1)
    first = _some((often > 0).nonzero()[:, 0], positive, generator)
    other = ((often == 0) & (shares.background > 0)).nonzero()[:, 0]
    chosen = torch.cat([first, _some(other, most - len(first), generator)])
    return chosen, Shares(shares.instances[chosen], shares.background[chosen])


def _by_chance(chance: Tensor, generator: torch.Generator) -> Tensor:
    """Positions chosen with these probabilities [N]; their number is the probabilities' sum, or
    the whole number beside it."""
    places = ((chance > 0) & (chance < 1)).nonzero()[:, 0]
    places = _some(places, len(places), generator)
    own = chance[places].double()
    ends = own.cumsum(dim=0) + torch.rand((), generator=generator, dtype=torch.float64).item()
    reached = ends.floor() > (ends - own).floor()
    return torch.cat([(chance >= 1).nonzero()[:, 0], places[reached]])


def _some(places: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """At most so many of these positions, in any order."""
    order = torch.randperm(len(places), generator=generator)[:most]
    return places[order.to(places.device)]
