"""How undecided a prediction is: the log loss that one draw from it expects of another."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import softplus


def of_classes(logs: Tensor) -> Tensor:
    """Of distributions over classes, given as logarithms [N, C+1]: [N]."""
    return -(logs.exp() * logs).sum(dim=1)


def of_masks(logits: Tensor) -> Tensor:
    """Of masks whose pixels are in or out, given as logits [M, h, w]: means over pixels, [M]."""
    # -p log p - (1-p) log(1-p), written so that large logits stay finite
    return (softplus(logits) - logits.sigmoid() * logits).mean(dim=(1, 2))
