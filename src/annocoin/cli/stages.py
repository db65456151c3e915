"""Commands for single stages: `annocoin classifier`, `annocoin regions` and `annocoin seeds`."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer.core import TyperGroup

import annocoin
from annocoin.cli import options
from annocoin.cli.options import DatasetSource, choice, option
from annocoin.errors import InputError, Problems

if TYPE_CHECKING:
    from annocoin.backbones import Precision
    from annocoin.data.dataset import LabelledImages, WeakDataset, WeakImage
    from annocoin.engine.config import Config
    from annocoin.engine.image_stages import Execution
    from annocoin.regions.boundaries import DetectorKind
    from annocoin.regions.sam import SamOptions
    from annocoin.regions.storage import RegionFolder
    from annocoin.seeds.seed_set import SeedFolder
    from annocoin.types import Instances


class MakeByDefault(TyperGroup):
    """Runs the subcommand `make` unless the first argument is the name of another one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:
            args = ["--help"]
        elif args[0] not in self.commands and args[0] != "--help":
            args = ["make", *args]
        return super().parse_args(ctx, args)


regions_app = typer.Typer(
    cls=MakeByDefault,
    help="Compute, draw or export regions (mask proposals). `annocoin regions DATASET --out DIR` "
    "computes them; for a dataset folder named make, show or export write ./show.",
    rich_markup_mode=None,
)
seeds_app = typer.Typer(
    cls=MakeByDefault,
    help="Compute or draw seeds (peaks of an image classifier). `annocoin seeds DATASET --regions "
    "DIR --out DIR` computes them; for a dataset folder named make or show write ./show.",
    rich_markup_mode=None,
)
Boundaries = Annotated[str, choice(options.DETECTORS, "Boundary detector.")]
ImageFolder = Annotated[Path, option("Output folder, with one file per image.", metavar="DIR")]
Regions = Annotated[Path, option("Output of `annocoin regions`.", metavar="DIR")]
Seed = Annotated[int | None, option("Random seed.", "0")]
ValidationSplit = Annotated[str | None, option("Split to measure tag mAP on.")]
CLASSIFIER = "Trained classifier.safetensors, instead of training one."
FROM = (
    "Import proposals: MCG or COB .mat files, or COCO RLE masks such as SAM's; or run SAM, from "
    "ONNX files of its encoder and decoder."
)
FROM_SOURCES = "mcg:DIR|coco:FILE|sam:ENCODER,DECODER"
PRECISION = "Of the boundary detector."
PROMPTS = "SAM: labels whose boxes and points are prompts, beside the grid; image: grid only."
POINTS_PER_SIDE = "SAM: points of the grid of prompts along the longer side of an image."
PRED_IOU = "SAM: least predicted IoU of a mask."
STABILITY = "SAM: least IoU of the masks at a higher and a lower threshold of the logits."
NMS = "SAM: greatest IoU of two masks."


def classifier_command(
    dataset: options.Dataset,
    out: Annotated[Path, option("Output folder.", metavar="DIR")],
    preset: options.Preset = "voc-r50",
    seed: Seed = None,
    overrides: options.Overrides = None,
    weights: options.Weights = None,
    more_tags: options.MoreTags = None,
    validation_split: ValidationSplit = None,
    device: options.Device = options.AUTO_DEVICE,
    split: options.Split = None,
    kind: options.Kind = None,
    images: options.Images = None,
    skip_bad: options.SkipBad = False,
) -> None:
    """Train an image classifier from tags.

    Writes OUT/classifier.safetensors, for --classifier of `annocoin seeds` and `annocoin train`.
    After an interruption the same command continues.
    """
    from annocoin.data.dataset import with_more_tags
    from annocoin.engine.distribution import open_device, single_process
    from annocoin.engine.image_stages import CLASSIFIER_FILE, Execution
    from annocoin.engine.presets import configure
    from annocoin.files import refuse_input

    refuse_input(out, dataset, *(more_tags or ()))
    source = DatasetSource(dataset, split, kind, images, skip_bad)
    changes = options.parse_overrides(overrides)
    weak = source.weak("image")
    weak = with_more_tags(weak, source.more(more_tags, "image", weak))
    config = configure(
        preset, weak.classes, changes, seed=seed, weights=weights, networks=("classifier",)
    )
    execution = Execution(single_process(str(open_device(device))), problems=source.problems)
    validation = None if validation_split is None else source.weak("image", validation_split)
    _train_classifier(weak, out, config, validation, execution)
    file = out / CLASSIFIER_FILE
    print(f"{file}: {len(weak.classes)} classes, from the tags of {len(weak)} images")
    options.print_skipped(source.problems)


