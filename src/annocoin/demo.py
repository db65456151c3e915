"""Everything that annocoin does, in minutes on two cores and without a download.

First the network of the package on photographs. Then the method on synthetic scenes: the same
prediction network, with the same number of steps, from tags, from boxes, from the regions
retrieved for the seeds (no rounds), and from true masks (the upper bound).
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from annocoin import api, files
from annocoin.data.conversion import Format, write_dataset
from annocoin.data.dataset import EvaluationDataset, Supervision
from annocoin.data.images import read_image
from annocoin.data.loading import load_evaluation, load_weak
from annocoin.data.predictions import read_predictions, write_predictions
from annocoin.engine.image_stages import CLASSIFIER_FILE, make_classifier, make_regions, make_seeds
from annocoin.engine.parallel import cores, work_through
from annocoin.engine.preflight import Precomputed
from annocoin.engine.presets import configure
from annocoin.errors import InputError, Problems
from annocoin.evaluation.evaluator import evaluate
from annocoin.progress import format_duration, time_left
from annocoin.regions.storage import RegionFolder
from annocoin.report import overlay
from annocoin.report.comparison import write_comparison
from annocoin.report.figures import rounds_figure
from annocoin.report.page import TestSet, write_report
from annocoin.seeds.seed_set import SeedFolder
from annocoin.synthetic.creatures import EASY
from annocoin.synthetic.dataset import write_synthetic
from annocoin.trained import TrainedRun, load, predict, predict_dataset
from annocoin.types import ImageId, Instances

COMMAND = "annocoin demo"
SUMMARY = "summary.json"
STARTED = ".demo"
PRESET = "synthetic"
CHANGES = {
    "classifier.epochs": "4",
    "seeds.size": "300",
    "seeds.threshold": "0.85",
    "conditional.training.initial_steps": "60",
    "conditional.training.steps": "15",
    "prediction.training.steps": "80",
    "prediction.training.final_steps": "180",
}
"""Fewer peaks and steps than the preset has: the scenes of the demo are easy."""

STAGE_SECONDS = {
    "photographs": 0.5,
    "scenes": 2.0,
    "regions": 26.0,
    "classifier": 10.0,
    "seeds": 29.0,
    "training in four settings": 170.0,
    "labels, pictures and page": 4.0,
}
"""About, on two cores, for the time that is left."""

DONE_BEFORE = 0.1
"""Share of its seconds in which a stage cannot have been done anew."""

PREDICTIONS = "predictions.json"
NETWORK = "voc"
PHOTOGRAPHS = Path(__file__).parent / "photographs"
IMAGES = 240
SHOWN_SCENES = 8
LABELLED_SCENES = 16
MIN_SHOWN_SCORE = 0.5
FILES = {
    "photographs.jpg": f"predictions of {NETWORK}, the network of the package",
    "picture.jpg": "predictions on test scenes, and the truth",
    "rounds.jpg": "samples and predictions of the first and the last round, from tags",
    "labels": "masks for the tags of some scenes, in four formats",
    "image/report.html": "the run from tags, with a gallery; the others likewise",
    SUMMARY: "the figures",
}


@dataclass(frozen=True)
class Setting:
    """One way to train the prediction network."""

    name: str
    supervision: Supervision
    rounds: int | None
    title: str


SETTINGS = (
    Setting("image", "image", None, "from tags"),
    Setting("box", "box", None, "from boxes"),
    Setting("seeds", "image", 0, "from tags, without rounds"),
    Setting("full", "mask", None, "from true masks"),
)


def run_demo(
    out: Path, *, images: int = IMAGES, seed: int = 0, changes: Mapping[str, str] | None = None
) -> None:
    """Make data, train in four settings, evaluate, label, draw.

    A finished demo in `out` is replaced, an interrupted one is resumed.

    Args:
        images: number of scenes; the last fifth is the test split.
        seed: random seed of the training.
        changes: of the preset's options.
    """
    stages = _Stages()
    _prepare_folder(out)
    with stages.timed("photographs"):
        _predict_photographs(out / "photographs.jpg")
    data = out / "data"
    with stages.timed("scenes"):
        if not data.exists():
            write_synthetic(data, images=images, style=EASY)
    images = len(load_evaluation(data))  # of the demo that is resumed, if one is
    runs = _train(out, data, seed, {**CHANGES, **(changes or {})}, stages)
    test = load_evaluation(data, split="val")
    predictions = {
        name: read_predictions(run.path / PREDICTIONS, test) for name, run in runs.items()
    }
    with stages.timed("labels, pictures and page"):
        _label(out, runs["image"], data)
        _draw(test, predictions, out / "picture.jpg")
        picture = rounds_figure(runs["image"].path, load_weak(data, "image", split="train"))
        overlay.save(picture, out / "rounds.jpg")
        page = write_comparison([run.path for run in runs.values()], out / "report.html")
    summary = _print_table(test, predictions)
    content = {"command": COMMAND, **summary, "seconds": stages.seconds, "images": images}
    files.write_json(out / SUMMARY, {**content, "seed": seed}, indent=2)
    (out / STARTED).unlink(missing_ok=True)
    print(f"{format_duration(stages.seconds)}. In {out} are:")
    for name, description in FILES.items():
        print(f"  {name:18s} {description}")
    print(f"Open {page}: the four runs side by side.")


class _Stages:
    """The time that the stages of the demo take, a line each."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.expected, self.measured = dict(STAGE_SECONDS), dict[str, float]()

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.started

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        before = time.monotonic()
        yield
        seconds = time.monotonic() - before
        if seconds < DONE_BEFORE * self.expected[name]:  # in a demo that was interrupted
            self.expected.pop(name)
        else:
            self.measured[name] = seconds
        left = time_left(self.expected, self.measured)
        print(f"{name}: {format_duration(seconds)}{f'; {left}' if left else ''}", flush=True)


