"""Small valid files of every kind that annocoin reads, and how each is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import torch
from torch import nn

from annocoin import masks
from annocoin.backbones import SCRATCH, read_weights
from annocoin.conditional.networks import (
    ConditionalArchitecture,
    ConditionalNetwork,
    read_conditional,
    write_conditional,
)
from annocoin.data.conversion import write_dataset
from annocoin.data.images import image_size, read_image
from annocoin.data.loading import load_labelled
from annocoin.data.predictions import read_predictions
from annocoin.engine.checkpoint import Checkpointer, write_checkpoint
from annocoin.engine.conditional_dataset import PreparedFolder, write_prepared
from annocoin.engine.distribution import single_process
from annocoin.engine.metrics import FileLogger
from annocoin.engine.pseudo_labels import (
    PseudoLabelFolder,
    PseudoLabels,
    TableFolder,
    write_pseudo_labels,
    write_table,
)
from annocoin.engine.run_directory import open_run
from annocoin.engine.verification import verify_run
from annocoin.errors import Problems
from annocoin.prediction.networks import (
    PredictionArchitecture,
    build_network,
    read_prediction,
    write_prediction,
)
from annocoin.regions.importers import ImageProposals
from annocoin.regions.storage import RegionFolder, write_regions
from annocoin.seeds.classifier import (
    Classifier,
    ClassifierArchitecture,
    read_classifier,
    write_classifier,
)
from annocoin.seeds.seed_set import SeedFolder, Seeds, write_seeds
from annocoin.synthetic.dataset import write_synthetic
from annocoin.trained import TrainedRun, images_of
from annocoin.types import Annotation, Instances, WeakLabel
from engine.worlds import square_example

SIZE = (64, 64)


@dataclass(frozen=True)
class Sample:
    """A folder of files, and a function that reads them.

    Args:
        files: patterns of the files to be damaged.
    """

    folder: Path
    read: Callable[[Path, Problems], Any]
    files: tuple[str, ...] = field(default=("**/*",))


def make_samples(root: Path) -> dict[str, Sample]:
    """All samples, below a new folder."""
    samples = {**_datasets(root), **_arrays(root), **_networks(root), **_run(root)}
    samples["mat"] = _mat(root / "mat")
    return samples


def _datasets(root: Path) -> dict[str, Sample]:
    write_synthetic(root / "voc", images=2, size=48, seed=1)
    labelled = load_labelled(root / "voc")
    samples = {}
    for kind in ("yolo", "labelme", "folder"):
        write_dataset(labelled, root / kind, kind)  # type: ignore[arg-type]
    (root / "coco").mkdir()
    write_dataset(labelled, root / "coco" / "c.json", "coco")
    for kind in ("voc", "yolo", "labelme", "folder", "coco"):
        samples[kind] = Sample(root / kind, _dataset_reader(kind))
    (root / "results").mkdir()
    write_dataset(labelled, root / "results" / "r.json", "results")
    samples["results"] = Sample(
        root / "results", lambda path, p: read_predictions(path / "r.json", labelled, p)
    )
    write_dataset(labelled, root / "result-files", "results")
    samples["result files"] = Sample(
        root / "result-files", lambda path, p: read_predictions(path, labelled, p)
    )
    samples["images"] = Sample(root / "folder" / "images", _read_images)
    return samples


def _dataset_reader(kind: str) -> Callable[[Path, Problems], Any]:
    def read(path: Path, problems: Problems) -> None:
        file = path / "c.json" if kind == "coco" else path
        labelled = load_labelled(file, kind=kind, problems=problems)  # type: ignore[arg-type]
        for image in labelled:
            instances = image.annotation.only("mask").instances()
            instances.dense()
            masks.iou(instances.masks, instances.masks)

    return read


def _read_images(path: Path, problems: Problems) -> None:
    for file in images_of(str(path)):
        with problems.caught():
            image_size(file)
            read_image(file)


def _arrays(root: Path) -> dict[str, Sample]:
    example = square_example(0)
    annotation = Annotation(SIZE, (WeakLabel(example.requirements.labels[0]),))
    seeds = Seeds(
        size=SIZE,
        labels=torch.tensor([annotation[0].label]),
        points=torch.tensor([[20.0, 30.0]]),
        scores=torch.ones(1),
        annotation_index=torch.tensor([0]),
        responses=torch.full((1, 8, 8), 1 / 64),
        maps=torch.zeros(1, 8, 8),
    )
    dense = np.zeros((2, *SIZE), dtype=bool)
    dense[0, 4:20, 6:30], dense[1, 30:40, 10:50] = True, True
    labels = PseudoLabels.single(Instances(size=SIZE, masks=dense, labels=[1, 2]))
    writers: dict[str, tuple[Any, Callable[[Path], None]]] = {
        "regions": (RegionFolder, lambda p: write_regions(p, example.requirements.regions)),
        "seeds": (SeedFolder, lambda p: write_seeds(p, seeds, annotation)),
        "examples": (PreparedFolder, lambda p: write_prepared(p, example.prepared)),
        "pseudo labels": (PseudoLabelFolder, lambda p: write_pseudo_labels(p, labels)),
        "tables": (TableFolder, lambda p: write_table(p, torch.rand(5, 3))),
    }
    samples = {}
    for name, (folder_type, write) in writers.items():
        with folder_type.writing(root / name, {"limit": 5}, [("a", "a.npz")]) as paths:
            write(paths["a"])
        samples[name] = Sample(root / name, _folder_reader(folder_type, annotation))
    return samples


def _folder_reader(folder_type: Any, annotation: Annotation) -> Callable[[Path, Problems], Any]:
    def read(path: Path, problems: Problems) -> None:
        folder = folder_type(path)
        for image_id in folder:
            content = folder[image_id]
            if isinstance(content, PseudoLabels):
                content.consensus_instances().dense()
                content.soft_targets((32, 32))
            if isinstance(folder, SeedFolder):
                folder.check(image_id, annotation)
                content.check_for(annotation)
        with folder_type.writing(path, {"limit": 5}, [("a", "a.npz")]):
            pass

    return read


def _networks(root: Path) -> dict[str, Sample]:
    folder = root / "networks"
    torch.manual_seed(0)
    architecture = PredictionArchitecture(
        ("cat",), "tiny", min_size=64, fpn_channels=8, representation_size=8, mask_layers=1
    )
    for name in ("prediction", "classifier", "conditional", "checkpoint", "weights"):
        (folder / name).mkdir(parents=True)
    write_prediction(folder / "prediction" / "n", build_network(architecture), architecture)
    classifier = Classifier(ClassifierArchitecture(("cat",), "tiny", size=64))
    write_classifier(folder / "classifier" / "n", classifier)
    conditional = ConditionalNetwork(ConditionalArchitecture(("cat",), "tiny", size=64), SCRATCH)
    write_conditional(folder / "conditional" / "n", conditional)
    net = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    state = {"name": "x", "step": 3, "module": net.state_dict()}
    write_checkpoint(folder / "checkpoint" / "n", state | {"optimizer": optimizer.state_dict()})
    torch.save(net.state_dict(), folder / "weights" / "n.pth")
    readers: dict[str, Callable[[Path], Any]] = {
        "prediction": lambda p: read_prediction(p / "n"),
        "classifier": lambda p: read_classifier(p / "n"),
        "conditional": lambda p: read_conditional(p / "n"),
        "checkpoint": lambda p: Checkpointer(p / "n").resume("x", net, optimizer),
        "weights": lambda p: read_weights(p / "n.pth", ()),
    }
    return {
        f"{name} file": Sample(folder / name, lambda p, _, read=read: read(p))
        for name, read in readers.items()
    }


def _run(root: Path) -> dict[str, Sample]:
    """A directory with one stage, of which a network is the result."""
    architecture = PredictionArchitecture(
        ("cat",), "tiny", min_size=64, fpn_channels=8, representation_size=8, mask_layers=1
    )
    with open_run(root / "run", {"rounds": 0}, single_process(), log=lambda _: None) as run:
        stage = run.stage("prediction", {})

        def work() -> dict[str, float]:
            logger = FileLogger(stage.folder / "metrics.jsonl")
            logger.start(0)
            logger.log({"step": 1, "loss": 0.5})
            logger.close()
            write_prediction(
                stage.folder / "p.safetensors", build_network(architecture), architecture
            )
            return {"map": 0.5}

        run.do(stage, work)
        run.finish(
            {"prediction": stage.folder / "p.safetensors"},
            config={"rounds": 0}, supervision="image", dataset="1", folders={},
        )  # fmt: skip

    def read(path: Path, problems: Problems) -> None:
        with problems.caught():
            trained = TrainedRun(path)
            assert trained.supervision
            trained.predictor()
        with problems.caught():
            verify_run(path)
        lines: list[str] = []
        with open_run(path, {"rounds": 1}, single_process(), log=lines.append) as run:
            run.do(run.stage("prediction", {}), lambda: None)
            FileLogger(path / "metrics.jsonl").start(1)

    patterns = ("*.json*", "stages/*/*.json*", "stages/*/*.safetensors")
    return {"run": Sample(root / "run", read, patterns)}


def _mat(folder: Path) -> Sample:
    folder.mkdir()
    superpixels = np.arange(64).reshape(8, 8) // 8 + 1
    labels = np.empty((2, 1), dtype=object)
    labels[0, 0], labels[1, 0] = np.asarray([[1, 2]]), np.asarray([[3]])
    content = {"superpixels": superpixels, "labels": labels, "scores": np.asarray([0.5, 0.2])}
    scipy.io.savemat(folder / "m.mat", content, do_compression=True)
    return Sample(folder, lambda path, _: ImageProposals(path / "m.mat").regions((8, 8)))
