"""Commands about regions: make them for a dataset, show those of an image, export them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

from annocoin import files
from annocoin.cli.options import (
    Dataset,
    DatasetFirst,
    Images,
    KindOption,
    SkipBad,
    Split,
    SupervisionOption,
    load,
    load_weak,
    report,
)
from annocoin.data.images import read_image
from annocoin.data.predictions import write_predictions
from annocoin.engine.classifier_training import options_for
from annocoin.engine.dataset_stages import first_labels, make_regions, make_seeds
from annocoin.errors import InputError, Problems, check_positive
from annocoin.regions.boundaries import BoundaryDetector, DetectorKind
from annocoin.regions.proposals import RegionOptions, RegionProposer
from annocoin.regions.storage import RegionFolder, export_regions
from annocoin.report import overlay
from annocoin.report.figures import draw_regions, draw_seeds
from annocoin.seeds.back_propagation import RuleName
from annocoin.seeds.retrieval import WAYS, retrieve
from annocoin.seeds.seed_set import SeedFolder
from annocoin.seeds.seeder import SeedOptions

regions_app = typer.Typer(
    cls=DatasetFirst,
    help="Regions of images: `annocoin regions DATASET --out DIR` makes them for a dataset. "
    "(A dataset that is called make, show or export: say ./show.)",
    rich_markup_mode=None,
)
Boundaries = Annotated[str, typer.Option(metavar="network|gradient", help="The boundary detector.")]


@regions_app.command("make")
def make_regions_command(
    dataset: Dataset,
    out: Annotated[Path, typer.Option(help="Folder for the regions, one file an image.")],
    jobs: Annotated[int | None, typer.Option(help="Processes; default all cores.")] = None,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="mcg:DIR|coco:FILE", help="Take the regions from these."),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(help="The most regions of an image. Default 1000, or all with --from."),
    ] = None,
    boundaries: Boundaries = "network",
    split: Split = None,
    kind: KindOption = None,
    images: Images = None,
    skip_bad: SkipBad = False,
) -> None:
    """Make the regions of a dataset's images; the word `make` may be left out.

    Interrupted, the same command goes on where it was.
    """
    problems = Problems(skip_bad)
    options = RegionOptions(cast(DetectorKind, boundaries), limit, source)
    labelled = load(dataset, split, kind, images, problems)
    folder = make_regions(labelled, out, options, jobs=jobs, problems=problems)
    made = sum(image.image_id in folder for image in labelled)
    if not made:
        raise InputError(f"{dataset}: no usable image; {problems.skipped[0]}")
    print(f"{out}: regions of {made} images")
    report(problems)


@regions_app.command("show")
def show_regions_command(
    image: Annotated[Path, typer.Argument(help="An image file.")],
    out: Annotated[Path, typer.Option(help="The picture to write, .png or .jpg.")],
    limit: Annotated[int, typer.Option(help="The most regions.")] = 1000,
    boundaries: Boundaries = "network",
) -> None:
    """Draw an image's boundaries, hierarchy, superpixels and best regions."""
    files.refuse_input(out, image)
    pixels = read_image(image)
    propose = RegionProposer(BoundaryDetector(cast(DetectorKind, boundaries)), limit=limit)
    analysis = propose.analyse(pixels)
    regions = propose.choose(analysis, pixels.shape[:2])
    overlay.save(draw_regions(pixels, analysis, regions), out)
    print(f"{out}: {len(regions)} regions over {regions.membership.shape[1]} superpixels")


@regions_app.command("export")
def export_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `annocoin regions` made.")],
    out: Annotated[Path, typer.Option(help="The .json file to write.")],
    limit: Annotated[int | None, typer.Option(help="Only so many of each image.")] = None,
) -> None:
    """Write regions as COCO RLE JSON (image_id, segmentation, score), for other tools."""
    made = RegionFolder(folder)
    count = export_regions(made, out, limit=limit)
    print(f"{out}: {count} regions of {len(made)} images")


seeds_app = typer.Typer(
    cls=DatasetFirst,
    help="Seeds, the first guess of where objects are: `annocoin seeds DATASET --regions DIR "
    "--out DIR` makes them. (A dataset that is called make or show: say ./show.)",
    rich_markup_mode=None,
)
Regions = Annotated[Path, typer.Option(metavar="DIR", help="What `annocoin regions` made.")]


