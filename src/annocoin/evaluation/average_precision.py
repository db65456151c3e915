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
    taken: set[int] = set()
    for p in _worth_a_look(iou, threshold):
        best = int(iou[p].argmax())
        hits[p] = best not in taken
        taken.add(best)
    return hits, np.zeros_like(hits)


def match_best_free(iou: Floats, threshold: float, crowd: Bools) -> tuple[Bools, Bools]:
    """Each prediction takes the best truth that is still free, if IoU > threshold (strictly)."""
    hits = np.zeros(len(iou), dtype=bool)
    free = list(range(iou.shape[1]))
    for p in _worth_a_look(iou, threshold):
        row = iou[p].tolist()
        best = max(free, key=row.__getitem__, default=None)
        if best is not None and row[best] > threshold:
            hits[p] = True
            free.remove(best)
    return hits, np.zeros_like(hits)


def match_coco(iou: Floats, threshold: float, crowd: Bools) -> tuple[Bools, Bools]:
    """COCO's rule: the best free truth with IoU >= threshold, of equals the last one.

    A prediction that finds none but lies in a crowd is left out; a crowd can serve many.
    """
    hits = np.zeros(len(iou), dtype=bool)
    ignored = np.zeros(len(iou), dtype=bool)
    crowds = np.flatnonzero(crowd).tolist()
    free = np.flatnonzero(~crowd).tolist()[::-1]  # `max` keeps the first of equals
    floor = min(threshold, 1 - 1e-10)
    for p in _worth_a_look(iou, floor):
        row = iou[p].tolist()
        best = max(free, key=row.__getitem__, default=None)
        if best is not None and row[best] >= floor:
            hits[p] = True
            free.remove(best)
        else:
            ignored[p] = any(row[g] >= floor for g in crowds)
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


def _worth_a_look(iou: Floats, threshold: float) -> list[int]:
    """The predictions that reach the threshold with any truth, by falling score."""
    if iou.shape[1] == 0:
        return []
    reaching: list[int] = np.flatnonzero(iou.max(axis=1) >= threshold).tolist()
    return reaching
