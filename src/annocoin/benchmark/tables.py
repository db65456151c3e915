"""The tables of a benchmark as Markdown, JSON and SVG: ours beside published figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from annocoin import __version__
from annocoin.benchmark import published
from annocoin.benchmark.rows import WEAK_LABELS, Row
from annocoin.data.dataset import EvaluationDataset
from annocoin.files import write_bytes, write_json
from annocoin.report.charts import Chart, Series

if TYPE_CHECKING:
    from annocoin.benchmark.runs import Options

THRESHOLDS = ("0.25", "0.5", "0.7", "0.75")
PLOTTED = ("0.5", "0.75")
CLASS_THRESHOLD = "0.5"
MISSING = "-"
TITLES = {
    "comparison": "Comparison of methods (the paper's table 1)",
    "supervision": "The same network from masks, boxes and tags",
    "terms": "Terms of the conditional distribution (the paper's table 2)",
    "diversity": "Probabilistic and pointwise networks (the paper's table 3)",
    "architectures": "Trunks of the conditional network (the paper's table 1)",
    "per-class": "AP by class (the paper's appendix)",
    "departures": "Departures from the paper's text, each turned back into the printed form",
}
NOTE = (
    "Published figures are for PASCAL VOC 2012 val, with other networks and trainings: they show "
    "the order that the papers found, not a target for this dataset."
)
DISC_NOTE = "DISC: the objective of the paper after the last round, lower is better."

Results = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""By row and trial, what `figures_of` gives."""


def write_tables(
    benchmark: str,
    rows: Sequence[Row],
    results: Results,
    test: EvaluationDataset,
    out: Path,
    options: Options,
) -> dict[str, Any]:
    """Write `out`/BENCHMARK.json, .md and .svg for the trials that are done; gives the first."""
    name = "/".join(
        part for part in (test.labelled.source and test.labelled.source.name, test.labelled.split)
        if part
    )  # fmt: skip
    content = {
        "benchmark": benchmark,
        "annocoin": __version__,
        "test": name,
        "images": len(test),
        "protocol": options.protocol,
        "preset": options.preset,
        "changes": dict(options.changes),
        "trials": options.trials,
        "rows": {row.name: _row_content(row, results[row.name]) for row in rows},
    }
    write_json(out / f"{benchmark}.json", content, indent=1)
    write_bytes(out / f"{benchmark}.md", markdown(benchmark, rows, content).encode())
    for chart in charts(benchmark, rows, content):
        write_bytes(out / f"{chart.name}.svg", chart.svg_file().encode())
    return content


def markdown(benchmark: str, rows: Sequence[Row], content: Mapping[str, Any]) -> str:
    """The benchmark as a page: our table, and the published figures."""
    changes = "".join(f", {key}={value}" for key, value in content["changes"].items())
    lines = [
        f"# {TITLES[benchmark]}",
        "",
        f"mAP (%) on {content['images']} images of {content['test']}, protocol "
        f"{content['protocol']}, preset {content['preset']}{changes}. Mean over trials, and ± the "
        "standard deviation. Labels: of the training images, by their true masks.",
        "",
    ]
    lines += _class_table(rows, content) if benchmark == "per-class" else _table(rows, content)
    if benchmark == "comparison":
        lines += ["", "Published later:", "", *_later()]
    if _has_disc(content):
        lines += ["", DISC_NOTE]
    if any(row.published for row in rows):
        lines += ["", NOTE]
    return "\n".join([*lines, ""])


def charts(benchmark: str, rows: Sequence[Row], content: Mapping[str, Any]) -> list[Chart]:
    """mAP by row, or AP by class and row."""
    done = [row for row in rows if content["rows"][row.name]["mean"]]
    if not done:
        return []
    if benchmark == "per-class":
        classes = list(content["rows"][done[0].name]["per_class"])
        bars = [
            Series(
                row.title + f", {WEAK_LABELS[row.supervision]}",
                range(len(classes)),
                [_number(content["rows"][row.name]["per_class"][name]) for name in classes],
            )
            for row in done
        ]
        return [Chart(benchmark, TITLES[benchmark], "", "AP at IoU 0.5 (%)", bars, "bars", classes)]
    names = [row.name for row in done]
    bars = [
        Series(
            f"IoU {threshold}",
            range(len(done)),
            [content["rows"][row.name]["mean"][threshold] for row in done],
        )
        for threshold in PLOTTED
    ]
    return [Chart(benchmark, TITLES[benchmark], "", "mAP (%)", bars, "bars", names)]