def _print_table(
    test: EvaluationDataset, predictions: Mapping[str, Mapping[ImageId, Instances]]
) -> dict[str, dict[str, float]]:
    """Print and return mAP by setting and IoU threshold."""
    summary = {}
    for setting in SETTINGS:
        mean = evaluate(predictions[setting.name], test, protocol="chainercv").mean
        summary[setting.name] = {f"{threshold:g}": value for threshold, value in mean.items()}
    print(f"\nmAP (%) on {len(test)} test scenes, protocol chainercv")
    thresholds = list(summary["full"])
    print(f"  {'at IoU':26s}" + "".join(f"{threshold:>8s}" for threshold in thresholds))
    for setting in SETTINGS:
        values = summary[setting.name].values()
        print(f"  {setting.title:26s}" + "".join(f"{100 * value:8.1f}" for value in values))
    print()
    return summary


def _predict_photographs(path: Path) -> None:
    """Draw what the network of the package finds in the photographs of the package."""
    network = load(NETWORK)
    predicted = predict(network, sorted(PHOTOGRAPHS.glob("*.jpg")), threshold=MIN_SHOWN_SCORE)
    pictures = []
    for image in predicted:
        names = [predicted.classes[label.label - 1] for label in image.annotation]
        print(f"{image.file_name}: {', '.join(names) or 'nothing'}", flush=True)
        pixels = read_image(image.image_path())
        pictures.append(overlay.draw(pixels, image.annotation, predicted.classes))
    overlay.save(overlay.sheet(pictures, len(pictures)), path)
    print(f"{path}: predictions of {NETWORK}, the network of the package", flush=True)


def _prepare_folder(out: Path) -> None:
    if out.exists() and any(out.iterdir()):
        if _is_finished(out):
            aside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
            out.replace(aside / out.name)  # at once, not file by file
            shutil.rmtree(aside)
        elif not (out / STARTED).is_file():
            raise InputError(f"{out}: exists and is not a demo; give a new or empty folder")
    files.write_bytes(out / STARTED, b"")


