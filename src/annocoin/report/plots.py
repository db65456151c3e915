"""The charts of a report: precision and recall, learning curves, pseudo labels, confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from annocoin.report.charts import Chart, Series, averaged
from annocoin.report.run_data import RunData

BINS = 10
HIDDEN = ("step", "grad_norm", "surrogate")
"""Figures of a training that are not losses."""

NETWORKS = {
    "classifier": "Image classifier",
    "conditional": "Conditional network",
    "prediction": "Prediction network",
}

NETWORK_SYMBOLS = {"prediction": "Pr_p", "conditional": "Pr_c"}
DISSIMILARITY_TERMS = {
    "disc": "DISC",
    "div_pc": "DIV(Pr_p, Pr_c)",
    "div_cc": "DIV(Pr_c, Pr_c)",
    "div_pp": "DIV(Pr_p, Pr_p)",
}
"""The figures of `annocoin.engine.dissimilarity`."""


def evaluation_charts(data: RunData) -> list[Chart]:
    """AP of every class, and curves of precision over recall; none without an evaluation."""
    if data.evaluation is None:
        return []
    tables = data.evaluation["iou"]
    threshold = "0.5" if "0.5" in tables else next(iter(tables))
    per_class = tables[threshold]["per_class"]
    names = sorted(per_class, key=lambda name: -(per_class[name] or 0))
    values = [math.nan if per_class[name] is None else per_class[name] for name in names]
    recalls = np.linspace(0, 1, data.evaluation["recalls"]).tolist()
    curves = []
    for key, precision in data.evaluation["precision"].items():
        rows = [
            row
            for row, ap in zip(precision, tables[key]["per_class"].values(), strict=True)
            if ap is not None
        ]
        mean = np.mean(rows, axis=0).tolist() if rows else [math.nan] * len(recalls)
        curves.append(Series(f"IoU {key}", recalls, mean))
    return [
        Chart("ap-by-class", f"AP at IoU {threshold} by class", "", "AP",
              [Series("AP", range(len(names)), values)], "bars", names, y_range=(0, 1)),
        Chart("precision-recall", "Precision and recall", "recall", "precision", curves,
              y_range=(0, 1), x_range=(0, 1), note="Means over the classes."),
    ]  # fmt: skip


def training_charts(data: RunData) -> list[Chart]:
    """The losses of each network over all its trainings, one after the other."""
    charts: list[Chart] = []
    for network, title in NETWORKS.items():
        stages = [name for name in data.metrics if name.endswith(network) and data.metrics[name]]
        first = [name for name in stages if name == network]
        later = [name for name in stages if name != network]
        # the first training of the conditional network has another loss than the rounds'
        groups = [first, later] if network == "conditional" else [stages]
        for group in groups:
            if group:
                suffix = " in the rounds" if group is later and network == "conditional" else ""
                if group is first and later:
                    suffix = ", from the seeds"
                charts.append(
                    _losses(data, f"{title}{suffix}", group, f"loss-{network}{len(charts)}")
                )
    return charts


def _losses(data: RunData, title: str, stages: Sequence[str], name: str) -> Chart:
    """The losses of some stages over their steps; of the rounds of Pr_c, DISC and its terms."""
    names = [key for stage in stages for key in data.metrics[stage][0] if key not in HIDDEN]
    names = [key for key in dict.fromkeys(names) if "loss" in key or "entropy" in key]
    if "changed_by_loss" in names:
        names = ["loss"]
    same = [
        key
        for key in names
        if key != "loss"
        and all(_equals_loss(line, key) for s in stages for line in data.metrics[s])
    ]
    names = [key for key in names if key not in same]
    dividers, before = [], 0
    xs: dict[str, list[float]] = {key: [] for key in names}
    ys: dict[str, list[float]] = {key: [] for key in names}
    for stage in stages:
        lines = data.metrics[stage]
        if len(stages) > 1:
            dividers.append((before + 1.0, _round_name(stage)))
        for key in names:
            positions, means = averaged([line.get(key, math.nan) for line in lines])
            xs[key] += [before + position for position in positions]
            ys[key] += means
        before += len(lines)
    series = [Series(key.replace("_", " "), xs[key], ys[key]) for key in names]
    return Chart(name, title, "step", "loss", series, dividers=dividers)


def _equals_loss(line: dict[str, float], key: str) -> bool:
    """Whether a loss is the only one, and so the same as their sum."""
    return math.isclose(line.get(key, math.nan), line["loss"], rel_tol=1e-4)


def objective_charts(data: RunData) -> list[Chart]:
    """DISC and its three terms after every training of a round, and the entropy of Pr_p."""
    gamma = float(data.config["gamma"])
    measured = {name: figures for name, figures in data.figures.items() if "disc" in figures}
    charts = []
    if measured:
        names = [
            f"{figures['round']:g}, {NETWORK_SYMBOLS[stage.rsplit(' ', 1)[1]]}"
            for stage, figures in measured.items()
        ]
        values = {
            title: [figures[key] for figures in measured.values()]
            for key, title in DISSIMILARITY_TERMS.items()
        }
        note = (
            "Instances per image; after each training of the prediction and of the conditional "
            "network in a round. Each minimises DISC with the other fixed."
        )
        title = "Dissimilarity coefficient (DISC)"
        charts.append(_by_round("disc", title, "DISC", names, values, note))
    entropies: dict[str, list[float]] = {}
    stages = [s for s, lines in data.metrics.items() if lines and "class_entropy" in lines[0]]
    for stage in stages:
        last = data.metrics[stage][-max(1, len(data.metrics[stage]) // 4) :]
        for key in ("class_entropy", "mask_entropy"):
            if key in last[0] and gamma < 1:
                value = -float(np.mean([line[key] for line in last])) / (1 - gamma)
                entropies.setdefault(key.replace("_", " "), []).append(value)
    if entropies:
        title = "DIV(Pr_p, Pr_p): entropy of the prediction network"
        names = [_round_name(stage) for stage in stages]
        charts.append(_by_round("entropy", title, "nats", names, entropies))
    return charts


def label_charts(data: RunData) -> list[Chart]:
    """Pseudo labels by round: quality where it was measured, instances, confidence, diversity."""
    names = [statistics.name for statistics in data.rounds]
    if not names:
        return []
    charts = []
    measured = [data.round_figures(name) for name in names]
    keys = [key for key in dict.fromkeys(k for row in measured for k in row)]
    quality = [key for key in keys if key.startswith(("map@", "f1@"))]
    if quality:
        values = {_metric(key): [row.get(key, math.nan) for row in measured] for key in quality}
        charts.append(_by_round("labels", "Quality of the pseudo labels", "mAP, F1", names, values))
    counts = {"pseudo labels": [statistics.instances for statistics in data.rounds]}
    if "true_instances" in keys:
        counts["true objects"] = [row.get("true_instances", math.nan) for row in measured]
    charts.append(_by_round("instances", "Instances per image", "instances", names, counts))
    quartiles = list(zip(*(statistics.confidence for statistics in data.rounds), strict=True))
    values = dict(
        zip(("lower quartile", "median", "upper quartile"), map(list, quartiles), strict=True)
    )
    values["diversity of the samples"] = [statistics.diversity for statistics in data.rounds]
    known = {key: row for key, row in values.items() if any(v == v for v in row)}
    if known:
        title = "Confidence and diversity"
        charts.append(_by_round("confidence", title, "confidence, diversity", names, known))
    return charts


def reliability_chart(confidence: Sequence[float], ious: Sequence[float]) -> Chart:
    """Mean true IoU and share of right masks, by confidence."""
    values, truth = np.asarray(confidence), np.asarray(ious)
    bins = np.clip((values * BINS).astype(int), 0, BINS - 1)
    used = [b for b in range(BINS) if (bins == b).any()]
    xs = [float(values[bins == b].mean()) for b in used]
    mean = [float(truth[bins == b].mean()) for b in used]
    right = [float((truth[bins == b] >= 0.5).mean()) for b in used]
    return Chart(
        "reliability", "Reliability of the confidence", "confidence", "true IoU",
        [Series("mean IoU", xs, mean), Series("share with IoU of .5 or more", xs, right),
         Series("confidence equals IoU", [0, 1], [0, 1], reference=True)],
        y_range=(0, 1), x_range=(0, 1), points=True,
        note=f"{len(values)} instances in {len(used)} bins of equal width.",
    )  # fmt: skip


def comparison_charts(runs: Sequence[RunData], names: Sequence[str]) -> list[Chart]:
    """mAP by threshold, AP by class, and the quality of pseudo labels by round, of several runs."""
    charts = []
    tables: dict[str, dict[str, Any]] = {
        name: run.evaluation["iou"]
        for name, run in zip(names, runs, strict=True)
        if run.evaluation is not None
    }
    first = next(iter(tables.values()), {})
    thresholds = [key for key in first if all(key in table for table in tables.values())]
    if thresholds:
        series = [
            Series(name, range(len(thresholds)), [table[key]["mean"] for key in thresholds])
            for name, table in tables.items()
        ]
        groups = [f"IoU {key}" for key in thresholds]
        charts.append(Chart("map", "mAP on the test set", "", "mAP", series, "bars", groups))
        key = "0.5" if "0.5" in thresholds else thresholds[0]
        by_class = {name: table[key]["per_class"] for name, table in tables.items()}
        classes = list(dict.fromkeys(each for values in by_class.values() for each in values))
        series = [
            Series(name, range(len(classes)), [_known(values.get(each)) for each in classes])
            for name, values in by_class.items()
        ]
        title = f"AP at IoU {key} by class"
        charts.append(
            Chart("ap-by-class", title, "", "AP", series, "bars", classes, y_range=(0, 1))
        )
    rounds = max((list(run.labels) for run in runs), key=len)
    for key in ("map@0.5", "map@0.75"):
        rows = {
            name: [run.round_figures(each).get(key, math.nan) for each in rounds]
            for name, run in zip(names, runs, strict=True)
        }
        rows = {name: row for name, row in rows.items() if any(v == v for v in row)}
        if rows:
            title = f"Pseudo labels, {_metric(key)}"
            charts.append(_by_round(f"labels-{key[4:]}", title, "mAP", rounds, rows))
    return charts


def _known(value: float | None) -> float:
    return math.nan if value is None else value


def _by_round(
    name: str,
    title: str,
    y_label: str,
    rounds: Sequence[str],
    values: dict[str, list[float]],
    note: str = "",
) -> Chart:
    series = [Series(key, range(len(rounds)), row) for key, row in values.items()]
    known = [value for row in values.values() for value in row if math.isfinite(value)]
    from_zero = (0.0, 1.08 * max(known)) if known and min(known) >= 0 < max(known) else None
    return Chart(
        name,
        title,
        "",
        y_label,
        series,
        categories=rounds,
        y_range=from_zero,
        points=True,
        note=note,
    )


def _round_name(stage: str) -> str:
    return stage.split(",")[0].removesuffix(" prediction")


def _metric(key: str) -> str:
    name, _, threshold = key.partition("@")
    return f"{ {'map': 'mAP', 'f1': 'F1'}[name] } at IoU {threshold}"