def _row_content(row: Row, trials: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Means and spreads in %, and every trial as it was measured."""
    tests = [figures["test"] for figures in trials.values()]
    labels = [figures["labels"] for figures in trials.values() if figures["labels"]]
    classes = [figures["per_class"].get(CLASS_THRESHOLD, {}) for figures in trials.values()]
    return {
        "title": row.title,
        "method": row.method,
        "supervision": row.supervision,
        "changes": dict(row.changes),
        "published": dict(row.published),
        "mean": _over(tests, statistics.fmean),
        "spread": _over(tests, statistics.stdev) if len(tests) > 1 else {},
        "labels": _over(labels, statistics.fmean),
        "per_class": _class_means(classes),
        "disc": _mean([f["disc"] for f in trials.values() if f["disc"] is not None]),
        "seconds": _mean([figures["seconds"] for figures in trials.values()]),
        "trials": {trial: dict(figures) for trial, figures in trials.items()},
    }


def _over(trials: Sequence[Mapping[str, float]], statistic: Any) -> dict[str, float]:
    keys = trials[0] if trials else ()
    return {key: round(100 * statistic([trial[key] for trial in trials]), 2) for key in keys}


def _mean(values: Sequence[float]) -> float | None:
    return round(statistics.fmean(values), 3) if values else None


def _has_disc(content: Mapping[str, Any]) -> bool:
    return any(row["disc"] is not None for row in content["rows"].values())


def _class_means(trials: Sequence[Mapping[str, float | None]]) -> dict[str, float | None]:
    means: dict[str, float | None] = {}
    for name in trials[0] if trials else ():
        known = [value for trial in trials if (value := trial[name]) is not None]
        means[name] = round(100 * statistics.fmean(known), 2) if known else None
    return means


def _table(rows: Sequence[Row], content: Mapping[str, Any]) -> list[str]:
    columns = [f"@{threshold}" for threshold in THRESHOLDS]
    head = ["row", "labels used", "trials", *columns, "labels @0.5", "labels @0.75"]
    disc, papers = _has_disc(content), any(row.published for row in rows)
    head += ["DISC"] * disc + ["min"] + ["published @0.25 / .5 / .7 / .75"] * papers
    lines = [_cells(head), _cells(["---"] * len(head))]
    for row in rows:
        figures = content["rows"][row.name]
        spread = figures["spread"]
        cells = [
            f"{figures['mean'][t]:.1f}" + (f" ± {spread[t]:.1f}" if t in spread else "")
            if t in figures["mean"]
            else MISSING
            for t in THRESHOLDS
        ]
        labels = [_format(figures["labels"].get(t)) for t in PLOTTED]
        first = [row.title, WEAK_LABELS[row.supervision], str(len(figures["trials"]))]
        last = [MISSING if figures["disc"] is None else f"{figures['disc']:.2f}"] * disc
        seconds = figures["seconds"]
        last.append(_format(None if seconds is None else seconds / 60))
        last += [" / ".join(_format(row.published.get(t)) for t in THRESHOLDS)] * papers
        lines.append(_cells([*first, *cells, *labels, *last]))
    return lines


def _class_table(rows: Sequence[Row], content: Mapping[str, Any]) -> list[str]:
    kinds = [WEAK_LABELS[row.supervision] for row in rows]
    head = ["class", *kinds, *(f"published, {kind}" for kind in kinds)]
    lines = [_cells(head), _cells(["---"] * len(head))]
    done = [row for row in rows if content["rows"][row.name]["per_class"]]
    for name in content["rows"][done[0].name]["per_class"] if done else ():
        ours = [_format(content["rows"][row.name]["per_class"].get(name)) for row in rows]
        given = [_format(_published(row.name, name)) for row in rows]
        lines.append(_cells([name, *ours, *given]))
    means = [_format(content["rows"][row.name]["mean"].get(CLASS_THRESHOLD)) for row in rows]
    given = [_format(row.published.get(CLASS_THRESHOLD)) for row in rows]
    return [*lines, _cells(["mean", *means, *given])]


def _later() -> list[str]:
    head = ["system", "labels used", *(f"@{threshold}" for threshold in THRESHOLDS)]
    lines = [_cells(head), _cells(["---"] * len(head))]
    for name, (kind, figures) in published.LATER.items():
        lines.append(_cells([name, kind, *(_format(figures.get(t)) for t in THRESHOLDS)]))
    return lines


def _published(row: str, name: str) -> float | None:
    if row not in published.PER_CLASS or name not in published.VOC_CLASSES:
        return None
    return published.PER_CLASS[row][published.VOC_CLASSES.index(name)]


def _cells(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _format(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f}"


def _number(value: float | None) -> float:
    return math.nan if value is None else value
