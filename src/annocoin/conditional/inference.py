"""Inference: the best labelling that meets every requirement, by the paper's greedy algorithm.

S(y) = sum_u G_{u,y_u} + Q(y). Starting with background everywhere, labelling region u as class j
gains the margin G_{u,j} - G_{u,0}, so margins are what the algorithm ranks by.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from annocoin.conditional.requirements import Requirements
from annocoin.errors import InputError, check_choice

OverlapOf = Literal["smaller", "later"]
OVERLAP = 0.3


class Labelling(NamedTuple):
    """K labellings of P regions.

    Args:
        labels: y^k, int64 [K, P] of 0..C, mostly 0.
        met: the region that meets each of R requirements, int64 [K, R].
    """

    labels: Tensor
    met: Tensor


def clashes(requirements: Requirements, most: float = OVERLAP, of: OverlapOf = "smaller") -> Tensor:
    """Whether a chosen region i keeps region l from being another instance of class j: [J, P, P].

    It does if they overlap too much, or if it already holds every peak of j that l holds: an
    instance of a tag needs a peak of its own. (Without seeds, overlap alone decides.)

    Args:
        most: t, the greatest overlap.
        of: the intersection of i and l is divided by the area of the "smaller" one, or of the
            "later" l, as the paper prints it, which keeps a region that contains a chosen part.
    """
    check_choice("overlap", of, get_args(OverlapOf))
    shares = requirements.regions.containment()
    found = (torch.maximum(shares, shares.T) if of == "smaller" else shares.T) > most
    rows = []
    for held in requirements.peaks:
        peaks = held.float()
        rows.append(found | ((1 - peaks) @ peaks.T == 0) if held.shape[1] else found)
    return torch.stack(rows) if rows else found.new_zeros(0, *found.shape)


def infer(
    scores: Tensor,
    requirements: Requirements,
    clashing: Tensor,
    *,
    exhaustive: bool = False,
) -> Labelling:
    """The greedy labelling for each of K scores.

    First every requirement gets a region, all of them together the best that they can have (which
    is the best of each, unless two want the same). Then further regions follow by falling margin
    while that is positive, but none that clashes with a chosen one of its class.

    Args:
        scores: G, [K, P, J+1]: of the background and the J classes of the requirements.
        clashing: bool [J, P, P], see `clashes`; rows are the chosen regions.
        exhaustive: as the paper prints it, rank by G_{u,j} and go on until no region is left.
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
        met = _required(gains, requirements)
        chosen = torch.zeros(gains.shape, dtype=torch.bool, device=gains.device)
        columns = [requirements.labels.index(r.label) for r in requirements.required]
        for number, column in enumerate(columns):
            chosen[:, column].scatter_(1, met[:, number : number + 1], True)
        _extend(chosen, gains, requirements.further.to(gains.device), clashing, exhaustive)
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


def _required(gains: Tensor, requirements: Requirements) -> Tensor:
    """For each requirement a region of its own, the best in sum: int64 [K, R]."""
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
    return best


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
    chosen: Tensor, gains: Tensor, further: Tensor, clashing: Tensor, exhaustive: bool
) -> None:
    """Add further regions to `chosen`, bool [K, J, P], the best one of each sample at a time."""
    if not gains.numel():
        return
    blocked = torch.einsum("kjp,jpq->kjq", chosen.float(), clashing.float()) > 0
    least = -torch.inf if exhaustive else 0.0
    rows = torch.arange(len(gains), device=gains.device)
    open_ = further[None] & ~blocked & ~chosen.any(dim=1, keepdim=True)
    while True:
        gain, place = gains.masked_fill(~open_, -torch.inf).flatten(1).max(dim=1)
        going = gain > least
        if not bool(going.any()):
            return
        column, region = place // gains.shape[2], place % gains.shape[2]
        at = rows[going]
        chosen[at, column[going], region[going]] = True
        open_[at, :, region[going]] = False
        open_[at, column[going]] &= ~clashing[column[going], region[going]]
