"""Trained networks: open one, predict with it, export it.

These calls import no code of training: a prediction should not wait for it.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from annocoin.data.conversion import with_instances
from annocoin.data.dataset import LabelledImage, LabelledImages, Supervision
from annocoin.data.images import SUFFIXES, image_size
from annocoin.engine.distribution import AUTO, open_device
from annocoin.engine.run_directory import RESULT, check_format, is_run, read_result
from annocoin.engine.stage import check_stage_files
from annocoin.errors import InputError, Problems, brief
from annocoin.files import refuse_input
from annocoin.prediction.networks import read_prediction, read_prediction_architecture
from annocoin.prediction.predictor import SCORE, ImageSource, Predictor
from annocoin.progress import track
from annocoin.types import Annotation, ImageId, Instances

if TYPE_CHECKING:
    from annocoin.data.dataset import WeakDataset
    from annocoin.engine.config import Config
    from annocoin.engine.preflight import Precomputed
    from annocoin.prediction.export import ExportFormat

WEIGHTS = Path(__file__).parent / "weights"
"""The networks of the package; files of other kinds in this folder have no name for `load`."""


def load(source: str | Path) -> TrainedNetwork:
    """Open a trained network.

    Args:
        source: the directory of a run (the result is a `TrainedRun`), the file of a prediction
            network, or the name of a network of the package, unless a run or file has that path.

    Example:
        ``annocoin.load("run").predictor()(["photo.jpg"])[0]`` are the instances of an image.
    """
    path, names = Path(source), network_names()
    if path.is_file():
        return TrainedNetwork(path)
    if str(source) in names and not (is_run(path) or (path / RESULT).is_file()):
        return TrainedNetwork(WEIGHTS / f"{source}.safetensors")
    if path.is_dir():
        return TrainedRun(path)
    raise InputError(
        f"{source}: no such run or file, and no network of the package "
        f"({', '.join(names) or 'it has none'}); expected a run directory, a prediction.safetensors"
        " or such a name"
    )


def network_names() -> list[str]:
    """The names of the package's prediction networks."""
    names = []
    for path in sorted(WEIGHTS.glob("*.safetensors")):
        with suppress(InputError):  # a network of another kind
            read_prediction_architecture(path)
            names.append(path.stem)
    return names


@dataclass(frozen=True)
class TrainedNetwork:
    """A prediction network.

    Args:
        path: its file, a `Path` or str.
    """

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        read_prediction_architecture(self.path)

    @property
    def file(self) -> Path:
        """The file of the prediction network."""
        return self.path

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Names of classes 1..C."""
        return read_prediction_architecture(self.file).classes

    def predictor(self, *, threshold: float = SCORE, device: str = AUTO) -> Predictor:
        """The network as a `Predictor`.

        Example:
            ``load("run").predictor()(["photo.jpg"])[0]`` are the instances of an image.
        """
        net, _ = read_prediction(self.file)
        return Predictor(net, threshold=threshold, device=open_device(device))


@dataclass(frozen=True)
class TrainedRun(TrainedNetwork):
    """The directory of a finished run.

    Args:
        path: the directory, a `Path` or str.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if self.path.is_file() or (not self.path.exists() and str(self.path) in network_names()):
            raise InputError(
                f"{self.path}: not a run directory of `annocoin train`, which labelling needs; a "
                "network alone can only predict"
            )
        if is_run(self.path):
            check_format(self.path)
        if not (self.path / RESULT).is_file():
            raise InputError(
                f"{self.path}: not a finished run; `annocoin train` starts and resumes runs"
            )

    @cached_property
    def _result(self) -> dict[str, Any]:
        return read_result(self.path)

    @property
    def file(self) -> Path:
        return self.path / self._result["networks"]["prediction"]

    @property
    def config(self) -> Config:
        """All options that it was trained with."""
        from annocoin.engine.config import Config

        return Config.from_json(self._result.get("config"), str(self.path / RESULT))

    @property
    def supervision(self) -> Supervision:
        """The supervision that it was trained with."""
        supervision: Supervision = self._result["supervision"]
        return supervision

    def network(self, name: str) -> Path | None:
        """The file of a network, None without it.

        Args:
            name: "prediction", "teacher", "conditional", "classifier", or that of a peer.
        """
        path = self._result["networks"].get(name)
        return None if path is None else self.path / path

    def precomputed_for(self, dataset: WeakDataset) -> Precomputed:
        """Its regions and seeds, if it was trained on this dataset, with or without more images."""
        from annocoin.engine.preflight import Precomputed
        from annocoin.regions.storage import RegionFolder
        from annocoin.seeds.seed_set import SeedFolder

        folders = self._result["folders"]
        trained_on = (self._result["dataset"], self._result.get("main_dataset"))
        if dataset.digest() not in trained_on or "regions" not in folders:
            return Precomputed()
        paths = {name: self.path / folder for name, folder in folders.items()}
        for folder in paths.values():
            if not folder.is_dir():
                raise InputError(
                    f"{self.path}: was trained with {folder}, which does not exist any more; pass "
                    "--regions and --seeds"
                )
            check_stage_files(folder)
        seeds = SeedFolder(paths["seeds"]) if "seeds" in paths else None
        return Precomputed(RegionFolder(paths["regions"]), seeds)


def predict(
    network: TrainedNetwork,
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
    dataset = LabelledImages.of(network.classes, unlabelled, source=root)
    predictions = predict_dataset(
        network, dataset, threshold=threshold, device=device, problems=problems
    )
    readable = tuple(image for image in dataset if image.image_id in predictions)
    return with_instances(replace(dataset, images=readable), predictions)


def predict_dataset(
    network: TrainedNetwork,
    dataset: LabelledImages,
    *,
    threshold: float = SCORE,
    device: str = AUTO,
    problems: Problems | None = None,
) -> dict[ImageId, Instances]:
    """Instances in the images of a dataset, whose labels are not used.

    Classes are matched by name. Instances of classes that the dataset does not have are left out;
    classes that the network does not have get no instances, and are announced.
    """
    known, problems = network.classes, problems or Problems()
    unknown = [name for name in dataset.classes if name not in known]
    if len(unknown) == len(dataset.classes):
        raise InputError(f"{network.path}: has none of the classes {brief(unknown)}")
    if unknown:
        print(
            f"note: {network.path} was trained without {brief(unknown)}; they get no instances",
            file=sys.stderr,
        )
    predictor = network.predictor(threshold=threshold, device=device)
    predictions: dict[ImageId, Instances] = {}
    for image in track(dataset, "predicting"):
        with problems.caught():
            instances = predictor([image.image_path()])[0]
            predictions[image.image_id] = _renumbered(instances, known, dataset.classes)
    return predictions


def export(
    network: TrainedNetwork,
    out: str | Path,
    to: ExportFormat,
    *,
    threshold: float = SCORE,
    images: Sequence[ImageSource] = (),
) -> None:
    """Write a network for programs without annocoin.

    The export is compared with the network before it is written: a difference is an error.

    Args:
        out: the file, or with "torchvision" the new folder.
        to: "onnx", "torchscript", or "torchvision" (weights and a model.py).
        threshold: minimum score of an instance.
        images: to compare on: paths, Pillow images or arrays; default synthetic scenes.
    """
    from annocoin.prediction.export import export_network

    refuse_input(Path(out), network.path, network.file)
    net, architecture = read_prediction(network.file)
    export_network(net, architecture, out, to, threshold=threshold, images=images)


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
