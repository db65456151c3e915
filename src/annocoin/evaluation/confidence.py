"""How well the confidence of pseudo labels tells which of their masks are right."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy.stats import spearmanr

from annocoin import masks
from annocoin.data.dataset import EvaluationDataset
from annocoin.evaluation.average_precision import Floats
from annocoin.types import ImageId, Instances

WRONG_BELOW = 0.5
"""A mask with a lower IoU with every object of its class is wrong."""


def rank_by_confidence(
    labels: Mapping[ImageId, Instances], dataset: EvaluationDataset
) -> dict[str, float]:
    """Compare the confidence of labels with their true IoU.

    Returns:
        "spearman": rank correlation of confidence and true IoU; "wrong_least", "wrong_most": the
        fraction of wrong masks among the fifth of least and of most confidence. Empty if no label
        has a confidence, or if all have the same, or the same IoU.
    """
    pairs = [
        (instances.confidence.numpy(), true_ious(instances, dataset.truth(image_id)))
        for image_id, instances in labels.items()
    ]
    if not pairs:
        return {}
    return rank_figures(*(np.concatenate(part) for part in zip(*pairs, strict=True)))


def rank_figures(confidence: Floats, ious: Floats) -> dict[str, float]:
    """The figures of `rank_by_confidence`, of confidences [N] (or NaN) and true IoUs [N]."""
    known = ~np.isnan(confidence)
    confidence, ious = confidence[known], ious[known]
    if min(len(np.unique(confidence)), len(np.unique(ious))) < 2:
        return {}
    wrong = ious[np.argsort(confidence, kind="stable")] < WRONG_BELOW
    fifth = max(1, len(wrong) // 5)
    return {
        "spearman": float(spearmanr(confidence, ious).statistic),
        "wrong_least": float(wrong[:fifth].mean()),
        "wrong_most": float(wrong[-fifth:].mean()),
    }


def true_ious(instances: Instances, truth: Instances) -> Floats:
    """The greatest IoU of each instance with a true one of its class, 0 without one: [N]."""
    ious = np.zeros(len(instances))
    for row, (mask, label) in enumerate(zip(instances.masks, instances.labels, strict=True)):
        same = [truth.masks[g] for g in (truth.labels == label).nonzero()[:, 0].tolist()]
        if same:
            ious[row] = masks.iou([mask], same).max()
    return ious
