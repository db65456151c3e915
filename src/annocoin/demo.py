"""The whole job on data that it makes itself: no download, minutes on two cores.

The same prediction network, for the same number of steps, from tags, from boxes, from the regions
that seeds retrieve (no rounds), and from the true masks, which is the upper bound.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from annocoin import api, files
from annocoin.api import TrainedRun
from annocoin.data.conversion import Format, write_dataset
from annocoin.data.dataset import EvaluationDataset, Supervision
from annocoin.data.images import read_image
from annocoin.data.loading import load_evaluation, load_weak
from annocoin.engine.config import override
from annocoin.engine.dataset_stages import CLASSIFIER, make_regions, make_seeds
from annocoin.engine.parallel import cores, work_through
from annocoin.engine.precomputed import Precomputed
from annocoin.engine.presets import preset
from annocoin.errors import InputError, Problems
from annocoin.evaluation.evaluator import evaluate
from annocoin.regions.storage import RegionFolder
from annocoin.report import overlay
from annocoin.report.figures import picture_of_rounds
from annocoin.seeds.seed_set import SeedFolder
from annocoin.synthetic.dataset import write_synthetic
from annocoin.types import ImageId, Instances

MADE_BY = "annocoin demo"
SUMMARY = "summary.json"
STARTED = ".demo"
PRESET = "synthetic"
IMAGES = 240
SHOWN = 0.5
"""The least score of an instance in the picture."""


@dataclass(frozen=True)
class Way:
    """One way to train the prediction network."""

    name: str
    supervision: Supervision
    rounds: int | None
    words: str


WAYS = (
    Way("image", "image", None, "from tags"),
    Way("box", "box", None, "from boxes"),
    Way("seeds", "image", 0, "from tags, without rounds"),
    Way("full", "mask", None, "from true masks"),
)


def run_demo(
    out: Path,
    *,
    images: int = IMAGES,
    seed: int = 0,
    changes: Mapping[str, str] | None = None,
) -> None:
    """Make data, train four ways, evaluate, label, draw. A finished demo in `out` goes.

    One that was interrupted goes on.

    Args:
        images: how many scenes; the last fifth is the test split.
        seed: of everything random in the training.
        changes: of the preset's options.
    """
    began = time.monotonic()
    _make_room(out)
    data = out / "data"
    if not data.exists():
        write_synthetic(data, images=images)
    images = len(load_evaluation(data))  # those of a demo that was interrupted, if it was
    runs = _train(out, data, seed, changes or {})
    test = load_evaluation(data, split="val")
    print(f"mAP (%) on {len(test)} test scenes, protocol chainercv")
    found, summary = {}, {}
    for way in WAYS:
        found[way.name] = api.predict_dataset(runs[way.name], test.labelled)
        mean = evaluate(found[way.name], test, protocol="chainercv").mean
        summary[way.name] = {f"{threshold:g}": value for threshold, value in mean.items()}
        cells = "   ".join(f"@{t} {100 * v:5.1f}" for t, v in summary[way.name].items())
        print(f"  {way.words:26s} {cells}")
    _label(out, runs["image"], data)
    _draw(test, found, out / "picture.jpg")
    picture = picture_of_rounds(runs["image"].path, load_weak(data, "image", split="train"))
    overlay.save(picture, out / "rounds.jpg")
    seconds = time.monotonic() - began
    content = {"made by": MADE_BY, **summary, "seconds": seconds, "images": images, "seed": seed}
    files.write_json(out / SUMMARY, content, indent=2)
    (out / STARTED).unlink(missing_ok=True)
    print(f"{seconds / 60:.1f} min. Look at {out}/picture.jpg: test scenes, and")
    print(f"{out}/rounds.jpg: samples and predictions, first and last round.")
    print(f"Masks for the tags, in four formats: {out}/labels. Figures: {out}/{SUMMARY}.")


def _make_room(out: Path) -> None:
    if out.exists() and any(out.iterdir()):
        if _is_finished(out):
            aside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
            out.replace(aside / out.name)  # at once, and not file by file
            shutil.rmtree(aside)
        elif not (out / STARTED).is_file():
            raise InputError(f"{out}: exists and is no demo; give a new or empty folder")
    files.write_bytes(out / STARTED, b"")


def _is_finished(folder: Path) -> bool:
    """Whether a demo made the folder, so that another may replace it."""
    try:
        content = json.loads((folder / SUMMARY).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and content.get("made by") == MADE_BY


def _train(out: Path, data: Path, seed: int, changes: Mapping[str, str]) -> dict[str, TrainedRun]:
    """The runs by name. Regions, classifier and seeds are made once, for all."""
    made = out / "made"
    tags, boxes = (load_weak(data, way, split="train") for way in ("image", "box"))
    config = override(replace(preset(PRESET, tags.classes), seed=seed), changes).seeded()
    regions = make_regions(tags, made / "regions", config.regions)
    seeds = make_seeds(tags, regions, made / "seeds", config.seeds, classifier=config.classifier)
    classifier = seeds.path / CLASSIFIER
    make_seeds(boxes, regions, made / "seeds-box", config.seeds, classifier=classifier)
    tasks = [(way, out, data, seed, changes) for way in WAYS]
    work_through(tasks, _Trainer, "training four ways", jobs=min(cores(), 2), problems=Problems())
    return {way.name: TrainedRun(out / way.name) for way in WAYS}


class _Trainer:
    """Trains in a process of its own: with networks as small, two threads are hardly faster."""

    def __call__(
        self, way: Way, out: Path, data: Path, seed: int, changes: Mapping[str, str]
    ) -> None:
        made = out / "made"
        seeds = made / ("seeds-box" if way.supervision == "box" else "seeds")
        given = Precomputed(
            RegionFolder(made / "regions"), SeedFolder(seeds), made / "seeds" / CLASSIFIER
        )
        api.train(
            load_weak(data, way.supervision, split="train"),
            out / way.name,
            PRESET,
            rounds=way.rounds,
            seed=seed,
            changes=changes,
            given=given,
            truth=load_evaluation(data, split="train"),
            jobs=1,
            say=lambda line: print(f"  {way.name}: {line}", flush=True),
        )


def _label(out: Path, run: TrainedRun, data: Path) -> None:
    """The training scenes' tags as masks, in every format."""
    found = api.label(run, load_weak(data, "image", split="train"))
    shutil.rmtree(out / "labels", ignore_errors=True)
    with files.new_directory(out / "labels") as folder:
        formats: tuple[Format, ...] = ("coco", "voc", "yolo", "labelme")
        for name in formats:
            place = folder / (f"{name}.json" if name == "coco" else name)
            for line in write_dataset(found, place, name).lines():
                print(f"  labels as {name}: {line}")


def _draw(
    test: EvaluationDataset, found: Mapping[str, Mapping[ImageId, Instances]], path: Path
) -> None:
    """Test scenes, a row each: what the networks find, and the truth."""
    pictures = []
    for image in test.labelled[:8]:
        pixels = read_image(image.image_path())
        answers = {name: own[image.image_id] for name, own in found.items()}
        answers = {name: own[own.scores >= SHOWN] for name, own in answers.items()}
        answers["truth"] = test.truth(image.image_id)
        for name, own in answers.items():
            picture = overlay.draw(pixels, own.annotation(), test.classes, scale=1.5)
            overlay.caption(picture, name, 2, picture.shape[0], 0.4)
            pictures.append(picture)
    overlay.save(overlay.sheet(pictures, 10), path)
