"""What a report shows of a run, read from its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from annocoin import files, masks
from annocoin.data.dataset import EvaluationDataset, WeakDataset, tight_box
from annocoin.engine import label_quality
from annocoin.engine.pseudo_labels import PseudoLabelFolder, PseudoLabels
from annocoin.engine.run_directory import ENVIRONMENT, RESULT, check_format, is_run
from annocoin.engine.stage import METRICS, Stage, StageCosts
from annocoin.errors import InputError
from annocoin.evaluation.average_precision import RECALLS
from annocoin.evaluation.evaluator import Evaluation
from annocoin.files import read_json
from annocoin.types import ImageId

DATASET = "dataset.json"
EVALUATION = "evaluation.json"
MEASURED_IMAGES = 300
"""Images that the statistics of a round are computed from."""

FEWER_INSTANCES = 0.5
"""A warning, if the last round has fewer instances than this share of the first one's."""


@dataclass(frozen=True)
class TrainingImage:
    """An image of the run's dataset, as `record_dataset` wrote it.

    Args:
        labels: class, box and point of each weak label; a tag has neither.
    """

    image_id: ImageId
    file_name: str
    path: Path
    labels: tuple[tuple[int, Sequence[float] | None, Sequence[float] | None], ...] = ()


@dataclass(frozen=True)
class RoundStatistics:
    """The pseudo labels of a round: means over its images, or over some of them.

    Args:
        images: number of images they are computed from.
        instances: per image.
        confidence: quartiles of the confidence, NaN without one.
        diversity: 1 - mean agreement of two samples; NaN with one sample.
    """

    name: str
    images: int
    instances: float
    confidence: tuple[float, float, float]
    diversity: float


@dataclass(frozen=True)
class RunData:
    """A finished run.

    Args:
        path: its directory.
        result: the content of `run.json`.
        environment: versions, machine and command.
        costs: of the stages that are part of the result, by name, in their order.
        metrics: the figures of every step, by stage.
        figures: measured once, by stage.
        images: of its dataset, by id; empty if they were not recorded.
        source: the path of its dataset, if it was recorded.
        evaluation: of `record_evaluation`, or None.
    """

    path: Path
    result: dict[str, Any]
    environment: dict[str, Any]
    costs: dict[str, StageCosts]
    metrics: dict[str, list[dict[str, float]]]
    figures: dict[str, dict[str, float]]
    images: dict[ImageId, TrainingImage]
    source: str | None
    evaluation: dict[str, Any] | None

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @property
    def seconds(self) -> float:
        """Time of all stages, as far as it is known."""
        return sum(each.seconds or 0.0 for each in self.costs.values())

    @property
    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.result["config"]
        return config

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self.config["prediction"]["architecture"]["classes"])

    def folder(self, stage: str) -> Path | None:
        """The folder of a stage, None if the run has no such stage."""
        folders = {each["stage"]: each["folder"] for each in self.result["stages"]}
        return self.path / folders[stage] if stage in folders else None

    @cached_property
    def labels(self) -> dict[str, PseudoLabelFolder]:
        """The pseudo labels by round: "round 1", .., "final".

        Of a run without rounds, "seeds"; of a peer, its name.
        """
        folders = {}
        for each in self.result["stages"]:
            stage = each["stage"]
            name = stage.removesuffix(" samples").removesuffix(" labels")
            name = "seeds" if name == "retrieved" else name
            if name != stage and (self.path / each["folder"]).is_dir():
                folders[name.removesuffix(",")] = PseudoLabelFolder(self.path / each["folder"])
        return folders

    def round_figures(self, name: str) -> dict[str, float]:
        """What was measured of a round's pseudo labels with true masks; empty if nothing was."""
        stages = ("retrieved labels", f"{name} labels", f"{name}, samples", f"{name} samples")
        return next((self.figures[stage] for stage in stages if stage in self.figures), {})

    @cached_property
    def rounds(self) -> list[RoundStatistics]:
        """Statistics of the pseudo labels of every round."""
        return [_statistics(name, folder) for name, folder in self.labels.items()]

    def warnings(self) -> list[str]:
        """Signs that something went wrong, as `train` prints them."""
        tag_map = self.figures.get("classifier", {}).get("tag_map", 1.0)
        lines = label_quality.check_tag_map(tag_map, self.result["supervision"])
        if self.labels:
            last = list(self.labels.values())[-1]
            some = _some(list(last), MEASURED_IMAGES)
            lines += label_quality.check_masks(last[i].consensus_instances() for i in some)
            empty = sum(not last[i].members[last[i].consensus].any() for i in some)
            if empty:
                lines.append(f"{empty} of {len(some)} images have no instance in the last round")
            first, final = self.rounds[0], self.rounds[-1]
            if final.instances < FEWER_INSTANCES * first.instances:
                lines.append(
                    f"instances vanish: {first.instances:.2f} per image in {first.name}, "
                    f"{final.instances:.2f} in {final.name}"
                )
        missing = [image.path for image in self.images.values() if not image.path.is_file()]
        if missing:
            lines.append(f"{len(missing)} images are not there any more, such as {missing[0]}")
        return [line.removeprefix("warning: ") for line in lines]


