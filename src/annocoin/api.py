"""Calls of a user that need the code of training: train a run, label a dataset with it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from annocoin import files
from annocoin.baselines.peer import PeerInputs
from annocoin.baselines.runs import PEERS, label_images, stages_of
from annocoin.data.dataset import (
    EvaluationDataset,
    LabelledImage,
    LabelledImages,
    WeakDataset,
    concatenate,
)
from annocoin.engine.conditional_dataset import prepare_images
from annocoin.engine.distribution import AUTO, ProcessGroup, open_device, single_process
from annocoin.engine.image_stages import Execution, make_regions, make_seeds
from annocoin.engine.label_quality import Measurement
from annocoin.engine.labelling import draw_labels, make_loss_tables, retrieve_labels
from annocoin.engine.methods import ANNOCOIN, METHODS
from annocoin.engine.preflight import Precomputed
from annocoin.engine.presets import configure
from annocoin.engine.pseudo_labels import PseudoLabelFolder, TableFolder
from annocoin.engine.rounds import train_run
from annocoin.engine.run_directory import (
    LOCK,
    METHOD_VERSION,
    Log,
    labelling_network_name,
)
from annocoin.errors import InputError, Problems
from annocoin.evaluation.confidence import rank_by_confidence
from annocoin.evaluation.evaluator import THRESHOLDS, evaluate
from annocoin.files import file_digest
from annocoin.report.page import report_training
from annocoin.report.run_data import record_dataset
from annocoin.trained import TrainedRun
from annocoin.types import ImageId, Instances

LABELLING = "labelling"
LABEL_F1_THRESHOLDS = (0.5, 0.75)


def train(
    dataset: WeakDataset,
    out: str | Path,
    preset: str = "voc-r50",
    *,
    method: str = ANNOCOIN,
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
    report: bool = True,
    log: Log = print,
) -> TrainedRun:
    """Train a run, or resume it: everything, from weakly labelled images to a network and a report.

    Args:
        dataset: images with weak labels; where every label is a mask, the prediction network is
            trained on the masks (full supervision).
        out: the run's directory.
        preset: "synthetic", "voc-cpu", "voc-cpu-r50", "voc-r50", "voc-r101" or "voc-r50-literal".
        method: "annocoin", or a peer to compare with, see `annocoin.engine.methods.METHODS`.
        rounds: alternating rounds; 0 trains once on the retrieved seeds.
        seed: random seed.
        changes: values at dotted names of the configuration, see `annocoin.engine.config.Config`
            and `annocoin.engine.network_config`.
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
        report: write the page `report.html`.
    """
    problems = problems or Problems()
    config = configure(
        preset, dataset.classes, changes, rounds=rounds, seed=seed, weights=weights, method=method
    )
    group = group or single_process(str(open_device(device)))
    with group.watched():
        train_run(
            dataset,
            out,
            config,
            more_images=more_images,
            more_tags=more_tags,
            precomputed=precomputed,
            measurement=None if truth is None else label_measurement(truth, dataset, problems),
            execution=Execution(group, jobs, problems),
            log=log,
            method=stages_of(method),
        )
        if group.is_main:
            images = dataset if more_images is None else concatenate(dataset, more_images)
            if report:
                report_training(Path(out), images, truth, log, str(group.device))
            else:  # a later report needs the images
                record_dataset(Path(out), images)
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
    interruption. A run without rounds gives the regions that it retrieves for the seeds, a run of a
    peer the peer's labels.

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
    needs = METHODS[config.method]
    classifier = precomputed.classifier or run.network("classifier")
    needed = needs.classifier or (needs.seeds and precomputed.seeds is None)
    if needed and classifier is None:
        raise InputError(f"{run.path}: was trained with given seeds; pass --classifier FILE")
    predictions = _labelling_networks(run)
    own = run.network(config.method) or run.network("prediction")
    digests = [path and file_digest(path) for path in (*predictions, conditional, own)]
    content: list[Any] = [METHOD_VERSION, dataset.digest(), *precomputed.digests(), *digests]
    content += [config.to_json(), classifier and file_digest(classifier)]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
    folder = run.path / LABELLING / key
    regions, seeds = precomputed.regions, precomputed.seeds
    if regions is None and needs.regions:
        regions = make_regions(dataset, folder / "regions", config.regions, execution)
    if seeds is None and needs.seeds:
        assert classifier is not None
        assert regions is not None
        seeds = make_seeds(
            dataset,
            regions,
            folder / "seeds",
            config.seeds,
            classifier=classifier,
            execution=execution,
        )
    if config.method in PEERS:
        inputs = PeerInputs(config, regions, seeds, classifier, own, execution.device)
        return label_images(dataset, inputs, folder / "labels", execution)
    assert regions is not None
    assert seeds is not None
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
        prediction=predictions[-1],
        precision=config.labelling_network.training.precision,
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
