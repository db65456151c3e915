"""Block coordinate descent: the two networks in turn, each with the other fixed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from annocoin.conditional.networks import ConditionalNetwork, read_conditional, write_conditional
from annocoin.data.dataset import WeakDataset
from annocoin.engine.conditional_dataset import ConditionalExample
from annocoin.engine.conditional_training import train_direct_loss, train_from_seeds
from annocoin.engine.config import FROM_CLASSIFIER, Config, check_weights, with_classifier
from annocoin.engine.dataset_stages import (
    CLASSIFIER,
    check_classes,
    make_classifier,
    make_regions,
    make_seeds,
)
from annocoin.engine.distribution import ProcessGroup, single_process
from annocoin.engine.labelling import Sources, draw_labels, make_loss_tables, retrieve_labels
from annocoin.engine.precomputed import Precomputed, by_content, content_of, digest, fingerprint
from annocoin.engine.prediction_training import train_prediction
from annocoin.engine.pseudo_labels import PseudoLabelFolder, PseudoLabels, TableFolder
from annocoin.engine.randomness import seed_of, seeded
from annocoin.engine.run_directory import Run, Say, Stage, open_run
from annocoin.engine.trainer import EVERY
from annocoin.errors import InputError, Problems
from annocoin.prediction.networks import build_network, read_prediction, write_prediction
from annocoin.progress import track
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.classifier import read_classifier
from annocoin.seeds.seed_set import SeedFolder
from annocoin.types import ImageId, Instances

CONDITIONAL = "conditional.safetensors"
PREDICTION = "prediction.safetensors"
FILES = "files"

Measure = Callable[[Mapping[ImageId, Instances]], dict[str, float]]
"""Tells how good pseudo labels are, where somebody has the truth. Nothing is learned from it."""

Labels = Mapping[ImageId, PseudoLabels]


def train_run(
    dataset: WeakDataset,
    out: str | Path,
    config: Config,
    *,
    given: Precomputed | None = None,
    measure: Measure | None = None,
    group: ProcessGroup | None = None,
    jobs: int | None = None,
    problems: Problems | None = None,
    say: Say = print,
    every: float = EVERY,
) -> Path:
    """All stages of a run, those that are not done yet; gives the prediction network's file.

    The same call goes on after an interruption, and ends the same.

    Args:
        config: everything about the method; its classes are the dataset's.
        measure: measures each round's pseudo labels.
        jobs: processes, for each of the group's, of stages that go image by image; default all
            cores, and on a GPU one where a network computes.
        every: seconds between checkpoints.
    """
    if config.classes != dataset.classes:
        raise InputError("the configuration is of other classes than the dataset")
    config, group, given = config.seeded(), group or single_process(), given or Precomputed()
    if given.classifier_file is not None:
        if given.classifier_file.resolve() == (Path(out) / CLASSIFIER).resolve():
            raise InputError(f"{given.classifier_file}: is the run's own; leave --classifier out")
        check_classes(given.classifier_file, dataset.classes)
        of_file = read_classifier(given.classifier_file).architecture
        config = with_classifier(config, of_file.backbone, of_file.stride_in_1x1)
    check_weights(config)
    with open_run(out, config.to_json(), group, say=say, every=every) as run:
        for line in plan(config, dataset, given.made):
            run.say(line)
        work = _Rounds(run, dataset, config, given, measure, jobs, problems or Problems())
        final = work.all()
        run.publish(final.folder / PREDICTION, PREDICTION)
        run.finish(
            config=config.to_json(),
            supervision=dataset.supervision,
            dataset=fingerprint(dataset),
            **{name: run.place(folder) for name, folder in work.folders.items()},
        )
    return Path(out) / PREDICTION


class _Rounds:
    """The stages of a run in their order, each method one of them."""

    def __init__(
        self,
        run: Run,
        dataset: WeakDataset,
        config: Config,
        given: Precomputed,
        measure: Measure | None,
        jobs: int | None,
        problems: Problems,
    ) -> None:
        self.run, self.dataset, self.config, self.given = run, dataset, config, given
        self.measure = measure
        self.sharing: dict[str, Any] = {"group": run.group, "jobs": jobs, "problems": problems}
        self.machine = {"processes": run.group.world_size, "precision": run.group.precision}
        self.prediction_steps = 0  # of stages before
        self.classifier: Stage | None = None
        self.folders: dict[str, Path] = {}  # of what `label` can use again

    def all(self) -> Stage:
        data = self.run.stage("dataset", {"images": fingerprint(self.dataset)})
        whole = self.config.prediction_steps
        self.classifier = self.make_classifier(data)
        if self.dataset.fully_masked:
            labels = _true_labels(self.dataset, self.sharing["problems"])
            return self.prediction("prediction", data, labels, whole)
        regions = self.make_regions(data)
        seeds = self.make_seeds(regions)
        if self.config.rounds == 0:
            return self.prediction("prediction", self.retrieved(seeds), None, whole)
        return self.descend(self.from_seeds(seeds))

    def descend(self, conditional: Stage) -> Stage:
        learning = self.config.prediction.learning
        prediction: Stage | None = None
        tables: Stage | None = None
        for number in range(1, self.config.rounds + 1):
            name = f"round {number}"
            samples = self.samples(f"{name}, samples", conditional, tables)
            prediction = self.prediction(
                f"{name}, prediction", samples, None, learning.steps, prediction
            )
            tables = self.tables(f"{name}, tables", prediction)
            conditional = self.against(f"{name}, conditional", conditional, tables)
        samples = self.samples("final samples", conditional, tables)
        self.run.publish(conditional.folder / CONDITIONAL, CONDITIONAL)
        return self.prediction("final prediction", samples, None, learning.final_steps, prediction)

    def make_classifier(self, data: Stage) -> Stage | None:
        """The classifier, made here or given; none where nobody asks for one."""
        file = self.given.classifier_file
        if file is not None:
            stage = self.run.stage("classifier", {"given": digest(file)}, data)
            self.run.publish(file, CLASSIFIER)
            return stage
        for_seeds = self.given.seeds is None and not self.dataset.fully_masked
        if not for_seeds and not self.config.from_classifier:
            return None
        options = self.config.classifier
        stage = self.run.stage("classifier", by_content(asdict(options), "backbone_weights"), data)

        def work() -> None:
            make_classifier(
                self.dataset,
                stage.folder,
                options,
                device=str(self.run.group.device),
                problems=self.sharing["problems"],
                group=self.run.group,
            )

        self.run.do(stage, work)
        self.run.publish(stage.folder / CLASSIFIER, CLASSIFIER)
        return stage

    def first_weights(self, said: str) -> tuple[str | Path, tuple[Stage, ...]]:
        """What a network starts from, and the stage that made it."""
        if said != FROM_CLASSIFIER:
            return said, ()
        assert self.classifier is not None
        return self.run.path / CLASSIFIER, (self.classifier,)

    def make_regions(self, data: Stage) -> Stage:
        """Regions of every image, made here or given."""
        if self.given.regions is not None:
            self.regions = self.given.regions
            return self.run.stage("regions", {"given": self.given.identity()["regions"]}, data)
        stage = self.run.stage("regions", asdict(self.config.regions), data)

        def work() -> None:
            make_regions(self.dataset, stage.folder / FILES, self.config.regions, **self.sharing)

        self.run.do(stage, work)
        self.regions = RegionFolder(stage.folder / FILES)
        return stage

    def make_seeds(self, regions: Stage) -> Stage:
        """The seeds of every image, made here or given."""
        if self.given.seeds is not None:
            stage = self.run.stage("seeds", {"given": content_of(self.given.seeds)}, regions)
            seeds = self.given.seeds
        else:
            assert self.classifier is not None
            stage = self.run.stage("seeds", asdict(self.config.seeds), regions, self.classifier)

            def work() -> None:
                make_seeds(
                    self.dataset,
                    self.regions,
                    stage.folder / FILES,
                    self.config.seeds,
                    classifier=self.run.path / CLASSIFIER,
                    device=str(self.run.group.device),
                    **self.sharing,
                )

            self.run.do(stage, work)
            seeds = SeedFolder(stage.folder / FILES)
        self.sources = Sources(self.dataset, self.regions, seeds)
        self.sources.check(self.sharing["problems"])
        self.folders |= {"regions": self.regions.path, "seeds": seeds.path}
        return stage

    def retrieved(self, seeds: Stage) -> Stage:
        """The regions that seeds retrieve, as pseudo labels."""
        stage = self.run.stage("retrieved labels", {}, seeds)

        def work() -> None:
            retrieve_labels(self.sources, stage.folder, **self.sharing)

        self.run.do(stage, work)
        self._measure(stage)
        self.folders["labels"] = stage.folder
        return stage

    def from_seeds(self, seeds: Stage) -> Stage:
        """The initial training of the conditional network."""
        preset = self.config.conditional
        made = {**by_content(asdict(preset), "weights"), **self.machine}
        weights, makers = self.first_weights(preset.weights)
        stage = self.run.stage("conditional", made, seeds, *makers)

        def work() -> None:
            with seeded(seed_of(self.config.seed, "conditional weights")):
                net = ConditionalNetwork(preset.architecture, weights)
            net.to(self.run.group.device)
            cases = preset.cases(self.dataset, self.regions, self.sources.seeds)
            train_from_seeds(net, cases, preset.learning, support=self.run.support(stage))
            self._write_conditional(stage, net)

        self.run.do(stage, work)
        return stage

    def samples(self, name: str, conditional: Stage, tables: Stage | None) -> Stage:
        """Pseudo labels: what both networks think, as far as there are both already."""
        inputs = (conditional,) if tables is None else (conditional, tables)
        stage = self.run.stage(name, {}, *inputs)

        def work() -> None:
            draw_labels(
                self.sources,
                conditional.folder / CONDITIONAL,
                self.config.conditional,
                stage.folder,
                seed=self.config.seed,
                tables=None if tables is None else TableFolder(tables.folder),
                **self.sharing,
            )

        self.run.do(stage, work)
        self._measure(stage)
        return stage

    def prediction(
        self,
        name: str,
        before: Stage,
        labels: Labels | None,
        steps: int,
        earlier: Stage | None = None,
    ) -> Stage:
        """The prediction network on pseudo labels, from where it was after the last round.

        Args:
            before: the stage that made the labels, if they are not given.
        """
        preset = self.config.prediction
        whole, done = self.config.prediction_steps, self.prediction_steps
        self.prediction_steps += steps
        part = (done / whole, self.prediction_steps / whole)
        learning = replace(preset.learning, steps=1, final_steps=1)  # said by `steps` and `part`
        made = by_content(asdict(replace(preset, learning=learning)), "weights")
        made |= {"steps": steps, "part": part, **self.machine}
        weights, makers = self.first_weights(preset.weights)
        inputs = (before, *makers) if earlier is None else (before, earlier)
        stage = self.run.stage(name, made, *inputs)

        def work() -> None:
            if earlier is None:
                with seeded(seed_of(self.config.seed, "prediction weights")):
                    net = build_network(preset.architecture, weights)
            else:
                net, _ = read_prediction(earlier.folder / PREDICTION)
            net.to(self.run.group.device)
            train_prediction(
                net,
                preset.architecture,
                self.dataset,
                PseudoLabelFolder(before.folder) if labels is None else labels,
                preset.learning,
                steps=steps,
                part=part,
                name=name,
                support=self.run.support(stage),
            )
            if self.run.group.is_main:
                write_prediction(stage.folder / PREDICTION, net, preset.architecture)

        self.run.do(stage, work)
        return stage

    def tables(self, name: str, prediction: Stage) -> Stage:
        """What the prediction network thinks of every region."""
        stage = self.run.stage(name, {}, prediction)

        def work() -> None:
            make_loss_tables(
                self.sources,
                prediction.folder / PREDICTION,
                self.config.conditional,
                stage.folder,
                **self.sharing,
            )

        self.run.do(stage, work)
        return stage

    def against(self, name: str, conditional: Stage, tables: Stage) -> Stage:
        """The conditional network against the tables, from where it was."""
        preset = self.config.conditional
        stage = self.run.stage(name, {}, conditional, tables)

        def work() -> None:
            net = read_conditional(conditional.folder / CONDITIONAL).to(self.run.group.device)
            found = TableFolder(tables.folder)
            # without the tables in its scores: it is to learn what they say, not to rely on them
            cases = preset.cases(self.dataset, self.regions, self.sources.seeds)

            def table(case: ConditionalExample) -> Tensor:
                return preset.table_to_learn(found[case.image_id])

            support = self.run.support(stage)
            train_direct_loss(net, cases, table, preset.learning, name=name, support=support)
            self._write_conditional(stage, net)

        self.run.do(stage, work)
        return stage

    def _write_conditional(self, stage: Stage, net: ConditionalNetwork) -> None:
        if self.run.group.is_main:
            write_conditional(stage.folder / CONDITIONAL, net)

    def _measure(self, stage: Stage) -> None:
        """Measure a stage's labels, if somebody wants it, also where they were made before."""
        if (measure := self.measure) is not None:
            labels = PseudoLabelFolder(stage.folder)
            self.run.note(stage, lambda: measure({i: own.agreed() for i, own in labels.items()}))


