"""Commands about datasets: evaluate, convert, synth, show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from annocoin import api, files
from annocoin.cli.options import Dataset, Images, KindOption, SkipBad, Split, load, report
from annocoin.data import loading
from annocoin.data.conversion import Format, with_predictions, write_dataset
from annocoin.data.dataset import Supervision, weaken
from annocoin.data.images import read_image
from annocoin.data.loading import DatasetKind
from annocoin.data.predictions import read_predictions, write_predictions
from annocoin.engine.distribution import AUTO
from annocoin.engine.run_directory import is_run
from annocoin.errors import InputError, Problems
from annocoin.evaluation.evaluator import THRESHOLDS, Evaluation, evaluate
from annocoin.report import overlay
from annocoin.synthetic.dataset import write_synthetic


def evaluate_command(
    predictions: Annotated[
        Path,
        typer.Argument(
            help="COCO results (.json), a folder of files, one an image, or a run, which predicts."
        ),
    ],
    dataset: Dataset,
    protocol: Annotated[
        str, typer.Option(metavar="chainercv|sds|bbtp|coco", help="How AP is computed.")
    ] = "chainercv",
    iou: Annotated[
        list[float] | None,
        typer.Option(metavar="T", help="Threshold; repeatable. Default .25 .5 .7 .75."),
    ] = None,
    split: Split = None,
    kind: KindOption = None,
    images: Images = None,
    json: Annotated[Path | None, typer.Option(help="Write the figures to this file.")] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what a run predicts, COCO results.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where a run's network computes.")] = AUTO,
    skip_bad: SkipBad = False,
) -> None:
    """Average precision of predicted instances against the true masks of a dataset."""
    problems = Problems(skip_bad)
    for file in (json, keep):
        if file is not None:
            files.refuse_input(file, predictions, dataset)
    if keep is not None and not is_run(predictions):
        raise InputError(f"--keep {keep}: {predictions} is no run, its instances are kept already")
    truth = loading.load_evaluation(
        dataset, split=split, kind=cast(DatasetKind | None, kind), images=images, problems=problems
    )
    if is_run(predictions):
        found = api.predict_dataset(
            api.TrainedRun(predictions), truth.labelled, device=device, problems=problems
        )
        if keep is not None:
            write_predictions(keep, found, truth.labelled.category_ids)
    else:
        found = read_predictions(predictions, truth, problems)
    result = evaluate(found, truth, protocol=protocol, thresholds=iou or THRESHOLDS)
    if json is not None:
        files.write_json(json, result.to_json(), indent=2)
    print(f"AP (%) by IoU threshold, protocol {result.protocol}, {result.images} images")
    Console().print(_table(result))
    if truth.without_mask:
        print(f"{truth.without_mask} labels of the dataset have no mask and were not counted")
    report(problems)


def convert_command(
    source: Annotated[Path, typer.Argument(metavar="IN", help="A dataset, or predictions.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder; .json for coco.")],
    to: Annotated[
        str, typer.Option(metavar="coco|voc|yolo|labelme|folder|results", help="The new format.")
    ],
    dataset: Annotated[
        Path | None, typer.Option(help="IN holds predictions for this dataset's images.")
    ] = None,
    split: Split = None,
    kind: KindOption = None,
    images: Images = None,
    skip_bad: SkipBad = False,
) -> None:
    """Rewrite a dataset, or predictions for one, in another format."""
    problems = Problems(skip_bad)
    files.refuse_input(out, source, dataset)
    labelled = load(dataset or source, split, kind, images, problems)
    if dataset is not None:
        labelled = with_predictions(labelled, source, problems)
    loss = write_dataset(labelled, out, cast(Format, to))
    weak_labels = sum(len(image.annotation) for image in labelled)
    print(f"{out}: {len(labelled)} images, {weak_labels} labels")
    for line in loss.lines():
        print(f"  {line}")
    report(problems)


def synth_command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    images: Annotated[int, typer.Option(help="How many.")] = 200,
    size: Annotated[int, typer.Option(help="Side length in pixels.")] = 128,
    seed: Annotated[int, typer.Option(help="Another seed, other scenes.")] = 0,
) -> None:
    """Make a synthetic dataset in VOC layout, with the splits train, val and trainval."""
    write_synthetic(out, images=images, size=size, seed=seed)
    print(f"{out}: {images} images of {size} x {size} in VOC layout")


def show_command(
    dataset: Dataset,
    out: Annotated[Path, typer.Option(help="The picture to write, .png or .jpg.")],
    predictions: Annotated[
        Path | None, typer.Option(help="Draw these instances instead of the labels.")
    ] = None,
    supervision: Annotated[
        str, typer.Option(metavar="image|box|point|mixed", help="Draw only what this leaves.")
    ] = "mixed",
    count: Annotated[int, typer.Option(help="How many images.")] = 12,
    columns: Annotated[int, typer.Option(help="Images in a row.")] = 4,
    scale: Annotated[float, typer.Option(help="Enlarge the images.")] = 1.0,
    split: Split = None,
    kind: KindOption = None,
    images: Images = None,
    skip_bad: SkipBad = False,
) -> None:
    """Draw the first images of a dataset with their labels, or with predictions, on one sheet."""
    if count < 1 or columns < 1 or not 0 < scale <= 16:
        raise InputError("--count and --columns are at least 1, --scale is above 0 and at most 16")
    problems = Problems(skip_bad)
    labelled = load(dataset, split, kind, images, problems)
    if predictions is not None:
        labelled = with_predictions(labelled, predictions, problems)
    pictures = []
    for image in labelled[:count]:
        with problems.caught():
            pixels = read_image(image.image_path())
            weak_labels = weaken(image.annotation, cast(Supervision, supervision))
            pictures.append(overlay.draw(pixels, weak_labels, labelled.classes, scale=scale))
    if not pictures:
        raise InputError(f"{dataset}: no usable image to show")
    overlay.save(overlay.sheet(pictures, columns), out)
    print(f"{out}: {len(pictures)} of {len(labelled)} images")
    report(problems)


def _table(result: Evaluation) -> Table:
    table = Table()
    table.add_column("class", no_wrap=True)
    for threshold in result.thresholds:
        table.add_column(f"{threshold:g}", justify="right")
    for name, column in zip(result.classes, result.ap.T, strict=True):
        table.add_row(escape(name), *("-" if ap != ap else f"{100 * ap:.1f}" for ap in column))
    table.add_section()
    table.add_row("mean", *(f"{100 * mean:.1f}" for mean in result.mean.values()))
    return table