@regions_app.command("make")
def make_regions_command(
    dataset: options.Dataset,
    out: ImageFolder,
    source: Annotated[str | None, typer.Option("--from", metavar=FROM_SOURCES, help=FROM)] = None,
    limit: Annotated[int | None, option("Regions per image.", "1000, all of an import")] = None,
    boundaries: Boundaries = "network",
    precision: Annotated[str, choice(options.PRECISIONS, PRECISION)] = "32-true",
    supervision: Annotated[str | None, choice(options.PROMPT_SUPERVISION, PROMPTS, "image")] = None,
    points_per_side: Annotated[int | None, option(POINTS_PER_SIDE, "8", metavar="N")] = None,
    pred_iou_thresh: Annotated[float | None, option(PRED_IOU, "0.7")] = None,
    stability_thresh: Annotated[float | None, option(STABILITY, "0.6")] = None,
    nms_thresh: Annotated[float | None, option(NMS, "0.9")] = None,
    jobs: options.Jobs = None,
    split: options.Split = None,
    kind: options.Kind = None,
    images: options.Images = None,
    skip_bad: options.SkipBad = False,
) -> None:
    """Compute the regions of a dataset's images.

    The word `make` is optional. After an interruption the same command continues.
    """
    from annocoin.engine.image_stages import Execution, make_regions, make_sam_regions
    from annocoin.regions.proposals import RegionOptions

    data = DatasetSource(dataset, split, kind, images, skip_bad)
    execution = Execution(jobs=jobs, problems=data.problems)
    sam = dict(
        points_per_side=points_per_side, pred_iou_thresh=pred_iou_thresh,
        stability_thresh=stability_thresh, nms_thresh=nms_thresh,
    )  # fmt: skip
    loaded: LabelledImages | WeakDataset
    if source is not None and source.startswith("sam:"):
        if precision != "32-true":
            raise InputError("--precision is not for --from sam:ENCODER,DECODER")
        sam_options = _sam_options(source, boundaries, **sam, limit=limit)
        loaded = weak = data.weak(supervision or "image")
        folder = make_sam_regions(weak, out, sam_options, execution)
    else:
        for name, value in {"supervision": supervision, **sam}.items():
            if value is not None:
                raise InputError(f"--{name.replace('_', '-')} is for --from sam:ENCODER,DECODER")
        of_detector: Precision = "bf16" if precision == "bf16-mixed" else "32"
        region_options = RegionOptions(cast("DetectorKind", boundaries), limit, source, of_detector)
        loaded = labelled = data.labelled()
        folder = make_regions(labelled, out, region_options, execution)
    print(f"{out}: regions of {_count_images(folder, loaded, data.problems)} images")
    options.print_skipped(data.problems)


