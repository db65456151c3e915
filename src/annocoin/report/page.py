"""The report of a run: one HTML page that needs no network."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from annocoin import files
from annocoin.data.dataset import EvaluationDataset, LabelledImage, WeakDataset
from annocoin.engine.methods import ANNOCOIN, METHODS
from annocoin.engine.run_directory import Log
from annocoin.errors import InputError, plural
from annocoin.evaluation.confidence import rank_figures
from annocoin.evaluation.evaluator import evaluate
from annocoin.regions.storage import RegionFolder
from annocoin.report import plots
from annocoin.report.by_round import (
    SHOWN_SCORE,
    ImageByRound,
    choose_images,
    images_by_round,
    write_tensorboard_pictures,
)
from annocoin.report.gallery import INLINE_IMAGES, Gallery, GalleryImage
from annocoin.report.run_data import (
    RunData,
    read_run,
    record_dataset,
    record_evaluation,
    with_images_of,
)
from annocoin.seeds.seed_set import SeedFolder
from annocoin.types import ImageId, Instances

PAGE = "report.html"
MARKER = "annocoin-report.txt"
"""In the folder beside a page; a folder without it is never removed."""

MAX_IMAGES = 10_000
"""In a gallery; further ones are left out."""

SUPERVISION = {
    "image": "image tags",
    "count": "image tags with counts",
    "box": "boxes",
    "point": "points",
    "mixed": "mixed labels",
    "mask": "masks (full supervision)",
}


@dataclass(frozen=True)
class TestSet:
    """Predictions of a run on a test set, and its true masks."""

    __test__ = False  # not a test of pytest

    dataset: EvaluationDataset
    predictions: Mapping[ImageId, Instances]
    protocol: str = "chainercv"


def write_report(
    run: str | Path,
    *,
    truth: EvaluationDataset | None = None,
    test: TestSet | None = None,
    shown: Sequence[str] = (),
    limit: int = MAX_IMAGES,
    device: str = "cpu",
    out: str | Path | None = None,
) -> Path:
    """Write the report of a finished run; gives the page's path.

    With more than `INLINE_IMAGES` images the pictures are in a folder beside it, `report-files`.

    Args:
        run: the run's directory.
        truth: true masks of its training images, for IoUs and the reliability of the confidence.
        test: predictions on a test set, which are evaluated; the result is kept in the run, and
            later reports show it.
        shown: ids of images to show round by round; default confident ones of all classes.
        limit: number of images in the gallery.
        device: of the prediction networks of the rounds.
        out: the page, default `report.html` in the run's directory.
    """
    page, _ = _write_report(
        Path(run), truth=truth, test=test, shown=shown, limit=limit, device=device, out=out
    )
    return page


def report_training(
    run: Path, dataset: WeakDataset, truth: EvaluationDataset | None, log: Log, device: str
) -> None:
    """Write the report after a training; a failure is a line of the log, the run is not touched."""
    try:
        record_dataset(run, dataset)
        page, images = _write_report(run, truth=truth, device=device)
        write_tensorboard_pictures(read_run(run), images)
        log(f"{page}: report")
    except Exception as error:  # whatever it is, the training is done
        reason = " ".join(str(error).split()) or type(error).__name__
        log(f"no report ({reason}); the run is complete, `annocoin report {run}` tries again")


def _write_report(
    run: Path,
    *,
    truth: EvaluationDataset | None = None,
    test: TestSet | None = None,
    shown: Sequence[str] = (),
    limit: int = MAX_IMAGES,
    device: str = "cpu",
    out: str | Path | None = None,
) -> tuple[Path, list[ImageByRound]]:
    page = run / PAGE if out is None else Path(out)
    if page.is_dir():
        raise InputError(f"{page}: a directory; give the name of a file")
    read_run(run)  # or an error before the evaluation
    if test is not None:
        result = evaluate(test.predictions, test.dataset, protocol=test.protocol)
        record_evaluation(run, result, test.dataset)
    data = with_images_of(read_run(run), truth)
    ids = list(list(data.labels.values())[-1])[:limit] if data.labels else []
    tested = [] if test is None else list(test.dataset.labelled)[:limit]
    names = list(data.classes)
    names += [] if truth is None else truth.classes
    names += [] if test is None else test.dataset.classes
    classes = list(dict.fromkeys(names))
    with _folder_beside(page, len(ids) + len(tested) > INLINE_IMAGES) as (folder, url):
        gallery = Gallery(folder, url)
        if ids:
            images = _labelled_images(data, ids, truth, classes)
            gallery.add("Pseudo labels of the training images", "confidence", images, len(ids))
        if test is not None:
            images = _tested_images(test, tested, classes)
            title = f"Predictions on the test set, score {SHOWN_SCORE:g} or more"
            gallery.add(title, "score", images, len(tested))
        by_round = images_by_round(data, _chosen(data, gallery, ids, shown), device)
        html = render_page("report.html.j2", _context(data, gallery, by_round, classes))
    files.write_bytes(page, html.encode())
    return page, by_round


@contextmanager
def _folder_beside(page: Path, needed: bool) -> Iterator[tuple[Path | None, str]]:
    """A folder for the page's files while they are written, and its later name; or None.

    An earlier folder of the page is removed at the end.
    """
    final = page.with_name(f"{page.stem}-files")
    if needed and final.exists() and not (final / MARKER).is_file():
        raise InputError(f"{final}: exists and is not of a report; give another --out")
    page.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=page.parent, prefix=f".{page.stem}."))
    try:
        yield temporary if needed else None, quote(final.name)
        if (final / MARKER).is_file():
            shutil.rmtree(final)
        if needed:
            (temporary / MARKER).write_text(f"Pictures of {page.name}\n", encoding="utf-8")
            os.chmod(temporary, 0o755)
            os.replace(temporary, final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _chosen(
    data: RunData, gallery: Gallery, ids: Sequence[ImageId], shown: Sequence[str]
) -> list[ImageId]:
    if not shown:
        return [ids[i] for i in choose_images(gallery.sets[0]["rows"])] if ids else []
    known = {str(image_id): image_id for image_id in ids}
    for name in shown:
        if name not in known:
            raise InputError(f"--show {name}: {data.path} has no pseudo labels of such an image")
    return [known[name] for name in shown]


def _labelled_images(
    data: RunData,
    ids: Sequence[ImageId],
    truth: EvaluationDataset | None,
    classes: Sequence[str],
) -> Iterator[GalleryImage]:
    """The final pseudo labels of images, with seeds and regions where the run has them."""
    labels = list(data.labels.values())[-1]
    folders = {name: data.path / path for name, path in data.result["folders"].items()}
    seeds = SeedFolder(folders["seeds"]) if _is_dir(folders.get("seeds")) else {}
    regions = RegionFolder(folders["regions"]) if _is_dir(folders.get("regions")) else {}
    known = set() if truth is None else set(truth)
    for image_id in ids:
        image = data.images.get(image_id)
        true_instances = None
        if truth is not None and image_id in known:
            true_instances = _numbered(truth.truth(image_id), truth.classes, classes)
        yield GalleryImage(
            image_id,
            str(image_id) if image is None else image.file_name,
            None if image is None else image.path,
            labels[image_id].consensus_instances(),
            true_instances,
            () if image is None else image.labels,
            partial(seeds.__getitem__, image_id) if image_id in seeds else None,
            partial(regions.__getitem__, image_id) if image_id in regions else None,
        )


def _is_dir(path: Path | None) -> bool:
    return path is not None and path.is_dir()


def _numbered(instances: Instances, names: Sequence[str], classes: Sequence[str]) -> Instances:
    """Instances with the class numbers of another list, which has all the names."""
    instances = instances[:]
    instances.labels = torch.tensor(
        [classes.index(names[label - 1]) + 1 for label in instances.labels.tolist()],
        dtype=torch.int64,
    )
    return instances


def _tested_images(
    test: TestSet, images: Sequence[LabelledImage], classes: Sequence[str]
) -> Iterator[GalleryImage]:
    names = test.dataset.classes
    for image in images:
        truth = _numbered(test.dataset.truth(image.image_id), names, classes)
        nothing = Instances(size=truth.size, masks=[], labels=[])
        instances = test.predictions.get(image.image_id, nothing)
        instances = _numbered(instances[instances.scores >= SHOWN_SCORE], names, classes)
        yield GalleryImage(image.image_id, image.file_name, image.path, instances, truth)


def _context(
    data: RunData,
    gallery: Gallery,
    by_round: Sequence[ImageByRound],
    classes: Sequence[str],
) -> dict[str, Any]:
    confidence_charts, ranks = [], {}
    shown_labels = len(gallery.sets[0]["rows"]) if gallery.sets else 0
    if len(gallery.confidence) > 1:
        confidence_charts = [plots.reliability_chart(gallery.confidence, gallery.ious)]
        ranks = rank_figures(np.asarray(gallery.confidence), np.asarray(gallery.ious))
    elif data.labels:
        measured = data.round_figures(list(data.labels)[-1])
        ranks = {
            key.removeprefix("confidence_"): value
            for key, value in measured.items()
            if key.startswith("confidence_")
        }
    return {
        "title": data.name,
        "run": data,
        "facts": facts(data),
        "supervision": SUPERVISION[data.result["supervision"]],
        "warnings": data.warnings(),
        "evaluation_charts": plots.evaluation_charts(data),
        "learning_charts": [*plots.label_charts(data), *plots.objective_charts(data),
                            *plots.training_charts(data)],
        "confidence_charts": confidence_charts,
        "ranks": ranks,
        "seconds": data.seconds,
        "options": dotted_options(data.config),
        "sets": gallery.sets,
        "left_out": len(list(data.labels.values())[-1]) - shown_labels if data.labels else 0,
        "by_round": by_round,
        "data": {
            "classes": classes,
            "sets": gallery.sets,
            "rounds": [image.to_page() for image in by_round],
        },
    }  # fmt: skip


def facts(data: RunData) -> dict[str, str]:
    """The most important facts of a run, by name, for its page and for comparisons."""
    config = data.config
    architecture = config["prediction"]["architecture"]
    samples = config["conditional"]["training"]["samples"]
    rounds = f"{plural(config['rounds'], 'round')} of K = {samples} samples"
    if data.result["supervision"] == "mask":
        rounds = "full supervision"
    elif config.get("method", ANNOCOIN) != ANNOCOIN:
        rounds = METHODS[config["method"]].title
    elif not config["rounds"]:
        rounds = "no rounds, regions retrieved for the seeds"
    memory = max((cost.memory for cost in data.costs.values() if cost.memory), default=None)
    environment = data.environment
    machine = f"{environment['device']}, {environment['processes']} process"
    return {
        "Dataset": data.source or "not recorded",
        "Images": f"{len(data.images):,}" if data.images else "not recorded",
        "Classes": str(len(data.classes)),
        "Supervision": SUPERVISION[data.result["supervision"]],
        "Method": f"{rounds}, gamma {config['gamma']:g}",
        "Network": f"Mask R-CNN, {architecture['backbone']}, {architecture['min_size']} pixels",
        "Time": duration(data.seconds),
        "Peak memory": "not recorded" if memory is None else gigabytes(memory),
        "Machine": machine + ("es" if environment["processes"] > 1 else ""),
    }


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))


def gigabytes(count: float) -> str:
    """Bytes as gigabytes."""
    return f"{count / 2**30:.2f} GB"


def render_page(name: str, context: Mapping[str, Any]) -> str:
    """A page from a template, with style and script in it; all values are escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("annocoin.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"duration": duration, "gigabytes": gigabytes}
    folder = resources.files("annocoin.report") / "templates"
    style, script = ((folder / f"report.{kind}").read_text("utf-8") for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template(name).render(
        style=Markup(style), script=Markup(script), script_digest=digest, **context
    )


def dotted_options(options: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested options by their dotted names."""
    result: dict[str, str] = {}
    for name, value in options.items():
        if isinstance(value, dict):
            result |= dotted_options(value, f"{prefix}{name}.")
        else:
            result[prefix + name] = str(value)
    return result