def _true_labels(dataset: WeakDataset, problems: Problems) -> Labels:
    """The masks that are given, without those of crowds.

    Where bad images are skipped, each is opened now: training would meet them one by one.
    """
    found = {}
    for image in track(dataset, "opening images") if problems.skip else dataset:
        with problems.caught():
            if problems.skip:
                image.pixels()
            instances = image.annotation.instances()
            found[image.image_id] = PseudoLabels.certain(instances[~instances.crowd])
    return found


def plan(config: Config, dataset: WeakDataset, given: Collection[str] = ()) -> list[str]:
    """The stages and their sizes.

    Args:
        given: what need not be made of "regions", "classifier" and "seeds".
    """
    images, learning = len(dataset), config.prediction.learning
    size, backbone = config.prediction.architecture.size, config.prediction.architecture.backbone
    lines = [f"{images} images, {len(dataset.classes)} classes, supervision {dataset.supervision}"]

    def add(stage: str, work: str) -> None:
        lines.append(f"  {stage:12s} {work}")

    network = f"Mask R-CNN, {backbone} at {size} pixels"
    makes_seeds = "seeds" not in given and not dataset.fully_masked
    if (makes_seeds or config.from_classifier) and "classifier" not in given:
        classifier = config.classifier
        add("classifier", f"{classifier.backbone}: {classifier.epochs} epochs of {images} images")
    if dataset.fully_masked:
        add("prediction", f"{network}: {config.prediction_steps} steps of {learning.batch} images")
        return lines
    if "regions" not in given:
        add("regions", f"of {images} images")
    if makes_seeds:
        add("seeds", f"of {images} images")
    if config.rounds == 0:
        add("labels", f"regions retrieved for the seeds of {images} images")
        add("prediction", f"{network}: {config.prediction_steps} steps of {learning.batch} images")
        return lines
    own = config.conditional.learning
    trunk = config.conditional.architecture.trunk
    add("conditional", f"{trunk}: {own.initial_steps} steps of {own.batch} images, from the seeds")
    add(
        f"{config.rounds} rounds",
        f"{own.samples} samples of {images} images; {network}: {learning.steps} steps of "
        f"{learning.batch}; tables of {images} images; conditional: {own.steps} steps",
    )
    add("final", f"samples; prediction: {learning.final_steps} steps")
    return lines
