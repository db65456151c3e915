"""The task loss Delta, decomposed over regions: tables of what labelling a region costs.

A table D is [..., P, J+1]: of P regions for J+1 labels, column 0 the background. The loss of a
labelling y is sum_u D[u, y_u].
"""

from __future__ import annotations

import torch
from torch import Tensor

CLAMP = 6.0
"""Log losses above this count as this: what is nearly impossible must not outweigh all else."""


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
