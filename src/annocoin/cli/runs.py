"""Commands about training runs: demo, train, label, predict."""

import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import annocoin
from annocoin.cli import options
from annocoin.cli.options import DatasetSource, choice, option
from annocoin.errors import InputError, Problems

if TYPE_CHECKING:
    from annocoin.data.conversion import Format
    from annocoin.engine.preflight import Precomputed

LABEL_FORMATS = ("coco", "voc", "yolo", "labelme")
LOW_CONFIDENCE = 0.5
ROUNDS = "Alternating rounds; 0 trains once on the retrieved seeds."
IMAGES = "Folder, image file or quoted glob pattern."
MEASURE = "Log the mAP of the pseudo labels, given DATASET's masks; training ignores them."

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of `annocoin train`.")]
Regions = Annotated[Path | None, option("Regions from `annocoin regions`.", metavar="DIR")]
Seeds = Annotated[Path | None, option("Seeds from `annocoin seeds`.", metavar="DIR")]
Classifier = Annotated[Path | None, option("Trained classifier.safetensors.", metavar="FILE")]


def demo_command(
    out: Annotated[Path, option("Output folder.", metavar="DIR")] = Path("runs/demo"),
    images: Annotated[int, option("Number of scenes.")] = options.DEMO_IMAGES,
    seed: Annotated[int, option("Random seed of the training.")] = 0,
    overrides: options.Overrides = None,
) -> None:
    """Train and evaluate on synthetic scenes, in minutes.

    Generates the scenes, trains from tags, boxes, seeds and masks, and compares the results.
    """
    from annocoin.demo import run_demo

    run_demo(out, images=images, seed=seed, changes=options.parse_overrides(overrides))


def train_command(
    dataset: options.Dataset,
    out: Annotated[Path, option("Run directory.", metavar="RUN")],
    supervision: options.Supervision = "image",
    preset: options.Preset = "voc-r50",
    rounds: Annotated[int | None, option(ROUNDS, "from the preset")] = None,
    seed: Annotated[int | None, option("Random seed.", "0")] = None,
    overrides: options.Overrides = None,
    weights: options.Weights = None,
    limit: options.Limit = None,
    more_images: options.MoreImages = None,
    more_tags: options.MoreTags = None,
    regions: Regions = None,
    seeds: Seeds = None,
    classifier: Classifier = None,
    measure: Annotated[bool, typer.Option("--measure", help=MEASURE)] = False,
    jobs: options.Jobs = None,
    device: options.Device = options.AUTO_DEVICE,
    devices: Annotated[int, option("Training processes (GPUs) per machine.")] = 1,
    nodes: Annotated[int, option("Number of machines.")] = 1,
    precision: Annotated[str, choice(options.PRECISIONS, "Training precision.")] = "32-true",
    split: options.Split = None,
    kind: options.Kind = None,
    images: options.Images = None,
    skip_bad: options.SkipBad = False,
) -> None:
    """Train an instance segmentation network on weak labels.

    Runs all stages: regions, classifier, seeds, and alternating rounds of the conditional and the
    prediction network. After an interruption the same command continues.
    """
    from annocoin.engine.distribution import init_distributed
    from annocoin.files import refuse_input

    started = time.monotonic()
    refuse_input(out, dataset, *(more_images or ()), *(more_tags or ()))
    changes = options.parse_overrides(overrides)
    precomputed = _precomputed(regions, seeds, classifier)
    source = DatasetSource(dataset, split, kind, images, skip_bad)
    weak = source.weak(supervision)[:limit]
    further = source.more(more_images, supervision, weak)
    tags = source.more(more_tags, "image", weak)
    truth = source.evaluation() if measure else None
    group = init_distributed(devices=devices, nodes=nodes, device=device, precision=precision)
    log: Any = partial(print, flush=True) if group.is_main else (lambda line: None)
    if group.device.type == "cpu" and preset in options.GPU_PRESETS:
        log(f"{preset} is meant for GPUs; on this CPU it takes days, --preset voc-cpu a few hours")
    run = annocoin.train(
        weak, out, preset, rounds=rounds, seed=seed, changes=changes, weights=weights,
        more_images=further, more_tags=tags, precomputed=precomputed, truth=truth, group=group,
        jobs=jobs, problems=source.problems, log=log,
    )  # fmt: skip
    duration = timedelta(seconds=round(time.monotonic() - started))
    log(f"{run.path}/prediction.safetensors: trained in {duration}")
    log(f"Next: annocoin predict {run.path} IMAGES --out DIR, or evaluate, or label.")
    options.print_skipped(source.problems)


