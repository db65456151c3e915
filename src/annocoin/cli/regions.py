"""Commands about regions: make them for a dataset, show those of an image, export them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer

from annocoin import atomic
from annocoin.cli.groups import DatasetFirst
from annocoin.cli.options import Dataset, Images, KindOption, SkipBad, Split, load, report
from annocoin.data.images import read_image
from annocoin.errors import InputError, Problems
from annocoin.regions import (
    BoundaryDetector,
    RegionFolder,
    RegionOptions,
    RegionProposer,
    export_regions,
    make_regions,
)
from annocoin.regions.boundaries import DetectorKind
from annocoin.report import overlay
from annocoin.report.regions import draw_regions

app = typer.Typer(
    cls=DatasetFirst,
    help="Regions of images: `annocoin regions DATASET --out DIR` makes them for a dataset. "
    "(A dataset that is called make, show or export: say ./show.)",
    rich_markup_mode=None,
)
Boundaries = Annotated[str, typer.Option(metavar="network|gradient", help="The boundary detector.")]


@app.command("make")
def make_command(
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


@app.command("show")
def show_command(
    image: Annotated[Path, typer.Argument(help="An image file.")],
    out: Annotated[Path, typer.Option(help="The picture to write, .png or .jpg.")],
    limit: Annotated[int, typer.Option(help="The most regions.")] = 1000,
    boundaries: Boundaries = "network",
) -> None:
    """Draw an image's boundaries, hierarchy, superpixels and best regions."""
    atomic.refuse_input(out, image)
    pixels = read_image(image)
    propose = RegionProposer(BoundaryDetector(cast(DetectorKind, boundaries)), limit=limit)
    analysis = propose.analyse(pixels)
    regions = propose.choose(analysis, pixels.shape[:2])
    overlay.save(draw_regions(pixels, analysis, regions), out)
    print(f"{out}: {len(regions)} regions over {regions.membership.shape[1]} superpixels")


@app.command("export")
def export_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="What `annocoin regions` made.")],
    out: Annotated[Path, typer.Option(help="The .json file to write.")],
    limit: Annotated[int | None, typer.Option(help="Only so many of each image.")] = None,
) -> None:
    """Write regions as COCO RLE JSON (image_id, segmentation, score), for other tools."""
    made = RegionFolder(folder)
    count = export_regions(made, out, limit=limit)
    print(f"{out}: {count} regions of {len(made)} images")
