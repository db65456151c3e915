"""Matching predictions to truth, and average precision: pure functions on arrays.

`iou` is [P, G], rows by falling score. A matcher returns bool [P]: which predictions are true
positives, and which are left out of the count (only COCO's crowds do that).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def match_best(iou: Floats, threshold: float, crowd: Bools) -> tuple[Bools, Bools]:
    """Each prediction looks only at its best truth: IoU >= threshold and still free is a hit.

    Crowds are no truth here: the caller leaves them out.
    """
    hits = np.zeros(len(iou), dtype=bool)
    taken = np.zeros(iou.shape[1], dtype=bool)
    for p in range(len(iou) if iou.shape[1] else 0):
        best = int(iou[p].argmax())
        if iou[p, best] >= threshold:
            hits[p] = not taken[best]
            taken[best] = True
    return hits, np.zeros_like(hits)


def match_best_free(iou: Floats, threshold: float, crowd: Bools) -> tuple[Bools, Bools]:
    """Each prediction takes the best truth that is still free, if IoU > threshold (strictly)."""
    hits = np.zeros(len(iou), dtype=bool)
    free = np.ones(iou.shape[1], dtype=bool)
    for p in range(len(iou)):
        if not free.any():
            break
        best = int(np.where(free, iou[p], -1.0).argmax())
        if iou[p, best] > threshold:
            hits[p] = True
            free[best] = False
    return hits, np.zeros_like(hits)


def match_coco(iou: Floats, threshold: float, crowd: Bools) -> tuple[Bools, Bools]:
    """COCO's rule: the best free truth with IoU >= threshold, of equals the last one.

    A prediction that finds none but lies in a crowd is left out; a crowd can serve many.
    """
    hits = np.zeros(len(iou), dtype=bool)
    ignored = np.zeros(len(iou), dtype=bool)
    free = ~crowd
    floor = min(threshold, 1 - 1e-10)
    for p in range(len(iou)):
        own = np.where(free, iou[p], -1.0)
        if own.size and own.max() >= floor:
            free[np.flatnonzero(own == own.max())[-1]] = False
            hits[p] = True
        else:
            ignored[p] = bool((iou[p, crowd] >= floor).any())
    return hits, ignored


def area_under_envelope(hits: Bools, positives: int) -> float:
    """Area under the monotone precision envelope; `hits` [P] by falling score.

    Recall grows by 1 / positives at each hit, so the area is a mean of precisions over the truth.
    """
    if not hits.any():
        return 0.0
    envelope = _envelope(hits)
    return float(envelope[hits].sum() / positives)


def mean_over_recalls(hits: Bools, positives: int) -> float:
    """COCO's mean of the precision envelope at the recalls 0, .01, ..., 1."""
    if not hits.any():
        return 0.0
    recall = np.cumsum(hits) / positives
    at = np.searchsorted(recall, np.linspace(0.0, 1.0, 101), side="left")
    reached = at < len(recall)
    return float(_envelope(hits)[at[reached]].sum() / 101)


def _envelope(hits: Bools) -> Floats:
    """The highest precision at this rank or any later one: [P]."""
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return np.maximum.accumulate(precision[::-1])[::-1]
