"""Diversities DIV and the dissimilarity coefficient DISC between the two distributions."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from annocoin.errors import InputError
from annocoin.objective.task_loss import one_hot, total

GAMMA = 0.5


def cross_diversity(table: Tensor, samples: Tensor, classes: tuple[int, ...]) -> Tensor:
    """DIV(Pr_p, Pr_c) = 1/K sum_k sum_u D[u, y^k_u], a number.

    The expectation over Pr_p is in the table, for Pr_p is fully factorised.

    Args:
        table: D [P, J+1], see `prediction_loss_table`.
        samples: y^k, int64 [K, P] of 0..C.
    """
    return total(table, samples, classes).mean()


def self_diversity(samples: Tensor, iou: Tensor, classes: tuple[int, ...]) -> Tensor:
    """DIV(Pr_c, Pr_c) = 1/(K(K-1)) sum over k, k' != k of Delta(y^k, y^k'), a number; 0 if K = 1.

    Args:
        samples: y^k, int64 [K, P] of 0..C.
        iou: of all pairs of regions, [P, P].
    """
    losses = sample_losses(samples, iou, classes)
    count = len(losses)
    if count < 2:
        return losses.new_zeros(())
    return (losses.sum() - losses.diagonal().sum()) / (count * (count - 1))


def sample_losses(samples: Tensor, iou: Tensor, classes: tuple[int, ...]) -> Tensor:
    """Delta(y^k, y^k') of every two samples, [K, K]; see `disagreement_table`."""
    chosen = one_hot(samples, classes, iou.dtype).transpose(1, 2)  # [K, J, P]
    common = torch.einsum("kjp,pq,ljq->kl", chosen, iou, chosen)
    own = common.diagonal()
    return (own[:, None] + own[None]) / 2 - common


def prediction_self_diversity(class_logits: Tensor, mask_logits: Tensor | None = None) -> Tensor:
    """DIV(Pr_p, Pr_p): the log loss between two draws, which is the entropy. A mean over RoIs.

    Args:
        class_logits: [N, C+1].
        mask_logits: of the masks that count, [M, h, w]; their entropy is averaged over pixels.
    """
    logs = class_logits.log_softmax(dim=1)
    found = class_entropy(logs).mean() if len(logs) else class_logits.sum() * 0
    if mask_logits is None or not len(mask_logits):
        return found
    return found + mask_entropy(mask_logits).mean()


def dissimilarity(
    cross: Tensor,
    conditional: Tensor | None,
    prediction: Tensor | None,
    gamma: float = GAMMA,
) -> Tensor:
    """DISC = DIV(Pr_p, Pr_c) - gamma DIV(Pr_c, Pr_c) - (1 - gamma) DIV(Pr_p, Pr_p).

    A self diversity that is None is left out: PW_c has no conditional's, PW_p no prediction's. All
    three must count the same things, such as log losses a RoI: the functions here give a sum over
    regions, a number of instances, and a mean over RoIs.
    """
    if not 0 <= gamma <= 1:
        raise InputError(f"gamma {gamma}; expected 0 to 1")
    found = cross
    if conditional is not None:
        found = found - gamma * conditional
    if prediction is not None:
        found = found - (1 - gamma) * prediction
    return found


def class_entropy(logs: Tensor) -> Tensor:
    """Of distributions over classes, given as logarithms [N, C+1]: [N]."""
    return -(logs.exp() * logs).sum(dim=1)


def mask_entropy(logits: Tensor) -> Tensor:
    """Of masks whose pixels are in or out, given as logits [M, h, w]: means over pixels, [M]."""
    # -p log p - (1-p) log(1-p), written so that large logits stay finite
    return (softplus(logits) - logits.sigmoid() * logits).mean(dim=(1, 2))
