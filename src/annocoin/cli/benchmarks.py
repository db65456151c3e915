"""The command `benchmark`: the paper's tables on a dataset."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from annocoin.cli import options
from annocoin.cli.options import DatasetSource, option
from annocoin.errors import InputError, check_choice, plural

BENCHMARK = (
    "comparison (table 1, every method), supervision (masks, boxes, tags, tags without rounds), "
    "terms (table 2), diversity (table 3), architectures (the conditional network as U-Net or "
    "ResNet), per-class, or departures (the paper's text, one printed form at a time)."
)
METHODS = "Rows of the table, separated by commas; repeatable."
SUPERVISION = "Labels of the rows of terms, diversity and departures."
DRY_RUN = "Print the rows and how long they will take, and stop."


def _benchmark(value: str) -> str:
    check_choice("benchmark", value, options.BENCHMARKS)
    return value


def benchmark_command(
    name: Annotated[
        str,
        typer.Argument(metavar="|".join(options.BENCHMARKS), help=BENCHMARK, callback=_benchmark),
    ],
    dataset: options.Dataset,
    out: Annotated[Path, option("Output folder.", metavar="DIR")],
    methods: Annotated[list[str] | None, option(METHODS, "all", metavar="NAMES")] = None,
    trials: Annotated[int, typer.Option(min=1, help="Runs of each row, seeds 0, 1, ...")] = 3,
    split: Annotated[str, option("Image list to train on.")] = "train",
    test: Annotated[str, option("Image list to test on.")] = "val",
    supervision: Annotated[
        str, options.choice(("image", "box"), SUPERVISION, synonyms=options.SYNONYMS)
    ] = "image",
    preset: options.Preset = "synthetic",
    overrides: options.Overrides = None,
    weights: options.Weights = None,
    regions: options.Regions = None,
    classifier: options.Classifier = None,
    limit: options.Limit = None,
    protocol: Annotated[str, options.choice(options.PROTOCOLS, "Definition of AP.")] = "chainercv",
    jobs: options.Jobs = None,
    device: options.Device = options.AUTO_DEVICE,
    kind: options.Kind = None,
    images: options.Images = None,
    skip_bad: options.SkipBad = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
) -> None:
    """Compare methods by the tables of the paper.

    Needs a dataset with true masks; those of the training images only measure labels. All runs have
    the same regions, classifier, seeds, prediction network and number of steps. Writes DIR/NAME.md,
    .json and .svg. After an interruption the same command continues.
    """
    from annocoin.benchmark.runs import Options, Source, run_benchmark
    from annocoin.files import refuse_input

    refuse_input(out, dataset)
    if out.exists() and not out.is_dir():
        raise InputError(f"{out}: not a folder; give a new folder, or that of a benchmark")
    training = DatasetSource(dataset, split, kind, images, skip_bad)
    testing = DatasetSource(dataset, test, kind, images, skip_bad)

    def weak(supervision: Any) -> Any:
        return training.weak(supervision)[:limit]

    source = Source(weak, training.evaluation(), testing.evaluation())
    chosen = [part for value in methods or () for part in value.split(",") if part]
    content = run_benchmark(
        name,
        source,
        out,
        Options(
            preset=preset,
            changes=options.parse_overrides(overrides),
            weights=weights,
            trials=trials,
            protocol=protocol,
            supervision="box" if supervision == "box" else "image",
            regions=regions,
            classifier=classifier,
            device=device,
            jobs=jobs,
        ),
        methods=None if methods is None else chosen,
        problems=training.problems,
        dry_run=dry_run,
        log=partial(print, flush=True),
    )
    if not dry_run:
        print((out / f"{name}.md").read_text())
        print(f"{out}/{name}.md, .json, .svg: {plural(len(content['rows']), 'row')}")
    options.print_skipped(training.problems)
