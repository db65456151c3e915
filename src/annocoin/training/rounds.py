"""Block coordinate descent: the two networks in turn, each with the other fixed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from annocoin.conditional import ConditionalNetwork
from annocoin.conditional.storage import read_conditional, write_conditional
from annocoin.data.dataset import ImageId, WeakDataset
from annocoin.distribution import Party, alone
from annocoin.errors import InputError, Problems
from annocoin.prediction import build_network, read_prediction, write_prediction
from annocoin.randomness import seed_of
from annocoin.regions import RegionFolder
from annocoin.regions.making import make_regions
from annocoin.seeds import SeedFolder, make_seeds
from annocoin.seeds.making import CLASSIFIER
from annocoin.training.against import train_against
from annocoin.training.cases import Case
from annocoin.training.checkpoints import EVERY
from annocoin.training.config import Config
from annocoin.training.from_seeds import train_from_seeds
from annocoin.training.labelling import Sources, draw_labels, judge_regions, retrieve_labels
from annocoin.training.on_labels import train_prediction
from annocoin.training.plan import plan
from annocoin.training.pseudo_labels import PseudoLabelFolder, PseudoLabels
from annocoin.training.run_directory import Run, Say, Stage, open_run
from annocoin.training.tables import TableFolder
from annocoin.types import Instances

CONDITIONAL = "conditional.safetensors"
PREDICTION = "prediction.safetensors"

Measure = Callable[[Mapping[ImageId, Instances]], dict[str, float]]
"""Tells how good pseudo labels are, where somebody has the truth. Nothing is learned from it."""


@dataclass(frozen=True)
class Given:
    """What need not be made: folders that `annocoin regions` and `annocoin seeds` made."""

    regions: RegionFolder | None = None
    seeds: SeedFolder | None = None
    classifier: Path | None = None


def train_run(
    dataset: WeakDataset,
    out: str | Path,
    config: Config,
    *,
    given: Given | None = None,
    measure: Measure | None = None,
    party: Party | None = None,
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
        jobs: processes of stages that go image by image.
        every: seconds between checkpoints.
    """
    if config.classes != dataset.classes:
        raise InputError("the configuration is of other classes than the dataset")
    config, party = config.seeded(), party or alone()
    given = given or Given()
    with open_run(out, config.to_json(), party, say=say, every=every) as run:
        for line in plan(config, dataset, regions=given.regions is None, seeds=given.seeds is None):
            run.say(line)
        work = _Rounds(run, dataset, config, given, measure, jobs, problems or Problems())
        final = work.all()
        run.publish(final, PREDICTION)
        labels = None if work.labels is None else work.labels.folder.relative_to(run.path)
        run.finish(
            dataset=fingerprint(dataset), labels=None if labels is None else labels.as_posix()
        )
    return Path(out) / PREDICTION


