"""The runs of a benchmark: shared stages once, then every row and trial, and their evaluation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
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
from annocoin.engine.parallel import cores
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
        results: dict[str, dict[str, Any]] = {row.name: {} for row in rows}
        content: dict[str, Any] = {}
        for trial in range(options.trials):
            for row in rows:
                run = _train(row, trial, source, shared, configs[row.name], out, options, log)
                results[row.name][str(trial)] = figures_of(run, row, source, options, problems)
                content = write_tables(benchmark, rows, results, source.test, out, options)
                log(f"{row.name}, trial {trial}: {_line(results[row.name][str(trial)]['test'])}")
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
    if open_device(options.device).type != "cpu":
        return [
            f"{plural(options.trials * len(rows), 'run')}; how long they take is unknown on GPUs"
        ]
    shared: dict[str, float] = {}
    lines, total = [], 0.0
    precomputed = Precomputed(
        None if options.regions is None else RegionFolder(options.regions),
        classifier=options.classifier,
    )
    for row in rows:
        config, weak = configs[row.name], source.weak(row.supervision)
        seconds = stage_seconds(config, stage_images(config, weak, precomputed), cores())
        for name in ("classifier", "regions", "seeds"):
            shared.setdefault(name, seconds.get(name, 0.0))
            shared[name] = max(shared[name], seconds.pop(name, 0.0))
        total += options.trials * sum(seconds.values())
        time = format_duration(sum(seconds.values()))
        changes = "".join(f", {key}={value}" for key, value in row.changes.items())
        lines.append(f"  {row.name}: {plural(options.trials, 'run')} of about {time}{changes}")
    once = sum(shared.values())
    number = plural(options.trials * len(rows), "run")
    head = f"{number}, in all about {format_duration(total + once)} on {plural(cores(), 'core')}"
    return [head, f"  shared by all: about {format_duration(once)}", *lines]


def figures_of(
    run: TrainedRun, row: Row, source: Source, options: Options, problems: Problems
) -> dict[str, Any]:
    """mAP of a run on the test set, by class, of its last labels, its last DISC, its seconds."""
    data, test = read_run(run.path), source.test
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


def _train(
    row: Row,
    trial: int,
    source: Source,
    shared: SharedArtefacts,
    config: Config,
    out: Path,
    options: Options,
    log: Callable[[str], None],
) -> TrainedRun:
    log(f"{row.name}, trial {trial}")
    return api.train(
        source.weak(row.supervision),
        out / "runs" / f"{row.name}-{trial}",
        options.preset,
        method=row.method,
        rounds=row.rounds,
        seed=trial,
        changes={**options.changes, **row.changes},
        weights=options.weights,
        precomputed=shared.of(row, config),
        truth=None if row.supervision == "mask" else source.truth,
        device=options.device,
        jobs=options.jobs,
        problems=shared.problems,
        report=False,
        log=lambda line: log(f"  {line}"),
    )


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
