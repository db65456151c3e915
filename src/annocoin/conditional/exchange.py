"""Second thoughts of greedy inference: one region makes room for two that are better together.

The best region first is the wrong way to start where it unites two objects: each of the two alone
is a little worse than both, and can no longer be chosen.
"""

from __future__ import annotations

import torch
from torch import Tensor

from annocoin.conditional.clashes import Clashes
from annocoin.conditional.requirements import Requirements

CONSIDERED = 64
"""Pairs are looked for among so many of the best regions."""


def exchange(
    chosen: Tensor, met: Tensor, gains: Tensor, requirements: Requirements, clashing: Clashes
) -> None:
    """Exchange chosen regions for pairs of their class that gain more, until there are none left.

    Each exchange raises S(y), so that it ends. Regions that stand for a mark with a place stay.

    Args:
        chosen: bool [K, J, P], changed in place.
        met: int64 [K, R], the region of each requirement; changed with it.
        gains: what choosing a region gains, [K, J, P].
    """
    further = requirements.further.to(gains.device)
    for column in further.any(dim=1).nonzero()[:, 0].tolist():
        useful = further[column] & (gains[:, column] > 0)
        for k in useful.any(dim=1).nonzero()[:, 0].tolist():
            one = _One(chosen[k], met[k], gains[k, column], useful[k], column)
            while one.exchange(requirements, clashing):
                pass


class _One:
    """One class of one sample."""

    def __init__(
        self, chosen: Tensor, met: Tensor, gains: Tensor, useful: Tensor, column: int
    ) -> None:
        self.chosen, self.met, self.gains = chosen, met, gains
        self.useful, self.column = useful, column

    def exchange(self, requirements: Requirements, clashing: Clashes) -> bool:
        """Make the first exchange that helps; whether there was one."""
        for region in self.chosen[self.column].nonzero()[:, 0].tolist():
            standing = (self.met == region).nonzero()[:, 0].tolist()
            if any(not requirements.required[place].more for place in standing):
                continue
            pair = self._better_pair(region, clashing)
            if pair is None:
                continue
            meets = [requirements.required[place].admissible[pair] for place in standing]
            if not all(bool(own.any()) for own in meets):
                continue
            self.chosen[self.column, region] = False
            self.chosen[self.column, pair] = True
            for place, own in zip(standing, meets, strict=True):
                self.met[place] = pair[int(own.int().argmax())]
            return True
        return False

    def _better_pair(self, region: int, clashing: Clashes) -> list[int] | None:
        """The best two regions that could be chosen if this one were not, if they gain more."""
        without = self.chosen.clone()
        without[self.column, region] = False
        within, rest = clashing.within[self.column], without.any(dim=0)
        of_class = without[self.column]
        free = self.useful & ~rest & ~within[of_class].any(dim=0) & ~within[:, of_class].any(dim=1)
        free &= ~clashing.between[rest & ~of_class].any(dim=0)
        free[region] = False
        gains, places = self.gains.masked_fill(~free, -torch.inf).topk(
            min(CONSIDERED, int(free.sum()))
        )
        if len(gains) < 2 or gains[0] + gains[1] <= self.gains[region]:
            return None
        apart = within[places][:, places]
        sums = (gains[:, None] + gains[None, :]).masked_fill(apart | apart.T, -torch.inf)
        sums.fill_diagonal_(-torch.inf)
        best, pair = sums.flatten().max(dim=0)
        if best <= self.gains[region]:
            return None
        return [int(places[pair // len(places)]), int(places[pair % len(places)])]