@dataclass
class _Rounds:
    run: Run
    dataset: WeakDataset
    config: Config
    given: Given
    measure: Measure | None
    jobs: int | None
    problems: Problems
    labels: Stage | None = None  # the last pseudo labels
    prediction_steps: int = 0  # of stages before

    def all(self) -> Path:
        data = self.run.stage("dataset", {"images": fingerprint(self.dataset)})
        if self.dataset.fully_masked:
            labels = {
                image.image_id: PseudoLabels.certain(image.annotation.instances())
                for image in self.dataset
            }
            return self._prediction("prediction", data, labels, self.config.prediction_steps)
        regions = self._regions(data)
        seeds = self._seeds(regions)
        if self.config.rounds == 0:
            self.labels = self._retrieved(seeds)
            retrieved = PseudoLabelFolder(self.labels.folder)
            steps = self.config.prediction_steps
            return self._prediction("prediction", self.labels, retrieved, steps)
        conditional = self._from_seeds(seeds)
        learning = self.config.prediction.learning
        prediction: Stage | None = None
        tables: Stage | None = None
        for number in range(1, self.config.rounds + 1):
            name = f"round {number}"
            samples = self._samples(f"{name}, samples", conditional, tables)
            prediction = self._prediction_stage(
                f"{name}, prediction", samples, PseudoLabelFolder(samples.folder),
                learning.steps, prediction,
            )  # fmt: skip
            tables = self._tables(f"{name}, tables", prediction)
            conditional = self._against(f"{name}, conditional", conditional, tables)
        samples = self._samples("final samples", conditional, tables)
        self.run.publish(conditional.folder / CONDITIONAL, CONDITIONAL)
        final = self._prediction_stage(
            "final prediction", samples, PseudoLabelFolder(samples.folder),
            learning.final_steps, prediction,
        )  # fmt: skip
        tables = self._tables("final tables", final)
        self.labels = self._samples("labels", conditional, tables)
        return final.folder / PREDICTION

    def _regions(self, data: Stage) -> Stage:
        """Regions of every image, made here or given."""
        if self.given.regions is not None:
            self.regions = self.given.regions
            return self.run.stage("regions", {"given": self.regions.made}, data)
        stage = self.run.stage("regions", asdict(self.config.regions), data)
        self.run.do(
            stage,
            lambda: _nothing(
                make_regions(
                    self.dataset, stage.folder / "files", self.config.regions,
                    jobs=self.jobs, problems=self.problems, party=self.run.party,
                )
            ),
        )  # fmt: skip
        self.regions = RegionFolder(stage.folder / "files")
        return stage

    def _seeds(self, regions: Stage) -> Stage:
        """The classifier and the seeds of every image, made here or given."""
        if self.given.seeds is not None:
            seeds = self.given.seeds
            stage = self.run.stage("seeds", {"given": seeds.made}, regions)
        else:
            options = {**asdict(self.config.seeds), "classifier": asdict(self.config.classifier)}
            if self.given.classifier is not None:
                content = self.given.classifier.read_bytes()
                options["classifier"] = hashlib.sha256(content).hexdigest()
            stage = self.run.stage("seeds", options, regions)
            self.run.do(
                stage,
                lambda: _nothing(
                    make_seeds(
                        self.dataset, self.regions, stage.folder / "files", self.config.seeds,
                        classifier=self.given.classifier or self.config.classifier,
                        jobs=self.jobs, device=str(self.run.party.device),
                        problems=self.problems, party=self.run.party,
                    )
                ),
            )  # fmt: skip
            seeds = SeedFolder(stage.folder / "files")
            if self.given.classifier is None:
                self.run.publish(seeds.path / CLASSIFIER, CLASSIFIER)
        if self.given.classifier is not None:
            self.run.publish(self.given.classifier, CLASSIFIER)
        self.sources = Sources(self.dataset, self.regions, seeds)
        return stage

    def _retrieved(self, seeds: Stage) -> Stage:
        stage = self.run.stage("retrieved labels", {}, seeds)

        def work() -> dict[str, float]:
            made = retrieve_labels(
                self.sources, stage.folder,
                party=self.run.party, jobs=self.jobs, problems=self.problems,
            )  # fmt: skip
            return self._measured(made)

        self.run.do(stage, work)
        return stage

    def _from_seeds(self, seeds: Stage) -> Stage:
        """The initial training of the conditional network."""
        preset = self.config.conditional
        stage = self.run.stage("conditional", asdict(preset), seeds)

        def work() -> None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed_of(self.config.seed, "conditional weights"))
                net = ConditionalNetwork(preset.architecture, preset.weights)
            net.to(self.run.party.device)
            cases = preset.cases(self.dataset, self.regions, self.sources.seeds)
            train_from_seeds(net, cases, preset.learning, support=self.run.support(stage))
            self._write_conditional(stage, net)

        self.run.do(stage, work)
        return stage

    def _samples(self, name: str, conditional: Stage, tables: Stage | None) -> Stage:
        """Pseudo labels: what both networks think, as far as there are both already."""
        inputs = (conditional,) if tables is None else (conditional, tables)
        stage = self.run.stage(name, {}, *inputs)

        def work() -> dict[str, float]:
            made = draw_labels(
                self.sources, conditional.folder / CONDITIONAL, self.config.conditional,
                stage.folder, seed=self.config.seed,
                tables=None if tables is None else TableFolder(tables.folder),
                party=self.run.party, jobs=self.jobs, problems=self.problems,
            )  # fmt: skip
            return self._measured(made)

        self.run.do(stage, work)
        return stage

    def _prediction(
        self, name: str, before: Stage, labels: Mapping[ImageId, PseudoLabels], steps: int
    ) -> Path:
        return self._prediction_stage(name, before, labels, steps, None).folder / PREDICTION

    def _prediction_stage(
        self,
        name: str,
        samples: Stage,
        labels: Mapping[ImageId, PseudoLabels],
        steps: int,
        earlier: Stage | None,
    ) -> Stage:
        """The prediction network on pseudo labels, from where it was after the last round."""
        preset = self.config.prediction
        inputs = (samples,) if earlier is None else (samples, earlier)
        made = asdict(preset)
        for other in ("steps", "final_steps"):
            del made["learning"][other]
        done, whole = self.prediction_steps, self.config.prediction_steps
        self.prediction_steps += steps
        part = (done / whole, self.prediction_steps / whole)
        stage = self.run.stage(name, {**made, "steps": steps, "part": part}, *inputs)

        def work() -> None:
            if earlier is None:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed_of(self.config.seed, "prediction weights"))
                    net = build_network(preset.architecture, preset.weights)
            else:
                net, _ = read_prediction(earlier.folder / PREDICTION)
            net.to(self.run.party.device)
            train_prediction(
                net, preset.architecture, self.dataset, labels, preset.learning,
                steps=steps, part=part, name=name, support=self.run.support(stage),
            )  # fmt: skip
            if self.run.party.is_first:
                write_prediction(stage.folder / PREDICTION, net, preset.architecture)

        self.run.do(stage, work)
        return stage

    def _tables(self, name: str, prediction: Stage) -> Stage:
        stage = self.run.stage(name, {}, prediction)
        self.run.do(
            stage,
            lambda: _nothing(
                judge_regions(
                    self.sources, prediction.folder / PREDICTION, self.config.conditional,
                    stage.folder,
                    party=self.run.party, jobs=self.jobs, problems=self.problems,
                )
            ),
        )  # fmt: skip
        return stage

    def _against(self, name: str, conditional: Stage, tables: Stage) -> Stage:
        """The conditional network against the tables, from where it was."""
        preset = self.config.conditional
        stage = self.run.stage(name, {}, conditional, tables)

        def work() -> None:
            net = read_conditional(conditional.folder / CONDITIONAL).to(self.run.party.device)
            found = TableFolder(tables.folder)
            # without the tables in its scores: it is to learn what they say, not to rely on them
            cases = preset.cases(self.dataset, self.regions, self.sources.seeds)

            def table(case: Case) -> torch.Tensor:
                return found[case.image_id]

            train_against(
                net, cases, table, preset.learning, name=name, support=self.run.support(stage)
            )
            self._write_conditional(stage, net)

        self.run.do(stage, work)
        return stage

    def _write_conditional(self, stage: Stage, net: ConditionalNetwork) -> None:
        if self.run.party.is_first:
            write_conditional(stage.folder / CONDITIONAL, net)

    def _measured(self, labels: PseudoLabelFolder) -> dict[str, float]:
        if self.measure is None or not self.run.party.is_first:
            return {}
        return self.measure({image_id: own.agreed() for image_id, own in labels.items()})


def fingerprint(dataset: WeakDataset) -> str:
    """A name for what a dataset says, and for its images."""
    digest = hashlib.sha256(repr((dataset.classes, dataset.supervision)).encode())
    for image in dataset:
        size = image.path.stat().st_size
        digest.update(repr((image.image_id, image.file_name, size, image.annotation)).encode())
    return digest.hexdigest()


def _nothing(_: Any) -> None:
    return None
