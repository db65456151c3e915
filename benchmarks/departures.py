"""What each departure from the paper's text is worth: whole runs with one printed form at a time.

    python benchmarks/departures.py DATASET --split train --test val --preset synthetic \\
        --regions R --seeds T --out RUNS [--box-seeds B --supervision box] \\
        [--only pairwise "all printed"] [--trials 0 1 2] [--set rounds=3] [--limit 480]

R, T and B are the outputs of `annocoin regions`, `annocoin seeds` and `annocoin seeds --supervision
box` for the split. Each row changes our defaults in one respect back to the paper's text (the
options of docs/method.md), "all printed" in all of them; "U" to "PW_p, PW_c" are the rows of the
paper's ablations. Same data, same number of steps, same random seeds. Rows that change nothing
in the preset are left out; `--list` prints the others. Seeds are given: the rule of their
back-propagation is not a row.

Finished runs are not trained again. After every run the time that the others will take is printed.
Writes RUNS/departures.json: by row and trial mAP of the network on the test split, mAP of the last
pseudo labels, DISC and its terms by round, and seconds; prints the means over trials as a table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from annocoin.cli.options import parse_overrides
from annocoin.data.loading import load_evaluation, load_weak
from annocoin.demo import SETTINGS
from annocoin.engine.config import Config
from annocoin.engine.distribution import init_distributed
from annocoin.engine.image_stages import CLASSIFIER_FILE
from annocoin.engine.presets import configure
from annocoin.errors import InputError
from annocoin.files import write_json
from annocoin.trained import TrainedRun
from whole_runs import PROTOCOLS, labels_by_stage, test_map, train

Changes = dict[str, str]

OURS, ALL, BOXES = "ours", "all printed", "boxes: high overlap"

SCORING, TRAINING = "conditional.scoring.", "conditional.training."
ARCHITECTURE = "conditional.architecture."

PRINTED: dict[str, Changes] = {
    "noise per pixel": {f"{ARCHITECTURE}noise": "pixel", f"{ARCHITECTURE}noise_channels": "1"},
    "linear noise": {f"{ARCHITECTURE}relu": "false"},
    "scores without a factor": {
        f"{ARCHITECTURE}score_scale": "1",
        f"{ARCHITECTURE}bias_outside": "true",
    },
    "unary: no seed prior": {f"{SCORING}seed_prior_weight": "0"},
    "unary: no tables": {
        f"{SCORING}prediction_weight": "0",
        f"{SCORING}prediction_weight_spread": "0",
    },
    "pairwise": {f"{SCORING}pairwise": "literal", f"{SCORING}difference": "neighbourhood"},
    "any region for a tag": {"conditional.require_peak": "false"},
    "until no region is left": {
        f"{SCORING}select_all": "true",
        f"{SCORING}extra_margin": "null",
        f"{SCORING}instance_penalty": "0",
        f"{SCORING}local_search": "false",
    },
    "class by class": {
        f"{SCORING}share_regions": "true",
        f"{SCORING}cross_class_nms_threshold": "1",
    },
    "overlap of the later": {f"{SCORING}overlap_denominator": "later"},
    "one network": {"teacher": "null"},
    "tables of RoIs": {"conditional.tables": "rois", "conditional.average_tables": "false"},
    "tables of all classes": {f"{TRAINING}restrict_to_annotation": "false"},
    "losses without a bound": {
        "conditional.task_loss.clamp": "null",
        "conditional.task_loss.mask_scored_regions": "null",
    },
    "entropy of Pr_p": {"prediction.losses.pointwise": "false"},
    "boxes in expectation": {
        "prediction.losses.expected_boxes": "true",
        "prediction.losses.pointwise": "false",
    },
    "loss of samples once": {f"{TRAINING}diversity_weight": "1"},
    "epsilon +1": {f"{TRAINING}epsilon": "1"},
    "no last training": {"prediction.training.final_steps": "0"},
    "SGD": {
        "prediction.training.optimizer": "sgd",
        "prediction.training.lr": "0.005",
        "prediction.training.backbone_lr_factor": "1",
        "prediction.training.weight_decay": "1e-4",
        "prediction.training.scale_range": "[1,1]",
    },
    "seed pixels as targets": {f"{TRAINING}targets": "pixels"},
    "evidence of votes": {"conditional.evidence": "votes"},
    "only regions on seeds": {"conditional.top_regions": "0"},
    BOXES: {"conditional.best_fit_share": "0"},
    "one network from the seeds on": {
        f"{TRAINING}foreground_bias": "0",
        f"{TRAINING}noise_strength": "0",
    },
    "rates of the U-Net": {
        f"{TRAINING}initial_lr": "1e-4",
        f"{TRAINING}lr": "1e-4",
        f"{TRAINING}weight_decay": "1e-5",
    },
}
"""The printed forms, one departure each. The plain U-Net and its batches are left out: they would
change the cost of a run."""

OTHERS: dict[str, Changes] = {
    "pairwise, difference of pairs": {f"{SCORING}pairwise": "literal"},
    "pairwise, normalised": {f"{SCORING}pairwise": "normalised"},
    "pairwise, edge-votes": {f"{SCORING}pairwise": "edge-votes"},
    "U": {f"{SCORING}terms": "U"},
    "U+P": {f"{SCORING}terms": "U+P"},
    "Pr_p, Pr_c": {"prediction.losses.pointwise": "false"},
    "PW_p, Pr_c": {"prediction.losses.pointwise": "true"},
    "Pr_p, PW_c": {"prediction.losses.pointwise": "false", f"{TRAINING}pointwise": "true"},
    "PW_p, PW_c": {"prediction.losses.pointwise": "true", f"{TRAINING}pointwise": "true"},
}
"""Other readings of the pairwise term, and the columns of the paper's two ablations."""


