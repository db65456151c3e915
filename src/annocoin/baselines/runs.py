"""Runs of the peers: the stages that all methods share, and between them the peer's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from annocoin.baselines.bbtp import BBTP
from annocoin.baselines.iam import IAM
from annocoin.baselines.irn_peer import IRN
from annocoin.baselines.label_penet import LABEL_PENET
from annocoin.baselines.ocis import OCIS
from annocoin.baselines.peer import Labeller, Peer, PeerInputs
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
from annocoin.engine.shared_stages import PREDICTION_FILE, SharedStages
from annocoin.engine.stage import Stage

PEERS: dict[str, Peer] = {
    "prm": PRM,
    "iam": IAM,
    "ocis": OCIS,
    "label-penet": LABEL_PENET,
    "wise": WISE,
    "irn": IRN,
    "sdi": SDI,
    "bbtp": BBTP,
}
"""By their names in `METHODS`, but for `FULL`: with true masks there is nothing to label."""


LabellerMaker = Callable[[PeerInputs], Labeller]


def stages_of(method: str) -> type[SharedStages]:
    """The stages of a method's runs."""
    return Rounds if method in (ANNOCOIN, FULL) else PeerStages


class PeerStages(SharedStages):
    """The stages of a peer in their order."""

    def all(self) -> Stage:
        needs = METHODS[self.config.method]
        data = self.run.stage("dataset", {"images": self.dataset.digest()})
        self.classifier = self.train_classifier(data)
        source = self.compute_regions(data) if needs.regions else data
        if needs.seeds:
            source = self.compute_seeds(source)
        steps = self.config.prediction_steps
        if PEERS[self.config.method].targets is not None:
            prediction = self.train_prediction("prediction", self.make_targets(source), None, steps)
            self.make_labels(source, prediction, prediction.folder / PREDICTION_FILE)
            return prediction
        if needs.network:
            network = self.train_network(source)
            labels = self.make_labels(source, network, self.networks[self.config.method])
        else:
            labels = self.make_labels(source)
        return self.train_prediction("prediction", labels, None, steps)

    def train_network(self, source: Stage) -> Stage:
        """The network of the peer."""
        name = self.config.method
        features = {"features": self.config.classifier.precision}
        options = {**asdict(self.config.baseline), **features, **self.common}
        stage = self.run.stage(f"{name} network", options, source, *self._classifier())
        train, file = PEERS[name].train, stage.folder / f"{name}.safetensors"
        assert train is not None
        training = self.stage_training(stage)
        self.run.do(stage, partial(train, self.used, self._inputs(), file, **training))
        self.networks[name] = file
        return stage

    def make_targets(self, source: Stage) -> Stage:
        """What the prediction network is trained on, where that is not the labels."""
        return self._label("targets", PEERS[self.config.method].targets, None, source)

    def make_labels(
        self, source: Stage, network: Stage | None = None, file: Path | None = None
    ) -> Stage:
        """The labels of the peer.

        Args:
            network: the stage of the network that labels, and its file.
        """
        inputs = (source, *self._classifier(), *(() if network is None else (network,)))
        stage = self._label("labels", PEERS[self.config.method].labeller, file, *inputs)
        self.measure_labels(stage)
        return stage

    def _label(
        self, kind: str, labeller: LabellerMaker | None, network: Path | None, *inputs: Stage
    ) -> Stage:
        """A stage "METHOD KIND" of labels."""
        assert labeller is not None
        option = self.images.option(self.used)
        stage = self.run.stage(f"{self.config.method} {kind}", option, *inputs)
        given = replace(self._inputs(), network=network)
        arguments = (self.used, given, stage.folder, self.execution, labeller)
        self.run.do(stage, partial(label_images, *arguments))
        return stage

    def _classifier(self) -> tuple[Stage, ...]:
        needed = METHODS[self.config.method].classifier
        return (self.classifier,) if needed and self.classifier is not None else ()

    def _inputs(self) -> PeerInputs:
        needs = METHODS[self.config.method]
        return PeerInputs(
            self.config,
            self.regions if needs.regions else None,
            self.seeds if needs.seeds else None,
            self.networks.get("classifier"),
            device=self.execution.device,
        )


def label_images(
    dataset: WeakDataset,
    inputs: PeerInputs,
    out: Path,
    execution: Execution,
    labeller: LabellerMaker | None = None,
) -> PseudoLabelFolder:
    """The labels of a peer for every image that has the regions and seeds which it needs.

    Args:
        labeller: default that of the peer's labels.
    """
    regions, seeds = inputs.regions, inputs.seeds
    images: Any = dataset
    if regions is not None and seeds is not None:
        images = with_artefacts(dataset, regions, seeds, execution.problems)
    elif regions is not None:
        images = with_regions(dataset, regions, execution.problems)
    labeller = labeller or PEERS[inputs.config.method].labeller
    return run_image_stage(
        PseudoLabelFolder,
        out,
        {},
        [(image.image_id, f"{image.file_name}.npz", image) for image in images],
        partial(_LabelWorker, labeller, inputs),
        lambda path, _: LABELS.is_current(path),
        f"{inputs.config.method} labels",
        execution,
        serial_below=SERIAL_BELOW,
    )


class _LabelWorker:
    def __init__(self, labeller: LabellerMaker, inputs: PeerInputs) -> None:
        self.label = labeller(inputs)

    def compute(self, item: WeakImage) -> PseudoLabels:
        return PseudoLabels.single(self.label(item))

    def write(self, path: Path, result: PseudoLabels) -> None:
        write_pseudo_labels(path, result)
