"""The runs of a benchmark: shared stages once, then every row and trial, and their evaluation.

On a CPU each run has one thread, and as many run at once as there are jobs: the networks of a
benchmark are hardly faster with more threads, and its figures do not depend on --jobs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from annocoin import api
from annocoin.benchmark.rows import Row, rows_of
from annocoin.benchmark.tables import write_tables
from annocoin.data.dataset import EvaluationDataset, Supervision, WeakDataset
from annocoin.engine.config import Config
from annocoin.engine.distribution import AUTO, open_device, single_process
from annocoin.engine.estimates import stage_seconds
from annocoin.engine.image_stages import (
    CLASSIFIER_FILE,
    Execution,
    make_classifier,
    make_regions,
    make_seeds,
)
from annocoin.engine.methods import METHODS
from annocoin.engine.parallel import cores, single_thread, work_through
from annocoin.engine.preflight import Precomputed, stage_images
from annocoin.engine.presets import configure
from annocoin.errors import InputError, Problems, check_positive, plural
from annocoin.evaluation.evaluator import evaluate
from annocoin.files import exclusive_lock
from annocoin.progress import format_duration
from annocoin.regions.storage import RegionFolder
from annocoin.report.run_data import read_run, record_evaluation
from annocoin.seeds.seed_set import SeedFolder
from annocoin.seeds.seeder import SeedOptions
from annocoin.trained import TrainedRun, predict_dataset

LOCK = ".lock"
SHARED_STAGES = ("classifier", "regions", "seeds")


@dataclass(frozen=True)
class Source:
    """A dataset as a benchmark needs it.

    Args:
        weak: the training images by supervision.
        truth: the training images with true masks, to measure labels; None without.
        test: the test images.
    """

    weak: Callable[[Supervision], WeakDataset]
    truth: EvaluationDataset | None
    test: EvaluationDataset


@dataclass(frozen=True)
class Options:
    """How the runs of a benchmark are trained and evaluated.

    Args:
        preset, changes, weights: of all runs, see `annocoin.train`.
        trials: number of runs of each row, with random seeds 0, 1, ..
        protocol: of the evaluation.
        supervision: of the rows that are not about it, see `rows_of`.
        regions: folder of `annocoin regions`, computed if None.
        classifier: file of `annocoin classifier`, trained if None.
        jobs: runs at once on a CPU, default one per core; on a GPU, worker processes of a run.
    """

    preset: str = "synthetic"
    changes: Mapping[str, str] = field(default_factory=dict)
    weights: Path | None = None
    trials: int = 3
    protocol: str = "chainercv"
    supervision: Supervision = "image"
    regions: Path | None = None
    classifier: Path | None = None
    device: str = AUTO
    jobs: int | None = None

    def __post_init__(self) -> None:
        check_positive("trials", self.trials)

    @property
    def on_cpu(self) -> bool:
        return open_device(self.device).type == "cpu"


def run_benchmark(
    benchmark: str,
    source: Source,
    out: Path,
    options: Options,
    *,
    methods: Sequence[str] | None = None,
    problems: Problems | None = None,
    dry_run: bool = False,
    log: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Train and evaluate all rows of a benchmark; the same call resumes an interrupted one.

    Regions, classifier (random seed 0) and seeds are computed once for all rows and trials. Writes
    `out`/BENCHMARK.md, .json and .svg after every run, with the trials that are done.

    Args:
        methods: rows by name, default all.
        dry_run: only print how long it will take.

    Returns:
        The content of the .json file.
    """
    problems = problems or Problems()
    tags = source.weak("image")
    ours = configure(options.preset, tags.classes, options.changes, weights=options.weights)
    rows = rows_of(benchmark, ours, methods, options.supervision)
    configs = {row.name: _config(row, tags.classes, options) for row in rows}
    for line in expected_time(rows, configs, source, options):
        log(line)
    if dry_run:
        return {}
    with exclusive_lock(out / LOCK):
        shared = SharedArtefacts(source, out / "shared", options, problems)
        weak = {row.name: source.weak(row.supervision) for row in rows}
        precomputed = {row.name: shared.of(row, configs[row.name]) for row in rows}
        tasks = [
            (row, trial, weak[row.name], precomputed[row.name])
            for trial in range(options.trials)
            for row in rows
        ]
        results: dict[str, dict[str, Any]] = {row.name: {} for row in rows}
        content: dict[str, Any] = {}

        def record(result: _Result) -> None:
            results[result.row.name][str(result.trial)] = result.figures
            problems.add(result.skipped)
            content.update(write_tables(benchmark, rows, results, source.test, out, options))
            log(f"{result.row.name}, trial {result.trial}: {_line(result.figures['test'])}")

        with single_thread() if options.on_cpu else nullcontext():
            work_through(
                tasks,
                partial(_Training, source.truth, source.test, out, options, problems),
                plural(len(tasks), "run"),
                jobs=(options.jobs or cores()) if options.on_cpu else 1,
                problems=problems,
                on_result=record,
            )
    return content


