"""The whole job in a few calls: train a run, label a dataset with it, predict on new images."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from annocoin.data.checks import read_json
from annocoin.data.conversion import with_instances
from annocoin.data.dataset import (
    EvaluationDataset,
    ImageId,
    LabelledImage,
    LabelledImages,
    Supervision,
    WeakDataset,
    weak_dataset,
)
from annocoin.data.images import SUFFIXES, image_size, read_image
from annocoin.distribution import Party
from annocoin.errors import InputError, Problems, brief
from annocoin.evaluation import THRESHOLDS, evaluate
from annocoin.prediction import Predictor, read_prediction
from annocoin.prediction.predicting import SCORE, in_batches
from annocoin.progress import track
from annocoin.regions.making import make_regions
from annocoin.seeds import make_seeds
from annocoin.seeds.making import CLASSIFIER
from annocoin.training.config import Config, changed, read_config, with_weights
from annocoin.training.labelling import Sources, draw_labels, judge_regions
from annocoin.training.pseudo_labels import PseudoLabelFolder
from annocoin.training.rounds import (
    CONDITIONAL,
    PREDICTION,
    Given,
    Measure,
    fingerprint,
    train_run,
)
from annocoin.training.run_directory import CONFIG, RUN, Say
from annocoin.training.run_presets import run_preset
from annocoin.types import Annotation, Instances

LABELLING = "labelling"


@dataclass(frozen=True)
class TrainedRun:
    """A run directory in which a training has ended."""

    path: Path

    def __post_init__(self) -> None:
        if not (self.path / PREDICTION).is_file() or not (self.path / RUN).is_file():
            raise InputError(
                f"{self.path}: no finished run; `annocoin train` makes runs, and goes on with "
                "those that were interrupted"
            )

    @property
    def config(self) -> Config:
        return read_config(self.path / CONFIG)

    def predictor(self, *, threshold: float = SCORE, device: str = "cpu") -> Predictor:
        """Its prediction network at work."""
        net, _ = read_prediction(self.path / PREDICTION)
        return Predictor(net, threshold=threshold, device=device)

    def labels_of(self, dataset: WeakDataset) -> PseudoLabelFolder | None:
        """The last pseudo labels, if this is the dataset that the run was trained on."""
        said = read_json(self.path / RUN)
        if said.get("dataset") != fingerprint(dataset) or said.get("labels") is None:
            return None
        return PseudoLabelFolder(self.path / said["labels"])


def train(
    dataset: WeakDataset,
    out: str | Path,
    preset: str = "voc-r50",
    *,
    rounds: int | None = None,
    seed: int | None = None,
    changes: Mapping[str, str] | None = None,
    weights: Path | None = None,
    given: Given | None = None,
    truth: EvaluationDataset | None = None,
    party: Party | None = None,
    jobs: int | None = None,
    problems: Problems | None = None,
    say: Say = print,
) -> TrainedRun:
    """Train a run, or go on with one that was interrupted: everything, from images to a network.

    Args:
        dataset: images with cheap labels; where every label is a mask, the prediction network is
            trained on those, which is the upper bound.
        out: the run's directory.
        preset: "synthetic", "voc-cpu", "voc-r50" or "voc-r101".
        rounds, seed: instead of the preset's; with 0 rounds the steps of all are one training.
        changes: values at dotted names of the configuration, see `annocoin.training.config`.
        weights: a folder with files of backbone weights, taken where their names begin with a
            backbone's; default torchvision's own, which may be downloaded.
        given: regions and seeds that need not be made.
        truth: true masks of the same images, to measure each round's pseudo labels; nothing is
            learned from them.
    """
    config = run_preset(preset, dataset.classes)
    if weights is not None:
        config = with_weights(config, weights)
    config = changed(config, changes or {})
    if rounds is not None:
        config = config.without_rounds() if rounds == 0 else replace(config, rounds=rounds)
    if seed is not None:
        config = replace(config, seed=seed)
    train_run(
        dataset,
        out,
        config,
        given=given,
        measure=None if truth is None else _measure(truth, dataset),
        party=party,
        jobs=jobs,
        problems=problems,
        say=say,
    )
    return TrainedRun(Path(out))


def label(
    run: TrainedRun,
    labelled: LabelledImages,
    supervision: Supervision,
    *,
    given: Given | None = None,
    jobs: int | None = None,
    device: str = "cpu",
    problems: Problems | None = None,
) -> LabelledImages:
    """Masks for weak labels, with a confidence each; every label is met by a mask of its own.

    Regions, seeds and samples are kept in the run's directory, so that the same call goes on after
    an interruption. Images that the run was trained on have them already.

    Returns:
        The images with masks instead of their labels, for `write_dataset`.
    """
    problems, given = problems or Problems(), given or Given()
    weak = weak_dataset(labelled, supervision, problems)
    config = run.config
    if weak.classes != config.classes:
        raise InputError(
            f"{run.path}: a run of {brief(config.classes)}; the dataset has {brief(weak.classes)}"
        )
    labels = run.labels_of(weak)
    if labels is None:
        labels = _drawn(run, config, weak, given, jobs, device, problems)
    found = {image_id: own.agreed() for image_id, own in labels.items()}
    images = tuple(image for image in labelled if image.image_id in found)
    if not images:
        raise InputError(f"{labelled.source}: no usable image")
    return with_instances(replace(labelled, images=images), found)


def predict(
    run: TrainedRun,
    images: Sequence[Path],
    *,
    threshold: float = SCORE,
    batch: int = 4,
    device: str = "cpu",
    problems: Problems | None = None,
) -> LabelledImages:
    """Instances in images that nobody has labelled, for `write_dataset` and pictures."""
    problems = problems or Problems()
    if not images:
        raise InputError("no images to predict on")
    root = Path(os.path.commonpath([path.resolve().parent for path in images]))
    labelled = []
    for path in images:
        with problems.caught():
            name = path.resolve().relative_to(root).as_posix()
            labelled.append(LabelledImage(name, name, path, Annotation(image_size(path))))
    classes = run.config.classes
    unlabelled = LabelledImages.of(classes, labelled, source=root)
    found = predict_dataset(
        run, unlabelled, threshold=threshold, batch=batch, device=device, problems=problems
    )
    kept = tuple(image for image in unlabelled if image.image_id in found)
    return with_instances(replace(unlabelled, images=kept), found)


def predict_dataset(
    run: TrainedRun,
    labelled: LabelledImages,
    *,
    threshold: float = SCORE,
    batch: int = 4,
    device: str = "cpu",
    problems: Problems | None = None,
) -> dict[ImageId, Instances]:
    """Instances in the images of a dataset, whose labels are not looked at."""
    predictor, problems = run.predictor(threshold=threshold, device=device), problems or Problems()
    found: dict[ImageId, Instances] = {}
    for images in in_batches(track(labelled, "predicting"), batch):
        pixels = {}
        for image in images:
            with problems.caught():
                pixels[image.image_id] = read_image(image.image_path())
        found |= dict(zip(pixels, predictor(list(pixels.values())), strict=True)) if pixels else {}
    return found


def _drawn(
    run: TrainedRun,
    config: Config,
    weak: WeakDataset,
    given: Given,
    jobs: int | None,
    device: str,
    problems: Problems,
) -> PseudoLabelFolder:
    """Samples for a dataset that is new to a run."""
    if not (run.path / CONDITIONAL).is_file():
        raise InputError(
            f"{run.path}: has no conditional network (--rounds 0, or trained on masks); it can "
            "label its own training images only, or use `annocoin predict`"
        )
    folder = run.path / LABELLING / fingerprint(weak)[:12]
    regions = given.regions
    if regions is None:
        regions = make_regions(
            weak, folder / "regions", config.regions, jobs=jobs, problems=problems
        )
    seeds = given.seeds
    if seeds is None:
        classifier = given.classifier or run.path / CLASSIFIER
        if not classifier.is_file():
            raise InputError(f"{run.path}: was trained with given seeds; give --classifier FILE")
        seeds = make_seeds(
            weak, regions, folder / "seeds", config.seeds,
            classifier=classifier, jobs=jobs, device=device, problems=problems,
        )  # fmt: skip
    sources = Sources(weak, regions, seeds)
    tables = judge_regions(
        sources, run.path / PREDICTION, config.conditional, folder / "tables",
        jobs=jobs, problems=problems,
    )  # fmt: skip
    return draw_labels(
        sources, run.path / CONDITIONAL, config.conditional, folder / "labels",
        seed=config.seed, tables=tables, jobs=jobs, problems=problems,
    )  # fmt: skip


def _measure(truth: EvaluationDataset, dataset: WeakDataset) -> Measure:
    """Average precision on the dataset's own images, for the metrics of a run."""
    own = {image.image_id for image in dataset}
    kept = tuple(image for image in truth.labelled if image.image_id in own)
    if len(kept) < len(own):
        raise InputError(f"{truth.labelled.source}: true masks of {len(kept)} of {len(own)} images")
    only = EvaluationDataset(replace(truth.labelled, images=kept, splits={}))

    def measure(found: Mapping[ImageId, Instances]) -> dict[str, float]:
        mean = evaluate(found, only, thresholds=THRESHOLDS).mean
        return {f"map@{threshold:g}": value for threshold, value in mean.items()}

    return measure


def images_of(where: str) -> list[Path]:
    """The images that a folder (and those in it), a pattern or a name stands for, sorted."""
    path = Path(where)
    if path.is_dir():
        found = [own for own in path.rglob("*") if own.suffix.lower() in SUFFIXES]
    elif path.is_file():
        found = [path]
    else:
        found = [Path(own) for own in glob.glob(where, recursive=True) if Path(own).is_file()]
    if not found:
        raise InputError(f"{where}: no image; give a folder, a file, or a pattern in quotes")
    return sorted(found)
