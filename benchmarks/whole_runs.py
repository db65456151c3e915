"""Whole runs: the same network for the same steps from tags, boxes, seeds and true masks.

    python benchmarks/whole_runs.py DATASET --split train --test val --preset synthetic \\
        --regions R --seeds T --box-seeds B --out RUNS [--settings full image box seeds] \\
        [--trials 0 1 2] [--set rounds=3] [--devices 2]

R, T and B are the outputs of `annocoin regions`, `annocoin seeds` and `annocoin seeds --supervision
box` for the split. Trial s has the random seed s. Finished runs are not trained again. Writes
RUNS/summary.json: by setting and trial, mAP on the test split under two protocols, and mAP of the
pseudo labels by stage, beside what the file holds; prints the means over trials.
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
from annocoin.cli.options import parse_overrides
from annocoin.data.dataset import EvaluationDataset
from annocoin.data.loading import load_evaluation, load_weak
from annocoin.demo import SETTINGS, Setting
from annocoin.engine.distribution import ProcessGroup, init_distributed
from annocoin.engine.image_stages import CLASSIFIER_FILE
from annocoin.engine.preflight import Precomputed
from annocoin.evaluation.evaluator import evaluate
from annocoin.files import write_json
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.seed_set import SeedFolder
from annocoin.trained import TrainedRun, predict_dataset

PROTOCOLS = ("chainercv", "bbtp")

Means = dict[str, float]
"""mAP by threshold."""


def main() -> None:
    arguments = _parse_arguments()
    group = init_distributed(devices=arguments.devices, precision=arguments.precision)
    test = load_evaluation(arguments.dataset, split=arguments.test)
    settings = {setting.name: setting for setting in SETTINGS}
    summary = arguments.out / "summary.json"
    results: dict[str, Any] = json.loads(summary.read_text()) if summary.is_file() else {}
    for trial in arguments.trials:
        for name in arguments.settings:
            run = train(settings[name], trial, arguments, group)
            if group.is_main:
                figures = results.setdefault(name, {}).setdefault(str(trial), {})
                figures |= {"test": test_map(run, test), "labels": labels_by_stage(run)}
                write_json(summary, results, indent=1)
                print(_line(f"{name}, trial {trial}", figures["test"][PROTOCOLS[0]]), flush=True)
            group.barrier()
    if group.is_main:
        print_means(results)


def train(
    setting: Setting, trial: int, arguments: argparse.Namespace, group: ProcessGroup
) -> TrainedRun:
    """A run of one setting, with the random seed of its trial."""
    weak = load_weak(arguments.dataset, setting.supervision, split=arguments.split)
    truth = None
    if setting.supervision != "mask":
        truth = load_evaluation(arguments.dataset, split=arguments.split)
    if arguments.limit is not None:
        weak = replace(weak, images=weak.images[: arguments.limit])
    seeds = arguments.box_seeds if setting.supervision == "box" else arguments.seeds
    log = (lambda line: print(f"  {line}", flush=True)) if group.is_main else (lambda line: None)
    return api.train(
        weak,
        arguments.out / f"{setting.name}-{trial}",
        arguments.preset,
        rounds=setting.rounds,
        seed=trial,
        changes=parse_overrides(arguments.set),
        precomputed=Precomputed(
            RegionFolder(arguments.regions), SeedFolder(seeds), arguments.classifier
        ),
        truth=truth,
        group=group,
        log=log,
    )


def test_map(run: TrainedRun, test: EvaluationDataset) -> dict[str, Means]:
    """mAP of a run's predictions on the test split, by protocol."""
    predicted = predict_dataset(run, test.labelled)
    means = {}
    for protocol in PROTOCOLS:
        mean = evaluate(predicted, test, protocol=protocol).mean
        means[protocol] = {f"{threshold:g}": value for threshold, value in mean.items()}
    return means


def labels_by_stage(run: TrainedRun) -> list[dict[str, Any]]:
    """mAP of the pseudo labels of the training images, in the order of the stages."""
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if any(key.startswith("map@") for key in line)]


def print_means(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Means over trials, by setting; and at each threshold the ratio to true masks."""
    for protocol in PROTOCOLS:
        means = {}
        for name, trials in results.items():
            rows = [figures["test"][protocol] for figures in trials.values()]
            means[name] = {key: fmean(row[key] for row in rows) for key in rows[0]}
        print(f"mAP (%), protocol {protocol}, means over trials")
        for name, mean in means.items():
            print(_line(f"{name}, {len(results[name])}", mean))
            if name != "full" and "full" in means:
                full = {key: value for key, value in means["full"].items() if value}
                print(_line("  of full", {key: mean[key] / full[key] for key in full}))


def _line(name: str, means: Mapping[str, float]) -> str:
    return f"{name:16s} " + "  ".join(f"@{key} {100 * value:5.1f}" for key, value in means.items())


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    names = [setting.name for setting in SETTINGS]
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--split", default="train")
    parser.add_argument("--test", default="val")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--preset", default="synthetic")
    for name in ("regions", "seeds", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--box-seeds", type=Path)
    parser.add_argument("--classifier", type=Path, help="default: SEEDS/classifier.safetensors")
    parser.add_argument("--settings", nargs="+", choices=names, default=names)
    parser.add_argument("--trials", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", default=[])
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--precision", default="32-true")
    arguments = parser.parse_args()
    if "box" in arguments.settings and arguments.box_seeds is None:
        parser.error("--settings box: give --box-seeds, or leave box out")
    arguments.classifier = arguments.classifier or arguments.seeds / CLASSIFIER_FILE
    return arguments


if __name__ == "__main__":
    main()
