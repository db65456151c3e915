"""The task loss Delta (eq. 9) as tables of the loss of each label of each region.

A table D is [..., P, J+1]: P regions, column 0 the background, columns 1..J the classes of the
annotation. The loss of a labelling y is sum_u D[u, y_u], see `labelling_score`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from annocoin.errors import InputError, check_positive

LOSS_CLAMP = 6.0
"""Upper bound of a log loss: one improbable region must not dominate the sum."""

TRAINING_CLAMP = 3.0
"""The bound of log odds in training; with 6, certain background regions outweigh all objects."""

MASK_WEIGHT = 6.0
"""Weight of a mask's mean pixel loss relative to the log odds of a class.

Pixels are many but correlated, so that the weight lies between 1 and the 784 pixels of a mask. With
1, masks hardly distinguish a whole object from its parts.
"""

MIN_BEST_LOG_ODDS = 1.0
"""Lower bound of the log odds of the best region of each annotated class."""


MASK_SCORED_REGIONS = 64
"""Default number of regions per image whose masks are predicted."""


@dataclass(frozen=True)
class TaskLossOptions:
    """The task loss of regions under the prediction network.

    Args:
        clamp: upper bound of the log losses, or of log odds in a restricted table; None, as in the
            paper, for none, and then `clamp_log_odds` is left out in training too.
        mask_scored_regions: number of regions of an image with a mask loss, see `score_regions`;
            None, as in the paper, for all.
        box: whether tables contain Delta_box, see `score_regions`. The paper's do not: the
            conditional network predicts no boxes.
    """

    clamp: float | None = LOSS_CLAMP
    mask_scored_regions: int | None = MASK_SCORED_REGIONS
    box: bool = False

    def __post_init__(self) -> None:
        if self.clamp is not None and not self.clamp > 0:
            raise InputError(f"clamp {self.clamp}; expected above 0, or null for none")
        if self.mask_scored_regions is not None:
            check_positive("mask_scored_regions", self.mask_scored_regions)


def prediction_loss_table(
    class_log_probabilities: Tensor,
    mask_losses: Tensor,
    box_losses: Tensor | None = None,
    *,
    clamp: float | None = LOSS_CLAMP,
) -> Tensor:
    """The loss of each label of each region under the prediction network: D [P, J+1].

    D[u, j] = -log p(j | u) + mask loss (and box loss) of region u under class j, and
    D[u, 0] = -log p(0 | u). Without the latter, missed instances would have no loss.

    Args:
        class_log_probabilities: of the RoI head on the regions' tight boxes, [P, J+1].
        mask_losses: the mean over pixels of the cross entropy between the predicted mask of class j
            and the region, [P, J].
        box_losses: smooth L1 losses of the box of class j, [P, J]; None for none.
        clamp: upper bound of each loss; None for none.
    """
    limit = math.inf if clamp is None else clamp
    losses = (-class_log_probabilities).clamp(max=limit)
    for others in (mask_losses, box_losses):
        if others is not None:
            background = torch.zeros_like(losses[:, :1])
            losses = losses + torch.cat([background, others], dim=1).clamp(max=limit)
    return losses


def restricted_loss_table(
    class_log_probabilities: Tensor,
    mask_losses: Tensor,
    box_losses: Tensor | None = None,
    *,
    mask_weight: float = MASK_WEIGHT,
    clamp: float | None = LOSS_CLAMP,
    min_best_log_odds: float = MIN_BEST_LOG_ODDS,
) -> Tensor:
    """The loss table of the prediction network, restricted to the annotated classes: D [P, J+1].

    The prediction network does not depend on the annotation, but its outputs can be conditioned on
    it: an object is of one of the J annotated classes, and each of them has at least one object.
    A mask counts by how much it fits better than a constant 1/2. The log odds

    m[u, j] = log (1 - p(0 | u)) / p(0 | u) + log p(j | u, 1..J) + mask_weight (log 2 - mask loss)

    minus the box loss, if there is one, are raised by a constant per class such that the greatest
    is at least `min_best_log_odds`, and clamped to +-`clamp`. Then
    D[u] = -log softmax(0, m[u, 1], .., m[u, J]).

    Args:
        class_log_probabilities, mask_losses, box_losses: see `prediction_loss_table`.
    """
    background = class_log_probabilities[:, 0].exp().clamp(1e-6, 1 - 1e-6)
    objectness = torch.log1p(-background) - background.log()
    log_odds = objectness[:, None] + class_log_probabilities[:, 1:].log_softmax(dim=1)
    log_odds = log_odds + mask_weight * (math.log(2) - mask_losses)
    if box_losses is not None:
        log_odds = log_odds - box_losses
    if log_odds.numel():
        log_odds = log_odds + (min_best_log_odds - log_odds.amax(dim=0)).clamp(min=0)
    return detection_loss_table(log_odds, clamp=clamp)


def detection_loss_table(log_odds: Tensor, *, clamp: float | None = LOSS_CLAMP) -> Tensor:
    """The loss table of log odds that a region is an instance, [P, J] to D [P, J+1].

    Unlike `restricted_loss_table`, whose log odds are those of RoIs, these are of the instances
    that the prediction network detects: the paper's Delta of a labelling and the network's output.
    """
    limit = math.inf if clamp is None else clamp
    return _table_of_log_odds(log_odds.clamp(-limit, limit))


def running_mean_table(mean: Tensor, table: Tensor, number: int) -> Tensor:
    """The table of the mean log odds of `number` tables [P, J+1].

    Args:
        mean: that of all but the last one.
        table: the last one.
    """
    before = _log_odds_of_table(mean)
    return _table_of_log_odds(before + (_log_odds_of_table(table) - before) / number)


def clamp_log_odds(table: Tensor, clamp: float = TRAINING_CLAMP) -> Tensor:
    """A restricted table [P, J+1] with log odds clamped to a smaller bound, for training."""
    return _table_of_log_odds(_log_odds_of_table(table).clamp(-clamp, clamp))


def _log_odds_of_table(table: Tensor) -> Tensor:
    return table[:, :1] - table[:, 1:]


def _table_of_log_odds(log_odds: Tensor) -> Tensor:
    logits = torch.cat([log_odds.new_zeros(len(log_odds), 1), log_odds], dim=1)
    return -logits.log_softmax(dim=1)


def disagreement_table(other: Tensor, iou: Tensor, classes: tuple[int, ...]) -> Tensor:
    """The loss of each label of each region relative to another sample y'.

    With k(y, y') the sum of IoU(u, v) over regions u of y and v of y' that have the same class,

    Delta(y, y') = k(y, y) / 2 + k(y', y') / 2 - k(y, y')

    It is symmetric, not negative, 0 for equal samples, and 1 for every instance that has moved to a
    disjoint region. The log loss between two labellings, which the paper suggests, is infinite.

    Args:
        other: y', int64 [..., P] of 0..C.
        iou: of all pairs of regions, [P, P].
        classes: the classes of columns 1..J.

    Returns:
        D' [..., P, J+1] with Delta(y, y') = k(y', y') / 2 + sum_u D'[u, y_u], if no two instances
        of a class overlap within y; the overlap of a pair cannot be attributed to single regions.
    """
    losses = 0.5 - iou @ one_hot(other, classes, iou.dtype)
    return torch.cat([losses.new_zeros(*losses.shape[:-1], 1), losses], dim=-1)


def labelling_score(values: Tensor, labels: Tensor, classes: tuple[int, ...]) -> Tensor:
    """sum_u V[u, y_u], differentiable: [...].

    With V = G it is the score S(y) without Q (eq. 3), with a loss table the loss of y.

    Args:
        values: V, [..., P, J+1].
        labels: y, int64 [..., P] of 0..C.
        classes: the classes of columns 1..J.
    """
    columns = label_columns(labels, classes)
    shape = torch.broadcast_shapes(values.shape[:-1], columns.shape)
    values = values.expand(*shape, values.shape[-1])
    return values.gather(-1, columns.expand(shape)[..., None])[..., 0].sum(dim=-1)


def label_columns(labels: Tensor, classes: tuple[int, ...]) -> Tensor:
    """The columns 0..J of labels 0..C in a table of the background and `classes`; same shape."""
    columns = torch.zeros(max(classes, default=0) + 1, dtype=torch.int64, device=labels.device)
    columns[list(classes)] = torch.arange(1, len(classes) + 1, device=labels.device)
    return columns[labels]


def one_hot(labels: Tensor, classes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Labels [..., P] as indicators of the J classes, [..., P, J]; zeros for the background."""
    return (labels[..., None] == torch.tensor(classes, device=labels.device)).to(dtype)
