"""Diversities DIV and the dissimilarity coefficient DISC of the distributions (eq. 7, 8, 11)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss, softplus

from annocoin.errors import InputError
from annocoin.objective.task_loss import labelling_score, one_hot

GAMMA = 0.5


def dissimilarity(
    cross: Tensor, conditional: Tensor | None, prediction: Tensor | None, gamma: float = GAMMA
) -> Tensor:
    """DISC = DIV(Pr_p, Pr_c) - gamma DIV(Pr_c, Pr_c) - (1 - gamma) DIV(Pr_p, Pr_p).

    The three terms must have the same unit, as those of `diversities` have; the functions further
    below, which are trained with, return a sum over regions, a number of instances and a mean over
    RoIs.

    Args:
        conditional: DIV(Pr_c, Pr_c); None omits it, as the pointwise network PW_c does.
        prediction: DIV(Pr_p, Pr_p); None omits it, as PW_p does.
    """
    if not 0 <= gamma <= 1:
        raise InputError(f"gamma {gamma}; expected 0 to 1")
    result = cross
    if conditional is not None:
        result = result - gamma * conditional
    if prediction is not None:
        result = result - (1 - gamma) * prediction
    return result


class Diversities(NamedTuple):
    """The terms of DISC, expected losses Delta of two samples in instances: 1 for each that moved.

    Args:
        div_pc: DIV(Pr_p, Pr_c), between the distributions.
        div_cc: DIV(Pr_c, Pr_c).
        div_pp: DIV(Pr_p, Pr_p).
    """

    div_pc: Tensor
    div_cc: Tensor
    div_pp: Tensor


def diversities(similarity: Tensor, samples: Tensor, probabilities: Tensor) -> Diversities:
    """All three diversities (eq. 7) under one task loss, scalars.

    Labellings are sets of instances, indicators y [N], and with k(y, y') = y^T S y' the loss is
    Delta(y, y') = k(y, y) / 2 + k(y', y') / 2 - k(y, y'), as in `disagreement_table`. It is
    quadratic, so that the expectation over a factorised distribution is exact. DISC with gamma .5
    is then half of the squared distance of the distributions' means: 0 if they agree.

    Args:
        similarity: S, the IoU of instances with the same class, otherwise 0: [N, N].
        samples: y^k of the conditional distribution, 0 or 1, [K, N].
        probabilities: of the instances in the prediction distribution, independent, [N].
    """
    mean = probabilities @ similarity @ probabilities
    variance = (probabilities * (1 - probabilities) * similarity.diagonal()).sum()
    between = samples @ similarity @ samples.T
    own, count = between.diagonal(), len(samples)
    cross = (samples @ similarity @ probabilities).mean()
    div_cc = own.new_zeros(())
    if count > 1:
        others = (between.sum() - own.sum()) / (count * (count - 1))
        div_cc = (own.mean() - others).clamp(min=0)  # not a rounding error below
    return Diversities((mean + variance) / 2 + own.mean() / 2 - cross, div_cc, variance)


def cross_diversity(table: Tensor, samples: Tensor, classes: tuple[int, ...]) -> Tensor:
    """DIV(Pr_p, Pr_c) = 1/K sum_k sum_u D[u, y^k_u], a scalar.

    Pr_p is fully factorised, so that the table already contains the expectation over it.

    Args:
        table: D [P, J+1], see `prediction_loss_table`.
        samples: y^k, int64 [K, P] of 0..C.
        classes: the classes of columns 1..J.
    """
    return labelling_score(table, samples, classes).mean()


def self_diversity(samples: Tensor, iou: Tensor, classes: tuple[int, ...]) -> Tensor:
    """DIV(Pr_c, Pr_c) = 1/(K(K-1)) sum over k, k' != k of Delta(y^k, y^k'), a scalar; 0 if K = 1.

    Args:
        samples: y^k, int64 [K, P] of 0..C.
        iou: of all pairs of regions, [P, P].
        classes: the classes that may occur in the samples.
    """
    losses = sample_losses(samples, iou, classes)
    count = len(losses)
    if count < 2:
        return losses.new_zeros(())
    return (losses.sum() - losses.diagonal().sum()) / (count * (count - 1))


def sample_losses(samples: Tensor, iou: Tensor, classes: tuple[int, ...]) -> Tensor:
    """Delta(y^k, y^k') of all pairs of samples, [K, K]; see `disagreement_table`."""
    selected = one_hot(samples, classes, iou.dtype).transpose(1, 2)  # [K, J, P]
    similarity = torch.einsum("kjp,pq,ljq->kl", selected, iou, selected)
    norm = similarity.diagonal()
    return (norm[:, None] + norm[None]) / 2 - similarity


def expected_box_losses(
    probabilities: Tensor, boxes: Tensor, targets: Tensor, *, beta: float
) -> Tensor:
    """The box's part of DIV(Pr_p, Pr_c): sum_c p(c) Delta_box(b_c, b), [N].

    A RoI has one box for each class, so that its box is as uncertain as its class.

    Args:
        probabilities: p(c) of N RoIs, without the background, [N, C].
        boxes: b_c, [N, C, 4].
        targets: b, [N, 4].
        beta: where the smooth L1 loss, summed over the four numbers, becomes linear.
    """
    losses = smooth_l1_loss(
        boxes, targets[:, None].expand_as(boxes), beta=beta, reduction="none"
    ).sum(dim=2)
    return (probabilities * losses).sum(dim=1)


def box_self_diversity(probabilities: Tensor, boxes: Tensor, *, beta: float) -> Tensor:
    """The box's part of DIV(Pr_p, Pr_p): sum_{c,c'} p(c) p(c') Delta_box(b_c, b_c'), [N].

    Args:
        probabilities, boxes, beta: see `expected_box_losses`.
    """
    count, classes = probabilities.shape
    first = boxes[:, :, None].expand(count, classes, classes, 4)
    losses = smooth_l1_loss(first, first.transpose(1, 2), beta=beta, reduction="none").sum(dim=3)
    return torch.einsum("nc,nd,ncd->n", probabilities, probabilities, losses)


def class_entropy(log_probabilities: Tensor) -> Tensor:
    """Entropies [N] of distributions over classes, from log probabilities [N, C+1]."""
    return -(log_probabilities.exp() * log_probabilities).sum(dim=1)


def mask_entropy(logits: Tensor) -> Tensor:
    """Mean entropies [M] of the binary pixels of masks, from logits [M, h, w]."""
    # -p log p - (1-p) log(1-p), in a form that is finite for large logits
    return (softplus(logits) - logits.sigmoid() * logits).mean(dim=(1, 2))