@regions_app.command("show")
def show_regions_command(
    image: Annotated[Path, typer.Argument(help="Image file.")],
    out: options.PictureFile,
    limit: Annotated[int, option("Maximum number of regions.")] = 1000,
    boundaries: Boundaries = "network",
) -> None:
    """Draw boundaries, superpixels and best regions of an image."""
    from annocoin.files import refuse_input
    from annocoin.regions.boundaries import BoundaryDetector
    from annocoin.regions.proposals import RegionProposer
    from annocoin.report import overlay
    from annocoin.report.figures import regions_figure

    refuse_input(out, image)
    pixels = annocoin.read_image(image)
    propose = RegionProposer(BoundaryDetector(cast("DetectorKind", boundaries)), limit=limit)
    analysis = propose.analyse(pixels)
    regions = propose.select(analysis, pixels.shape[:2])
    overlay.save(regions_figure(pixels, analysis, regions), out)
    print(f"{out}: {len(regions)} regions over {regions.membership.shape[1]} superpixels")


@regions_app.command("export")
def export_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Output of `annocoin regions`.")],
    out: Annotated[Path, option("Output .json file.", metavar="FILE")],
    limit: Annotated[int | None, option("Regions per image, best first.", "all")] = None,
) -> None:
    """Export regions as COCO RLE JSON, with their scores."""
    from annocoin.regions.storage import RegionFolder, export_regions

    regions = RegionFolder(folder)
    count = export_regions(regions, out, limit=limit)
    print(f"{out}: {count} regions of {len(regions)} images")


@seeds_app.command("make")
def make_seeds_command(
    dataset: options.Dataset,
    regions: Regions,
    out: ImageFolder,
    supervision: options.Supervision = "image",
    classifier: Annotated[Path | None, option(CLASSIFIER, metavar="FILE")] = None,
    preset: options.Preset = "voc-r50",
    seed: Seed = None,
    overrides: options.Overrides = None,
    weights: options.Weights = None,
    more_tags: options.MoreTags = None,
    validation_split: ValidationSplit = None,
    jobs: options.Jobs = None,
    device: options.Device = options.AUTO_DEVICE,
    split: options.Split = None,
    kind: options.Kind = None,
    images: options.Images = None,
    skip_bad: options.SkipBad = False,
) -> None:
    """Train a classifier and compute the seeds of a dataset.

    Seeds are peaks of the classifier's class maps; for each a region is retrieved. The word
    `make` is optional. After an interruption the same command continues.
    """
    from annocoin.data.dataset import with_more_tags
    from annocoin.engine.distribution import open_device, single_process
    from annocoin.engine.image_stages import CLASSIFIER_FILE, Execution, make_seeds, with_regions
    from annocoin.engine.presets import configure
    from annocoin.progress import track
    from annocoin.regions.storage import RegionFolder
    from annocoin.seeds.retrieval import METHODS

    changes = options.parse_overrides(overrides)
    training = validation_split or seed is not None or more_tags
    if classifier is not None and (training or any(k.startswith("classifier") for k in changes)):
        raise InputError("--classifier is trained already; leave out the options of training")
    source = DatasetSource(dataset, split, kind, images, skip_bad)
    weak, problems, region_folder = source.weak(supervision), source.problems, RegionFolder(regions)
    config = configure(
        preset, weak.classes, changes, seed=seed, weights=weights, networks=("classifier",)
    )
    execution = Execution(single_process(str(open_device(device))), jobs, problems)
    if classifier is None:
        validation = None if validation_split is None else source.weak("image", validation_split)
        more = source.more(more_tags, "image", weak)
        tagged = with_more_tags(with_regions(weak, region_folder, problems), more)
        _train_classifier(tagged, out, config, validation, execution)
    seeds = make_seeds(
        weak,
        region_folder,
        out,
        config.seeds,
        classifier=classifier or out / CLASSIFIER_FILE,
        execution=execution,
    )
    print(f"{out}: seeds of {_count_images(seeds, weak, problems)} images")
    labels: dict[str, Any] = {method: {} for method in METHODS}
    for image in track([image for image in weak if image.image_id in seeds], "retrieving regions"):
        with problems.caught():
            for method, instances in _retrieve(image, region_folder, seeds).items():
                labels[method][image.image_id] = instances
    for method, instances in labels.items():
        file = out / f"labels-{method}.json"
        annocoin.write_predictions(file, instances, weak.category_ids)
        print(f"{file}: {sum(map(len, instances.values()))} pseudo labels, retrieved by {method}")
    options.print_skipped(problems)


