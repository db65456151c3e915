"""The comparison of several runs: one HTML page with their figures, options and labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from annocoin import files
from annocoin.errors import InputError
from annocoin.report import plots
from annocoin.report.gallery import Gallery, GalleryImage, outline
from annocoin.report.page import dotted_options, facts, render_page
from annocoin.report.run_data import RunData, read_run

COMPARED_IMAGES = 24
MISSING = "-"
FIGURE_NAMES = {
    "map@0.5": "Pseudo labels, mAP at IoU 0.5",
    "map@0.75": "Pseudo labels, mAP at IoU 0.75",
    "f1@0.5": "Pseudo labels, F1 at IoU 0.5",
    "confidence_spearman": "Rank correlation of confidence and IoU",
}


def write_comparison(runs: Sequence[str | Path], out: str | Path) -> Path:
    """Write a page that compares finished runs: options, figures, and labels of the same images."""
    data = [read_run(Path(run)) for run in runs]
    if len(data) < 2:
        raise InputError("a comparison needs two or more runs")
    names = _distinct_names(data)
    context = {
        "title": "Comparison of runs",
        "names": names,
        "rows": _comparison_rows(data),
        "differences": _differing_options(data),
        "charts": plots.comparison_charts(data, names),
        "data": {"classes": data[0].classes, "comparison": _compared_images(data)},
    }
    files.write_bytes(Path(out), render_page("comparison.html.j2", context).encode())
    return Path(out)


def _distinct_names(runs: Sequence[RunData]) -> list[str]:
    """The names of the runs' folders, or their paths if some are equal."""
    names = [run.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _comparison_rows(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    """Facts and figures, a row each, with a value of every run."""
    columns = []
    for run in runs:
        column = facts(run)
        if run.evaluation is not None:
            evaluation = run.evaluation
            name = "/".join(filter(None, (evaluation["dataset"], evaluation["split"])))
            column["Test set"] = f"{name}, {evaluation['images']} images, {evaluation['protocol']}"
            for threshold, table in evaluation["iou"].items():
                column[f"mAP at IoU {threshold}"] = f"{100 * table['mean']:.1f} %"
        if run.labels:
            last = run.round_figures(list(run.labels)[-1])
            for key in ("map@0.5", "map@0.75", "f1@0.5", "confidence_spearman"):
                if key in last:
                    column[FIGURE_NAMES[key]] = f"{last[key]:.3f}"
            column["Instances per image"] = f"{run.rounds[-1].instances:.2f}"
        columns.append(column)
    names = dict.fromkeys(name for column in columns for name in column)
    return [(name, [column.get(name, MISSING) for column in columns]) for name in names]


def _differing_options(runs: Sequence[RunData]) -> list[tuple[str, list[str]]]:
    options = [dotted_options(run.config) for run in runs]
    names = dict.fromkeys(name for column in options for name in column)
    rows = [(name, [column.get(name, MISSING) for column in options]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _compared_images(runs: Sequence[RunData]) -> dict[str, Any]:
    """Final labels of images that all runs with labels have."""
    labelled = [run for run in runs if run.labels]
    if not labelled:
        return {"runs": [], "images": []}
    folders = [list(run.labels.values())[-1] for run in labelled]
    common = [i for i in folders[0] if all(i in folder for folder in folders)]
    common = [i for i in common if any(i in run.images for run in labelled)][:COMPARED_IMAGES]
    gallery, images = Gallery(None), []
    for image_id in common:
        image = next(run.images[image_id] for run in labelled if image_id in run.images)
        first = folders[0][image_id].consensus_instances()
        gallery.add("", "", [GalleryImage(image_id, image.file_name, image.path, first)], 1)
        row = gallery.sets[-1]["rows"][0]
        columns = []
        for run, folder in zip(labelled, folders, strict=True):
            instances = folder[image_id].consensus_instances()
            columns.append(
                {"c": [run.classes[label - 1] for label in instances.labels.tolist()],
                 "m": [outline(mask) for mask in instances.masks]}
            )  # fmt: skip
        images.append(
            {"id": row["id"], "w": row["w"], "h": row["h"], "p": row["p"], "runs": columns}
        )
    return {"runs": [run.name for run in labelled], "images": images}
