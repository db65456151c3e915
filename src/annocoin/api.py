"""The whole job in a few calls: train a run, label a dataset with it, predict on new images."""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from annocoin.data.images import SUFFIXES, image_size, read_image
from annocoin.engine.config import Config, config_from
from annocoin.engine.dataset_stages import CLASSIFIER, make_regions, make_seeds
from annocoin.engine.distribution import AUTO, ProcessGroup, open_device, single_process
from annocoin.engine.labelling import Sources, draw_labels, make_loss_tables
from annocoin.engine.precomputed import Precomputed, digest, fingerprint
from annocoin.engine.presets import configured
from annocoin.engine.pseudo_labels import PseudoLabelFolder
from annocoin.engine.rounds import CONDITIONAL, PREDICTION, Measure, train_run
from annocoin.engine.run_directory import LOCK, METHOD, RUN, Say
from annocoin.errors import InputError, Problems, brief
from annocoin.evaluation.evaluator import THRESHOLDS, evaluate
from annocoin.files import read_json
from annocoin.prediction.networks import read_prediction
from annocoin.prediction.predictor import SCORE, Predictor, in_batches
from annocoin.progress import track
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.seed_set import SeedFolder
from annocoin.types import Annotation, ImageId, Instances

LABELLING = "labelling"


@dataclass(frozen=True)
class TrainedRun:
    """A run directory in which a training has ended.

    Args:
        path: the directory; a str will do.
    """

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not (self.path / PREDICTION).is_file() or not (self.path / RUN).is_file():
            raise InputError(
                f"{self.path}: no finished run; `annocoin train` makes runs, and goes on with "
                "those that were interrupted"
            )

    @property
    def config(self) -> Config:
        """What it was trained with."""
        return config_from(read_json(self.path / RUN).get("config"), str(self.path / RUN))

    @property
    def supervision(self) -> Supervision:
        """What it was trained from."""
        said: Supervision = read_json(self.path / RUN).get("supervision", "image")
        return said

    def predictor(self, *, threshold: float = SCORE, device: str = AUTO) -> Predictor:
        """Its prediction network at work: a list of images, uint8 [H, W, 3], to their instances."""
        net, _ = read_prediction(self.path / PREDICTION)
        return Predictor(net, threshold=threshold, device=device)

    def given_for(self, dataset: WeakDataset) -> Precomputed:
        """The regions and seeds that it learned from, if it was from this dataset."""
        said = self._of(dataset)
        if not {"regions", "seeds"} <= set(said):
            return Precomputed()
        regions, seeds = self.path / said["regions"], self.path / said["seeds"]
        for folder in (regions, seeds):
            if not folder.is_dir():
                raise InputError(
                    f"{self.path}: learned from {folder}, which is gone; give --regions and --seeds"
                )
        return Precomputed(RegionFolder(regions), SeedFolder(seeds))

    def labels_of(self, dataset: WeakDataset) -> PseudoLabelFolder | None:
        """The labels that a run without rounds learned from, if it was from this dataset."""
        labels = self._of(dataset).get("labels")
        return None if labels is None else PseudoLabelFolder(self.path / labels)

    def _of(self, dataset: WeakDataset) -> dict[str, Any]:
        """What the run notes, or nothing, if it was trained on another dataset."""
        said: dict[str, Any] = read_json(self.path / RUN)
        return said if said.get("dataset") == fingerprint(dataset) else {}