class SharedArtefacts:
    """Regions, classifier and seeds, each computed when a row first needs it."""

    def __init__(self, source: Source, folder: Path, options: Options, problems: Problems) -> None:
        self.source, self.folder, self.problems = source, folder, problems
        self.options = options
        group = single_process(str(open_device(options.device)))
        self.execution = Execution(group, options.jobs, problems)

    def of(self, row: Row, config: Config) -> Precomputed:
        """What the runs of a row need not compute."""
        needs = METHODS[row.method]
        if row.supervision == "mask":
            return Precomputed(classifier=self._classifier(config) if _starts(config) else None)
        regions, seeds = None, None
        if needs.regions:
            regions = self._regions(config)
            seeds = self._seeds(row, config, regions) if needs.seeds else None
        needed = seeds is not None or needs.classifier or _starts(config)
        return Precomputed(regions, seeds, self._classifier(config) if needed else None)

    def _regions(self, config: Config) -> RegionFolder:
        if self.options.regions is not None:
            return RegionFolder(self.options.regions)
        tags = self.source.weak("image")
        return make_regions(tags, self.folder / "regions", config.regions, self.execution)

    def _classifier(self, config: Config) -> Path:
        if self.options.classifier is not None:
            return self.options.classifier
        folder = self.folder / "classifier"
        make_classifier(
            self.source.weak("image"), folder, config.classifier, execution=self.execution
        )
        return folder / CLASSIFIER_FILE

    def _seeds(self, row: Row, config: Config, regions: RegionFolder) -> SeedFolder:
        kind: Supervision = "image" if row.supervision == "count" else row.supervision
        return make_seeds(
            self.source.weak(kind),
            regions,
            self.folder / f"seeds-{kind}-{_digest(config.seeds)}",
            config.seeds,
            classifier=self._classifier(config),
            execution=self.execution,
        )


def expected_time(
    rows: Sequence[Row], configs: Mapping[str, Config], source: Source, options: Options
) -> list[str]:
    """How long a benchmark takes, a line for the shared stages and for each row."""
    if not options.on_cpu:
        return [
            f"{plural(options.trials * len(rows), 'run')}; how long they take is unknown on GPUs"
        ]
    jobs, shared = options.jobs or cores(), dict[str, float]()
    lines, total = [], 0.0
    precomputed = Precomputed(
        None if options.regions is None else RegionFolder(options.regions),
        classifier=options.classifier,
    )
    for row in rows:
        config, weak = configs[row.name], source.weak(row.supervision)
        images = stage_images(config, weak, precomputed)
        apart = stage_seconds(config, images, 1)
        for name, seconds in stage_seconds(config, images, jobs).items():
            if name in SHARED_STAGES:
                shared[name] = max(shared.get(name, 0.0), seconds)
                del apart[name]
        total += options.trials * sum(apart.values())
        time = format_duration(sum(apart.values()))
        changes = "".join(f", {key}={value}" for key, value in row.changes.items())
        lines.append(f"  {row.name}: {plural(options.trials, 'run')} of about {time}{changes}")
    number, once = options.trials * len(rows), sum(shared.values())
    total = once + total / min(jobs, number)
    head = (
        f"{plural(number, 'run')}, in all about {format_duration(total)} in {plural(jobs, 'job')}"
    )
    return [head, f"  shared by all: about {format_duration(once)}", *lines]


