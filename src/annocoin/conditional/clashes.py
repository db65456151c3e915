"""Clashes: which chosen regions keep which others from being instances too."""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from annocoin.conditional.requirements import Requirements
from annocoin.errors import check_choice

OverlapOf = Literal["smaller", "later"]
OVERLAP = 0.3
BETWEEN = 0.5


class Clashes(NamedTuple):
    """Which regions cannot be chosen both; rows are those chosen first.

    Args:
        within: both as instances of class j, bool [J, P, P].
        between: as instances of two classes, bool [P, P], symmetric.
    """

    within: Tensor
    between: Tensor

    def blocked(self, chosen: Tensor) -> Tensor:
        """Which regions clash with the chosen ones, both bool [K, J, P]."""
        own = chosen.float()
        others = own.sum(dim=1, keepdim=True) - own
        found = torch.einsum("kjp,jpq->kjq", own, self.within.float())
        return (found + others @ self.between.float()) > 0

    def to(self, device: torch.device | str) -> Clashes:
        return Clashes(self.within.to(device), self.between.to(device))


def clashes(
    requirements: Requirements,
    most: float = OVERLAP,
    of: OverlapOf = "smaller",
    between: float = BETWEEN,
) -> Clashes:
    """What a chosen region i keeps region l from.

    Two of a class clash if they overlap too much, or if i already holds every peak of the class
    that l holds: an instance of a tag needs a peak of its own. (Without seeds, overlap alone
    decides.) Two of different classes clash if they overlap too much: a place has one object.

    Args:
        most: t, the greatest overlap of two of a class.
        of: their intersection is divided by the area of the "smaller" one, or of the "later" l, as
            the paper prints it, which keeps a region that contains a chosen part.
        between: the greatest overlap of two of different classes, as a share of the smaller; 1, as
            in the paper, lets them overlap.
    """
    check_choice("overlap", of, get_args(OverlapOf))
    shares = requirements.regions.containment()
    smaller = torch.maximum(shares, shares.T)
    found = (smaller if of == "smaller" else shares.T) > most
    rows = []
    for held in requirements.peaks:
        peaks = held.float()
        rows.append(found | ((1 - peaks) @ peaks.T == 0) if held.shape[1] else found)
    within = torch.stack(rows) if rows else found.new_zeros(0, *found.shape)
    return Clashes(within, smaller > between)