def train(
    dataset: WeakDataset,
    out: str | Path,
    preset: str = "voc-r50",
    *,
    rounds: int | None = None,
    seed: int | None = None,
    changes: Mapping[str, str] | None = None,
    weights: Path | None = None,
    given: Precomputed | None = None,
    truth: EvaluationDataset | None = None,
    group: ProcessGroup | None = None,
    device: str = AUTO,
    jobs: int | None = None,
    problems: Problems | None = None,
    say: Say = print,
) -> TrainedRun:
    """Train a run, or go on with one that was interrupted: everything, from images to a network.

    Args:
        dataset: images with cheap labels; where every label is a mask, the prediction network is
            trained on those, which is the upper bound.
        out: the run's directory.
        preset: "synthetic", "voc-cpu", "voc-cpu-r50", "voc-r50", "voc-r101" or
            "voc-r50-literal".
        rounds, seed: instead of the preset's; with 0 rounds the steps of all are one training.
        changes: values at dotted names of the configuration, see `annocoin.training.config`.
        weights: a folder with files of backbone weights, taken where their names begin with a
            backbone's; default torchvision's own, which may be downloaded.
        given: regions and seeds that need not be made.
        truth: true masks of the same images, to measure each round's pseudo labels; nothing is
            learned from them.
        group: the processes that train, see `annocoin.distribution.init_distributed`; default this one,
            which computes on `device`, a GPU where there is one.
    """
    config = configured(preset, dataset.classes, changes or {}, weights)
    if config.rounds == 0:
        raise InputError("rounds=0 as a change; say --rounds 0, which keeps the number of steps")
    if rounds is not None:
        config = config.without_rounds() if rounds == 0 else replace(config, rounds=rounds)
    if seed is not None:
        config = replace(config, seed=seed)
    train_run(
        dataset,
        out,
        config,
        given=given,
        measure=None if truth is None else _measure(truth, dataset, problems or Problems()),
        group=group or single_process(str(open_device(device))),
        jobs=jobs,
        problems=problems,
        say=say,
    )
    return TrainedRun(Path(out))


def label(
    run: TrainedRun,
    dataset: WeakDataset,
    *,
    given: Precomputed | None = None,
    jobs: int | None = None,
    device: str = AUTO,
    problems: Problems | None = None,
) -> LabelledImages:
    """Masks for weak labels, with a confidence each; every label is met by a mask of its own.

    Regions, seeds, loss tables and samples are kept in the run's directory, so that the same call
    goes on after an interruption, and a second one has nothing to do. For the dataset that the run
    was trained on regions and seeds are there already.

    Returns:
        The images with masks instead of their labels, for `write_dataset`.
    """
    problems, device = problems or Problems(), str(open_device(device))
    dataset = dataset.with_classes(run.config.classes, str(run.path))
    labels = run.labels_of(dataset)
    if labels is None:
        if given is None or not given.made:
            given = run.given_for(dataset)
        with files.only_one(run.path / LOCK):  # no training may change the networks meanwhile
            labels = _drawn(run, dataset, given, jobs, device, problems)
    images = []
    for image in dataset:
        with problems.caught():
            if image.image_id not in labels:
                raise InputError(f"{labels.path}: no labels of image {image.image_id!r}")
            found = labels[image.image_id].agreed().annotation()
            images.append(LabelledImage(image.image_id, image.file_name, image.path, found))
    return LabelledImages.of(
        dataset.classes, images, category_ids=dataset.category_ids, source=run.path
    )


def predict(
    run: TrainedRun,
    images: Sequence[Path],
    *,
    threshold: float = SCORE,
    batch: int = 4,
    device: str = AUTO,
    problems: Problems | None = None,
) -> LabelledImages:
    """Instances in images that nobody has labelled, for `write_dataset` and pictures."""
    problems = problems or Problems()
    if not images:
        raise InputError("no images to predict on")
    places = [Path(os.path.abspath(path)) for path in images]  # links keep their names
    root = Path(os.path.commonpath([place.parent for place in places]))
    labelled = []
    for place in places:
        with problems.caught():
            name = place.relative_to(root).as_posix()
            labelled.append(LabelledImage(name, name, place, Annotation(image_size(place))))
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
    device: str = AUTO,
    problems: Problems | None = None,
) -> dict[ImageId, Instances]:
    """Instances in the images of a dataset, whose labels are not looked at.

    Classes are known by their names; instances of those that the dataset does not have are left
    out, and one that the run does not have is an error.
    """
    known = run.config.classes
    unknown = [name for name in labelled.classes if name not in known]
    if unknown:
        raise InputError(f"{run.path}: has no class {unknown[0]!r}; it has {brief(known)}")
    predictor, problems = run.predictor(threshold=threshold, device=device), problems or Problems()
    found: dict[ImageId, Instances] = {}
    for images in in_batches(track(labelled, "predicting"), batch):
        pixels = {}
        for image in images:
            with problems.caught():
                pixels[image.image_id] = read_image(image.image_path())
        answers = predictor(list(pixels.values()))
        found |= dict(zip(pixels, answers, strict=True))
    if known == labelled.classes:
        return found
    return {image_id: _renamed(own, known, labelled.classes) for image_id, own in found.items()}