@dataclass(frozen=True)
class _Result:
    """Of a run: its figures, and the bad items that it skipped."""

    row: Row
    trial: int
    figures: dict[str, Any]
    skipped: list[str]


class _Training:
    """Trains and evaluates runs, in a process of its own unless --jobs is 1."""

    def __init__(
        self,
        truth: EvaluationDataset | None,
        test: EvaluationDataset,
        out: Path,
        options: Options,
        problems: Problems,
    ) -> None:
        self.truth, self.test, self.out, self.problems = truth, test, out, problems
        self.options = replace(options, jobs=1) if options.on_cpu else options

    def __call__(
        self, row: Row, trial: int, dataset: WeakDataset, precomputed: Precomputed
    ) -> _Result:
        name, options = f"{row.name}, trial {trial}", self.options
        print(name, flush=True)
        run = api.train(
            dataset,
            self.out / "runs" / f"{row.name}-{trial}",
            options.preset,
            method=row.method,
            rounds=row.rounds,
            seed=trial,
            changes={**options.changes, **row.changes},
            weights=options.weights,
            precomputed=precomputed,
            truth=None if row.supervision == "mask" else self.truth,
            device=options.device,
            jobs=options.jobs,
            problems=self.problems,
            report=False,
            log=lambda line: print(f"  {name}: {line}", flush=True),
        )
        figures = figures_of(run, self.test, options, self.problems)
        return _Result(row, trial, figures, self.problems.skipped)


def figures_of(
    run: TrainedRun, test: EvaluationDataset, options: Options, problems: Problems
) -> dict[str, Any]:
    """mAP of a run on the test set, by class, of its last labels, its last DISC, its seconds."""
    data = read_run(run.path)
    evaluation = data.evaluation
    wanted = (options.protocol, len(test), test.labelled.split)
    if evaluation is None or _evaluated(evaluation) != wanted:
        predicted = predict_dataset(run, test.labelled, device=options.device, problems=problems)
        result = evaluate(predicted, test, protocol=options.protocol)
        evaluation = record_evaluation(run.path, result, test)
    tables = evaluation["iou"]
    labels = data.round_figures(list(data.labels)[-1]) if data.labels else {}
    objective = [each["disc"] for each in data.figures.values() if "disc" in each]
    return {
        "test": {threshold: table["mean"] for threshold, table in tables.items()},
        "per_class": {threshold: table["per_class"] for threshold, table in tables.items()},
        "labels": {
            key.removeprefix("map@"): value
            for key, value in labels.items()
            if key.startswith("map@")
        },
        "disc": objective[-1] if objective else None,
        "seconds": round(data.seconds, 1),
    }


def _config(row: Row, classes: tuple[str, ...], options: Options) -> Config:
    changes = {**options.changes, **row.changes}
    try:
        return configure(
            options.preset,
            classes,
            changes,
            rounds=row.rounds,
            weights=options.weights,
            method=row.method,
        )
    except InputError as error:
        raise InputError(f"row {row.name}: {error}") from None


def _starts(config: Config) -> bool:
    """Whether the prediction network starts from the classifier."""
    return config.without_rounds().needs_classifier


def _evaluated(evaluation: Mapping[str, Any]) -> tuple[str, int, str | None]:
    return evaluation["protocol"], evaluation["images"], evaluation["split"]


def _digest(options: SeedOptions) -> str:
    return hashlib.sha256(json.dumps(asdict(options)).encode()).hexdigest()[:8]


def _line(means: Mapping[str, float]) -> str:
    return "  ".join(f"@{threshold} {100 * value:.1f}" for threshold, value in means.items())