@seeds_app.command("make")
def make_seeds_command(
    dataset: Dataset,
    regions: Regions,
    out: Annotated[Path, typer.Option(help="Folder for the seeds, one file an image.")],
    supervision: SupervisionOption = "image",
    classifier: Annotated[
        Path | None, typer.Option(help="No training: OUT/classifier.safetensors of another run.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="resnet50 (default), resnet101, mobilenet_v2, tiny, ...")
    ] = None,
    backbone_weights: Annotated[
        str | None, typer.Option(help="A file, or none. Default: torchvision's ImageNet weights.")
    ] = None,
    stride_in_1x1: Annotated[
        bool, typer.Option("--stride-in-1x1", help="The weights are of an original ResNet.")
    ] = False,
    size: Annotated[int | None, typer.Option(help="Pixels of the longer side, training.")] = None,
    epochs: Annotated[int | None, typer.Option(help="How often each image is seen.")] = None,
    batch: Annotated[int | None, typer.Option(help="Images a step.")] = None,
    frozen: Annotated[
        int | None, typer.Option(help="Parts of the backbone that stay; ResNet: 6 up to layer2.")
    ] = None,
    precision: Annotated[str | None, typer.Option(metavar="32|bf16", help="Of training.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    validation_split: Annotated[
        str | None, typer.Option(help="Measure the classifier on this list after each epoch.")
    ] = None,
    seed_size: Annotated[
        int | None, typer.Option(help="The same, looking for seeds; default 1.4 times as many.")
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="The least a peak counts, as a share of the class's best.")
    ] = SeedOptions.threshold,
    rule: Annotated[
        str, typer.Option(metavar="conserving|published", help="Of peak back-propagation.")
    ] = SeedOptions.rule,
    jobs: Annotated[int | None, typer.Option(help="Processes; default all cores.")] = None,
    device: Annotated[str, typer.Option(metavar="cpu|cuda|...", help="Where to compute.")] = "cpu",
    split: Split = None,
    kind: KindOption = None,
    images: Images = None,
    skip_bad: SkipBad = False,
) -> None:
    """Train a classifier on the tags, trace its peaks back, and retrieve a region for each.

    The word `make` may be left out. Interrupted, the same command goes on where it was.
    """
    problems = Problems(skip_bad)
    weak = load_weak(dataset, supervision, split, kind, images, problems)
    validation = None
    if validation_split is not None:
        validation = load_weak(dataset, "image", validation_split, kind, images, problems)
    changes = {
        "backbone_weights": backbone_weights,
        "stride_in_1x1": stride_in_1x1 or None,
        "size": size,
        "epochs": epochs,
        "batch": batch,
        "frozen": frozen,
        "precision": precision,
        "seed": seed,
    }
    said = {name: value for name, value in changes.items() if value is not None}
    if classifier is not None and (said or backbone or validation_split):
        raise InputError("--classifier is used as it is; leave out the options of training")
    made_regions = RegionFolder(regions)
    seeds = make_seeds(
        weak,
        made_regions,
        out,
        SeedOptions(size=seed_size, threshold=threshold, rule=cast(RuleName, rule)),
        classifier=classifier or options_for(backbone or "resnet50", **said),
        validation=validation,
        jobs=jobs,
        device=device,
        problems=problems,
        log=_print_epoch,
    )
    made = [image for image in weak if image.image_id in seeds]
    if not made:
        raise InputError(f"{dataset}: no usable image; {problems.skipped[0]}")
    print(f"{out}: seeds of {len(made)} images")
    for way in WAYS:
        labels = first_labels(
            weak,
            made_regions,
            seeds,
            way,
            jobs=jobs,
            problems=problems if way == WAYS[0] else Problems(skip_bad),  # reported once
        )
        file = out / f"labels-{way}.json"
        write_predictions(file, labels, weak.category_ids)
        print(f"{file}: {sum(map(len, labels.values()))} first labels, by {way}")
    report(problems)


@seeds_app.command("show")
def show_seeds_command(
    seeds: Annotated[Path, typer.Argument(metavar="DIR", help="What `annocoin seeds` made.")],
    dataset: Dataset,
    regions: Regions,
    out: Annotated[Path, typer.Option(help="The picture to write, .png or .jpg.")],
    supervision: SupervisionOption = "image",
    count: Annotated[int, typer.Option(help="How many images.")] = 8,
    split: Split = None,
    kind: KindOption = None,
    images: Images = None,
    skip_bad: SkipBad = False,
) -> None:
    """Draw peaks, their responses and the retrieved regions, an image a row."""
    check_positive("--count", count)
    problems = Problems(skip_bad)
    weak = load_weak(dataset, supervision, split, kind, images, problems)
    folder, region_folder = SeedFolder(seeds), RegionFolder(regions)
    if folder.made.get("supervision") != supervision:
        raise InputError(
            f"{seeds}: made with --supervision {folder.made.get('supervision')}; say the same"
        )
    rows = []
    shown = [i for i in weak if i.image_id in folder and i.image_id in region_folder][:count]
    for image in shown:
        with problems.caught():
            found, candidates = folder[image.image_id], region_folder[image.image_id]
            labels = {
                way: retrieve(candidates, found, image.annotation, way).instances(candidates, found)
                for way in WAYS
            }
            rows.append(draw_seeds(image.pixels(), image.annotation, found, labels, weak.classes))
    if not rows:
        raise InputError(f"{seeds}: no seeds and regions of images of {dataset}")
    overlay.save(overlay.sheet(rows, 1), out)
    print(f"{out}: {len(rows)} images")
    report(problems)


def _print_epoch(figures: dict[str, Any]) -> None:
    words = f"epoch {figures['epoch']}: loss {figures['loss']:.3f}"
    words += f", tag mAP in training {100 * figures['training_tag_map']:.1f} %"
    if "validation_tag_map" in figures:
        words += f", in validation {100 * figures['validation_tag_map']:.1f} %"
    print(f"{words}, {figures['seconds']:.0f} s", flush=True)
