"""Commands about datasets: evaluate, convert, show, synth."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

import annocoin
from annocoin.cli import options
from annocoin.cli.options import DatasetSource, choice, option
from annocoin.errors import InputError

if TYPE_CHECKING:
    from annocoin.data.conversion import Format
    from annocoin.data.dataset import Supervision
    from annocoin.evaluation.evaluator import Evaluation

PREDICTIONS = (
    "COCO results (.json), folder with one results file per image, or run directory, whose network "
    "predicts first."
)


def evaluate_command(
    predictions: Annotated[Path, typer.Argument(help=PREDICTIONS)],
    dataset: options.Dataset,
    protocol: Annotated[str, choice(options.PROTOCOLS, "Definition of AP.")] = "chainercv",
    iou: Annotated[
        list[float] | None, option("IoU threshold; repeatable.", "0.25 0.5 0.7 0.75", metavar="T")
    ] = None,
    json: Annotated[Path | None, option("Write the results as JSON.", metavar="FILE")] = None,
    keep: Annotated[Path | None, option("Write the predictions of a run.", metavar="FILE")] = None,
    device: options.Device = options.AUTO_DEVICE,
    split: options.Split = None,
    kind: options.Kind = None,
    images: options.Images = None,
    skip_bad: options.SkipBad = False,
) -> None:
    """Compute the average precision (AP) of predictions.

    The ground truth is the masks of the dataset; labels without a mask are not counted.
    """
    from annocoin.files import refuse_input, write_json

    for file in (json, keep):
        if file is not None:
            refuse_input(file, predictions, dataset)
    run = _find_run(predictions)
    if keep is not None and run is None:
        raise InputError(f"--keep {keep}: {predictions} is no run; it holds predictions already")
    source = DatasetSource(dataset, split, kind, images, skip_bad)
    truth, problems = source.evaluation(), source.problems
    if run is None:
        instances = annocoin.read_predictions(predictions, truth, problems)
    else:
        from annocoin.api import predict_dataset

        instances = predict_dataset(run, truth.labelled, device=device, problems=problems)
        if keep is not None:
            annocoin.write_predictions(keep, instances, truth.labelled.category_ids)
    result = annocoin.evaluate(
        instances, truth, protocol=protocol, thresholds=iou or options.IOU_THRESHOLDS
    )
    if json is not None:
        write_json(json, result.to_json(), indent=2)
    print(f"AP (%) by IoU threshold, protocol {result.protocol}, {result.images} images")
    _print_table(result)
    if truth.without_mask:
        print(f"{truth.without_mask} labels of the dataset have no mask and were not counted")
    options.print_skipped(problems)


def convert_command(
    path: Annotated[Path, typer.Argument(metavar="IN", help="Dataset, or predictions.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help=options.OUTPUT)],
    to: Annotated[str, choice(options.FORMATS, "Output format; results is for predictions.")],
    dataset: Annotated[Path | None, option("Dataset that the predictions IN are for.")] = None,
    split: options.Split = None,
    kind: options.Kind = None,
    images: options.Images = None,
    skip_bad: options.SkipBad = False,
) -> None:
    """Convert a dataset, or predictions for one, to another format."""
    from annocoin.files import refuse_input

    refuse_input(out, path, dataset)
    source = DatasetSource(dataset or path, split, kind, images, skip_bad)
    labelled, problems = source.labelled(), source.problems
    if dataset is not None:
        labelled = annocoin.with_predictions(labelled, path, problems)
    loss = annocoin.write_dataset(labelled, out, cast("Format", to))
    labels = sum(len(image.annotation) for image in labelled)
    print(f"{out}: {len(labelled)} images, {labels} labels")
    options.print_loss(loss)
    options.print_skipped(problems)


def show_command(
    dataset: options.Dataset,
    out: options.PictureFile,
    predictions: Annotated[Path | None, option("Draw these instead of the labels.")] = None,
    supervision: options.Supervision = "mixed",
    count: Annotated[int, typer.Option(min=1, help="Number of images.")] = 12,
    columns: Annotated[int, typer.Option(min=1, help="Images per row.")] = 4,
    scale: Annotated[float, option("Magnification, at most 16.")] = 1.0,
    split: options.Split = None,
    kind: options.Kind = None,
    images: options.Images = None,
    skip_bad: options.SkipBad = False,
) -> None:
    """Draw images of a dataset with labels or predictions."""
    from annocoin.data.dataset import weaken
    from annocoin.report import overlay

    if not 0 < scale <= 16:
        raise InputError(f"--scale {scale:g}; expected above 0 and at most 16")
    source = DatasetSource(dataset, split, kind, images, skip_bad)
    labelled, problems = source.labelled(), source.problems
    if predictions is not None:
        labelled = annocoin.with_predictions(labelled, predictions, problems)
    pictures = []
    for image in labelled[:count]:
        with problems.caught():
            pixels = annocoin.read_image(image.image_path())
            annotation = weaken(image.annotation, cast("Supervision", supervision))
            pictures.append(overlay.draw(pixels, annotation, labelled.classes, scale=scale))
    if not pictures:
        raise InputError(f"{dataset}: no usable image to show")
    overlay.save(overlay.sheet(pictures, columns), out)
    print(f"{out}: {len(pictures)} of {len(labelled)} images")
    options.print_skipped(problems)


def synth_command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Output: a new folder.")],
    images: Annotated[int, option("Number of images.")] = 200,
    size: Annotated[int, option("Image height and width, in pixels.")] = 128,
    seed: Annotated[int, option("Random seed.")] = 0,
) -> None:
    """Generate a synthetic dataset.

    Writes VOC layout, with the splits train, val and trainval.
    """
    from annocoin.synthetic.dataset import write_synthetic

    write_synthetic(out, images=images, size=size, seed=seed)
    print(f"{out}: {images} images of {size} x {size} in VOC layout")


def _find_run(path: Path) -> "annocoin.TrainedRun | None":
    """The run of a directory; None for predictions, which do not need the training code."""
    if not path.is_dir():
        return None
    from annocoin.engine.run_directory import is_run

    return annocoin.TrainedRun(path) if is_run(path) else None


def _print_table(result: "Evaluation") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    table.add_column("class", no_wrap=True)
    for threshold in result.thresholds:
        table.add_column(f"{threshold:g}", justify="right")
    for name, column in zip(result.classes, result.ap.T, strict=True):
        table.add_row(escape(name), *("-" if ap != ap else f"{100 * ap:.1f}" for ap in column))
    table.add_section()
    table.add_row("mean", *(f"{100 * mean:.1f}" for mean in result.mean.values()))
    Console().print(table)
