"""Runs of the peers: the stages that all methods share, and between them the peer's own."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from annocoin.baselines.iam import IAM
from annocoin.baselines.irn_peer import IRN
from annocoin.baselines.label_penet import LABEL_PENET
from annocoin.baselines.ocis import OCIS
from annocoin.baselines.peer import Peer, PeerInputs
from annocoin.baselines.prm import PRM
from annocoin.baselines.sdi import SDI
from annocoin.baselines.wise import WISE
from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.engine.conditional_dataset import with_artefacts
from annocoin.engine.image_stages import Execution, run_image_stage, with_regions
from annocoin.engine.labelling import SERIAL_BELOW
from annocoin.engine.methods import ANNOCOIN, FULL, METHODS
from annocoin.engine.pseudo_labels import (
    LABELS,
    PseudoLabelFolder,
    PseudoLabels,
    write_pseudo_labels,
)
from annocoin.engine.rounds import Rounds
from annocoin.engine.shared_stages import SharedStages
from annocoin.engine.stage import Stage

PEERS: dict[str, Peer] = {
    "prm": PRM,
    "iam": IAM,
    "ocis": OCIS,
    "label-penet": LABEL_PENET,
    "wise": WISE,
    "irn": IRN,
    "sdi": SDI,
}
"""By their names in `METHODS`, but for `FULL`: with true masks there is nothing to label."""


def stages_of(method: str) -> type[SharedStages]:
    """The stages of a method's runs."""
    return Rounds if method in (ANNOCOIN, FULL) else PeerStages


class PeerStages(SharedStages):
    """The stages of a peer in their order."""

    def all(self) -> Stage:
        needs = METHODS[self.config.method]
        data = self.run.stage("dataset", {"images": self.dataset.digest()})
        self.classifier = self.train_classifier(data)
        source = self.compute_regions(data)
        if needs.seeds:
            source = self.compute_seeds(source)
        labels = self.make_labels(source, self.train_network(source) if needs.network else None)
        return self.train_prediction("prediction", labels, None, self.config.prediction_steps)

    def train_network(self, source: Stage) -> Stage:
        """The network of the peer."""
        name = self.config.method
        options = {**asdict(self.config.baseline), **self.common}
        stage = self.run.stage(name, options, source, *self._classifier())
        train, file = PEERS[name].train, stage.folder / f"{name}.safetensors"
        assert train is not None
        training = self.stage_training(stage)
        self.run.do(stage, partial(train, self.used, self._inputs(), file, **training))
        self.networks[name] = file
        return stage

    def make_labels(self, source: Stage, network: Stage | None) -> Stage:
        """The labels of the prediction network."""
        inputs = (source, *self._classifier(), *(() if network is None else (network,)))
        stage = self.run.stage(
            f"{self.config.method} labels", self.images.option(self.used), *inputs
        )
        work = partial(label_images, self.used, self._inputs(), stage.folder, self.execution)
        self.run.do(stage, work)
        self.measure_labels(stage)
        return stage

    def _classifier(self) -> tuple[Stage, ...]:
        needed = METHODS[self.config.method].classifier
        return (self.classifier,) if needed and self.classifier is not None else ()

    def _inputs(self) -> PeerInputs:
        return PeerInputs(
            self.config,
            self.regions,
            self.seeds if METHODS[self.config.method].seeds else None,
            self.networks.get("classifier"),
            self.networks.get(self.config.method),
            self.execution.device,
        )


def label_images(
    dataset: WeakDataset, inputs: PeerInputs, out: Path, execution: Execution
) -> PseudoLabelFolder:
    """The labels of a peer for every image that has regions, and seeds where these are needed."""
    regions, seeds = inputs.regions, inputs.seeds
    images: Any = with_regions(dataset, regions, execution.problems)
    if seeds is not None:
        images = with_artefacts(images, regions, seeds, execution.problems)
    return run_image_stage(
        PseudoLabelFolder,
        out,
        {},
        [(image.image_id, regions.name(image.image_id), image) for image in images],
        partial(_LabelWorker, inputs),
        lambda path, _: LABELS.is_current(path),
        f"{inputs.config.method} labels",
        execution,
        serial_below=SERIAL_BELOW,
    )


class _LabelWorker:
    def __init__(self, inputs: PeerInputs) -> None:
        self.label = PEERS[inputs.config.method].labeller(inputs)

    def compute(self, item: WeakImage) -> PseudoLabels:
        return PseudoLabels.single(self.label(item))

    def write(self, path: Path, result: PseudoLabels) -> None:
        write_pseudo_labels(path, result)
