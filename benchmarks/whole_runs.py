"""Whole runs: the same network for the same steps from tags, boxes, seeds and true masks.

    python benchmarks/whole_runs.py DATASET --split train --test val --preset synthetic \\
        --regions R --seeds T --box-seeds B --out RUNS [--ways full image box seeds] \\
        [--trials 0 1 2] [--set rounds=3] [--devices 2]

R, T and B are what `annocoin regions`, `annocoin seeds` and `annocoin seeds --supervision box` made
of the split. Trial s has the random seed s. What is trained already is not trained again. Writes
RUNS/summary.json: by way and trial, mAP on the test split under two protocols, and mAP of the
pseudo labels by stage, beside what is there already; prints the means over trials.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from annocoin import api
from annocoin.api import TrainedRun
from annocoin.cli.options import parse_overrides
from annocoin.data.dataset import EvaluationDataset
from annocoin.data.loading import load_evaluation, load_weak
from annocoin.demo import WAYS, Way
from annocoin.engine.dataset_stages import CLASSIFIER
from annocoin.engine.distribution import ProcessGroup, init_distributed
from annocoin.engine.precomputed import Precomputed
from annocoin.evaluation.evaluator import evaluate
from annocoin.files import write_json
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.seed_set import SeedFolder

PROTOCOLS = ("chainercv", "bbtp")

Means = dict[str, float]
"""mAP by threshold."""


def main() -> None:
    given = _arguments()
    group = init_distributed(devices=given.devices, precision=given.precision)
    test = load_evaluation(given.dataset, split=given.test)
    ways = {way.name: way for way in WAYS}
    summary = given.out / "summary.json"
    found: dict[str, Any] = json.loads(summary.read_text()) if summary.is_file() else {}
    for trial in given.trials:
        for name in given.ways:
            run = train(ways[name], trial, given, group)
            if group.is_main:
                figures = found.setdefault(name, {}).setdefault(str(trial), {})
                figures |= {"test": measured(run, test), "labels": labels_by_stage(run)}
                write_json(summary, found, indent=1)
                print(_line(f"{name}, trial {trial}", figures["test"][PROTOCOLS[0]]), flush=True)
            group.barrier()
    if group.is_main:
        print_means(found)


def train(way: Way, trial: int, given: argparse.Namespace, group: ProcessGroup) -> TrainedRun:
    """A run of one way, with the random seed of its trial."""
    weak = load_weak(given.dataset, way.supervision, split=given.split)
    truth = None
    if way.supervision != "mask":
        truth = load_evaluation(given.dataset, split=given.split)
    if given.limit is not None:
        weak = replace(weak, images=weak.images[: given.limit])
    seeds = given.box_seeds if way.supervision == "box" else given.seeds
    say = (lambda line: print(f"  {line}", flush=True)) if group.is_main else (lambda line: None)
    return api.train(
        weak,
        given.out / f"{way.name}-{trial}",
        given.preset,
        rounds=way.rounds,
        seed=trial,
        changes=parse_overrides(given.set),
        given=Precomputed(RegionFolder(given.regions), SeedFolder(seeds), given.classifier),
        truth=truth,
        group=group,
        say=say,
    )


def measured(run: TrainedRun, test: EvaluationDataset) -> dict[str, Means]:
    """mAP of what a run predicts on the test split, by protocol."""
    predicted = api.predict_dataset(run, test.labelled)
    found = {}
    for protocol in PROTOCOLS:
        mean = evaluate(predicted, test, protocol=protocol).mean
        found[protocol] = {f"{threshold:g}": value for threshold, value in mean.items()}
    return found


def labels_by_stage(run: TrainedRun) -> list[dict[str, Any]]:
    """mAP of the pseudo labels of the training images, in the order in which they were made."""
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if any(key.startswith("map@") for key in line)]


def print_means(found: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Means over trials, by way; and at each threshold the share of what true masks give."""
    for protocol in PROTOCOLS:
        means = {}
        for name, trials in found.items():
            own = [figures["test"][protocol] for figures in trials.values()]
            means[name] = {key: fmean(each[key] for each in own) for key in own[0]}
        print(f"mAP (%), protocol {protocol}, means over trials")
        for name, mean in means.items():
            print(_line(f"{name}, {len(found[name])}", mean))
            if name != "full" and "full" in means:
                full = {key: value for key, value in means["full"].items() if value}
                print(_line("  of full", {key: mean[key] / full[key] for key in full}))


def _line(name: str, means: Mapping[str, float]) -> str:
    return f"{name:16s} " + "  ".join(f"@{key} {100 * value:5.1f}" for key, value in means.items())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [way.name for way in WAYS]
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--split", default="train")
    parser.add_argument("--test", default="val")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--preset", default="synthetic")
    for name in ("regions", "seeds", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--box-seeds", type=Path)
    parser.add_argument("--classifier", type=Path, help="default: SEEDS/classifier.safetensors")
    parser.add_argument("--ways", nargs="+", choices=names, default=names)
    parser.add_argument("--trials", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", default=[])
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--precision", default="32-true")
    given = parser.parse_args()
    if "box" in given.ways and given.box_seeds is None:
        parser.error("--ways box: give --box-seeds, or leave box out")
    given.classifier = given.classifier or given.seeds / CLASSIFIER
    return given


if __name__ == "__main__":
    main()
