"""Stages that go image by image, on all cores and ranks, resumable; regions and seeds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from annocoin.data.artefacts import LOCK, ArtefactFolder
from annocoin.data.dataset import LabelledImage, LabelledImages, WeakDataset, WeakImage
from annocoin.data.images import read_image
from annocoin.engine.classifier_training import (
    MEASURED_IMAGES,
    provenance,
    tag_map,
    train_classifier,
)
from annocoin.engine.distribution import ProcessGroup, warn_of_slow_bfloat16, worker_processes
from annocoin.engine.metrics import FileLogger
from annocoin.engine.network_config import ClassifierOptions
from annocoin.engine.parallel import BadItem, work_through
from annocoin.engine.trainer import Trainer
from annocoin.errors import InputError, Problems, brief, check_positive, image_line
from annocoin.files import exclusive_lock, file_digest
from annocoin.network_files import check_provenance
from annocoin.regions.boundaries import BoundaryDetector
from annocoin.regions.importers import ImageProposals, ProposalSource
from annocoin.regions.proposals import DEFAULT_LIMIT, RegionOptions, RegionProposer
from annocoin.regions.region_set import RegionSet
from annocoin.regions.sam import SamOptions, SamProposer
from annocoin.regions.sam_model import SamModel
from annocoin.regions.storage import RegionFolder, regions_are_current, write_regions
from annocoin.seeds.classifier import (
    Classifier,
    ClassifierArchitecture,
    read_classifier,
    write_classifier,
)
from annocoin.seeds.seed_set import SeedFolder, Seeds, seeds_are_current, write_seeds
from annocoin.seeds.seeder import SEED_SCALE, Seeder, SeedOptions
from annocoin.types import Annotation, ImageId

CLASSIFIER_FILE = "classifier.safetensors"
CHECKPOINT = ".classifier-{}.pt"
"""With a digest of the options: a training with others starts anew."""

METRICS = "classifier.jsonl"

T = TypeVar("T")
Folder = TypeVar("Folder", bound=ArtefactFolder[Any])


@dataclass(frozen=True)
class Execution:
    """How a stage is run.

    Args:
        group: the processes among which images are distributed; default this one, on the CPU.
        jobs: worker processes of each of them, see `worker_processes`; 1 works in this process.
        problems: `Problems(skip=True)` leaves bad images out instead of stopping.
    """

    group: ProcessGroup | None = None
    jobs: int | None = None
    problems: Problems = field(default_factory=Problems)

    def __post_init__(self) -> None:
        if self.jobs is not None:
            check_positive("jobs", self.jobs)

    @property
    def device(self) -> str:
        return "cpu" if self.group is None else str(self.group.device)


class ImageWorker(Protocol[T]):
    """One process's tools: made once, used for many images."""

    def compute(self, item: Any) -> T:
        """The result for one image; an image that cannot be used is an `InputError`."""

    def write(self, path: Path, result: T) -> None: ...


def run_image_stage(
    folder_type: type[Folder],
    out: Path,
    provenance: Mapping[str, Any],
    items: Sequence[tuple[ImageId, str, Any]],
    start: Callable[[], ImageWorker[Any]],
    is_current: Callable[[Path, Any], bool],
    description: str,
    execution: Execution,
    *,
    serial_below: int = 0,
) -> Folder:
    """Compute and write the files of a folder that are not there yet.

    Each file is written atomically, so that the same call resumes after an interruption.

    Args:
        provenance: options that the files depend on; a folder with other ones is refused.
        items: image id, file name in the folder, and argument of `ImageWorker.compute`.
        start: makes a process's worker; can be pickled.
        is_current: whether a file, for its item, need not be made again.
        serial_below: up to so many images are processed here, if `jobs` is not set: starting
            other processes takes longer.
    """
    group = execution.group
    part = items if group is None else group.shard(items)
    jobs = worker_processes(execution.jobs, group)
    if execution.jobs is None and len(part) <= serial_below:  # of all items: resuming is the same
        jobs = 1
    names = [(image_id, name) for image_id, name, _ in items]
    with _shared_folder(folder_type, out, provenance, names, group) as paths:
        tasks = [(item, image_id, paths[image_id]) for image_id, _, item in part]
        todo = [task for task in tasks if not is_current(task[2], task[0])]
        work_through(
            todo, partial(_Worker, start), description, jobs=jobs, problems=execution.problems
        )
    return folder_type(out)


