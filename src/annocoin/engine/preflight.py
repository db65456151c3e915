"""Before a run does any work: what it need not compute, all checks, and the plan of its stages."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from annocoin.backbones import SCRATCH
from annocoin.conditional.networks import ConditionalNetwork
from annocoin.data.dataset import WeakDataset, WeakImage, concatenate
from annocoin.engine.conditional_dataset import with_artefacts
from annocoin.engine.config import Config
from annocoin.engine.distribution import ProcessGroup, has_bfloat16, worker_processes
from annocoin.engine.estimates import (
    StageImages,
    disk_space,
    median_size,
    peak_memory,
    stage_seconds,
)
from annocoin.engine.image_stages import CLASSIFIER_FILE, classifier_architecture, with_regions
from annocoin.engine.methods import FULL, METHODS
from annocoin.engine.network_config import PredictionConfig
from annocoin.engine.overrides import check_weight_files, use_classifier
from annocoin.engine.parallel import cores
from annocoin.engine.prediction_training import RoundImages
from annocoin.errors import InputError, Problems, plural
from annocoin.files import file_digest
from annocoin.prediction.networks import build_network
from annocoin.progress import format_duration
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.classifier import Classifier, ClassifierArchitecture
from annocoin.seeds.seed_set import SeedFolder


@dataclass(frozen=True)
class Precomputed:
    """Regions, seeds and classifier from `annocoin regions` and `annocoin seeds`."""

    regions: RegionFolder | None = None
    seeds: SeedFolder | None = None
    classifier: Path | None = None

    @property
    def classifier_file(self) -> Path | None:
        """The classifier, passed by itself or with the seeds."""
        if self.classifier is not None or self.seeds is None:
            return self.classifier
        beside = self.seeds.path / CLASSIFIER_FILE
        return beside if beside.is_file() else None

    def __bool__(self) -> bool:
        return any(part is not None for part in (self.regions, self.seeds, self.classifier))

    def digests(self) -> list[Any]:
        """Digests of all parts, None for those that are missing."""
        folders = [folder and folder.digest() for folder in (self.regions, self.seeds)]
        return [*folders, self.classifier_file and file_digest(self.classifier_file)]


def check_before_work(
    dataset: WeakDataset,
    out: str | Path,
    config: Config,
    precomputed: Precomputed,
    problems: Problems,
    more_tags: WeakDataset | None = None,
    world_size: int = 1,
) -> Config:
    """Check all that can be checked before any work is done; gives the final configuration.

    Precomputed regions and seeds are needed for the images that the run uses.
    """
    if config.classes != dataset.classes:
        raise InputError("the configuration has other classes than the dataset")
    _check_supervision(config.method, dataset)
    file = precomputed.classifier_file
    if more_tags is not None and not trains_classifier(config, dataset, precomputed):
        reason = "the run trains no classifier" if file is None else f"{file} is trained already"
        raise InputError(f"--more-tags: {reason}; leave --more-tags out")
    if file is not None:
        if file.resolve() == (Path(out) / CLASSIFIER_FILE).resolve():
            raise InputError(f"{file}: is the run's own classifier; leave --classifier out")
        architecture = classifier_architecture(file, dataset.classes)
        options = replace(
            config.classifier,
            backbone=architecture.backbone,
            stride_in_1x1=architecture.stride_in_1x1,
            weights=SCRATCH,  # not those of the preset's backbone: it is trained already
        )
        config = use_classifier(config, options)
    check_weight_files(config)
    check_architectures(config)
    regions, seeds = precomputed.regions, precomputed.seeds
    if not dataset.fully_masked and regions is None:
        _check_file_names(dataset)
    elif not dataset.fully_masked and regions is not None:
        used = RoundImages(dataset, config, world_size).used
        usable = with_regions(used, regions, problems)
        if seeds is not None and METHODS[config.method].seeds:
            with_artefacts(usable, regions, seeds, problems)
    return config


def check_architectures(config: Config) -> None:
    """Build the networks without memory, or with the weights of files: bad options raise here."""

    def built(build: Callable[..., Any], weights: str) -> None:
        if Path(weights).is_file():
            build(weights=weights)
        else:
            with torch.device("meta"):
                build(weights=SCRATCH)

    options = config.classifier
    classifier = ClassifierArchitecture(
        config.classes, options.backbone, options.stride_in_1x1, options.size
    )
    built(lambda weights: Classifier(classifier, weights), options.weights)
    conditional = config.conditional
    for network in config.prediction_networks.values():
        built(partial(build_network, network.architecture), network.weights)
    if config.rounds:
        built(
            lambda weights: ConditionalNetwork(conditional.architecture, weights),
            conditional.weights,
        )


def trains_classifier(config: Config, dataset: WeakDataset, precomputed: Precomputed) -> bool:
    """Whether the run trains a classifier: for the seeds, or as initial weights of a network."""
    if precomputed.classifier_file is not None:
        return False
    if dataset.fully_masked:
        return config.without_rounds().needs_classifier
    method = METHODS[config.method]
    seeds = method.seeds and precomputed.seeds is None
    return seeds or method.classifier or config.needs_classifier


def stage_images(
    config: Config,
    dataset: WeakDataset,
    precomputed: Precomputed,
    more_tags: WeakDataset | None = None,
    world_size: int = 1,
) -> StageImages:
    """How many images each part of a run processes."""
    tagged = len(dataset) + len(more_tags or ())
    rounds = RoundImages(dataset, config, world_size)
    used = 0 if dataset.fully_masked else len(rounds.used)
    return StageImages(
        classifier=tagged if trains_classifier(config, dataset, precomputed) else 0,
        regions=used if precomputed.regions is None and METHODS[config.method].regions else 0,
        seeds=used if precomputed.seeds is None and METHODS[config.method].seeds else 0,
        prepared=used if config.rounds else 0,
        rounds=tuple(len(rounds.of_round(i + 1)) for i in range(config.rounds + 1)),
        median_size=median_size(image.annotation.size for image in dataset),
    )


def plan(
    config: Config,
    dataset: WeakDataset,
    precomputed: Precomputed,
    more_tags: WeakDataset | None = None,
    seconds: Mapping[str, float] | None = None,
) -> list[str]:
    """The stages of a run and their sizes, a line each.

    Args:
        seconds: the expected time of the stages, see `stage_seconds`, if it is to be shown.
    """
    images, training = len(dataset), config.prediction.training
    network, teacher = _title(config.prediction), config.labelling_network
    single = f"{network}: {config.prediction_steps} steps of {training.batch_size} images"
    lines = [f"{images} images, {len(dataset.classes)} classes, supervision {dataset.supervision}"]

    def add(title: str, work: str, *stages: str) -> None:
        expected = sum(
            value for name, value in (seconds or {}).items() if name.startswith(stages or (title,))
        )
        time = f"; about {format_duration(expected)}" if expected else ""
        lines.append(f"  {title:12s} {work}{time}")

    if trains_classifier(config, dataset, precomputed):
        classifier, tagged = config.classifier, images + len(more_tags or ())
        epochs = plural(classifier.epochs, "epoch")
        add("classifier", f"{classifier.backbone}: {epochs} of {plural(tagged, 'image')}")
    if dataset.fully_masked:
        add("prediction", single)
        return lines
    used = len(RoundImages(dataset, config).used)
    if precomputed.regions is None and METHODS[config.method].regions:
        add("regions", f"of {plural(used, 'image')}")
    if precomputed.seeds is None and METHODS[config.method].seeds:
        add("seeds", f"of {plural(used, 'image')}")
    if config.rounds == 0:
        for title, work in _own_stages(config, used):
            add(title, work, f"{config.method} {title}")
        add("prediction", single)
        return lines
    conditional, trunk = config.conditional.training, config.conditional.architecture.trunk
    steps = f"{conditional.initial_steps} steps of {conditional.batch_size} images"
    add("conditional", f"{trunk}: {steps}, from the seeds", "examples", "conditional")
    add(
        plural(config.rounds, "round"),
        f"{conditional.samples} samples; {_title(teacher)}: {teacher.training.steps} steps of "
        f"{teacher.training.batch_size}; loss tables; conditional: {conditional.steps} steps",
        "round ",
    )
    final = f"; {network}: {training.final_steps} steps" if training.final_steps else ""
    add("final", f"samples{final}")
    return lines


def plan_with_estimates(
    config: Config,
    dataset: WeakDataset,
    precomputed: Precomputed,
    more_tags: WeakDataset | None,
    out: str | Path,
    group: ProcessGroup,
    jobs: int | None = None,
) -> tuple[list[str], dict[str, float]]:
    """The plan with the expected time, memory and disk space; also the seconds by stage."""
    images = stage_images(config, dataset, precomputed, more_tags, group.world_size)
    seconds: dict[str, float] = {}
    if group.device.type == "cpu":  # no run on a GPU was measured
        seconds = stage_seconds(config, images, cores() * group.nodes)
    lines = plan(config, dataset, precomputed, more_tags, seconds)
    lines += resources(config, images, sum(seconds.values()), out, group, jobs)
    return lines + suggest_bfloat16(config, group), seconds


def resources(
    config: Config,
    images: StageImages,
    seconds: float,
    out: str | Path,
    group: ProcessGroup,
    jobs: int | None = None,
) -> list[str]:
    """The expected time, memory and disk space of a run, and warnings if these are short.

    Args:
        seconds: of all stages; 0 if unknown.
    """
    on_cpu = group.device.type == "cpu"
    workers = worker_processes(jobs, group)
    memory, disk = peak_memory(config, images, workers), disk_space(config, images)
    where = "memory" if on_cpu else "memory of the GPU"
    number = plural(cores() * group.nodes, "core")
    time = f"{format_duration(seconds)} on {number}" if seconds else "an unknown time on GPUs"
    lines = [f"in all about {time}, {memory:.1f} GB of {where}, {disk:.1f} GB of disk space"]
    free = psutil.virtual_memory().available / 1e9
    if on_cpu and memory > free:
        fewer = "; use fewer --jobs" if workers > 1 and images.regions else ""
        lines.append(f"warning: {free:.1f} GB of memory are free{fewer}")
    existing = next(path for path in (Path(out).resolve() / "x").parents if path.exists())
    free = shutil.disk_usage(existing).free / 1e9
    if disk > free:
        lines.append(f"warning: {free:.1f} GB of disk space are free at {existing}")
    return lines


def dry_run(
    dataset: WeakDataset,
    out: str | Path,
    config: Config,
    *,
    more_images: WeakDataset | None = None,
    more_tags: WeakDataset | None = None,
    precomputed: Precomputed | None = None,
    group: ProcessGroup,
    jobs: int | None = None,
    problems: Problems | None = None,
) -> list[str]:
    """All checks of a run, and its plan with estimates; nothing is written."""
    dataset = dataset if more_images is None else concatenate(dataset, more_images)
    precomputed = precomputed or Precomputed()
    config = with_precision_of(group, config)
    problems, size = problems or Problems(), group.world_size
    config = check_before_work(dataset, out, config, precomputed, problems, more_tags, size)
    return plan_with_estimates(config, dataset, precomputed, more_tags, out, group, jobs)[0]


def with_precision_of(group: ProcessGroup, config: Config) -> Config:
    """The configuration of a run with --precision; regions are computed on the CPU in any case."""
    if group.precision != "bf16-mixed":
        return config
    return config.in_bfloat16(regions=group.device.type == "cpu")


def suggest_bfloat16(config: Config, group: ProcessGroup) -> list[str]:
    """A note if a ResNet is trained in full precision on a processor with bfloat16."""
    networks = [(config.classifier.backbone, config.classifier.precision)]
    for network in config.prediction_networks.values():
        networks.append((network.architecture.backbone, network.training.precision))
    slow = any(name.startswith("resnet") and precision == "32" for name, precision in networks)
    if group.device.type != "cpu" or not slow or not has_bfloat16():
        return []
    return ["note: this processor has bfloat16; --precision bf16-mixed halves the time of ResNets"]


def _own_stages(config: Config, images: int) -> list[tuple[str, str]]:
    """What a method without rounds does before it trains the prediction network."""
    method, training = METHODS[config.method], config.baseline
    lines = []
    if method.network:
        steps = f"{training.steps} steps of {training.batch_size} images"
        lines.append(("network", f"of {config.method}: {steps}"))
    labels = method.labels or "regions retrieved for the seeds"
    return [*lines, ("labels", f"{labels}, of {plural(images, 'image')}")]


def _check_supervision(method: str, dataset: WeakDataset) -> None:
    """Raise unless a method takes the dataset's weak labels."""
    taken = METHODS[method].supervision
    if dataset.supervision not in taken:
        raise InputError(
            f"method {method}: supervision {dataset.supervision}; expected --supervision "
            f"{' or '.join(taken)}"
        )
    if method == FULL and not dataset.fully_masked:
        raise InputError(f"method {method}: not every label has a mask")


def _title(network: PredictionConfig) -> str:
    architecture = network.architecture
    return f"Mask R-CNN, {architecture.backbone} at {architecture.min_size} pixels"


def _check_file_names(dataset: WeakDataset) -> None:
    """Raise if the regions of two images would have the same file."""
    images: dict[str, WeakImage] = {}
    for image in dataset:
        twin = images.setdefault(image.file_name, image)
        if twin is not image:
            raise InputError(
                f"images {twin.image_id!r} ({twin.path}) and {image.image_id!r} ({image.path}): "
                f"both have the file name {image.file_name}; rename one of them"
            )
