"""Average precision of predicted instances over a dataset, by four named protocols."""

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
    RECALLS,
    Bools,
    Floats,
    area_under_envelope,
    match_best,
    match_best_free,
    match_coco,
    mean_over_recalls,
    precision_at_recalls,
)
from annocoin.progress import track
from annocoin.types import ImageId, Instances

THRESHOLDS = (0.25, 0.5, 0.7, 0.75)
"""The IoU thresholds that the paper reports."""


@dataclass(frozen=True)
class Protocol:
    """A definition of average precision.

    Args:
        match: (iou [P, G], threshold, crowd [G]) -> true positives [P], ignored [P].
        average: (true positives [P], number of ground truths) -> AP.
        classes_from: VOC's class map ("pixels"), or the object list of its XML ("objects").
        crowds: whether predictions on crowds are ignored; else crowds are dropped.
        max_predictions: maximum number per image and class.
        ties: which of equal scores comes first, the "later" prediction (`argsort()[::-1]`) or the
            "earlier".
    """

    match: Callable[[Floats, float, Bools], tuple[Bools, Bools]]
    average: Callable[[Bools, int], float]
    classes_from: Literal["pixels", "objects"] = "pixels"
    crowds: bool = False
    max_predictions: int | None = None
    ties: Literal["later", "earlier"] = "later"

    def order(self, scores: Floats) -> npt.NDArray[np.intp]:
        """Indices [P] by falling score; a stable sort, the same on every machine."""
        if self.ties == "earlier":
            return np.argsort(-scores, kind="stable")
        return np.argsort(scores, kind="stable")[::-1]


PROTOCOLS = {
    "chainercv": Protocol(match_best, area_under_envelope),
    "sds": Protocol(match_best_free, area_under_envelope),
    "bbtp": Protocol(match_best_free, area_under_envelope, classes_from="objects"),
    "coco": Protocol(match_coco, mean_over_recalls, "pixels", True, 100, "earlier"),
}