def _renamed(found: Instances, known: Sequence[str], wanted: Sequence[str]) -> Instances:
    """Instances with the numbers that their classes have in another list."""
    names = [known[label - 1] for label in found.labels.tolist()]
    places = [place for place, name in enumerate(names) if name in wanted]
    kept = found[places]
    kept.labels = kept.labels.new_tensor([wanted.index(names[place]) + 1 for place in places])
    return kept


def _drawn(
    run: TrainedRun,
    weak: WeakDataset,
    given: Precomputed,
    jobs: int | None,
    device: str,
    problems: Problems,
) -> PseudoLabelFolder:
    """Samples of a run's conditional network for a dataset, which its prediction network judged."""
    config, networks = run.config, [run.path / PREDICTION, run.path / CONDITIONAL]
    if not networks[1].is_file():
        raise InputError(
            f"{run.path}: has no conditional network (--rounds 0, or trained on masks), so it "
            "cannot label; `annocoin predict` finds masks without looking at labels"
        )
    classifier = given.classifier or run.path / CLASSIFIER
    if given.seeds is None and not classifier.is_file():
        raise InputError(f"{run.path}: was trained with given seeds; give --classifier FILE")
    said: list[Any] = [METHOD, fingerprint(weak), given.identity(), *map(digest, networks)]
    said += [config.to_json(), digest(classifier) if classifier.is_file() else None]
    key = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:12]
    folder, group = run.path / LABELLING / key, single_process(device)
    regions = given.regions
    if regions is None:
        regions = make_regions(
            weak, folder / "regions", config.regions, jobs=jobs, problems=problems
        )
    seeds = given.seeds
    if seeds is None:
        seeds = make_seeds(
            weak, regions, folder / "seeds", config.seeds,
            classifier=classifier, jobs=jobs, device=device, problems=problems,
        )  # fmt: skip
    sources = Sources(weak, regions, seeds)
    sources.check(problems)
    tables = make_loss_tables(
        sources, networks[0], config.conditional, folder / "tables",
        group=group, jobs=jobs, problems=problems,
    )  # fmt: skip
    return draw_labels(
        sources, networks[1], config.conditional, folder / "labels",
        seed=config.seed, tables=tables, group=group, jobs=jobs, problems=problems,
    )  # fmt: skip


def _measure(truth: EvaluationDataset, dataset: WeakDataset, problems: Problems) -> Measure:
    """Average precision on the dataset's own images, for the metrics of a run."""
    own = {image.image_id for image in dataset}
    kept = tuple(image for image in truth.labelled if image.image_id in own)
    if not kept:
        raise InputError(f"{truth.labelled.source}: no true masks of these images to measure with")
    if len(kept) < len(own):
        with problems.caught():
            raise InputError(
                f"{truth.labelled.source}: true masks of {len(kept)} of {len(own)} images; say "
                "--skip-bad to measure with those, or leave --measure out"
            )
    only = EvaluationDataset(replace(truth.labelled, images=kept, splits={}))
    known = {image.image_id for image in kept}

    def measure(found: Mapping[ImageId, Instances]) -> dict[str, float]:
        found = {image_id: own for image_id, own in found.items() if image_id in known}
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