def make_regions(
    dataset: LabelledImages | WeakDataset,
    out: str | Path,
    options: RegionOptions | None = None,
    execution: Execution | None = None,
) -> RegionFolder:
    """Compute the regions of every image that has none in `out` yet.

    Several jobs need the guard ``if __name__ == "__main__"`` in a script that calls this.
    """
    options, execution = options or RegionOptions(), execution or Execution()
    if options.precision == "bf16":
        warn_of_slow_bfloat16(torch.device("cpu"))
    imported: dict[ImageId, ImageProposals] = {}
    images: list[LabelledImage | WeakImage] = list(dataset)
    if options.source is not None:
        if isinstance(dataset, WeakDataset):
            raise InputError("regions of other programs are imported with `annocoin regions`")
        source = ProposalSource(options.source, dataset)
        for image in dataset:
            with execution.problems.caught():
                imported[image.image_id] = source.find(image)
        images = [image for image in dataset if image.image_id in imported]
    return run_image_stage(
        RegionFolder,
        Path(out),
        options.provenance() | {"weights": _weights_digest()},
        [
            (image.image_id, f"{image.file_name}.npz", (image, imported.get(image.image_id)))
            for image in images
        ],
        partial(_RegionWorker, options),
        lambda path, _: regions_are_current(path),
        "regions",
        execution,
        serial_below=8,
    )


def make_sam_regions(
    dataset: WeakDataset,
    out: str | Path,
    options: SamOptions,
    execution: Execution | None = None,
) -> RegionFolder:
    """Compute regions with SAM for every image that has none in `out` yet.

    The dataset's boxes and points are prompts beside a grid of points. The folder depends on them,
    on all options, and on the content of the ONNX files (not on external data of theirs).
    """
    SamModel(options.encoder, options.decoder)  # bad files are reported before a folder exists
    located = [
        (image.image_id, label.box, label.point, label.crowd)
        for image in dataset
        for label in image.annotation
        if label.box is not None or label.point is not None
    ]
    provenance = {
        **asdict(options),
        "source": "sam",
        "encoder": file_digest(options.encoder)[:12],
        "decoder": file_digest(options.decoder)[:12],
        "supervision": dataset.supervision,
        "prompts": hashlib.sha256(repr(located).encode()).hexdigest()[:12] if located else "grid",
        "weights": _weights_digest(),
    }
    return run_image_stage(
        RegionFolder,
        Path(out),
        provenance,
        [(image.image_id, f"{image.file_name}.npz", image) for image in dataset],
        partial(_SamWorker, options),
        lambda path, _: regions_are_current(path),
        "regions",
        execution or Execution(),
    )


def make_classifier(
    dataset: WeakDataset,
    out: Path,
    options: ClassifierOptions,
    *,
    seed: int = 0,
    validation: WeakDataset | None = None,
    execution: Execution | None = None,
    trainer: Trainer | None = None,
) -> dict[str, float]:
    """Train a classifier and write it to `out`, unless it is there; gives its tag mAP.

    Args:
        validation: images on which the tag mAP is measured as well.
        trainer: default one with checkpoint and metrics in `out`, which is locked.
    """
    file, metadata = out / CLASSIFIER_FILE, provenance(options, dataset, seed)
    if file.is_file():
        check_provenance(file, metadata)
        return {} if trainer is None else _tag_figures(read_classifier(file), dataset, trainer)
    execution = execution or Execution()
    lock: AbstractContextManager[None] = nullcontext()
    if trainer is None:
        lock = exclusive_lock(out / LOCK)
        digest = hashlib.sha256(json.dumps(metadata).encode()).hexdigest()[:12]
        trainer = Trainer(
            execution.group,
            checkpoint=out / CHECKPOINT.format(digest),
            logger=FileLogger(out / METRICS),
            problems=execution.problems,
        )
    with lock:
        net = train_classifier(dataset, options, seed=seed, trainer=trainer)
        figures = _tag_figures(net, dataset, trainer)
        if trainer.group is None or trainer.group.is_main:
            if validation is not None:
                figures["validation_tag_map"] = tag_map(net, validation, trainer.problems)
            write_classifier(file, net, metadata)
            for checkpoint in out.glob(CHECKPOINT.format("*")):
                checkpoint.unlink()
    return figures


def _tag_figures(net: Classifier, dataset: WeakDataset, trainer: Trainer) -> dict[str, float]:
    """The tag mAP on the training images, also of a classifier that was trained before."""
    if trainer.group is not None:
        if not trainer.group.is_main:
            return {}
        net = net.to(trainer.group.device)
    net = net.to(memory_format=torch.channels_last)
    return {"tag_map": tag_map(net, dataset[:MEASURED_IMAGES], trainer.problems)}