@seeds_app.command("show")
def show_seeds_command(
    seeds: Annotated[Path, typer.Argument(metavar="DIR", help="Output of `annocoin seeds`.")],
    dataset: options.Dataset,
    regions: Regions,
    out: options.PictureFile,
    supervision: options.Supervision = "image",
    count: Annotated[int, typer.Option(min=1, help="Number of images.")] = 8,
    split: options.Split = None,
    kind: options.Kind = None,
    images: options.Images = None,
    skip_bad: options.SkipBad = False,
) -> None:
    """Draw peaks, their responses and the retrieved regions."""
    from annocoin.regions.storage import RegionFolder
    from annocoin.report import overlay
    from annocoin.report.figures import seeds_figure
    from annocoin.seeds.seed_set import SeedFolder

    source = DatasetSource(dataset, split, kind, images, skip_bad)
    weak, problems = source.weak(supervision), source.problems
    seed_folder, region_folder = SeedFolder(seeds), RegionFolder(regions)
    rows = []
    shown = [i for i in weak if i.image_id in seed_folder and i.image_id in region_folder][:count]
    for image in shown:
        with problems.caught():
            seed_folder.check(image.image_id, image.annotation)
            labels = _retrieve(image, region_folder, seed_folder)
            peaks = seed_folder[image.image_id]
            rows.append(seeds_figure(image.pixels(), image.annotation, peaks, labels, weak.classes))
    if not rows:
        raise InputError(f"{seeds}: no seeds and regions of the images of {dataset}")
    overlay.save(overlay.sheet(rows, 1), out)
    print(f"{out}: {len(rows)} images")
    options.print_skipped(problems)


def _sam_options(source: str, boundaries: str, **changes: Any) -> "SamOptions":
    """The options of --from sam:ENCODER,DECODER; a change that is None is the default."""
    from annocoin.regions.sam import SamOptions

    encoder, _, decoder = source.removeprefix("sam:").partition(",")
    if not encoder or not decoder or "," in decoder:
        raise InputError(f"--from {source}; expected sam:ENCODER.onnx,DECODER.onnx")
    named = {name: value for name, value in changes.items() if value is not None}
    return SamOptions(
        Path(encoder), Path(decoder), boundaries=cast("DetectorKind", boundaries), **named
    )


def _train_classifier(
    dataset: "WeakDataset",
    out: Path,
    config: "Config",
    validation: "WeakDataset | None",
    execution: "Execution",
) -> None:
    """Train a classifier, unless `out` has it, and print its tag mAP."""
    from annocoin.engine.image_stages import make_classifier

    figures = make_classifier(
        dataset,
        out,
        config.classifier,
        seed=config.seed,
        validation=validation,
        execution=execution,
    )
    for name, value in figures.items():
        print(f"classifier: {name.replace('_', ' ')} {100 * value:.1f} %", flush=True)


def _retrieve(
    image: "WeakImage", regions: "RegionFolder", seeds: "SeedFolder"
) -> "dict[str, Instances]":
    """The regions retrieved for the seeds of an image, by every method."""
    from annocoin.seeds.retrieval import METHODS, retrieve

    candidates, peaks = regions[image.image_id], seeds[image.image_id]
    retrieved = {
        method: retrieve(candidates, peaks, image.annotation, method) for method in METHODS
    }
    return {method: result.instances(candidates, peaks) for method, result in retrieved.items()}


def _count_images(folder: Mapping[Any, Any], images: Iterable[Any], problems: Problems) -> int:
    """How many of the images the folder has; none is an error."""
    count = sum(image.image_id in folder for image in images)
    if not count:
        raise InputError(f"no usable image; {problems.skipped[0]}")
    return count