def label_command(
    run: Run,
    dataset: options.Dataset,
    out: Annotated[Path, option(options.OUTPUT, metavar="PATH")],
    to: Annotated[str, choice(LABEL_FORMATS, "Output format.", True, "--format")] = "coco",
    supervision: Annotated[
        str | None, choice(options.SUPERVISION, "Labels to use.", "as in training")
    ] = None,
    limit: options.Limit = None,
    regions: Regions = None,
    seeds: Seeds = None,
    classifier: Classifier = None,
    jobs: options.Jobs = None,
    device: options.Device = options.AUTO_DEVICE,
    split: options.Split = None,
    kind: options.Kind = None,
    images: options.Images = None,
    skip_bad: options.SkipBad = False,
) -> None:
    """Turn weak labels into instance masks.

    Every label gets at least one mask, with a confidence.
    """
    from annocoin.files import refuse_input

    refuse_input(out, dataset, run)
    if to != "coco":
        _check_new(out)
    elif out.suffix != ".json":
        raise InputError(f"{out}: COCO is one file; give a name that ends in .json")
    trained = annocoin.TrainedRun(run)
    source = DatasetSource(dataset, split, kind, images, skip_bad)
    labelled = annocoin.label(
        trained, source.weak(supervision or trained.supervision)[:limit],
        precomputed=_precomputed(regions, seeds, classifier), jobs=jobs, device=device,
        problems=source.problems,
    )  # fmt: skip
    loss = annocoin.write_dataset(labelled, out, cast("Format", to))
    confidences = [instance.confidence for image in labelled for instance in image.annotation]
    print(f"{out}: {len(labelled)} images, {len(confidences)} masks")
    known = [confidence for confidence in confidences if confidence is not None]
    if low := sum(confidence < LOW_CONFIDENCE for confidence in known):
        print(f"  {low} with a confidence below {LOW_CONFIDENCE}: review those first")
    options.print_loss(loss)
    options.print_skipped(source.problems)


def predict_command(
    run: Run,
    pattern: Annotated[str, typer.Argument(metavar="IMAGES", help=IMAGES)],
    out: Annotated[Path, option("Output: a new folder.", metavar="DIR")],
    score: Annotated[float, option("Discard instances with a lower score.")] = options.SCORE,
    shown: Annotated[float, option("Minimum score of instances in the overlays.")] = 0.5,
    overlays: Annotated[bool, option("Draw the instances on each image.")] = True,
    device: options.Device = options.AUTO_DEVICE,
    skip_bad: options.SkipBad = False,
) -> None:
    """Predict instance masks in new images.

    Writes OUT/predictions.json (COCO, with scores) and OUT/overlays/*.png.
    """
    from annocoin.api import images_of
    from annocoin.files import new_directory
    from annocoin.progress import track
    from annocoin.report import overlay

    _check_new(out)
    problems = Problems(skip_bad)
    trained, paths = annocoin.TrainedRun(run), images_of(pattern)
    predicted = annocoin.predict(trained, paths, threshold=score, device=device, problems=problems)
    with new_directory(out) as folder:
        annocoin.write_dataset(predicted, folder / "predictions.json", "coco")
        for image in track(predicted, "drawing") if overlays else ():
            best = tuple(i for i in image.annotation if (i.score or 0) >= shown)
            annotation = replace(image.annotation, weak_labels=best)
            pixels = annocoin.read_image(image.image_path())
            picture = overlay.draw(pixels, annotation, predicted.classes)
            overlay.save(picture, folder / "overlays" / f"{image.file_name}.png")
    instances = sum(len(image.annotation) for image in predicted)
    print(f"{out}/predictions.json: {instances} instances in {len(predicted)} images")
    options.print_skipped(problems)


def _check_new(out: Path) -> None:
    """Raise before hours of work if their output could not be written."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists already; give a new or empty folder")


def _precomputed(
    regions: Path | None, seeds: Path | None, classifier: Path | None
) -> "Precomputed":
    from annocoin.engine.preflight import Precomputed
    from annocoin.regions.storage import RegionFolder
    from annocoin.seeds.seed_set import SeedFolder

    if classifier is not None and not classifier.is_file():
        raise InputError(f"{classifier}: no such file; `annocoin classifier` trains one")
    if seeds is not None and regions is None:
        raise InputError("--seeds without --regions; give the regions they were computed from")
    return Precomputed(
        None if regions is None else RegionFolder(regions),
        None if seeds is None else SeedFolder(seeds),
        classifier,
    )