def make_seeds(
    dataset: WeakDataset,
    regions: RegionFolder,
    out: str | Path,
    options: SeedOptions | None = None,
    *,
    classifier: str | Path,
    execution: Execution | None = None,
) -> SeedFolder:
    """Compute the seeds of every image that has regions, and no seeds in `out` yet.

    Args:
        regions: the seeds' files get the same names.
        classifier: its file.
    """
    options, execution = options or SeedOptions(), execution or Execution()
    usable = with_regions(dataset, regions, execution.problems)
    architecture = classifier_architecture(classifier, usable.classes)
    size = options.size or round(SEED_SCALE * architecture.size)
    options = replace(options, size=size)
    digest = file_digest(Path(classifier))[:12]
    return run_image_stage(
        SeedFolder,
        Path(out),
        {**asdict(options), "supervision": dataset.supervision, "classifier": digest},
        [(image.image_id, regions.name(image.image_id), image) for image in usable],
        partial(_SeedWorker, Path(classifier), options, execution.device),
        lambda path, image: seeds_are_current(path, image.annotation),
        "seeds",
        execution,
        serial_below=8,
    )


def with_regions(dataset: WeakDataset, regions: RegionFolder, problems: Problems) -> WeakDataset:
    """The images that have regions; at least one."""
    usable = []
    for image in dataset:
        with problems.caught(image.image_id):
            if image.image_id not in regions:
                raise InputError(
                    f"{regions.path}: no regions of image {image.image_id!r}; "
                    "run `annocoin regions` on the same dataset and split"
                )
            usable.append(image)
    check_usable(usable, problems)
    return replace(dataset, images=tuple(usable))


def check_usable(images: Sequence[Any], problems: Problems) -> None:
    """Raise if no image is left."""
    if not images:
        reason = problems.skipped[0] if problems.skipped else "the dataset is empty"
        raise InputError(f"no usable image; {reason}")


def classifier_architecture(file: str | Path, classes: tuple[str, ...]) -> ClassifierArchitecture:
    """The architecture of a classifier's file, which must have these classes."""
    architecture = read_classifier(file).architecture
    if architecture.classes != classes:
        raise InputError(
            f"{file}: a classifier of {brief(architecture.classes)}; "
            f"the dataset has {brief(classes)}"
        )
    return architecture


@contextmanager
def _shared_folder(
    folder_type: type[ArtefactFolder[Any]],
    out: Path,
    provenance: Mapping[str, Any],
    names: Sequence[tuple[ImageId, str]],
    group: ProcessGroup | None,
) -> Iterator[dict[ImageId, Path]]:
    """Lock a folder on rank 0, and give all ranks the paths of its files."""
    if group is None:
        with folder_type.writing(out, provenance, names) as paths:
            yield paths
    elif group.is_main:
        with folder_type.writing(out, provenance, names) as paths:
            group.barrier()
            yield paths
            group.barrier()
    else:
        group.barrier()
        yield folder_type.paths(out, names)
        group.barrier()


class _Worker:
    """Computes and writes one file; a bad image is reported, a full disk raises."""

    def __init__(self, start: Callable[[], ImageWorker[Any]]) -> None:
        self.worker = start()

    def __call__(self, item: Any, image_id: ImageId, path: Path) -> BadItem | None:
        try:
            result = self.worker.compute(item)
        except (InputError, OSError) as error:
            return BadItem(image_line(error, image_id), image_id)
        self.worker.write(path, result)
        return None


class _RegionWorker:
    def __init__(self, options: RegionOptions) -> None:
        self.limit = options.limit
        detector = BoundaryDetector(options.boundaries, precision=options.precision)
        self.propose = RegionProposer(detector, limit=options.limit or DEFAULT_LIMIT)

    def compute(self, item: tuple[LabelledImage | WeakImage, ImageProposals | None]) -> RegionSet:
        image, imported = item
        pixels = read_image(image.image_path())
        if imported is None:
            return self.propose(pixels)
        edges = self.propose.detector(pixels).mean(axis=0)
        return imported.regions(image.annotation.size, edges)[: self.limit]

    def write(self, path: Path, result: RegionSet) -> None:
        write_regions(path, result)


class _SamWorker:
    def __init__(self, options: SamOptions) -> None:
        self.propose = SamProposer(options)

    def compute(self, item: WeakImage) -> RegionSet:
        return self.propose(item.pixels(), item.annotation, f"image {item.image_id!r}")

    def write(self, path: Path, result: RegionSet) -> None:
        write_regions(path, result)


class _SeedWorker:
    def __init__(self, classifier: Path, options: SeedOptions, device: str) -> None:
        self.seeder = Seeder(read_classifier(classifier), options, device=device)

    def compute(self, item: WeakImage) -> tuple[Seeds, Annotation]:
        return self.seeder(item.pixels(), item.annotation), item.annotation

    def write(self, path: Path, result: tuple[Seeds, Annotation]) -> None:
        write_seeds(path, *result)


def _weights_digest() -> str:
    """A digest of the networks that come with this version."""
    folder = resources.files("annocoin.weights")
    content = [folder.joinpath(f"{n}.safetensors").read_bytes() for n in ("boundaries", "ranker")]
    return hashlib.sha256(b"".join(content)).hexdigest()[:12]
