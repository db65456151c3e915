"""Make the regions of a whole dataset: on all cores, resumable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

from annocoin import files
from annocoin.data.dataset import LabelledImage, LabelledImages, WeakDataset, WeakImage
from annocoin.data.images import read_image
from annocoin.engine.classifier_training import (
    ClassifierOptions,
    Log,
    how_trained,
    train_classifier,
)
from annocoin.engine.distribution import ProcessGroup, num_workers, open_device
from annocoin.engine.parallel import BadItem, cores, work_through
from annocoin.errors import InputError, Problems, brief, one_line
from annocoin.regions.boundaries import BoundaryDetector
from annocoin.regions.importers import Found, Source, open_source
from annocoin.regions.proposals import LIMIT, RegionOptions, RegionProposer
from annocoin.regions.storage import RegionFolder, read_regions, regions_are_current, write_regions
from annocoin.seeds.classifier import check_made, read_classifier, write_classifier
from annocoin.seeds.retrieval import By, retrieve
from annocoin.seeds.seed_set import SeedFolder, read_seeds, seeds_are_current, write_seeds
from annocoin.seeds.seeder import CLOSER, Seeder, SeedOptions
from annocoin.types import ImageId, Instances


def make_regions(
    labelled: LabelledImages | WeakDataset,
    out: str | Path,
    options: RegionOptions | None = None,
    *,
    jobs: int | None = None,
    problems: Problems | None = None,
    group: ProcessGroup | None = None,
) -> RegionFolder:
    """Make the regions of every image that has none in `out` yet.

    Each file is written whole, so that the same call goes on after an interruption.

    Args:
        jobs: processes, one thread each; default all cores. With 1 the work is done in this one.
            More need the guard ``if __name__ == "__main__"`` in a script that calls this.
        problems: `Problems(skip=True)` leaves bad images out instead of stopping.
        group: the processes among which the images are shared.
    """
    out, options, problems = Path(out), options or RegionOptions(), problems or Problems()
    jobs = num_workers(jobs, group)
    source: Source | None = None
    if options.source is not None:
        if isinstance(labelled, WeakDataset):
            raise InputError("regions of another's making: import them with `annocoin regions`")
        source = open_source(options.source, labelled)
    made = {
        **asdict(options),
        "weights": _weights_digest(),
        "source": _source_state(options.source),
    }
    names = [(image.image_id, f"{image.file_name}.npz") for image in labelled]
    with RegionFolder.writing(out, made, names, group) as files:
        todo: list[tuple[LabelledImage | WeakImage, Found | None, Path]] = []
        images: Sequence[LabelledImage | WeakImage] = labelled.images
        for image in images if group is None else group.shard(images):
            if not regions_are_current(files[image.image_id]):
                with problems.caught():
                    found = None
                    if source is not None and isinstance(image, LabelledImage):
                        found = source.find(image)
                    todo.append((image, found, files[image.image_id]))
        work_through(todo, partial(_RegionWorker, options), "regions", jobs=jobs, problems=problems)
    return RegionFolder(out)


class _RegionWorker:
    """One worker's tools: made once, used for many images."""

    def __init__(self, options: RegionOptions) -> None:
        self.limit = options.limit
        detector = BoundaryDetector(options.boundaries)
        self.propose = RegionProposer(detector, limit=options.limit or LIMIT)

    def __call__(
        self, image: LabelledImage | WeakImage, found: Found | None, path: Path
    ) -> BadItem | None:
        """Make one file; what is wrong with the image is returned, a full disk is raised."""
        try:
            pixels = read_image(image.image_path())
            if found is None:
                regions = self.propose(pixels)
            else:
                edges = self.propose.detector(pixels).mean(axis=0)
                regions = found.regions(image.annotation.size, edges)[: self.limit]
        except (InputError, OSError) as error:
            return BadItem(one_line(error))
        write_regions(path, regions)
        return None


def _source_state(source: str | None) -> str | None:
    """A source by its full path and, if it is one file, when it was written."""
    if source is None:
        return None
    kind, _, path = source.partition(":")
    written = "" if Path(path).is_dir() else f" of {Path(path).stat().st_mtime_ns}"
    return f"{kind}:{Path(path).resolve()}{written}"


