"""Diversities DIV and the dissimilarity coefficient DISC of the distributions (eq. 7, 8, 11)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus

from annocoin.errors import InputError
from annocoin.objective.task_loss import labelling_score, one_hot

GAMMA = 0.5


def dissimilarity(
    cross: Tensor, conditional: Tensor | None, prediction: Tensor | None, gamma: float = GAMMA
) -> Tensor:
    """DISC = DIV(Pr_p, Pr_c) - gamma DIV(Pr_c, Pr_c) - (1 - gamma) DIV(Pr_p, Pr_p).

    The three terms must have the same unit, such as log losses per RoI; the functions below return
    a sum over regions, a number of instances and a mean over RoIs.

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


def prediction_self_diversity(class_logits: Tensor, mask_logits: Tensor | None = None) -> Tensor:
    """DIV(Pr_p, Pr_p), the log loss between two samples, which is the entropy: a mean over RoIs.

    Args:
        class_logits: [N, C+1].
        mask_logits: masks of foreground RoIs, [M, h, w]; their entropy is averaged over pixels.
    """
    entropy = class_entropy(class_logits.log_softmax(dim=1))
    result = entropy.mean() if len(entropy) else class_logits.sum() * 0
    if mask_logits is None or not len(mask_logits):
        return result
    return result + mask_entropy(mask_logits).mean()


def class_entropy(log_probabilities: Tensor) -> Tensor:
    """Entropies [N] of distributions over classes, from log probabilities [N, C+1]."""
    return -(log_probabilities.exp() * log_probabilities).sum(dim=1)


def mask_entropy(logits: Tensor) -> Tensor:
    """Mean entropies [M] of the binary pixels of masks, from logits [M, h, w]."""
    # -p log p - (1-p) log(1-p), in a form that is finite for large logits
    return (softplus(logits) - logits.sigmoid() * logits).mean(dim=(1, 2))
