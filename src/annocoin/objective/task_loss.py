"""The task loss Delta, decomposed over regions: tables of what labelling a region costs.

A table D is [..., P, J+1]: of P regions for J+1 labels, column 0 the background. The loss of a
labelling y is sum_u D[u, y_u].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

CLAMP = 6.0
"""Log losses above this count as this: what is nearly impossible must not outweigh all else."""

LOG_ODDS_CLAMP = 3.0
"""The same for log odds in learning. With 6, what is surely background outweighs all objects."""

SHAPE = 6.0
"""How much a mask's mean loss counts beside the log odds of a class.

A mask is as many witnesses as it has pixels; that they agree with one another is why they do not
count as 784. Counted once, they hardly tell a whole object from its parts.
"""

PRESENT = 1.0
"""The least log odds of the best region of a class that the annotation names."""


def prediction_loss_table(
    class_log_probabilities: Tensor, mask_losses: Tensor, *, clamp: float = CLAMP
) -> Tensor:
    """What the prediction network thinks of every labelling of a region: D [P, J+1].

    D[u, j] = -log p(j | u) + mask loss of region u under class j, and D[u, 0] = -log p(0 | u);
    without the latter, missed instances would cost nothing.

    Args:
        class_log_probabilities: of the RoI head on the regions' tight boxes, [P, J+1].
        mask_losses: the mean over pixels of the cross entropy of the predicted mask of class j
            with the region, [P, J].
    """
    losses = -class_log_probabilities
    masks = torch.cat([torch.zeros_like(losses[:, :1]), mask_losses], dim=1)
    return losses.clamp(max=clamp) + masks.clamp(max=clamp)


def annotation_loss_table(
    class_log_probabilities: Tensor,
    mask_losses: Tensor,
    *,
    shape: float = SHAPE,
    clamp: float = CLAMP,
    present: float = PRESENT,
) -> Tensor:
    """The same given the classes that the annotation names: D [P, J+1].

    The prediction network does not see the annotation, but what it says can be read with it. A
    region that is an object, and of no other class, is of one of the J classes; the mask speaks for
    a region as far as it fits better than one that says nothing; and of every class that is named
    one object at least is there. With the log odds

    m[u, j] = log (1 - p(0 | u)) / p(0 | u) + log p(j | u, one of J) + shape (log 2 - mask loss)

    raised, for all regions alike, until the greatest of a class is `present`, and kept within
    `clamp`, D[u] = -log softmax(0, m[u, 1], .., m[u, J]).

    Args:
        class_log_probabilities, mask_losses: as `prediction_loss_table` has them.
    """
    background = class_log_probabilities[:, 0].exp().clamp(1e-6, 1 - 1e-6)
    odds = torch.log1p(-background) - background.log()
    margins = odds[:, None] + class_log_probabilities[:, 1:].log_softmax(dim=1)
    margins = margins + shape * (math.log(2) - mask_losses)
    if margins.numel():
        margins = margins + (present - margins.amax(dim=0)).clamp(min=0)
    return _of_margins(margins.clamp(-clamp, clamp))


def clamp_log_odds(table: Tensor, clamp: float = LOG_ODDS_CLAMP) -> Tensor:
    """A conditioned table with log odds kept within a smaller bound, for learning: [P, J+1]."""
    return _of_margins((table[:, :1] - table[:, 1:]).clamp(-clamp, clamp))


def _of_margins(margins: Tensor) -> Tensor:
    """D[u] = -log softmax(0, m[u, 1], .., m[u, J])."""
    both = torch.cat([margins.new_zeros(len(margins), 1), margins], dim=1)
    return -both.log_softmax(dim=1)


def disagreement_table(other: Tensor, iou: Tensor, classes: tuple[int, ...]) -> Tensor:
    """What labelling regions costs beside another sample y' of the conditional network.

    With k(y, y') the sum of IoU(u, v) over regions u of y and v of y' that have the same label,

    Delta(y, y') = k(y, y) / 2 + k(y', y') / 2 - k(y, y')

    It is 0 for equal samples, 1 for every instance that has moved away entirely, never negative and
    symmetric. The log loss of one certain labelling under another, which the paper's words suggest,
    is infinite.

    Args:
        other: y', int64 [..., P] of 0..C.
        iou: of all pairs of regions, [P, P].
        classes: the J classes of the columns.

    Returns:
        D' [..., P, J+1] with Delta(y, y') = k(y', y') / 2 + sum_u D'[u, y_u], if no two instances
        of a class overlap within y; what they overlap cannot be split over regions.
    """
    costs = 0.5 - iou @ one_hot(other, classes, iou.dtype)
    return torch.cat([costs.new_zeros(*costs.shape[:-1], 1), costs], dim=-1)


def one_hot(labels: Tensor, classes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Which of the J classes each region has: [..., P, J] of 0 and 1, from labels [..., P]."""
    wanted = torch.tensor(classes, dtype=torch.int64, device=labels.device)
    return (labels[..., None] == wanted).to(dtype)


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
