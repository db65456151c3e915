"""Commands about runs: train, label, predict."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer

from annocoin import api, files
from annocoin.cli import options
from annocoin.cli.options import (
    Dataset,
    Images,
    KindOption,
    SkipBad,
    Split,
    SupervisionOption,
    report,
)
from annocoin.data.conversion import Format, write_dataset
from annocoin.data.images import read_image
from annocoin.data.loading import DatasetKind, load_evaluation
from annocoin.engine.distribution import AUTO, PRECISIONS, init_distributed
from annocoin.engine.precomputed import Precomputed
from annocoin.engine.presets import PRESETS
from annocoin.errors import InputError, Problems, check_choice, check_positive
from annocoin.prediction.predictor import SCORE
from annocoin.progress import track
from annocoin.regions.storage import RegionFolder
from annocoin.report import overlay
from annocoin.seeds.seed_set import SeedFolder

FOR_GPUS = ("voc-r50", "voc-r101", "voc-r50-literal")
FORMATS = ("coco", "voc", "yolo", "labelme")

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="What `annocoin train` made.")]
RegionsOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Use what `annocoin regions` made.")
]
SeedsOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Use what `annocoin seeds` made.")
]
ClassifierOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Use this classifier; none is trained.")
]
Jobs = Annotated[int | None, typer.Option(help="Processes; default all cores.")]
Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda|mps", help="Where to compute.")]


def train_command(
    dataset: Dataset,
    out: Annotated[Path, typer.Option(metavar="RUN", help="The run's directory.")],
    supervision: SupervisionOption = "image",
    preset: Annotated[str, typer.Option(metavar="|".join(PRESETS), help="Of all options.")] = (
        "voc-r50"
    ),
    rounds: Annotated[
        int | None, typer.Option(help="R; with 0 one training on the seeds' regions.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change an option; repeatable."),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Files of backbone weights, such as resnet50*.pth."),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first so many images.")] = None,
    regions: RegionsOption = None,
    seeds: SeedsOption = None,
    classifier: ClassifierOption = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure pseudo labels with the dataset's masks.")
    ] = False,
    jobs: Jobs = None,
    device: Device = AUTO,
    devices: Annotated[int, typer.Option(help="Processes that train, on each machine.")] = 1,
    nodes: Annotated[int, typer.Option(help="Machines.")] = 1,
    precision: Annotated[
        str, typer.Option(metavar="|".join(PRECISIONS), help="Of training.")
    ] = "32-true",
    split: Split = None,
    kind: KindOption = None,
    images: Images = None,
    skip_bad: SkipBad = False,
) -> None:
    """Train everything on weak labels. Interrupted, the same command goes on where it was."""
    started = time.monotonic()
    problems = Problems(skip_bad)
    check_choice("preset", preset, PRESETS)
    files.refuse_input(out, dataset)
    changes = options.assignments(assignments or [])
    weak = options.load_weak(dataset, supervision, split, kind, images, problems)
    if limit is not None:
        check_positive("--limit", limit)
        weak = replace(weak, images=weak.images[:limit])
    truth = None
    if measure:
        truth = load_evaluation(
            dataset,
            split=split,
            kind=cast(DatasetKind | None, kind),
            images=images,
            problems=problems,
        )
    group = init_distributed(devices=devices, nodes=nodes, device=device, precision=precision)
    say = (lambda line: print(line, flush=True)) if group.is_main else (lambda line: None)
    if group.device.type == "cpu" and preset in FOR_GPUS:
        say(f"{preset} is made for GPUs; here it will take days: --preset voc-cpu takes hours")
    run = api.train(
        weak,
        out,
        preset,
        rounds=rounds,
        seed=seed,
        changes=changes,
        weights=weights,
        given=_given(regions, seeds, classifier),
        truth=truth,
        group=group,
        jobs=jobs,
        problems=problems,
        say=say,
    )
    say(f"{run.path}/prediction.safetensors: trained in {_duration(time.monotonic() - started)}")
    say(f"Next: annocoin predict {run.path} IMAGES --out DIR, or evaluate, or label.")
    report(problems)


def label_command(
    run: RunArgument,
    dataset: Dataset,
    out: Annotated[Path, typer.Option(help="A new folder; a .json file for coco.")],
    to: Annotated[
        str, typer.Option("--format", metavar="|".join(FORMATS), help="Of the masks.")
    ] = "coco",
    supervision: Annotated[
        str | None,
        typer.Option(metavar="image|box|point|mixed", help="Default: what RUN was trained from."),
    ] = None,
    regions: RegionsOption = None,
    seeds: SeedsOption = None,
    classifier: ClassifierOption = None,
    jobs: Jobs = None,
    device: Device = AUTO,
    split: Split = None,
    kind: KindOption = None,
    images: Images = None,
    skip_bad: SkipBad = False,
) -> None:
    """Masks for your weak labels: each label has one, and each mask a confidence."""
    problems = Problems(skip_bad)
    check_choice("--format", to, FORMATS)
    files.refuse_input(out, dataset, run)
    if to == "coco" and out.suffix != ".json":
        raise InputError(f"{out}: COCO is one file; give a name that ends in .json")
    if to != "coco":
        _check_new(out)
    trained = api.TrainedRun(run)
    found = api.label(
        trained,
        options.load_weak(
            dataset, supervision or trained.supervision, split, kind, images, problems
        ),
        given=_given(regions, seeds, classifier),
        jobs=jobs,
        device=device,
        problems=problems,
    )
    loss = write_dataset(found, out, cast(Format, to))
    weak_labels = [weak_label for image in found for weak_label in image.annotation]
    print(f"{out}: {len(found)} images, {len(weak_labels)} masks")
    sure = [
        weak_label.confidence for weak_label in weak_labels if weak_label.confidence is not None
    ]
    if sure:
        doubtful = sum(value < 0.5 for value in sure)
        print(f"  {doubtful} have a confidence below .5: look at those first")
    for line in loss.lines():
        print(f"  {line}")
    report(problems)


def predict_command(
    run: RunArgument,
    where: Annotated[
        str, typer.Argument(metavar="IMAGES", help="A folder, an image, or a quoted pattern.")
    ],
    out: Annotated[Path, typer.Option(help="A new folder.")],
    threshold: Annotated[
        float, typer.Option("--score", help="Instances of a lower score are left out.")
    ] = SCORE,
    shown: Annotated[float, typer.Option(help="The least score in the pictures.")] = 0.5,
    batch: Annotated[int, typer.Option(help="Images at once.")] = 4,
    overlays: Annotated[bool, typer.Option(help="Draw a picture of each image.")] = True,
    device: Device = AUTO,
    skip_bad: SkipBad = False,
) -> None:
    """Masks for new images: OUT/predictions.json (COCO) and OUT/overlays/*.png."""
    problems = Problems(skip_bad)
    check_positive("--batch", batch)
    _check_new(out)
    trained = api.TrainedRun(run)
    found = api.predict(
        trained,
        api.images_of(where),
        threshold=threshold,
        batch=batch,
        device=device,
        problems=problems,
    )
    with files.new_directory(out) as folder:
        write_dataset(found, folder / "predictions.json", "coco")
        for image in track(found, "drawing"):
            if overlays:
                good = tuple(
                    weak_label
                    for weak_label in image.annotation
                    if (weak_label.score or 0) >= shown
                )
                annotation = replace(image.annotation, weak_labels=good)
                picture = overlay.draw(read_image(image.image_path()), annotation, found.classes)
                overlay.save(picture, folder / "overlays" / f"{image.file_name}.png")
    instances = sum(len(image.annotation) for image in found)
    print(f"{out}/predictions.json: {instances} instances in {len(found)} images")
    report(problems)


def _check_new(out: Path) -> None:
    """Raise before hours of work if what they give could not be written."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists already; give a new or empty folder")


def _given(regions: Path | None, seeds: Path | None, classifier: Path | None) -> Precomputed:
    if classifier is not None and not classifier.is_file():
        raise InputError(f"{classifier}: no such file; `annocoin seeds` makes classifiers")
    if seeds is not None and regions is None:
        raise InputError("--seeds without --regions; give the regions that they were made with")
    return Precomputed(
        None if regions is None else RegionFolder(regions),
        None if seeds is None else SeedFolder(seeds),
        classifier,
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
