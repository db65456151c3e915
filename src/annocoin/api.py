"""The few calls of a user: train a run, label a dataset with it, predict on new images."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from annocoin import files
from annocoin.data.conversion import with_instances
from annocoin.data.dataset import (
    EvaluationDataset,
    LabelledImage,
    LabelledImages,
    Supervision,
    WeakDataset,
)
from annocoin.data.images import SUFFIXES, image_size
from annocoin.engine.conditional_dataset import prepare_images
from annocoin.engine.config import Config
from annocoin.engine.distribution import AUTO, ProcessGroup, open_device, single_process
from annocoin.engine.image_stages import Execution, make_regions, make_seeds
from annocoin.engine.label_quality import Measurement
from annocoin.engine.labelling import draw_labels, make_loss_tables, retrieve_labels
from annocoin.engine.preflight import Precomputed
from annocoin.engine.presets import configure
from annocoin.engine.pseudo_labels import PseudoLabelFolder, TableFolder
from annocoin.engine.rounds import train_run
from annocoin.engine.run_directory import (
    LOCK,
    METHOD_VERSION,
    RESULT,
    Log,
    check_format,
    is_run,
    labelling_network_name,
)
from annocoin.errors import InputError, Problems, brief
from annocoin.evaluation.confidence import rank_by_confidence
from annocoin.evaluation.evaluator import THRESHOLDS, evaluate
from annocoin.files import file_digest, read_json
from annocoin.prediction.networks import read_prediction
from annocoin.prediction.predictor import SCORE, Predictor
from annocoin.progress import track
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.seed_set import SeedFolder
from annocoin.types import Annotation, ImageId, Instances

LABELLING = "labelling"
LABEL_F1_THRESHOLDS = (0.5, 0.75)


@dataclass(frozen=True)
class TrainedRun:
    """The directory of a finished run.

    Args:
        path: the directory, a `Path` or str.
    """

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if is_run(self.path):
            check_format(self.path)
        if not (self.path / RESULT).is_file():
            raise InputError(
                f"{self.path}: not a finished run; `annocoin train` starts and resumes runs"
            )

    @cached_property
    def _result(self) -> dict[str, Any]:
        result: dict[str, Any] = read_json(self.path / RESULT)
        return result

    @property
    def config(self) -> Config:
        """All options that it was trained with."""
        return Config.from_json(self._result.get("config"), str(self.path / RESULT))

    @property
    def supervision(self) -> Supervision:
        """The supervision that it was trained with."""
        supervision: Supervision = self._result["supervision"]
        return supervision

    def network(self, name: str) -> Path | None:
        """The file of a network, None without it.

        Args:
            name: "prediction", "teacher", "conditional" or "classifier".
        """
        path = self._result["networks"].get(name)
        return None if path is None else self.path / path

    def predictor(self, *, threshold: float = SCORE, device: str = AUTO) -> Predictor:
        """Its prediction network as a `Predictor`.

        Example:
            ``TrainedRun("run").predictor()(["photo.jpg"])[0]`` are the instances of an image.
        """
        net, _ = read_prediction(self.path / self._result["networks"]["prediction"])
        return Predictor(net, threshold=threshold, device=open_device(device))

    def precomputed_for(self, dataset: WeakDataset) -> Precomputed:
        """Its regions and seeds, if it was trained on this dataset, with or without more images."""
        folders = self._result["folders"]
        trained_on = (self._result["dataset"], self._result.get("main_dataset"))
        if dataset.digest() not in trained_on or "seeds" not in folders:
            return Precomputed()
        regions, seeds = self.path / folders["regions"], self.path / folders["seeds"]
        for folder in (regions, seeds):
            if not folder.is_dir():
                raise InputError(
                    f"{self.path}: was trained with {folder}, which does not exist any more; pass "
                    "--regions and --seeds"
                )
        return Precomputed(RegionFolder(regions), SeedFolder(seeds))


def train(
    dataset: WeakDataset,
    out: str | Path,
    preset: str = "voc-r50",
    *,
    rounds: int | None = None,
    seed: int | None = None,
    changes: Mapping[str, str] | None = None,
    weights: Path | None = None,
    more_images: WeakDataset | None = None,
    more_tags: WeakDataset | None = None,
    precomputed: Precomputed | None = None,
    truth: EvaluationDataset | None = None,
    group: ProcessGroup | None = None,
    device: str = AUTO,
    jobs: int | None = None,
    problems: Problems | None = None,
    log: Log = print,
) -> TrainedRun:
    """Train a run, or resume it: everything, from weakly labelled images to a network.

    Args:
        dataset: images with weak labels; where every label is a mask, the prediction network is
            trained on the masks (full supervision).
        out: the run's directory.
        preset: "synthetic", "voc-cpu", "voc-cpu-r50", "voc-r50", "voc-r101" or "voc-r50-literal".
        rounds: alternating rounds; 0 trains once on the retrieved seeds.
        seed: random seed.
        changes: values at dotted names of the configuration, see `annocoin.engine.config.Config`.
        weights: folder with backbone weights; default torchvision's, which may be downloaded.
        more_images: further images of the same supervision, for all stages; classes are matched by
            name. `annocoin.data.dataset.concatenate` makes several datasets one.
        more_tags: further images, whose tags train the classifier only; classes are matched by
            name.
        precomputed: regions, seeds and classifier that need not be computed.
        truth: true masks of the images of `dataset`, to measure the pseudo labels of each round;
            nothing is learned from them.
        group: the processes that train, see `annocoin.engine.distribution.init_distributed`;
            default this one on `device`.
        jobs: worker processes, default one per core.
    """
    problems = problems or Problems()
    config = configure(preset, dataset.classes, changes, rounds=rounds, seed=seed, weights=weights)
    train_run(
        dataset,
        out,
        config,
        more_images=more_images,
        more_tags=more_tags,
        precomputed=precomputed,
        measurement=None if truth is None else label_measurement(truth, dataset, problems),
        execution=Execution(group or single_process(str(open_device(device))), jobs, problems),
        log=log,
    )
    return TrainedRun(Path(out))


def label(
    run: TrainedRun,
    dataset: WeakDataset,
    *,
    precomputed: Precomputed | None = None,
    jobs: int | None = None,
    device: str = AUTO,
    problems: Problems | None = None,
) -> LabelledImages:
    """Masks for weak labels, with a confidence each; every label gets a mask of its own.

    Intermediate results are kept in the run's directory: the same call resumes after an
    interruption. A run without rounds gives the regions that it retrieves for the seeds.

    Returns:
        The images with masks instead of their labels, for `write_dataset`.
    """
    problems = problems or Problems()
    dataset = dataset.with_classes(run.config.classes, str(run.path))
    group = single_process(str(open_device(device)))
    with files.exclusive_lock(run.path / LOCK):  # no training may change the networks meanwhile
        labels = _pseudo_labels(
            run,
            dataset,
            precomputed or run.precomputed_for(dataset),
            Execution(group, jobs, problems),
        )
    images = []
    for image in dataset:
        with problems.caught(image.image_id):
            if image.image_id not in labels:
                raise InputError(f"{labels.path}: no labels of image {image.image_id!r}")
            annotation = labels[image.image_id].consensus_instances().annotation()
            images.append(LabelledImage(image.image_id, image.file_name, image.path, annotation))
    return LabelledImages.of(
        dataset.classes, images, category_ids=dataset.category_ids, source=run.path
    )


def predict(
    run: TrainedRun,
    images: Sequence[Path],
    *,
    threshold: float = SCORE,
    device: str = AUTO,
    problems: Problems | None = None,
) -> LabelledImages:
    """Instances in unlabelled images, for `write_dataset` and pictures."""
    problems = problems or Problems()
    if not images:
        raise InputError("no images to predict on")
    paths = [Path(os.path.abspath(path)) for path in images]  # symbolic links keep their names
    root = Path(os.path.commonpath([path.parent for path in paths]))
    unlabelled = []
    for path in paths:
        with problems.caught():
            name = path.relative_to(root).as_posix()
            unlabelled.append(LabelledImage(name, name, path, Annotation(image_size(path))))
    dataset = LabelledImages.of(run.config.classes, unlabelled, source=root)
    predictions = predict_dataset(
        run, dataset, threshold=threshold, device=device, problems=problems
    )
    readable = tuple(image for image in dataset if image.image_id in predictions)
    return with_instances(replace(dataset, images=readable), predictions)


def predict_dataset(
    run: TrainedRun,
    dataset: LabelledImages,
    *,
    threshold: float = SCORE,
    device: str = AUTO,
    problems: Problems | None = None,
) -> dict[ImageId, Instances]:
    """Instances in the images of a dataset, whose labels are not used.

    Classes are matched by name. Instances of classes that the dataset does not have are left out;
    classes that the run does not have get no instances, and are announced.
    """
    known, problems = run.config.classes, problems or Problems()
    unknown = [name for name in dataset.classes if name not in known]
    if len(unknown) == len(dataset.classes):
        raise InputError(f"{run.path}: has none of the classes {brief(unknown)}")
    if unknown:
        print(
            f"note: {run.path} was trained without {brief(unknown)}; they get no instances",
            file=sys.stderr,
        )
    predictor = run.predictor(threshold=threshold, device=device)
    predictions: dict[ImageId, Instances] = {}
    for image in track(dataset, "predicting"):
        with problems.caught():
            instances = predictor([image.image_path()])[0]
            predictions[image.image_id] = _renumbered(instances, known, dataset.classes)
    return predictions


def images_of(pattern: str) -> list[Path]:
    """The images of a folder (and its subfolders), a glob pattern or a file, sorted."""
    path = Path(pattern)
    if path.is_dir():
        images = [file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES]
    elif path.is_file():
        images = [path]
    else:
        images = [Path(name) for name in glob.glob(pattern, recursive=True) if Path(name).is_file()]
    if not images:
        raise InputError(f"{pattern}: no image; give a folder, a file, or a pattern in quotes")
    return sorted(images)


def _renumbered(instances: Instances, known: Sequence[str], classes: Sequence[str]) -> Instances:
    """Instances with the class numbers of another list of names; classes not in it are dropped."""
    if tuple(known) == tuple(classes):
        return instances
    names = [known[label - 1] for label in instances.labels.tolist()]
    kept = [index for index, name in enumerate(names) if name in classes]
    instances = instances[kept]
    labels = [classes.index(names[index]) + 1 for index in kept]
    instances.labels = instances.labels.new_tensor(labels)
    return instances


def _pseudo_labels(
    run: TrainedRun, dataset: WeakDataset, precomputed: Precomputed, execution: Execution
) -> PseudoLabelFolder:
    """The final pseudo labels of a dataset, in a folder of the run's directory."""
    config, conditional = run.config, run.network("conditional")
    if conditional is None and run.supervision == "mask":
        raise InputError(
            f"{run.path}: was trained on masks, it cannot label; `annocoin predict` finds masks "
            "without labels"
        )
    classifier = precomputed.classifier or run.network("classifier")
    if precomputed.seeds is None and classifier is None:
        raise InputError(f"{run.path}: was trained with given seeds; pass --classifier FILE")
    predictions = _labelling_networks(run)
    digests = [path and file_digest(path) for path in (*predictions, conditional)]
    content: list[Any] = [METHOD_VERSION, dataset.digest(), *precomputed.digests(), *digests]
    content += [config.to_json(), classifier and file_digest(classifier)]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
    folder = run.path / LABELLING / key
    regions, seeds = precomputed.regions, precomputed.seeds
    if regions is None:
        regions = make_regions(dataset, folder / "regions", config.regions, execution)
    if seeds is None:
        assert classifier is not None
        seeds = make_seeds(
            dataset,
            regions,
            folder / "seeds",
            config.seeds,
            classifier=classifier,
            execution=execution,
        )
    if conditional is None:
        return retrieve_labels(
            dataset, regions, seeds, folder / "labels", config.conditional, execution
        )
    options = config.conditional
    prepared = prepare_images(dataset, regions, seeds, folder / "examples", options, execution)
    tables: TableFolder | None = None
    for number, prediction in enumerate(predictions, start=1):
        name = "tables" if number == len(predictions) else f"tables-{number}"
        tables = make_loss_tables(
            dataset,
            prepared,
            prediction,
            options,
            folder / name,
            execution,
            config.labelling_network.training.precision,
            tables,
            number,
        )
    return draw_labels(
        dataset,
        prepared,
        conditional,
        options,
        folder / "labels",
        execution,
        seed=config.seed,
        tables=tables,
    )