@dataclass(frozen=True)
class Evaluation:
    """AP in 0..1 by threshold and class; NaN for a class without ground truth.

    Args:
        protocol: its name.
        images: number of evaluated images.
        classes: names of the C classes.
        thresholds: T IoU thresholds.
        ap: float64 [T, C].
        matched: predictions matched at each threshold, whatever their score, int64 [T].
        counted: predictions that are not ignored at each threshold, int64 [T].
        truths: number of ground truth instances.
        precision: the precision envelope at recalls 0, .01, ..., 1, float64 [T, C, 101]; zeros for
            a class without ground truth.
    """

    protocol: str
    images: int
    classes: tuple[str, ...]
    thresholds: tuple[float, ...]
    ap: Floats
    matched: npt.NDArray[np.int64]
    counted: npt.NDArray[np.int64]
    truths: int
    precision: Floats

    @property
    def predictions(self) -> int:
        """Number of predictions, without those that are ignored at every threshold."""
        return int(self.counted.max())

    @property
    def f1(self) -> dict[float, float]:
        """F1 of all predictions by threshold: 2 x matched / (predictions + ground truth)."""
        values = 2 * self.matched / np.maximum(1, self.counted + self.truths)
        return dict(zip(self.thresholds, values.tolist(), strict=True))

    @property
    def mean(self) -> dict[float, float]:
        """mAP by threshold, over the classes with ground truth."""
        rows = [row[~np.isnan(row)] for row in self.ap]
        means = [float(row.mean()) if len(row) else 0.0 for row in rows]
        return dict(zip(self.thresholds, means, strict=True))

    def to_json(self) -> dict[str, Any]:
        """``{"protocol", "images", "iou": {"0.5": {"mean", "per_class": {name: AP or null}}}}``."""
        table = {}
        for (threshold, mean), row in zip(self.mean.items(), self.ap.tolist(), strict=True):
            per_class = zip(self.classes, row, strict=True)
            table[f"{threshold:g}"] = {
                "mean": mean,
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
    """Compare predictions with the ground truth of every image of a dataset.

    Args:
        predictions: from `read_predictions`; images without an entry have no predictions.
        dataset: from `load_evaluation`.
        protocol: "chainercv", "sds", "bbtp" or "coco".
        thresholds: IoU thresholds between 0 and 1.
    """
    unknown = predictions.keys() - set(dataset)
    if unknown:
        raise InputError(f"predictions for {min(map(repr, unknown))}, which is not in the dataset")
    evaluator = Evaluator(dataset.classes, protocol=protocol, thresholds=thresholds)
    ids = list(dataset)
    if protocol == "coco":  # pycocotools orders images by id, which decides ties
        ids.sort(key=lambda image_id: (isinstance(image_id, str), image_id))
    for image_id in track(ids, "evaluating"):
        truth = dataset.truth(image_id, evaluator.protocol.classes_from)
        evaluator.add(predictions.get(image_id), truth)
    return evaluator.result()


class Evaluator:
    """Evaluate image by image, for example while predicting; see `evaluate` for the arguments."""

    def __init__(
        self,
        classes: Sequence[str],
        *,
        protocol: str = "chainercv",
        thresholds: Sequence[float] = THRESHOLDS,
    ) -> None:
        check_choice("protocol", protocol, PROTOCOLS)
        self.protocol_name, self.protocol = protocol, PROTOCOLS[protocol]
        self.classes = tuple(classes)
        self.thresholds = tuple(dict.fromkeys(float(t) for t in thresholds))
        if not self.thresholds or not all(0 < t < 1 for t in self.thresholds):
            raise InputError(f"IoU thresholds {list(thresholds)}; expected numbers between 0 and 1")
        self._images = 0
        self._positives = np.zeros(len(self.classes), dtype=np.int64)
        none = np.empty((len(self.thresholds), 2, 0), dtype=bool)
        # of each class and image: scores [P], and true positives and ignored ones [T, 2, P]
        self._matches: list[list[tuple[Floats, Bools]]] = [[(np.empty(0), none)] for _ in classes]

    def add(self, predictions: Instances | None, truth: Instances) -> None:
        """Add one image. Classes are 1..C; `truth.crowd` flags crowds."""
        if predictions is None:
            predictions = Instances(size=truth.size, masks=[], labels=[])
        if predictions.size != truth.size:
            raise InputError(
                f"predictions for an image of {predictions.size}; the ground truth has {truth.size}"
            )
        labels, true_labels = predictions.labels.numpy(), truth.labels.numpy()
        highest = max([*labels, *true_labels], default=0)
        if highest > len(self.classes):
            raise InputError(f"class {highest}; there are {len(self.classes)}")
        self._images += 1
        if not self.protocol.crowds:
            truth, true_labels = truth[~truth.crowd], true_labels[~truth.crowd.numpy()]
        for label in np.union1d(true_labels, labels):
            of_class = np.flatnonzero(true_labels == label)
            crowd = truth.crowd.numpy()[of_class]
            self._positives[label - 1] += int((~crowd).sum())
            rows = np.flatnonzero(labels == label)
            rows = rows[self.protocol.order(predictions.scores.numpy()[rows])]
            rows = rows[: self.protocol.max_predictions]
            iou = masks.iou(
                [predictions.masks[p] for p in rows],
                [truth.masks[g] for g in of_class],
                crowd.tolist(),
            )
            matches = [self.protocol.match(iou, t, crowd) for t in self.thresholds]
            self._matches[label - 1].append((predictions.scores.numpy()[rows], np.array(matches)))

    def result(self) -> Evaluation:
        """AP over all images added so far."""
        ap = np.full((len(self.thresholds), len(self.classes)), np.nan)
        precision = np.zeros((*ap.shape, len(RECALLS)))
        matched, counted = np.zeros((2, len(self.thresholds)), dtype=np.int64)
        for of_class in self._matches:
            for _, of_image in of_class:
                matched += of_image[:, 0].sum(axis=1)
                counted += (~of_image[:, 1]).sum(axis=1)
        for c in np.flatnonzero(self._positives):
            scores, matches = zip(*self._matches[c], strict=True)
            order = self.protocol.order(np.concatenate(scores))
            for t, (hits, ignored) in enumerate(np.concatenate(matches, axis=2)[:, :, order]):
                counting = hits[~ignored], int(self._positives[c])
                ap[t, c] = self.protocol.average(*counting)
                precision[t, c] = precision_at_recalls(*counting)
        return Evaluation(
            self.protocol_name,
            self._images,
            self.classes,
            self.thresholds,
            ap,
            matched,
            counted,
            int(self._positives.sum()),
            precision,
        )