def _weights_digest() -> str:
    """A short name of the networks that come with this version."""
    folder = resources.files("annocoin.weights")
    content = [folder.joinpath(f"{n}.safetensors").read_bytes() for n in ("boundaries", "ranker")]
    return hashlib.sha256(b"".join(content)).hexdigest()[:12]


CLASSIFIER = "classifier.safetensors"
CLASSIFIER_CHECKPOINT = "classifier.part.safetensors"
CLASSIFIER_LOG = "classifier.jsonl"


def make_seeds(
    dataset: WeakDataset,
    regions: RegionFolder,
    out: str | Path,
    options: SeedOptions | None = None,
    *,
    classifier: ClassifierOptions | str | Path | None = None,
    validation: WeakDataset | None = None,
    jobs: int | None = None,
    device: str = "cpu",
    problems: Problems | None = None,
    log: Log | None = None,
    group: ProcessGroup | None = None,
) -> SeedFolder:
    """Make the seeds of every image that has none in `out` yet.

    Each file is written whole, and the classifier's training is kept after each epoch, so that the
    same call goes on after an interruption.

    Args:
        regions: what `make_regions` made; the seeds' files have the same names.
        classifier: how to train the classifier, which is kept in `out`; or the file of one.
        validation: images on which the classifier's tag mAP is measured, with training only.
        jobs: processes, one thread each; default all cores. On another device than the
            processor it is one.
        problems: `Problems(skip=True)` leaves bad images out instead of stopping.
        log: called after each epoch of training with its figures.
        group: the processes among which the images are shared; the first trains the classifier.
    """
    out, options, problems = Path(out), options or SeedOptions(), problems or Problems()
    open_device(device)
    jobs = num_workers(jobs, group, device)
    usable = _with_regions(dataset, regions, problems)
    classifier = classifier or ClassifierOptions()
    if not isinstance(classifier, ClassifierOptions):
        check_classes(classifier, usable.classes)
    options = replace(options, size=options.size or _closer(classifier))
    made = {
        **asdict(options),
        "supervision": dataset.supervision,
        **{f"classifier {name}": v for name, v in _how_made(classifier, usable).items()},
    }
    names = [(image.image_id, regions.name(image.image_id)) for image in usable]
    with SeedFolder.writing(out, made, names, group) as files:
        if not isinstance(classifier, ClassifierOptions):
            file = Path(classifier)
        else:
            file = make_classifier(
                usable,
                out,
                classifier,
                validation=validation,
                device=device,
                problems=problems,
                log=log,
                group=group,
            )
        own = usable.images if group is None else group.shard(usable.images)
        tasks = [(image, files[image.image_id]) for image in own]
        todo = [
            (image, path) for image, path in tasks if not seeds_are_current(path, image.annotation)
        ]
        start = partial(_SeedWorker, file, options, device)
        work_through(todo, start, "seeds", jobs=jobs, problems=problems)
    return SeedFolder(out)


def make_classifier(
    dataset: WeakDataset,
    out: Path,
    options: ClassifierOptions,
    *,
    validation: WeakDataset | None = None,
    device: str = "cpu",
    problems: Problems | None = None,
    log: Log | None = None,
    group: ProcessGroup | None = None,
) -> Path:
    """The file in `out` of a classifier trained in this way; the first process trains it.

    Its training is kept after each epoch; the same call goes on, or finds it done.
    """
    if group is None or group.is_main:
        _trained(dataset, options, out, validation, device, problems or Problems(), log)
    if group is not None:
        group.barrier()
    return out / CLASSIFIER


def first_labels(
    dataset: WeakDataset,
    regions: RegionFolder,
    seeds: SeedFolder,
    by: By = "votes",
    *,
    jobs: int | None = None,
    problems: Problems | None = None,
) -> dict[ImageId, Instances]:
    """The first pseudo labels of the images that have seeds: regions retrieved for their peaks."""
    images = [image for image in dataset if image.image_id in seeds and image.image_id in regions]
    tasks = [(i, regions.files[i.image_id], seeds.files[i.image_id]) for i in images]
    found = work_through(
        tasks,
        partial(_RetrievalWorker, by),
        f"labels by {by}",
        jobs=cores() if jobs is None else jobs,
        problems=problems or Problems(),
    )
    return dict(found)