def read_run(path: Path) -> RunData:
    """The data of a finished run."""
    if is_run(path):
        check_format(path)
    if not (path / RESULT).is_file():
        raise InputError(f"{path}: not a finished run; `annocoin train` starts and resumes runs")
    result = read_json(path / RESULT)
    costs: dict[str, StageCosts] = {}
    figures, metrics = {}, {}
    for each in result["stages"]:
        name, folder = each["stage"], path / each["folder"]
        if (stage := Stage(name, "", folder)).is_done:
            costs[name] = stage.costs
            figures[name] = stage.figures
        if (folder / METRICS).is_file():
            metrics[name] = [json.loads(line) for line in files.read_lines(folder / METRICS)]
    images, source = _read_dataset(path)
    return RunData(
        path,
        result,
        read_json(path / ENVIRONMENT),
        costs,
        metrics,
        figures,
        images,
        source,
        _read_evaluation(path, result),
    )


def with_images_of(data: RunData, dataset: EvaluationDataset | None) -> RunData:
    """The run with the image files of a dataset, where its own are not recorded or not there."""
    images = dict(data.images)
    for image in () if dataset is None else dataset.labelled:
        recorded = images.get(image.image_id)
        if image.path is not None and (recorded is None or not recorded.path.is_file()):
            labels = () if recorded is None else recorded.labels
            found = TrainingImage(image.image_id, image.file_name, image.path, labels)
            images[image.image_id] = found
    return replace(data, images=images)


def record_dataset(run: Path, dataset: WeakDataset) -> None:
    """Write which images a run was trained on, and their weak labels, for its report."""
    images = []
    for image in dataset:
        labels = [(label.label, tight_box(label), label.point) for label in image.annotation]
        path = str(image.path.resolve())
        images.append([image.image_id, image.file_name, path, labels])
    source = None if dataset.source is None else str(dataset.source)
    files.write_json(run / DATASET, {"source": source, "images": images})


def record_evaluation(
    run: Path, evaluation: Evaluation, dataset: EvaluationDataset
) -> dict[str, Any]:
    """Write the average precision of a run on a test set, for its report and for comparisons."""
    labelled = dataset.labelled
    precision = np.round(evaluation.precision, 4).tolist()
    thresholds = [f"{threshold:g}" for threshold in evaluation.thresholds]
    source = None if labelled.source is None else labelled.source.name
    content = {
        **evaluation.to_json(),
        "dataset": source,
        "split": labelled.split,
        "precision": dict(zip(thresholds, precision, strict=True)),
        "recalls": len(RECALLS),
        "network": read_json(run / RESULT)["networks"]["prediction"],
    }
    files.write_json(run / EVALUATION, content)
    return content


def _read_dataset(run: Path) -> tuple[dict[ImageId, TrainingImage], str | None]:
    if not (run / DATASET).is_file():
        return {}, None
    content = read_json(run / DATASET)
    images = {}
    for image_id, file_name, path, labels in content["images"]:
        weak = tuple((label, box, point) for label, box, point in labels)
        images[image_id] = TrainingImage(image_id, file_name, Path(path), weak)
    return images, content["source"]


def _read_evaluation(run: Path, result: Mapping[str, Any]) -> dict[str, Any] | None:
    """The recorded evaluation, unless it is of another prediction network."""
    if not (run / EVALUATION).is_file():
        return None
    content: dict[str, Any] = read_json(run / EVALUATION)
    return content if content["network"] == result["networks"].get("prediction") else None


def _some(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` items, evenly spaced."""
    if len(items) <= count:
        return list(items)
    return [items[i * len(items) // count] for i in range(count)]


def _statistics(name: str, folder: PseudoLabelFolder) -> RoundStatistics:
    confidence, counts, diversities = [], [], []
    for image_id in _some(list(folder), MEASURED_IMAGES):
        labels = folder[image_id]
        consensus = labels.consensus_instances()
        counts.append(len(consensus))
        confidence += [value for value in consensus.confidence.tolist() if value == value]
        if len(labels.members) > 1:
            diversities.append(sample_diversity(labels))
    quartiles = np.percentile(confidence, (25, 50, 75)).tolist() if confidence else [np.nan] * 3
    return RoundStatistics(
        name,
        len(counts),
        float(np.mean(counts)) if counts else 0.0,
        (quartiles[0], quartiles[1], quartiles[2]),
        float(np.mean(diversities)) if diversities else np.nan,
    )


def sample_diversity(labels: PseudoLabels) -> float:
    """1 - the mean agreement of two of the K samples, as `Samples.diversity`."""
    members = labels.members.numpy().astype(float)  # [K, U]
    iou = masks.iou(labels.instances.masks, labels.instances.masks)
    classes = labels.instances.labels.numpy()
    iou = iou * (classes[:, None] == classes[None])
    best = np.stack([(iou * row).max(axis=1, initial=0) for row in members])  # of u in k': [K', U]
    total = members @ best.T  # of sample k in k'
    counts = members.sum(axis=1)
    both = counts[:, None] + counts[None]
    agreement = np.where(both > 0, (total + total.T) / np.maximum(both, 1), 1.0)
    count = len(members)
    return float(1 - (agreement.sum() - np.trace(agreement)) / (count * (count - 1)))
