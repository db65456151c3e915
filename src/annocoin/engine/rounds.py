"""Block coordinate descent (paper, 5): the two networks in turn, each with the other fixed."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from annocoin.conditional.networks import ConditionalNetwork, read_conditional, write_conditional
from annocoin.data.artefacts import STAGE_FILES
from annocoin.data.dataset import WeakDataset, concatenate, with_more_tags
from annocoin.engine import label_quality
from annocoin.engine.checkpoint import CHECKPOINT_SECONDS
from annocoin.engine.conditional_dataset import (
    ConditionalDataset,
    PreparedFolder,
    preparation_options,
    prepare_images,
)
from annocoin.engine.conditional_training import train_direct_loss, train_from_seeds
from annocoin.engine.config import Config
from annocoin.engine.dissimilarity import measure_dissimilarity
from annocoin.engine.distribution import single_process
from annocoin.engine.image_stages import Execution
from annocoin.engine.label_quality import Measurement
from annocoin.engine.labelling import draw_labels, make_loss_tables, retrieve_labels
from annocoin.engine.prediction_training import labels_from_masks
from annocoin.engine.preflight import (
    Precomputed,
    check_before_work,
    plan_with_estimates,
    with_precision_of,
)
from annocoin.engine.pseudo_labels import TableFolder
from annocoin.engine.randomness import seed_of, seeded
from annocoin.engine.run_directory import Log, labelling_network_name, open_run
from annocoin.engine.shared_stages import PREDICTION_FILE, SharedStages
from annocoin.engine.stage import Stage

CONDITIONAL_FILE = "conditional.safetensors"

_LABELLING_OPTIONS = (
    "scoring", "task_loss", "tables", "detection_scales", "average_tables", "annotated_boxes",
)  # fmt: skip
_ROUND_OPTIONS = (
    "steps", "lr", "samples", "epsilon", "keep_better", "diversity_weight",
    "restrict_to_annotation",
)  # fmt: skip
"""Of the conditional network and of its training, without effect on the initial training."""


def train_run(
    dataset: WeakDataset,
    out: str | Path,
    config: Config,
    *,
    more_images: WeakDataset | None = None,
    more_tags: WeakDataset | None = None,
    precomputed: Precomputed | None = None,
    measurement: Measurement | None = None,
    execution: Execution | None = None,
    log: Log = print,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    method: type[SharedStages] | None = None,
) -> Path:
    """Run all stages that are not done yet; gives the file of the prediction network.

    The same call resumes an interrupted run, and ends with the same result.

    Args:
        more_images, more_tags: further images for all stages, and for the classifier.
        method: its stages, default `Rounds`.
    """
    main_digest = dataset.digest()
    dataset = dataset if more_images is None else concatenate(dataset, more_images)
    execution, precomputed = execution or Execution(), precomputed or Precomputed()
    group = execution.group or single_process()
    execution = replace(execution, group=group)
    config = with_precision_of(group, config)
    config = check_before_work(
        dataset, out, config, precomputed, execution.problems, more_tags, group.world_size
    )
    tagged = with_more_tags(dataset, more_tags)
    with open_run(
        out, config.to_json(), group, log=log, checkpoint_seconds=checkpoint_seconds
    ) as run:
        inputs, machine = (dataset, precomputed, more_tags), (out, group, execution.jobs)
        lines, run.estimated = plan_with_estimates(config, *inputs, *machine)
        for line in lines:
            run.log(line)
        if measurement is not None and measurement.images < len(dataset):
            run.log(f"pseudo labels are measured on {measurement.images} of {len(dataset)} images")
        for line in () if dataset.fully_masked else label_quality.check_class_sizes(tagged):
            run.log(line)
        stages = (method or Rounds)(
            run, dataset, tagged, config, precomputed, measurement, execution
        )
        stages.networks["prediction"] = stages.all().folder / PREDICTION_FILE
        run.finish(
            stages.networks,
            config=config.to_json(),
            supervision=dataset.supervision,
            dataset=stages.used.digest(),
            main_dataset=main_digest if stages.used is dataset else None,  # without `more_images`
            folders={name: run.relative(path) for name, path in stages.folders.items()},
        )
    return Path(out) / PREDICTION_FILE


class Rounds(SharedStages):
    """The stages of the paper's method in their order."""

    prepared: PreparedFolder

    def all(self) -> Stage:
        data = self.run.stage("dataset", {"images": self.dataset.digest()})
        self.classifier = self.train_classifier(data)
        if self.dataset.fully_masked:
            labels = labels_from_masks(self.dataset, self.execution.problems)
            return self.train_prediction("prediction", data, labels, self.config.prediction_steps)
        regions = self.compute_regions(data)
        seeds = self.compute_seeds(regions)
        if self.config.rounds == 0:
            steps = self.config.prediction_steps
            return self.train_prediction("prediction", self.retrieve(seeds), None, steps)
        return self.alternate(self.train_from_seeds(self.prepare(seeds)))

    def alternate(self, conditional: Stage) -> Stage:
        teacher, average = self.config.labelling_network, self.config.conditional.average_tables
        prediction: Stage | None = None
        tables: Stage | None = None
        for number in range(1, self.config.rounds + 1):
            name = f"round {number}"
            samples = self.draw_samples(number, conditional, tables, prediction)
            prediction = self.train_prediction(
                f"{name}, prediction", samples, None, teacher.training.steps, prediction, teacher
            )
            tables = self.score_regions(number, prediction, tables if average else None)
            self.measure_dissimilarity(number, "prediction", samples, tables)
            if average and not (self.config.teacher and number == self.config.rounds):
                earlier = labelling_network_name(number)
                self.networks[earlier] = prediction.folder / PREDICTION_FILE
            conditional = self.train_conditional(f"{name}, conditional", conditional, tables)
        samples = self.draw_samples(self.config.rounds + 1, conditional, tables, prediction)
        self.networks["conditional"] = conditional.folder / CONDITIONAL_FILE
        assert prediction is not None
        if self.config.teacher:
            self.networks["teacher"] = prediction.folder / PREDICTION_FILE
        if not (steps := self.config.prediction.training.final_steps):
            return prediction
        return self.train_prediction("final prediction", samples, None, steps, prediction)

    def prepare(self, seeds: Stage) -> Stage:
        """What training and sampling need of every image, computed once."""
        config = self.config.conditional
        options = preparation_options(config) | self.images.option(self.used)
        stage = self.run.stage("examples", options, seeds)
        folder = stage.folder / STAGE_FILES
        arguments = (self.used, self.regions, self.seeds, folder, config, self.execution)
        self.run.do(stage, partial(prepare_images, *arguments))
        self.prepared = PreparedFolder(folder)
        return stage

    def retrieve(self, seeds: Stage) -> Stage:
        """The regions retrieved for the seeds, as pseudo labels."""
        config = self.config.conditional
        options = preparation_options(config) | asdict(config.scoring)
        options |= {"annotated_boxes": config.annotated_boxes, **self.images.option(self.used)}
        stage = self.run.stage("retrieved labels", options, seeds)
        arguments = (self.used, self.regions, self.seeds, stage.folder, config, self.execution)
        self.run.do(stage, partial(retrieve_labels, *arguments))
        self.measure_labels(stage)
        return stage

    def train_from_seeds(self, prepared: Stage) -> Stage:
        """The initial training of the conditional network."""
        config = self.config.conditional
        weights, inputs = self.initial_weights(config.weights)
        options = self.stage_options(config)  # regions are scored later
        for name in _LABELLING_OPTIONS:
            del options[name]
        for name in _ROUND_OPTIONS:
            del options["training"][name]
        stage = self.run.stage("conditional", options, prepared, *inputs)

        def work() -> None:
            with seeded(seed_of(self.config.seed, "conditional weights")):
                net = ConditionalNetwork(config.architecture, weights)
            net.to(self.run.group.device)
            train_from_seeds(net, self._examples(), config, **self.stage_training(stage))
            self._write_conditional(stage, net)

        self.run.do(stage, work)
        return stage

    def draw_samples(
        self, number: int, conditional: Stage, tables: Stage | None, prediction: Stage | None
    ) -> Stage:
        """Pseudo labels for a round: samples of the conditional network, with the latest tables."""
        name = f"round {number}, samples" if number <= self.config.rounds else "final samples"
        images = self.images.of_round(number)
        file, config = conditional.folder / CONDITIONAL_FILE, self.config.conditional
        options: dict[str, Any] = {"scoring": asdict(config.scoring)}
        options |= {"samples": config.training.samples, "annotated_boxes": config.annotated_boxes}
        precision = self.config.labelling_network.training.precision
        options |= {"precision": precision, **self.images.option(images)}
        inputs = (conditional,) if tables is None else (conditional, tables)
        stage = self.run.stage(name, options, *inputs)
        arguments = (images, self.prepared, file, config, stage.folder, self.execution)
        networks: dict[str, Any] = {}
        if tables is not None and prediction is not None:
            networks["tables"] = TableFolder(tables.folder)
            networks["prediction"] = prediction.folder / PREDICTION_FILE
        work = partial(
            draw_labels, *arguments, seed=self.config.seed, precision=precision, **networks
        )
        self.run.do(stage, work)
        self.measure_labels(stage)
        if tables is not None:
            self.measure_dissimilarity(number - 1, "conditional", stage, tables)
        return stage

    def measure_dissimilarity(self, number: int, last: str, samples: Stage, tables: Stage) -> None:
        """DISC after a round's training of the network `last`."""
        gamma = self.config.gamma
        measure_dissimilarity(self.run, number, last, self.prepared, samples, tables, gamma)

    def score_regions(self, number: int, prediction: Stage, previous: Stage | None) -> Stage:
        """The loss tables of a round's network, of the images that the next samples are of.

        Args:
            previous: the tables of the round before, to average with.
        """
        images = self.images.of_round(number + 1)
        file, config = prediction.folder / PREDICTION_FILE, self.config.conditional
        precision = self.config.labelling_network.training.precision
        options: dict[str, Any] = {"tables": config.tables, "scales": config.detection_scales}
        options |= {"precision": precision, "task_loss": asdict(config.task_loss)}
        options |= self.images.option(images)
        inputs = (prediction,) if previous is None else (prediction, previous)
        stage = self.run.stage(f"round {number}, tables", options, *inputs)
        arguments = (images, self.prepared, file, config, stage.folder, self.execution, precision)
        folder = None if previous is None else TableFolder(previous.folder)
        self.run.do(stage, partial(make_loss_tables, *arguments, folder, number))
        return stage

    def train_conditional(self, name: str, conditional: Stage, tables: Stage) -> Stage:
        """The conditional network with the prediction network's loss tables."""
        config = self.config.conditional
        options = {"gamma": self.config.gamma, "scoring": asdict(config.scoring)}
        options |= {"training": asdict(config.training)}
        stage = self.run.stage(name, options, conditional, tables)

        def work() -> None:
            net = read_conditional(conditional.folder / CONDITIONAL_FILE)
            net.to(self.run.group.device)
            examples, gamma = self._examples(TableFolder(tables.folder)), self.config.gamma
            training = self.stage_training(stage)
            train_direct_loss(net, examples, config, gamma=gamma, name=name, **training)
            self._write_conditional(stage, net)

        self.run.do(stage, work)
        return stage

    def _examples(self, tables: TableFolder | None = None) -> ConditionalDataset:
        size = self.config.conditional.architecture.size
        return ConditionalDataset(self.dataset, self.prepared, size=size, tables=tables)

    def _write_conditional(self, stage: Stage, net: ConditionalNetwork) -> None:
        if self.run.group.is_main:
            write_conditional(stage.folder / CONDITIONAL_FILE, net)
