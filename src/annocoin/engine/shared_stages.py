"""The stages that all methods share: classifier, regions, seeds, prediction network.

What lies between the seeds and the labels of the prediction network is a method's own: the rounds
of `annocoin.engine.rounds`, or a peer of `annocoin.baselines`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from annocoin.data.artefacts import STAGE_FILES
from annocoin.data.dataset import WeakDataset
from annocoin.engine import label_quality
from annocoin.engine.config import Config
from annocoin.engine.image_stages import (
    CLASSIFIER_FILE,
    Execution,
    make_classifier,
    make_regions,
    make_seeds,
)
from annocoin.engine.label_quality import Measurement
from annocoin.engine.network_config import FROM_CLASSIFIER, PredictionConfig
from annocoin.engine.prediction_training import RoundImages, train_prediction
from annocoin.engine.preflight import Precomputed, trains_classifier
from annocoin.engine.pseudo_labels import PseudoLabelFolder, PseudoLabels
from annocoin.engine.randomness import seed_of, seeded
from annocoin.engine.run_directory import Run
from annocoin.engine.stage import Stage
from annocoin.files import file_digest, write_bytes
from annocoin.prediction.networks import build_network, read_prediction, write_prediction
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.seed_set import SeedFolder
from annocoin.types import ImageId

PREDICTION_FILE = "prediction.safetensors"

Labels = Mapping[ImageId, PseudoLabels]


class SharedStages(ABC):
    """The stages of a run, a method each; subclasses put them in order, and add their own.

    Args:
        run: the locked directory.
        dataset: all images of the run.
        tagged: those whose tags train the classifier.
        measurement: of pseudo labels, None for none.
    """

    regions: RegionFolder
    seeds: SeedFolder

    def __init__(
        self,
        run: Run,
        dataset: WeakDataset,
        tagged: WeakDataset,
        config: Config,
        precomputed: Precomputed,
        measurement: Measurement | None,
        execution: Execution,
    ) -> None:
        self.run, self.dataset, self.tagged, self.config = run, dataset, tagged, config
        self.precomputed, self.measurement, self.execution = precomputed, measurement, execution
        self.common = {
            "seed": config.seed,
            "processes": run.group.world_size,
            "precision": run.group.precision,
        }
        self.images = RoundImages(dataset, config, run.group.world_size)
        self.used = self.images.used
        self.prediction_steps = 0  # of the stages before
        self.classifier: Stage | None = None
        self.networks: dict[str, Path] = {}  # of the result
        self.folders: dict[str, Path] = {}  # that `label` can use again

    @abstractmethod
    def all(self) -> Stage:
        """Do all stages; gives that of the prediction network which is the result."""

    def train_classifier(self, data: Stage) -> Stage | None:
        """The classifier, trained or precomputed; None where it is not needed."""
        file, options = self.precomputed.classifier_file, self.config.classifier
        if file is not None:
            stage = self.run.stage("classifier", {"precomputed": file_digest(file)}, data)
            work: partial[Any] = partial(self._copy, file, stage.folder / CLASSIFIER_FILE)
        elif trains_classifier(self.config, self.dataset, self.precomputed):
            values = self.stage_options(options)
            if self.tagged is not self.dataset:
                values["tagged"] = self.tagged.digest()
            stage = self.run.stage("classifier", values, data)
            training = self.stage_training(stage)
            work = partial(make_classifier, self.tagged, stage.folder, options, **training)
        else:
            return None
        self.run.do(stage, work)
        tag_map = stage.figures.get("tag_map", 1.0)
        for line in label_quality.check_tag_map(tag_map, self.dataset.supervision):
            self.run.log(line)
        self.networks["classifier"] = stage.folder / CLASSIFIER_FILE
        return stage

    def compute_regions(self, data: Stage) -> Stage:
        if self.precomputed.regions is not None:
            self.regions = self.precomputed.regions
            self.folders["regions"] = self.regions.path
            return self.run.stage("regions", self.regions.digest(), data)
        options = self.config.regions
        values = options.provenance() | self.images.option(self.used)
        stage = self.run.stage("regions", values, data)
        folder = stage.folder / STAGE_FILES
        self.run.do(stage, partial(make_regions, self.used, folder, options, self.execution))
        self.regions = RegionFolder(folder)
        self.folders["regions"] = folder
        return stage

    def compute_seeds(self, regions: Stage) -> Stage:
        if self.precomputed.seeds is not None:
            self.seeds = self.precomputed.seeds
            self.folders["seeds"] = self.seeds.path
            return self.run.stage("seeds", self.seeds.digest(), regions)
        assert self.classifier is not None
        options = self.config.seeds
        values = asdict(options) | self.images.option(self.used)
        stage = self.run.stage("seeds", values, regions, self.classifier)
        folder = stage.folder / STAGE_FILES
        work = partial(make_seeds, self.used, self.regions, folder, options)
        classifier = self.networks["classifier"]
        self.run.do(stage, partial(work, classifier=classifier, execution=self.execution))
        self.seeds = SeedFolder(folder)
        self.folders["seeds"] = folder
        return stage

    def train_prediction(
        self,
        name: str,
        source: Stage,
        labels: Labels | None,
        steps: int,
        previous: Stage | None = None,
        config: PredictionConfig | None = None,
    ) -> Stage:
        """The prediction network on pseudo labels; see `PredictionTraining.continued`.

        Args:
            source: the stage with the pseudo labels, unless `labels` are passed.
            config: of the network, default that of the result.
        """
        config, span = config or self.config.prediction, (0.0, 1.0)
        if config.training.continued:
            done, self.prediction_steps = self.prediction_steps, self.prediction_steps + steps
            total = self.config.prediction_steps
            span = (done / total, self.prediction_steps / total)
        else:
            previous = None
        others = replace(config.training, steps=1, final_steps=1)  # `steps` and `span` say that
        options = self.stage_options(replace(config, training=others))
        options |= {"steps": steps, "span": span, "gamma": self.config.gamma}
        weights, inputs = self.initial_weights(config.weights)
        stage = self.run.stage(name, options, source, *((previous,) if previous else inputs))

        def work() -> None:
            if previous is None:
                with seeded(seed_of(self.config.seed, "prediction weights")):
                    net = build_network(config.architecture, weights)
            else:
                net, _ = read_prediction(previous.folder / PREDICTION_FILE)
            net.to(self.run.group.device)
            train_prediction(
                net,
                config,
                self.dataset,
                PseudoLabelFolder(source.folder) if labels is None else labels,
                steps=steps,
                span=span,
                gamma=self.config.gamma,
                name=name,
                **self.stage_training(stage),
            )
            if self.run.group.is_main:
                write_prediction(stage.folder / PREDICTION_FILE, net, config.architecture)

        self.run.do(stage, work)
        return stage

    def stage_options(self, options: Any) -> dict[str, Any]:
        """All that a training depends on; a file of weights by its content."""
        values = {**asdict(options), **self.common}
        path = Path(str(options.weights))
        return {**values, "weights": file_digest(path)} if path.is_file() else values

    def stage_training(self, stage: Stage) -> dict[str, Any]:
        """The random seed and the trainer of a stage."""
        workers = 0 if self.execution.jobs == 1 else None
        trainer = self.run.trainer(stage, self.execution.problems, workers)
        return {"seed": self.config.seed, "trainer": trainer}

    def initial_weights(self, weights: str) -> tuple[str | Path, tuple[Stage, ...]]:
        """The weights that a network starts from, and the stage that made them."""
        if weights != FROM_CLASSIFIER:
            return weights, ()
        assert self.classifier is not None
        return self.networks["classifier"], (self.classifier,)

    def _copy(self, source: Path, target: Path) -> None:
        if self.run.group.is_main:
            write_bytes(target, source.read_bytes())

    def measure_labels(self, stage: Stage) -> None:
        """Check a stage's pseudo labels, and measure them, also where they were made before."""
        folder = PseudoLabelFolder(stage.folder)
        labels = {image_id: each.consensus_instances() for image_id, each in folder.items()}
        for line in label_quality.check_masks(labels.values()):
            self.run.log(line)
        if (measurement := self.measurement) is not None:
            self.run.measure(stage, lambda: measurement.figures(labels), measurement.digest)
