"""Inference: the best labelling that meets every requirement, by the paper's greedy algorithm.

S(y) = sum_u G_{u,y_u} + Q(y). Starting with background everywhere, labelling region u as class j
gains the margin G_{u,j} - G_{u,0}, so margins are what the algorithm ranks by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from annocoin.conditional.requirements import Requirement, Requirements
from annocoin.errors import InputError, check_choice


class Labelling(NamedTuple):
    """K labellings of P regions.

    Args:
        labels: y^k, int64 [K, P] of 0..C, mostly 0.
        met: the region that meets each of R requirements, int64 [K, R].
    """

    labels: Tensor
    met: Tensor


def infer(
    scores: Tensor,
    requirements: Requirements,
    suppression: Suppression,
    *,
    select_all: bool = False,
    local_search: bool = False,
) -> Labelling:
    """The greedy labelling for each of K scores.

    First every requirement gets a region, all of them together the best that they can have (which
    is the best of each, unless two want the same). Then further regions follow by falling margin
    while that is positive, but none that suppression with a chosen one. Last, if that is wanted, a
    chosen region makes room for two that are better together.

    Args:
        scores: G, [K, P, J+1]: of the background and the J classes of the requirements.
        suppression: see `suppression`.
        select_all: as the paper prints it, rank by G_{u,j} and go on until no region is left.
        local_search: whether the last step is taken, which the paper does not have.
    """
    count, classes = len(requirements.regions), len(requirements.labels)
    if scores.ndim != 3 or tuple(scores.shape[1:]) != (count, classes + 1):
        raise InputError(
            f"scores of shape {tuple(scores.shape)}; expected [K, {count}, {classes + 1}]"
        )
    if not bool(scores.isfinite().all()):
        raise InputError("scores are NaN or infinite; expected finite numbers")
    with torch.no_grad():
        gains = scores[..., 1:] if select_all else scores[..., 1:] - scores[..., :1]
        gains = gains.transpose(1, 2)  # [K, J, P]
        met = _required(gains, requirements, suppression)
        chosen = torch.zeros(gains.shape, dtype=torch.bool, device=gains.device)
        columns = [requirements.labels.index(r.label) for r in requirements.required]
        for number, column in enumerate(columns):
            chosen[:, column].scatter_(1, met[:, number : number + 1], True)
        _extend(chosen, gains, requirements.further.to(gains.device), suppression, select_all)
        if local_search and not select_all:
            exchange(chosen, met, gains, requirements, suppression)
        classes_of = torch.tensor(requirements.labels, dtype=torch.int64, device=gains.device)
        return Labelling((chosen * classes_of.view(1, -1, 1)).sum(dim=1), met)


def _required(gains: Tensor, requirements: Requirements, suppression: Suppression) -> Tensor:
    """For each requirement a region of its own, the best in sum: int64 [K, R].

    Tags then avoid one another's regions, and those of weak_labels that have a place.
    """
    required = requirements.required
    if not required:
        return torch.zeros(len(gains), 0, dtype=torch.int64, device=gains.device)
    columns = [requirements.labels.index(r.label) for r in required]
    compatible = torch.stack([r.compatible for r in required]).to(gains.device)
    wanted = gains[:, columns].masked_fill(~compatible, -torch.inf)
    best = wanted.argmax(dim=2)
    for k, row in enumerate(best.cpu()):
        if len(row.unique()) < len(row):
            best[k] = _assigned(wanted[k])
    labels = torch.tensor([r.label for r in required], device=gains.device)
    clash = suppression.between[best[:, :, None], best[:, None, :]] & (labels[:, None] != labels)
    for k in clash.any(dim=(1, 2)).nonzero()[:, 0].tolist():
        _part(best[k], wanted[k], required, suppression.between)
    return best


def _part(best: Tensor, wanted: Tensor, required: Sequence[Requirement], between: Tensor) -> None:
    """Give tags whose regions in `best` [R] clash with a better one of another class the next best.

    The same object would else stand for two classes. Where nothing else is left, it does.

    Args:
        wanted: [R, P], -inf where a region is not compatible.
        between: bool [P, P], see `Suppression`.
    """
    gains = wanted.gather(1, best[:, None])[:, 0].tolist()
    order = sorted(range(len(required)), key=lambda r: (required[r].more, -gains[r]))
    kept: list[int] = []
    for place in order:
        label = required[place].label
        others = [int(best[own]) for own in kept if required[own].label != label]
        if required[place].more and bool(between[others, int(best[place])].any()):
            free = (wanted[place] > -torch.inf) & ~between[others].any(dim=0)
            free[best] = False
            if bool(free.any()):
                best[place] = wanted[place].masked_fill(~free, -torch.inf).argmax()
        kept.append(place)


def _assigned(wanted: Tensor) -> Tensor:
    """The best assignment of rows to columns of a table [R, P], -inf where none may be: [R]."""
    table = wanted.double().cpu()
    allowed = table[table > -torch.inf]
    never = allowed.min() - len(table) * (allowed.max() - allowed.min() + 1)
    table = table.nan_to_num(neginf=float(never))
    return torch.from_numpy(linear_sum_assignment(table.numpy(), maximize=True)[1]).to(
        wanted.device
    )


def _extend(
    chosen: Tensor, gains: Tensor, further: Tensor, suppression: Suppression, select_all: bool
) -> None:
    """Add further regions to `chosen`, bool [K, J, P], the best one of each sample at a time."""
    if not gains.numel():
        return
    least = -torch.inf if select_all else 0.0
    rows = torch.arange(len(gains), device=gains.device)
    open_ = further[None] & ~suppression.blocked(chosen) & ~chosen.any(dim=1, keepdim=True)
    while True:
        gain, place = gains.masked_fill(~open_, -torch.inf).flatten(1).max(dim=1)
        going = gain > least
        if not bool(going.any()):
            return
        at, place = rows[going], place[going]
        column, region = place // gains.shape[2], place % gains.shape[2]
        chosen[at, column, region] = True
        own = open_[at, column] & ~suppression.within[column, region]
        open_[at] &= ~suppression.between[region][:, None]
        open_[at, column] = own
        open_[at, :, region] = False


OverlapOf = Literal["smaller", "later"]
OVERLAP = 0.3
BETWEEN = 0.5


class Suppression(NamedTuple):
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

    def to(self, device: torch.device | str) -> Suppression:
        return Suppression(self.within.to(device), self.between.to(device))


def build_suppression(
    requirements: Requirements,
    nms_threshold: float = OVERLAP,
    of: OverlapOf = "smaller",
    cross_class_nms_threshold: float = BETWEEN,
) -> Suppression:
    """What a chosen region i keeps region l from.

    Two of a class clash if they overlap too much, or if i already holds every peak of the class
    that l holds: an instance of a tag needs a peak of its own. (Without seeds, overlap alone
    decides.) Two of different classes clash if they overlap too much: a place has one object.

    Args:
        nms_threshold: t, the greatest overlap of two of a class.
        of: their intersection is divided by the area of the "smaller" one, or of the "later" l, as
            the paper prints it, which keeps a region that contains a chosen part.
        cross_class_nms_threshold: the greatest overlap of two of different classes, as a share of the smaller; 1, as
            in the paper, lets them overlap.
    """
    check_choice("overlap", of, get_args(OverlapOf))
    shares = requirements.regions.containment()
    smaller = torch.maximum(shares, shares.T)
    found = (smaller if of == "smaller" else shares.T) > nms_threshold
    rows = []
    for held in requirements.peaks:
        peaks = held.float()
        rows.append(found | ((1 - peaks) @ peaks.T == 0) if held.shape[1] else found)
    within = torch.stack(rows) if rows else found.new_zeros(0, *found.shape)
    return Suppression(within, smaller > cross_class_nms_threshold)


CONSIDERED = 64
"""Pairs are looked for among so many of the best regions."""


def exchange(
    chosen: Tensor, met: Tensor, gains: Tensor, requirements: Requirements, suppression: Suppression
) -> None:
    """Exchange chosen regions for pairs of their class that gain more, until there are none left.

    Each exchange raises S(y), so that it ends. Regions that stand for a weak_label with a place stay.

    Args:
        chosen: bool [K, J, P], override in place.
        met: int64 [K, R], the region of each requirement; override with it.
        gains: what choosing a region gains, [K, J, P].
    """
    further = requirements.further.to(gains.device)
    for column in further.any(dim=1).nonzero()[:, 0].tolist():
        useful = further[column] & (gains[:, column] > 0)
        for k in useful.any(dim=1).nonzero()[:, 0].tolist():
            one = _One(chosen[k], met[k], gains[k, column], useful[k], column)
            while one.exchange(requirements, suppression):
                pass


class _One:
    """One class of one sample."""

    def __init__(
        self, chosen: Tensor, met: Tensor, gains: Tensor, useful: Tensor, column: int
    ) -> None:
        self.chosen, self.met, self.gains = chosen, met, gains
        self.useful, self.column = useful, column

    def exchange(self, requirements: Requirements, suppression: Suppression) -> bool:
        """Make the first exchange that helps; whether there was one."""
        for region in self.chosen[self.column].nonzero()[:, 0].tolist():
            standing = (self.met == region).nonzero()[:, 0].tolist()
            if any(not requirements.required[place].more for place in standing):
                continue
            pair = self._better_pair(region, suppression)
            if pair is None:
                continue
            meets = [requirements.required[place].compatible[pair] for place in standing]
            if not all(bool(own.any()) for own in meets):
                continue
            self.chosen[self.column, region] = False
            self.chosen[self.column, pair] = True
            for place, own in zip(standing, meets, strict=True):
                self.met[place] = pair[int(own.int().argmax())]
            return True
        return False

    def _better_pair(self, region: int, suppression: Suppression) -> list[int] | None:
        """The best two regions that could be chosen if this one were not, if they gain more."""
        without = self.chosen.clone()
        without[self.column, region] = False
        within, rest = suppression.within[self.column], without.any(dim=0)
        of_class = without[self.column]
        free = self.useful & ~rest & ~within[of_class].any(dim=0) & ~within[:, of_class].any(dim=1)
        free &= ~suppression.between[rest & ~of_class].any(dim=0)
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
