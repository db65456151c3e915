"""Inference: the best labelling that meets every requirement, by the paper's greedy algorithm.

S(y) = sum_u G_{u,y_u} + Q(y). Starting with background everywhere, labelling region u as class j
gains the margin G_{u,j} - G_{u,0}, so margins are what the algorithm ranks by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from annocoin.conditional.clashes import Clashes
from annocoin.conditional.exchange import exchange
from annocoin.conditional.requirements import Requirement, Requirements
from annocoin.errors import InputError


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
    clashing: Clashes,
    *,
    exhaustive: bool = False,
    exchanging: bool = False,
) -> Labelling:
    """The greedy labelling for each of K scores.

    First every requirement gets a region, all of them together the best that they can have (which
    is the best of each, unless two want the same). Then further regions follow by falling margin
    while that is positive, but none that clashes with a chosen one. Last, if that is wanted, a
    chosen region makes room for two that are better together.

    Args:
        scores: G, [K, P, J+1]: of the background and the J classes of the requirements.
        clashing: see `clashes`.
        exhaustive: as the paper prints it, rank by G_{u,j} and go on until no region is left.
        exchanging: whether the last step is taken, which the paper does not have.
    """
    count, classes = len(requirements.regions), len(requirements.labels)
    if scores.ndim != 3 or tuple(scores.shape[1:]) != (count, classes + 1):
        raise InputError(
            f"scores of shape {tuple(scores.shape)}; expected [K, {count}, {classes + 1}]"
        )
    if not bool(scores.isfinite().all()):
        raise InputError("scores are NaN or infinite; expected finite numbers")
    with torch.no_grad():
        gains = scores[..., 1:] if exhaustive else scores[..., 1:] - scores[..., :1]
        gains = gains.transpose(1, 2)  # [K, J, P]
        met = _required(gains, requirements, clashing)
        chosen = torch.zeros(gains.shape, dtype=torch.bool, device=gains.device)
        columns = [requirements.labels.index(r.label) for r in requirements.required]
        for number, column in enumerate(columns):
            chosen[:, column].scatter_(1, met[:, number : number + 1], True)
        _extend(chosen, gains, requirements.further.to(gains.device), clashing, exhaustive)
        if exchanging and not exhaustive:
            exchange(chosen, met, gains, requirements, clashing)
        classes_of = torch.tensor(requirements.labels, dtype=torch.int64, device=gains.device)
        return Labelling((chosen * classes_of.view(1, -1, 1)).sum(dim=1), met)


def total(values: Tensor, labels: Tensor, classes: tuple[int, ...]) -> Tensor:
    """sum_u V[u, y_u], differentiable: [...], of values [..., P, J+1] and labels [..., P] of 0..C.

    With V = G it is S(y) without Q, with a table of losses the loss of y.

    Args:
        classes: the J classes of the values' columns; the background is column 0.
    """
    columns = columns_of(labels, classes)
    shape = torch.broadcast_shapes(values.shape[:-1], columns.shape)
    values = values.expand(*shape, values.shape[-1])
    return values.gather(-1, columns.expand(shape)[..., None])[..., 0].sum(dim=-1)


def columns_of(labels: Tensor, classes: tuple[int, ...]) -> Tensor:
    """Where labels 0..C are among the background and `classes`: 0..J, of the same shape."""
    places = torch.zeros(max(classes, default=0) + 1, dtype=torch.int64, device=labels.device)
    places[list(classes)] = torch.arange(1, len(classes) + 1, device=labels.device)
    return places[labels]


def _required(gains: Tensor, requirements: Requirements, clashing: Clashes) -> Tensor:
    """For each requirement a region of its own, the best in sum: int64 [K, R].

    Tags then avoid one another's regions, and those of marks that have a place.
    """
    required = requirements.required
    if not required:
        return torch.zeros(len(gains), 0, dtype=torch.int64, device=gains.device)
    columns = [requirements.labels.index(r.label) for r in required]
    admissible = torch.stack([r.admissible for r in required]).to(gains.device)
    wanted = gains[:, columns].masked_fill(~admissible, -torch.inf)
    best = wanted.argmax(dim=2)
    for k, row in enumerate(best.cpu()):
        if len(row.unique()) < len(row):
            best[k] = _assigned(wanted[k])
    labels = torch.tensor([r.label for r in required], device=gains.device)
    clash = clashing.between[best[:, :, None], best[:, None, :]] & (labels[:, None] != labels)
    for k in clash.any(dim=(1, 2)).nonzero()[:, 0].tolist():
        _part(best[k], wanted[k], required, clashing.between)
    return best


def _part(best: Tensor, wanted: Tensor, required: Sequence[Requirement], between: Tensor) -> None:
    """Give tags whose regions in `best` [R] clash with a better one of another class the next best.

    The same object would else stand for two classes. Where nothing else is left, it does.

    Args:
        wanted: [R, P], -inf where a region is not admissible.
        between: bool [P, P], see `Clashes`.
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
    chosen: Tensor, gains: Tensor, further: Tensor, clashing: Clashes, exhaustive: bool
) -> None:
    """Add further regions to `chosen`, bool [K, J, P], the best one of each sample at a time."""
    if not gains.numel():
        return
    least = -torch.inf if exhaustive else 0.0
    rows = torch.arange(len(gains), device=gains.device)
    open_ = further[None] & ~clashing.blocked(chosen) & ~chosen.any(dim=1, keepdim=True)
    while True:
        gain, place = gains.masked_fill(~open_, -torch.inf).flatten(1).max(dim=1)
        going = gain > least
        if not bool(going.any()):
            return
        at, place = rows[going], place[going]
        column, region = place // gains.shape[2], place % gains.shape[2]
        chosen[at, column, region] = True
        own = open_[at, column] & ~clashing.within[column, region]
        open_[at] &= ~clashing.between[region][:, None]
        open_[at, column] = own
        open_[at, :, region] = False