def _is_finished(folder: Path) -> bool:
    """Whether the folder holds a finished demo, which may be replaced."""
    try:
        content = json.loads((folder / SUMMARY).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("command") == COMMAND


def _train(
    out: Path, data: Path, seed: int, changes: Mapping[str, str], stages: _Stages
) -> dict[str, TrainedRun]:
    """The runs by name. Regions, classifier and seeds are computed once for all."""
    shared = out / "shared"
    tags, boxes = (load_weak(data, kind, split="train") for kind in ("image", "box"))
    config = configure(PRESET, tags.classes, changes, seed=seed)
    with stages.timed("regions"):
        regions = make_regions(tags, shared / "regions", config.regions)
    with stages.timed("classifier"):
        make_classifier(tags, shared / "seeds-image", config.classifier, seed=seed)
    classifier = shared / "seeds-image" / CLASSIFIER_FILE
    with stages.timed("seeds"):
        for dataset in (tags, boxes):
            folder = shared / f"seeds-{dataset.supervision}"
            make_seeds(dataset, regions, folder, config.seeds, classifier=classifier)
    tasks = [(setting, out, data, seed, changes) for setting in SETTINGS]  # the longest first
    jobs = min(cores(), 2)
    with stages.timed("training in four settings"):
        work_through(tasks, _Training, "training in 4 settings", jobs=jobs, problems=Problems())
    return {setting.name: TrainedRun(out / setting.name) for setting in SETTINGS}


class _Training:
    """Trains, predicts and reports in a process of its own: two threads are hardly faster here."""

    def __call__(
        self, setting: Setting, out: Path, data: Path, seed: int, changes: Mapping[str, str]
    ) -> None:
        shared = out / "shared"
        seeds = "seeds-box" if setting.supervision == "box" else "seeds-image"
        truth, test = (load_evaluation(data, split=split) for split in ("train", "val"))
        run = api.train(
            load_weak(data, setting.supervision, split="train"),
            out / setting.name,
            PRESET,
            rounds=setting.rounds,
            seed=seed,
            changes=changes,
            precomputed=Precomputed(
                RegionFolder(shared / "regions"),
                SeedFolder(shared / seeds),
                shared / "seeds-image" / CLASSIFIER_FILE,
            ),
            truth=truth,
            jobs=1,
            report=False,
            log=lambda line: print(f"  {setting.name}: {line}", flush=True),
        )
        predictions = predict_dataset(run, test.labelled)
        write_predictions(run.path / PREDICTIONS, predictions, test.labelled.category_ids)
        write_report(run.path, truth=truth, test=TestSet(test, predictions))


def _label(out: Path, run: TrainedRun, data: Path) -> None:
    """Masks for the tags of some training scenes, in every format."""
    shared = out / "shared"
    folders = RegionFolder(shared / "regions"), SeedFolder(shared / "seeds-image")
    scenes = load_weak(data, "image", split="train")[:LABELLED_SCENES]
    labels = api.label(run, scenes, precomputed=Precomputed(*folders))
    shutil.rmtree(out / "labels", ignore_errors=True)
    with files.new_directory(out / "labels") as folder:
        formats: tuple[Format, ...] = ("coco", "voc", "yolo", "labelme")
        for name in formats:
            path = folder / (f"{name}.json" if name == "coco" else name)
            for line in write_dataset(labels, path, name).lines():
                print(f"  labels as {name}: {line}")


def _draw(
    test: EvaluationDataset, predictions: Mapping[str, Mapping[ImageId, Instances]], path: Path
) -> None:
    """Test scenes, a row each: the networks' predictions, and the truth."""
    pictures = []
    for image in test.labelled[:SHOWN_SCENES]:
        pixels = read_image(image.image_path())
        panels = {name: by_image[image.image_id] for name, by_image in predictions.items()}
        panels = {name: i[i.scores >= MIN_SHOWN_SCORE] for name, i in panels.items()}
        panels["truth"] = test.truth(image.image_id)
        for name, instances in panels.items():
            annotation = instances.annotation()
            picture = overlay.draw(
                pixels, annotation, test.classes, scale=1.5, caption=name, by_class=True
            )
            pictures.append(picture)
    overlay.save(overlay.sheet(pictures, 2 * (len(SETTINGS) + 1)), path)
