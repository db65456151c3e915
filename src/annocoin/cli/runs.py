"""Commands about training runs: demo, train, label, predict, export, report, verify."""

import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import annocoin
from annocoin.cli import options
from annocoin.cli.options import DatasetSource, choice, option
from annocoin.errors import InputError, Problems, plural

if TYPE_CHECKING:
    from annocoin.data.conversion import Format
    from annocoin.data.dataset import WeakDataset
    from annocoin.engine.preflight import Precomputed
    from annocoin.prediction.export import ExportFormat

LABEL_FORMATS = ("coco", "voc", "yolo", "labelme", "labelstudio")
LOW_CONFIDENCE = 0.5
MAX_OVERLAY_PIXELS = 16_000_000
METHOD = "The method, or a peer of the paper's table 1 to compare with: the same data and network."
ROUNDS = "Alternating rounds; 0 trains once on the retrieved seeds."
IMAGES = "Folder, image file or quoted glob pattern."
CHECK = "Images to compare the export with the network on: folder, file or quoted glob pattern."
DRY_RUN = "Check everything, print the plan with expected time, memory and disk space, and stop."
MEASURE = "Log the mAP of the pseudo labels, given DATASET's masks; training ignores them."

RUNS = "Run directory of `annocoin train`; several with --compare."
TRUTH = "Dataset with true masks of the training images, for IoUs and the confidence."
EVALUATE = "Test set with true masks: predict on it first, and show the average precision."
COMPARE = "Write one page that compares several runs."
FIGURES = "Also write the figures for a paper, as .png and .pdf."
SHOW = "Image to show round by round, by its id; repeatable."
PAGE = "The page to write."
GALLERY = "Images in the gallery."
DEFAULT_PAGE = "RUN/report.html, with --compare comparison.html"

Run = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory of `annocoin train`.")]
Network = Annotated[Path, typer.Argument(metavar="RUN", help=options.NETWORK)]
Seeds = Annotated[Path | None, option("Seeds from `annocoin seeds`.", metavar="DIR")]


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
    supervision: options.MethodSupervision = None,
    method: Annotated[str, choice(options.METHODS, METHOD)] = "annocoin",
    preset: options.Preset = "voc-r50",
    rounds: Annotated[int | None, option(ROUNDS, "from the preset")] = None,
    seed: Annotated[int | None, option("Random seed.", "0")] = None,
    overrides: options.Overrides = None,
    weights: options.Weights = None,
    limit: options.Limit = None,
    more_images: options.MoreImages = None,
    more_tags: options.MoreTags = None,
    regions: options.Regions = None,
    seeds: Seeds = None,
    classifier: options.Classifier = None,
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
    dry_run: Annotated[bool, typer.Option("--dry-run", help=DRY_RUN)] = False,
) -> None:
    """Train an instance segmentation network on weak labels.

    Runs all stages: regions, classifier, seeds, and alternating rounds of the conditional and the
    prediction network. After an interruption the same command continues.
    """
    from annocoin.engine.distribution import init_distributed
    from annocoin.files import refuse_input
    from annocoin.progress import format_duration

    started, supervision = time.monotonic(), supervision or options.METHODS[method]
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
    for line in _summary(weak):
        log(line)
    if dry_run:
        from annocoin.engine import preflight, presets

        config = presets.configure(
            preset, weak.classes, changes, rounds=rounds, seed=seed, weights=weights, method=method
        )
        lines = preflight.dry_run(
            weak, out, config, more_images=further, more_tags=tags, precomputed=precomputed,
            group=group, jobs=jobs, problems=source.problems,
        )  # fmt: skip
        log("\n".join(lines))
        options.print_skipped(source.problems)
        return
    run = annocoin.train(
        weak, out, preset, method=method, rounds=rounds, seed=seed, changes=changes,
        weights=weights,
        more_images=further, more_tags=tags, precomputed=precomputed, truth=truth, group=group,
        jobs=jobs, problems=source.problems, log=log,
    )  # fmt: skip
    duration = format_duration(time.monotonic() - started)
    log(f"{run.path}/prediction.safetensors: trained in {duration}")
    log(f"Next: annocoin predict {run.path} IMAGES --out DIR, or evaluate, or label.")
    options.print_skipped(source.problems)


