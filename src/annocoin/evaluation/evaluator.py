"""Average precision of predicted instances over a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from annocoin import masks
from annocoin.data.dataset import EvaluationDataset
from annocoin.errors import InputError, check_choice
from annocoin.evaluation.average_precision import (
    Bools,
    Floats,
    area_under_envelope,
    match_best,
    match_best_free,
    match_coco,
    mean_over_recalls,
)
from annocoin.progress import track
from annocoin.types import ImageId, Instances

THRESHOLDS = (0.25, 0.5, 0.7, 0.75)
"""The IoU thresholds that the paper reports."""


@dataclass(frozen=True)
class Evaluation:
    """AP by threshold and class, in 0..1; NaN for a class without truth.

    Args:
        protocol: its name.
        images: how many were evaluated.
        classes: names of the classes, C.
        thresholds: IoU thresholds, T.
        ap: float64 [T, C].
    """

    protocol: str
    images: int
    classes: tuple[str, ...]
    thresholds: tuple[float, ...]
    ap: npt.NDArray[np.float64]

    @property
    def mean(self) -> dict[float, float]:
        """mAP by threshold, over the classes that have truth."""
        return {t: _mean(row) for t, row in zip(self.thresholds, self.ap, strict=True)}

    def to_json(self) -> dict[str, Any]:
        """``{"protocol", "images", "iou": {"0.5": {"mean", "per_class": {name: AP or null}}}}``."""
        table = {}
        for threshold, row in zip(self.thresholds, self.ap, strict=True):
            per_class = zip(self.classes, row.tolist(), strict=True)
            table[f"{threshold:g}"] = {
                "mean": _mean(row),
                "per_class": {name: None if np.isnan(ap) else ap for name, ap in per_class},
            }
        return {"protocol": self.protocol, "images": self.images, "iou": table}


def evaluate(
    predictions: Mapping[ImageId, Instances],
    dataset: EvaluationDataset,
    *,
    protocol: str = "chainercv",
    thresholds: Sequence[float] = THRESHOLDS,
) -> Evaluation:
    """Compare predictions with the truth of every image of the dataset.

    Args:
        predictions: from `read_predictions`; an image that is missing has no prediction.
        dataset: from `load_evaluation`.
        protocol: "chainercv", "sds", "bbtp" or "coco".
        thresholds: IoU thresholds between 0 and 1.
    """
    unknown = predictions.keys() - set(dataset)
    if unknown:
        raise InputError(f"predictions for {min(map(repr, unknown))}, which is not in the dataset")
    evaluator = Evaluator(dataset.classes, protocol=protocol, thresholds=thresholds)
    ids = list(dataset)
    if evaluator.protocol.name == "coco":  # pycocotools goes by rising id, which decides ties
        ids.sort(key=lambda image_id: (isinstance(image_id, str), image_id))
    for image_id in track(ids, "evaluating"):
        truth = dataset.truth(image_id, evaluator.protocol.classes_from)
        evaluator.add(predictions.get(image_id), truth)
    return evaluator.result()


class Evaluator:
    """Collects image by image, then gives the result; for those who evaluate while predicting."""

    def __init__(
        self,
        classes: Sequence[str],
        *,
        protocol: str = "chainercv",
        thresholds: Sequence[float] = THRESHOLDS,
    ) -> None:
        self.classes = tuple(classes)
        self.protocol: Protocol = protocol_named(protocol)
        self.thresholds = tuple(dict.fromkeys(float(t) for t in thresholds))
        if not self.thresholds or not all(0 < t < 1 for t in self.thresholds):
            raise InputError(f"IoU thresholds {list(thresholds)}; expected numbers between 0 and 1")
        self._records = [_Records(len(self.thresholds)) for _ in self.classes]
        self._images = 0

    def add(self, predictions: Instances | None, truth: Instances) -> None:
        """Add one image. Classes are 1..C; `truth.crowd` weak_labels crowds."""
        for given in (truth, predictions):
            if given is not None:
                self._check(given, truth)
        self._images += 1
        if not self.protocol.crowds:
            truth = truth[~truth.crowd]
        true_labels = truth.labels.numpy()
        labels = np.empty(0, int) if predictions is None else predictions.labels.numpy()
        for label in np.union1d(true_labels, labels):
            own = np.flatnonzero(true_labels == label)
            rles = [truth.masks[g] for g in own]
            crowd = truth.crowd.numpy()[own]
            record = self._records[label - 1]
            record.positives += int((~crowd).sum())
            if predictions is None:
                continue
            found = np.flatnonzero(labels == label)
            scores = predictions.scores.numpy()[found]
            order = _falling(scores, self.protocol.ties)[: self.protocol.max_predictions]
            chosen = [predictions.masks[p] for p in found[order]]
            iou = masks.iou(chosen, rles, crowd.tolist())
            matches = [self.protocol.match(iou, t, crowd) for t in self.thresholds]
            record.add(scores[order], matches)

    def _check(self, given: Instances, truth: Instances) -> None:
        if given.size != truth.size:
            raise InputError(
                f"predictions for an image of {given.size}; the truth has {truth.size}"
            )
        if len(given) and int(given.labels.max()) > len(self.classes):
            raise InputError(f"class {int(given.labels.max())}; there are {len(self.classes)}")

    def result(self) -> Evaluation:
        """AP over all images added so far."""
        rows = [record.average_precisions(self.protocol) for record in self._records]
        return Evaluation(
            self.protocol.name, self._images, self.classes, self.thresholds, np.stack(rows, axis=1)
        )


class _Records:
    """All predictions of one class: scores, hits per threshold, and the number of truths."""

    def __init__(self, thresholds: int) -> None:
        self.positives = 0
        self._scores: list[Floats] = [np.empty(0)]
        self._hits: list[Bools] = [np.empty((thresholds, 0), dtype=bool)]
        self._ignored: list[Bools] = [np.empty((thresholds, 0), dtype=bool)]

    def add(
        self,
        scores: Floats,
        matches: Sequence[tuple[Bools, Bools]],
    ) -> None:
        self._scores.append(scores)
        self._hits.append(np.stack([hits for hits, _ in matches]))
        self._ignored.append(np.stack([ignored for _, ignored in matches]))

    def average_precisions(self, protocol: Protocol) -> npt.NDArray[np.float64]:
        """AP at every threshold: [T]."""
        hits, ignored = np.concatenate(self._hits, axis=1), np.concatenate(self._ignored, axis=1)
        if not self.positives:
            return np.full(len(hits), np.nan)
        order = _falling(np.concatenate(self._scores), protocol.ties)
        return np.asarray(
            [
                protocol.average(row[order][~skip[order]], self.positives)
                for row, skip in zip(hits, ignored, strict=True)
            ]
        )


def _falling(scores: npt.NDArray[np.float64], ties: str) -> npt.NDArray[np.intp]:
    """Positions by falling score. A stable sort: the same on every machine."""
    if ties == "earlier":
        return np.argsort(-scores, kind="stable")
    return np.argsort(scores, kind="stable")[::-1]


def _mean(row: npt.NDArray[np.float64]) -> float:
    known = row[~np.isnan(row)]
    return float(known.mean()) if known.size else 0.0


ProtocolName = Literal["chainercv", "sds", "bbtp", "coco"]


@dataclass(frozen=True)
class Protocol:
    """What distinguishes one protocol from another.

    Args:
        name: how users call it.
        match: (iou [P, G], threshold, crowd [G]) -> hits [P], left out [P].
        average: (hits [P], number of truths) -> AP.
        classes_from: VOC's class map, or the object list of its XML.
        crowds: whether crowds are truth that is neither hit nor missed; else they are left out.
        max_predictions: the most that count per image and class, None for all.
        ties: order of equal scores: the later prediction first (numpy's `argsort()[::-1]`), or the
            earlier.
    """

    name: ProtocolName
    match: Callable[[Floats, float, Bools], tuple[Bools, Bools]]
    average: Callable[[Bools, int], float]
    classes_from: Literal["pixels", "objects"] = "pixels"
    crowds: bool = False
    max_predictions: int | None = None
    ties: Literal["later", "earlier"] = "later"


_ALL = (
    Protocol("chainercv", match_best, area_under_envelope),
    Protocol("sds", match_best_free, area_under_envelope),
    Protocol("bbtp", match_best_free, area_under_envelope, classes_from="objects"),
    Protocol("coco", match_coco, mean_over_recalls, "pixels", True, 100, "earlier"),
)
PROTOCOLS: dict[str, Protocol] = {protocol.name: protocol for protocol in _ALL}


def protocol_named(name: str) -> Protocol:
    """The protocol of that name."""
    check_choice("protocol", name, PROTOCOLS)
    return PROTOCOLS[name]
