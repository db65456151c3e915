"""Matching of predictions to ground truth, and average precision: pure functions on arrays.

Matchers take the IoU [P, G] of predictions in order of falling score. They return bool [P] twice:
the true positives, and the predictions that are ignored (only with COCO's crowds).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

RECALLS = np.linspace(0.0, 1.0, 101)


def match_best(iou: Floats, threshold: float, crowd: Bools) -> tuple[Bools, Bools]:
    """Match each prediction to its best ground truth only: IoU >= threshold, not yet matched.

    Crowds must not be in the ground truth.
    """
    hits = np.zeros(len(iou), dtype=bool)
    matched: set[int] = set()
    for p in _above_threshold(iou, threshold):
        best = int(iou[p].argmax())
        hits[p] = best not in matched
        matched.add(best)
    return hits, np.zeros_like(hits)


def match_best_free(iou: Floats, threshold: float, crowd: Bools) -> tuple[Bools, Bools]:
    """Match each prediction to the best unmatched ground truth if IoU > threshold (strictly).

    Crowds must not be in the ground truth.
    """
    hits = np.zeros(len(iou), dtype=bool)
    free = list(range(iou.shape[1]))
    for p in _above_threshold(iou, threshold):
        row = iou[p].tolist()
        best = max(free, key=row.__getitem__, default=None)
        if best is not None and row[best] > threshold:
            hits[p] = True
            free.remove(best)
    return hits, np.zeros_like(hits)


def match_coco(iou: Floats, threshold: float, crowd: Bools) -> tuple[Bools, Bools]:
    """COCO's rule: the best unmatched ground truth with IoU >= threshold, the last one of equals.

    An unmatched prediction that overlaps a crowd enough is ignored; crowds match any number.
    """
    hits = np.zeros(len(iou), dtype=bool)
    ignored = np.zeros(len(iou), dtype=bool)
    crowds = np.flatnonzero(crowd).tolist()
    free = np.flatnonzero(~crowd).tolist()[::-1]  # `max` returns the first of equals
    threshold = min(threshold, 1 - 1e-10)
    for p in _above_threshold(iou, threshold):
        row = iou[p].tolist()
        best = max(free, key=row.__getitem__, default=None)
        if best is not None and row[best] >= threshold:
            hits[p] = True
            free.remove(best)
        else:
            ignored[p] = any(row[g] >= threshold for g in crowds)
    return hits, ignored


def area_under_envelope(hits: Bools, positives: int) -> float:
    """Area under the monotone precision envelope, for hits [P] in order of falling score.

    Recall grows by 1 / positives at each hit, so that it is a sum of precisions at the hits.
    """
    return float(_envelope(hits)[hits].sum() / positives)


def mean_over_recalls(hits: Bools, positives: int) -> float:
    """COCO's mean of the precision envelope at recalls 0, .01, ..., 1."""
    return float(precision_at_recalls(hits, positives).sum() / len(RECALLS))


def precision_at_recalls(hits: Bools, positives: int) -> Floats:
    """The precision envelope at recalls 0, .01, ..., 1, and 0 beyond the greatest recall: [101]."""
    recall = np.cumsum(hits) / positives
    rank = np.searchsorted(recall, RECALLS, side="left")
    return np.append(_envelope(hits), 0.0)[rank]


def _envelope(hits: Bools) -> Floats:
    """The highest precision at each rank or a later one: [P]."""
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return np.maximum.accumulate(precision[::-1])[::-1]


def _above_threshold(iou: Floats, threshold: float) -> list[int]:
    """The predictions with IoU >= threshold for some ground truth, in order."""
    rows: list[int] = np.flatnonzero((iou >= threshold).any(axis=1)).tolist()
    return rows
