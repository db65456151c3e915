"""How well scores name what is in images: average precision of tags."""

from __future__ import annotations

import torch
from torch import Tensor


def tag_average_precision(scores: Tensor, tags: Tensor) -> Tensor:
    """Average precision of each class over N images, float64 [C]; NaN for a class that none has.

    It is the area under the monotone precision envelope, as PASCAL VOC has measured
    classification since 2010. Images of equal score share the precision of the last of them, so
    that a constant score earns the share of positives.

    Args:
        scores: what each image got for each class, [N, C].
        tags: which classes each image has, bool [N, C].

    Example:
        >>> tags = torch.tensor([[True], [False], [True]])
        >>> round(tag_average_precision(torch.tensor([[3.0], [2.0], [1.0]]), tags).item(), 4)
        0.8333
    """
    if scores.shape != tags.shape or scores.ndim != 2:
        raise ValueError(f"scores {tuple(scores.shape)}, tags {tuple(tags.shape)}: expected [N, C]")
    found = [_of_class(scores[:, j].double(), tags[:, j].bool()) for j in range(scores.shape[1])]
    return torch.stack(found) if found else torch.zeros(0, dtype=torch.float64)


def mean_over_classes(average_precision: Tensor) -> float:
    """The mean over the classes that occur; NaN if none does."""
    return float(average_precision.nanmean())


def _of_class(scores: Tensor, tags: Tensor) -> Tensor:
    if not tags.any():
        return torch.tensor(torch.nan, dtype=torch.float64)
    ordered, order = scores.sort(descending=True, stable=True)
    hits = tags[order].double()
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    last = torch.searchsorted(-ordered, -ordered, right=True) - 1
    envelope = precision[last].flip(0).cummax(0).values.flip(0)
    return (envelope * hits).sum() / hits.sum()