def main() -> None:
    arguments = _parse_arguments()
    classes = load_weak(arguments.dataset, arguments.supervision, split=arguments.split).classes
    rows = departures(arguments.preset, classes, parse_overrides(arguments.set))
    if arguments.supervision == "image":
        rows.pop(BOXES, None)
    if arguments.only is not None:
        if unknown := set(arguments.only) - set(rows):
            raise InputError(f"--only: no row {', '.join(sorted(unknown))}; see --list")
        rows = {name: rows[name] for name in arguments.only}
    if arguments.list:
        for name, changes in rows.items():
            print(f"{name:32s}" + " ".join(f"{key}={value}" for key, value in changes.items()))
        return
    group = init_distributed()
    test = load_evaluation(arguments.dataset, split=arguments.test)
    (setting,) = (s for s in SETTINGS if s.name == arguments.supervision)
    summary = arguments.out / "departures.json"
    results: dict[str, Any] = json.loads(summary.read_text()) if summary.is_file() else {}
    todo = [
        (name, trial)
        for trial in arguments.trials
        for name in rows
        if str(trial) not in results.get(name, {})
    ]
    _print_time(results, len(todo))
    for number, (name, trial) in enumerate(todo, start=1):
        started = time.monotonic()
        options = argparse.Namespace(**vars(arguments))
        options.out = arguments.out / name.replace(" ", "-").replace(":", "").replace(",", "")
        changes = {**parse_overrides(arguments.set), **rows[name]}
        options.set = [f"{key}={value}" for key, value in changes.items()]
        run = train(setting, trial, options, group)
        figures = {
            "test": test_map(run, test)[PROTOCOLS[0]],
            "labels": last_labels(run),
            "disc": dissimilarities(run),
            "seconds": round(time.monotonic() - started, 1),
        }
        results.setdefault(name, {})[str(trial)] = figures
        write_json(summary, results, indent=1)
        print(f"{name}, trial {trial}: {figures['test']}", flush=True)
        _print_time(results, len(todo) - number)
    print_table({name: results[name] for name in rows if name in results})


def departures(
    preset: str, classes: tuple[str, ...], base: Mapping[str, str]
) -> dict[str, Changes]:
    """The changes of each row that differs from our run, and of ours: none."""
    ours = configure(preset, classes, base)
    rows: dict[str, Changes] = {OURS: {}}
    together: Changes = {}
    for name, changes in {**PRINTED, **OTHERS}.items():
        changes = _same_steps(ours, changes)
        if ours.teacher is None:
            changes.pop("teacher", None)
        elif "prediction.training.final_steps" in changes:
            changes["teacher"] = "null"  # whose network cannot be the result
        if configure(preset, classes, {**base, **changes}) != ours:
            rows[name] = changes
            together |= changes if name in PRINTED else {}
    return {**rows, ALL: together}


def _same_steps(ours: Config, changes: Mapping[str, str]) -> Changes:
    """Without a last training, its steps belong to the rounds."""
    changes = dict(changes)
    if "prediction.training.final_steps" in changes:
        training = ours.prediction.training
        total = ours.rounds * training.steps + training.final_steps
        per_round = total // ours.rounds if training.continued else training.final_steps
        changes["prediction.training.steps"] = str(per_round)
    return changes


def last_labels(run: TrainedRun) -> dict[str, float]:
    """mAP of the pseudo labels of the training images after the last round."""
    measured = labels_by_stage(run)[-1]
    return {key.removeprefix("map@"): measured[key] for key in measured if key.startswith("map@")}


def dissimilarities(run: TrainedRun) -> list[dict[str, Any]]:
    """DISC and its terms by round and network."""
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "disc" in line]


def print_table(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Means over trials, as a Markdown table, mAP in %."""
    print("| row | trials | network .5 | .75 | labels .5 | .75 | DISC | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, trials in results.items():
        every = list(trials.values())
        means = [
            100 * fmean(figures[kind][threshold] for figures in every)
            for kind in ("test", "labels")
            for threshold in ("0.5", "0.75")
        ]
        last = [figures["disc"][-1]["disc"] for figures in every if figures["disc"]]
        cells = [f"{mean:.1f}" for mean in means] + [f"{fmean(last):.2f}" if last else ""]
        cells.append(f"{fmean(figures['seconds'] for figures in every):.0f}")
        print(f"| {name} | {len(every)} | " + " | ".join(cells) + " |")


def _print_time(results: Mapping[str, Mapping[str, Mapping[str, Any]]], left: int) -> None:
    seconds = [figures["seconds"] for trials in results.values() for figures in trials.values()]
    known = f", about {left * fmean(seconds) / 3600:.1f} hours" if seconds else ""
    print(f"{left} runs left{known or '; the first one tells how long they take'}", flush=True)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--split", default="train")
    parser.add_argument("--test", default="val")
    parser.add_argument("--limit", type=int, help="number of training images")
    parser.add_argument("--preset", default="synthetic")
    parser.add_argument("--supervision", choices=("image", "box"), default="image")
    for name in ("regions", "seeds", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--box-seeds", type=Path)
    parser.add_argument("--classifier", type=Path, help="default: SEEDS/classifier.safetensors")
    parser.add_argument("--only", nargs="+", metavar="ROW", help="rows, default all")
    parser.add_argument("--trials", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", action="append", metavar="KEY=VALUE", default=[])
    parser.add_argument("--list", action="store_true", help="print the rows and their options")
    arguments = parser.parse_args()
    if arguments.supervision == "box" and arguments.box_seeds is None:
        parser.error("--supervision box: give --box-seeds")
    arguments.classifier = arguments.classifier or arguments.seeds / CLASSIFIER_FILE
    return arguments


if __name__ == "__main__":
    main()
