"""Commands about datasets: check, evaluate, convert, show, synth."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

import annocoin
from annocoin.cli import options
from annocoin.cli.options import DatasetSource, choice, option
from annocoin.errors import InputError, plural

if TYPE_CHECKING:
    from annocoin.data.conversion import Format
    from annocoin.data.dataset import LabelledImages, Supervision
    from annocoin.engine.dataset_check import DatasetSummary
    from annocoin.evaluation.evaluator import Evaluation

PREDICTIONS = (
    "COCO results (.json), folder with one results file per image, or run directory, "
    "prediction.safetensors or name of a network of the package, which predicts first."
)


def check_command(
    dataset: options.Dataset,
    split: options.Split = None,
    kind: options.Kind = None,
    images: options.Images = None,
) -> None:
    """Check a dataset, and advise how to train on it.

    Prints images, classes, and what looks wrong, such as similar names of classes. The exit code
    is 1 if it has errors, which `annocoin train` refuses.
    """
    from annocoin.data.loading import recognise
    from annocoin.engine.dataset_check import advise_preset, advise_supervision, check_dataset

    source = DatasetSource(dataset, split, kind, images, skip_bad=True)
    labelled, bad = source.labelled(), source.problems.skipped
    summary = check_dataset(labelled)
    print("\n".join(summary.lines()))
    _print_classes(summary)
    for line in bad:
        print(f"error: {line}")
    for line in summary.warnings:
        print(line)
    supervision = advise_supervision(summary, kind or recognise(dataset))  # type: ignore[arg-type]
    preset, precision = advise_preset(summary)
    extra = f" --precision {precision}" if precision != "32-true" else ""
    extra += "" if split is None else f" --split {split}"
    extra += "" if images is None else f" --images {images}"
    print(
        f"advice: annocoin train {dataset} --supervision {supervision} --preset {preset}{extra} "
        "--out RUN"
    )
    for line in _expected(labelled, supervision, preset, precision):
        print(f"  {line}")
    if bad:
        print(f"train stops at {plural(len(bad), 'error')}: correct the labels, or use --skip-bad")
        raise typer.Exit(1)


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
    network = _find_network(predictions)
    if keep is not None and network is None:
        raise InputError(f"--keep {keep}: {predictions} is no run; it holds predictions already")
    source = DatasetSource(dataset, split, kind, images, skip_bad)
    truth, problems = source.evaluation(), source.problems
    if network is None:
        instances = annocoin.read_predictions(predictions, truth, problems)
    else:
        from annocoin.trained import predict_dataset

        instances = predict_dataset(network, truth.labelled, device=device, problems=problems)
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
    polygons: options.Polygons = False,
    split: options.Split = None,
    kind: options.Kind = None,
    images: options.Images = None,
    skip_bad: options.SkipBad = False,
) -> None:
    """Convert a dataset, or predictions for one, to another format."""
    from annocoin.data.conversion import check_output
    from annocoin.files import refuse_input

    refuse_input(out, path, dataset)
    check_output(out, to, polygons)
    source = DatasetSource(dataset or path, split, kind, images, skip_bad)
    labelled, problems = source.labelled(), source.problems
    if dataset is not None:
        labelled = annocoin.with_predictions(labelled, path, problems)
    loss = annocoin.write_dataset(labelled, out, cast("Format", to), polygons=polygons)
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
    style: Annotated[str, choice(options.SCENE_STYLES, "How difficult the scenes are.")] = "hard",
) -> None:
    """Generate a synthetic dataset.

    Writes VOC layout, with the splits train, val and trainval.
    """
    from annocoin.synthetic.creatures import STYLES
    from annocoin.synthetic.dataset import write_synthetic

    write_synthetic(out, images=images, size=size, seed=seed, style=STYLES[style])
    print(f"{out}: {images} images of {size} x {size} in VOC layout")


def _print_classes(summary: "DatasetSummary") -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("class", box=None, pad_edge=False)
    table.add_column("images", justify="right")
    table.add_column("labels", justify="right")
    for name, count in summary.images_by_class.items():
        table.add_row(escape(name), str(count), str(summary.labels_by_class[name]))
    Console().print(table)


def _expected(
    labelled: "LabelledImages", supervision: "Supervision", preset: str, precision: str
) -> list[str]:
    """The expected time, memory and disk space of a training on this machine."""
    from dataclasses import replace

    from annocoin.data.dataset import weak_dataset
    from annocoin.engine.distribution import AUTO, open_device, single_process
    from annocoin.engine.preflight import Precomputed, plan_with_estimates, with_precision_of
    from annocoin.engine.presets import configure

    images = tuple(  # a COCO file can be checked without its images
        replace(image, path=image.path or Path(image.file_name)) for image in labelled
    )
    weak = weak_dataset(replace(labelled, images=images), supervision)
    group = single_process(str(open_device(AUTO)), precision)
    config = with_precision_of(group, configure(preset, weak.classes))
    return plan_with_estimates(config, weak, Precomputed(), None, Path(), group)[0][1:]


def _find_network(path: Path) -> "annocoin.TrainedNetwork | None":
    """The network of a run, file or name; None for predictions, which need no torchvision."""
    if path.is_dir():
        from annocoin.engine.run_directory import is_run

        is_network = is_run(path)
    else:  # without a suffix and a file, it is the name of a network
        is_network = path.suffix == ".safetensors" or not (path.suffix or path.exists())
    return annocoin.load(path) if is_network else None


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