def label_command(
    run: Run,
    dataset: options.Dataset,
    out: Annotated[Path, option(options.OUTPUT, metavar="PATH")],
    to: Annotated[str, choice(LABEL_FORMATS, "Output format.", True, "--format")] = "coco",
    supervision: Annotated[
        str | None,
        choice(options.SUPERVISION, "Labels to use.", "as in training", synonyms=options.SYNONYMS),
    ] = None,
    polygons: options.Polygons = False,
    limit: options.Limit = None,
    regions: options.Regions = None,
    seeds: Seeds = None,
    classifier: options.Classifier = None,
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
    from annocoin.data.conversion import FILES, check_output
    from annocoin.files import refuse_input

    refuse_input(out, dataset, run)
    check_output(out, to, polygons)
    if to not in FILES:
        _check_new(out)
    trained = annocoin.TrainedRun(run)
    source = DatasetSource(dataset, split, kind, images, skip_bad)
    labelled = annocoin.label(
        trained, source.weak(supervision or trained.supervision)[:limit],
        precomputed=_precomputed(regions, seeds, classifier), jobs=jobs, device=device,
        problems=source.problems,
    )  # fmt: skip
    loss = annocoin.write_dataset(labelled, out, cast("Format", to), polygons=polygons)
    confidences = [instance.confidence for image in labelled for instance in image.annotation]
    print(f"{out}: {len(labelled)} images, {len(confidences)} masks")
    known = [confidence for confidence in confidences if confidence is not None]
    if low := sum(confidence < LOW_CONFIDENCE for confidence in known):
        print(f"  {low} with a confidence below {LOW_CONFIDENCE}: review those first")
    options.print_loss(loss)
    options.print_skipped(source.problems)


def predict_command(
    run: Network,
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
    from annocoin.files import new_directory
    from annocoin.progress import track
    from annocoin.report import overlay
    from annocoin.trained import images_of

    _check_new(out)
    problems = Problems(skip_bad)
    trained, paths = annocoin.load(run), images_of(pattern)
    predicted = annocoin.predict(trained, paths, threshold=score, device=device, problems=problems)
    with new_directory(out) as folder:
        annocoin.write_dataset(predicted, folder / "predictions.json", "coco")
        names = _overlay_names([image.file_name for image in predicted])
        for image in track(predicted, "drawing") if overlays else ():
            best = tuple(i for i in image.annotation if (i.score or 0) >= shown)
            annotation = replace(image.annotation, weak_labels=best)
            pixels = annocoin.read_image(image.image_path())
            scale = min(1.0, (MAX_OVERLAY_PIXELS / (pixels.shape[0] * pixels.shape[1])) ** 0.5)
            picture = overlay.draw(pixels, annotation, predicted.classes, scale=scale)
            overlay.save(picture, folder / "overlays" / names[image.file_name])
    instances = sum(len(image.annotation) for image in predicted)
    found = f"{plural(instances, 'instance')} in {plural(len(predicted), 'image')}"
    print(f"{out}/predictions.json: {found}")
    options.print_skipped(problems)


def export_network_command(
    run: Network,
    to: Annotated[str, choice(options.EXPORT_FORMATS, "Output format.")],
    out: Annotated[Path, option("Output file; for torchvision a new folder.", metavar="PATH")],
    check: Annotated[str | None, option(CHECK, "synthetic scenes", metavar="IMAGES")] = None,
    score: Annotated[float, option("Discard instances with a lower score.")] = options.SCORE,
) -> None:
    """Export a trained network for other programs.

    Formats: onnx, torchscript, or torchvision (weights and Python code). The export is compared
    with the network on images of several sizes before it is written.
    """
    from annocoin.trained import images_of

    network = annocoin.load(run)
    images = () if check is None else images_of(check)
    annocoin.export(network, out, cast("ExportFormat", to), threshold=score, images=images)
    print(f"{out}: {len(network.classes)} classes, same instances as {network.path}")


def report_command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help=RUNS)],
    compare: Annotated[bool, typer.Option("--compare", help=COMPARE)] = False,
    truth: Annotated[Path | None, option(TRUTH, metavar="DATASET")] = None,
    split: Annotated[str | None, option("Image list of --truth.", "all images")] = None,
    evaluate: Annotated[Path | None, option(EVALUATE, metavar="DATASET")] = None,
    test_split: Annotated[str | None, option("Image list of --evaluate.", "all images")] = None,
    protocol: Annotated[str, choice(options.PROTOCOLS, "Definition of AP.")] = "chainercv",
    figures: Annotated[Path | None, option(FIGURES, metavar="DIR")] = None,
    show: Annotated[list[str] | None, option(SHOW, metavar="ID")] = None,
    limit: Annotated[int, typer.Option(help=GALLERY, metavar="N", min=1)] = options.GALLERY_IMAGES,
    out: Annotated[Path | None, option(PAGE, DEFAULT_PAGE, metavar="FILE")] = None,
    device: options.Device = options.AUTO_DEVICE,
    kind: options.Kind = None,
    images: options.Images = None,
    skip_bad: options.SkipBad = False,
) -> None:
    """Write the report of a run, a page to look at.

    Results, learning curves, samples by round, and a gallery of the labels. The page opens from
    disk, without network. `annocoin train` writes it as well.
    """
    from annocoin.files import refuse_input

    if out is not None:
        refuse_input(out, *runs, truth, evaluate)
        if out.suffix != ".html":
            raise InputError(f"{out}: the report is a page; give a name that ends in .html")
    if compare:
        if truth or evaluate or figures or show:
            raise InputError("--compare uses what the runs have; evaluate each with its report")
        print(
            f"{annocoin.write_comparison(runs, out or Path('comparison.html'))}: {len(runs)} runs"
        )
        return
    if len(runs) > 1:
        raise InputError(f"{len(runs)} runs; give one, or --compare")
    from annocoin.engine.distribution import open_device
    from annocoin.report.page import TestSet
    from annocoin.trained import predict_dataset

    trained, truth_data, test = annocoin.TrainedRun(runs[0]), None, None
    if truth is not None:
        truth_data = DatasetSource(truth, split, kind, images, skip_bad).evaluation()
    if evaluate is not None:
        source = DatasetSource(evaluate, test_split, kind, images, skip_bad)
        dataset, problems = source.evaluation(), source.problems
        predictions = predict_dataset(trained, dataset.labelled, device=device, problems=problems)
        test = TestSet(dataset, predictions, protocol)
        options.print_skipped(problems)
    target = str(open_device(device))
    page = annocoin.write_report(
        trained.path, truth=truth_data, test=test, shown=show or (), limit=limit, device=target,
        out=out,
    )  # fmt: skip
    print(f"{page}: report")
    if figures is not None:
        from annocoin.report.figures import write_figures

        files = write_figures(
            trained.path, figures, truth=truth_data, shown=show or (), device=target
        )
        print(f"{figures}: {len(files)} figures")


def verify_command(run: Run) -> None:
    """Check that all files of a run are as they were written.

    Prints what is missing or damaged, and what to do; the exit code is then 1.
    """
    problems = annocoin.verify_run(run)
    for line in problems:
        print(line)
    print(f"{run}: {len(problems) or 'no'} {'problem' if len(problems) == 1 else 'problems'}")
    if problems:
        raise typer.Exit(1)


def _overlay_names(file_names: list[str]) -> dict[str, str]:
    """x.png for the image x.jpg; x.jpg.png where there is another image of that stem."""
    names = {name: PurePosixPath(name).with_suffix(".png").as_posix() for name in file_names}
    counts = Counter(names.values())
    return {name: f"{name}.png" if counts[names[name]] > 1 else names[name] for name in names}


def _summary(weak: "WeakDataset") -> list[str]:
    """Images and labels of a dataset, and what looks wrong but small classes: the run has them."""
    from annocoin.engine.dataset_check import check_dataset
    from annocoin.engine.label_quality import check_class_sizes

    summary = check_dataset(weak)
    return [*summary.lines(), *(w for w in summary.warnings if w not in check_class_sizes(weak))]


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