def _labelling_networks(run: TrainedRun) -> list[Path]:
    """The prediction networks whose mean tables label: of earlier rounds, then the last one."""
    names = [labelling_network_name(number + 1) for number in range(run.config.rounds)]
    networks = [*map(run.network, names), run.network("teacher") or run.network("prediction")]
    return [network for network in networks if network is not None]


def label_measurement(
    truth: EvaluationDataset, dataset: WeakDataset, problems: Problems
) -> Measurement:
    """Measures pseudo labels of the dataset's images with their true masks."""
    training = {image.image_id for image in dataset}
    kept = tuple(image for image in truth.labelled if image.image_id in training)
    source = truth.labelled.source
    if not kept:
        raise InputError(f"{source}: no true masks of these images to measure with")
    if len(kept) < len(training):
        with problems.caught():
            raise InputError(
                f"{source}: true masks of {len(kept)} of {len(training)} images; use --skip-bad to "
                "measure with those, or leave --measure out"
            )
    known = {image.image_id for image in kept}

    def figures(labels: Mapping[ImageId, Instances]) -> dict[str, float]:
        measured = {image_id: labels[image_id] for image_id in labels if image_id in known}
        images = tuple(image for image in kept if image.image_id in measured)
        subset = EvaluationDataset(replace(truth.labelled, images=images, splits={}))
        result = evaluate(measured, subset, thresholds=THRESHOLDS)
        return {
            **{f"map@{threshold:g}": value for threshold, value in result.mean.items()},
            **{f"f1@{threshold:g}": result.f1[threshold] for threshold in LABEL_F1_THRESHOLDS},
            "instances": result.predictions / result.images,
            "true_instances": result.truths / result.images,
            **{f"confidence_{k}": v for k, v in rank_by_confidence(measured, subset).items()},
        }

    content = repr([(image.image_id, image.annotation) for image in kept])
    return Measurement(figures, hashlib.sha256(content.encode()).hexdigest()[:12], len(kept))