class _SeedWorker:
    """One worker's tools: made once, used for many images."""

    def __init__(self, classifier: Path, options: SeedOptions, device: str) -> None:
        self.seed = Seeder(read_classifier(classifier), options, device=device)

    def __call__(self, image: WeakImage, path: Path) -> BadItem | None:
        try:
            seeds = self.seed(image.pixels(), image.annotation)
        except (InputError, OSError) as error:
            return BadItem(one_line(error))
        write_seeds(path, seeds, image.annotation)
        return None


class _RetrievalWorker:
    def __init__(self, by: By) -> None:
        self.by = by

    def __call__(
        self, image: WeakImage, regions_file: Path, seeds_file: Path
    ) -> tuple[ImageId, Instances] | BadItem:
        try:
            regions, seeds = read_regions(regions_file), read_seeds(seeds_file)
            retrieved = retrieve(regions, seeds, image.annotation, self.by)
        except (InputError, OSError) as error:
            return BadItem(one_line(error))
        return image.image_id, retrieved.instances(regions, seeds)


def _with_regions(dataset: WeakDataset, regions: RegionFolder, problems: Problems) -> WeakDataset:
    """The images that have regions; at least one."""
    usable = []
    for image in dataset:
        with problems.caught():
            if image.image_id not in regions:
                raise InputError(
                    f"{regions.path}: no regions of image {image.image_id!r}; "
                    "run `annocoin regions` on the same dataset and split"
                )
            usable.append(image)
    if not usable:
        reason = problems.skipped[0] if problems.skipped else "the dataset is empty"
        raise InputError(f"no usable image; {reason}")
    return replace(dataset, images=tuple(usable))


def _trained(
    dataset: WeakDataset,
    options: ClassifierOptions,
    out: Path,
    validation: WeakDataset | None,
    device: str,
    problems: Problems,
    log: Log | None,
) -> None:
    """Have the file of a classifier trained in this way; what is there already is used."""
    file, how = out / CLASSIFIER, how_trained(options, dataset)
    if file.is_file():
        check_made(file, how)
        check_classes(file, dataset.classes)
        return
    figures = _lines(out / CLASSIFIER_LOG)

    def note(of_epoch: dict[str, Any]) -> None:
        figures[of_epoch["epoch"] - 1 :] = [of_epoch]
        lines = "".join(json.dumps(line) + "\n" for line in figures)
        files.write_bytes(out / CLASSIFIER_LOG, lines.encode())
        if log is not None:
            log(of_epoch)

    net = train_classifier(
        dataset,
        options,
        checkpoint=out / CLASSIFIER_CHECKPOINT,
        validation=validation,
        device=device,
        problems=problems,
        log=note,
    )
    write_classifier(file, net, how)
    (out / CLASSIFIER_CHECKPOINT).unlink(missing_ok=True)


def _lines(path: Path) -> list[dict[str, Any]]:
    """What the log holds of a training that was interrupted."""
    if not (path.is_file() and (path.parent / CLASSIFIER_CHECKPOINT).is_file()):
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_classes(classifier: str | Path, classes: tuple[str, ...]) -> None:
    """Raise unless a file's classifier knows these classes."""
    found = read_classifier(classifier).architecture.classes
    if found != classes:
        raise InputError(
            f"{classifier}: a classifier of {brief(found)}; the dataset has {brief(classes)}"
        )


def _closer(classifier: ClassifierOptions | str | Path) -> int:
    """The size at which images are looked at for seeds."""
    if isinstance(classifier, ClassifierOptions):
        return round(CLOSER * classifier.size)
    return round(CLOSER * read_classifier(classifier).architecture.size)


def _how_made(classifier: ClassifierOptions | str | Path, dataset: WeakDataset) -> dict[str, Any]:
    """What the classifier is, for the folder's index: how it is trained, or which file it is."""
    if isinstance(classifier, ClassifierOptions):
        return how_trained(classifier, dataset)
    return {"file": hashlib.sha256(Path(classifier).read_bytes()).hexdigest()[:12]}
