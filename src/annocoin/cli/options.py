"""Arguments and options shared by the commands, with their choices and defaults.

Constants are written out here because importing the modules that define them loads torch, which
help texts and mistyped options must not wait for; tests/test_cli.py compares them.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import annocoin
from annocoin.errors import InputError, Problems, check_choice

if TYPE_CHECKING:
    from annocoin.data.dataset import EvaluationDataset, LabelledImages, WeakDataset
    from annocoin.data.formats import ConversionLoss

PRESETS = {
    "synthetic": "small images, minutes on a CPU",
    "voc-cpu": "photographs, a few hours on a CPU",
    "voc-cpu-r50": "ResNet-50, for CPUs with bfloat16",
    "voc-r50": "the paper's Mask R-CNN, for GPUs",
    "voc-r101": "the same with ResNet-101",
    "voc-r50-literal": "the paper's formulas as printed",
}
GPU_PRESETS = ("voc-r50", "voc-r101", "voc-r50-literal")
METHODS = {
    "annocoin": "image",
    "full": "mask",
    "prm": "image",
    "iam": "image",
    "ocis": "count",
    "label-penet": "image",
    "wise": "image",
    "irn": "image",
    "sdi": "box",
    "bbtp": "box",
}
"""With the supervision that each usually has."""

BENCHMARKS = (
    "comparison",
    "supervision",
    "terms",
    "diversity",
    "architectures",
    "per-class",
    "departures",
)

SUPERVISION = ("image", "count", "box", "point", "mixed", "mask")
PROMPT_SUPERVISION = ("image", "box", "point", "mixed")
SYNONYMS = {"tags": "image"}
DATASET_KINDS = ("voc", "coco", "folder", "yolo", "labelme")
FORMATS = ("coco", "voc", "yolo", "labelme", "labelstudio", "folder", "results")
EXPORT_FORMATS = ("onnx", "torchscript", "torchvision")
PROTOCOLS = ("chainercv", "sds", "bbtp", "coco")
PRECISIONS = ("32-true", "bf16-mixed")
DETECTORS = ("network", "gradient")
SCENE_STYLES = ("hard", "easy")
AUTO_DEVICE = "auto"
SCORE = 0.05
IOU_THRESHOLDS = (0.25, 0.5, 0.7, 0.75)
DEMO_IMAGES = 240
GALLERY_IMAGES = 10_000


def option(help: str, default: str | bool = True, *, metavar: str | None = None) -> Any:
    """An option; `default` describes what a default of None stands for."""
    return typer.Option(help=help, show_default=default, metavar=metavar)


def choice(
    choices: Iterable[str],
    help: str,
    default: str | bool = True,
    *flags: str,
    synonyms: Mapping[str, str] | None = None,
) -> Any:
    """An option with a fixed set of values, which is checked before anything is imported."""

    def check(param: typer.CallbackParam, value: str | None) -> str | None:
        value = (synonyms or {}).get(value or "", value)
        if value is not None:
            check_choice(param.opts[0], value, choices)
        return value

    metavar = "|".join(choices)
    return typer.Option(*flags, help=help, show_default=default, metavar=metavar, callback=check)


DATASET = "VOC, COCO, YOLO or labelme folder, COCO .json, or folder with images/ and labels.csv."
SUPERVISION_HELP = (
    "Labels to use: image (or tags), count (tags with numbers of objects), box, point, mixed (each "
    "label as annotated) or mask (full supervision, the upper bound)."
)
OVERRIDES = (
    "Override a configuration value by its dotted name, such as prediction.training.lr=1e-3; "
    "repeatable. RUN/config.json lists all of them."
)
MORE_IMAGES = (
    "Further dataset, all of whose images take part in every stage, with the same --supervision; "
    "classes are matched by name; repeatable."
)
MORE_TAGS = (
    "Further dataset, with the tags of all its images, for the training of the classifier only; "
    "classes are matched by name; repeatable."
)
NETWORK = (
    "Run directory of `annocoin train`, a prediction.safetensors, or the name of a network of the "
    "package."
)
OUTPUT = "Output: a .json file for coco and labelstudio, otherwise a new folder."
POLYGONS = "Masks as polygons instead of RLE, for coco and labelstudio; the loss of IoU is printed."
Dataset = Annotated[Path, typer.Argument(metavar="DATASET", help=DATASET)]
Split = Annotated[str | None, option("Image list of the dataset, such as val.", "all images")]
Kind = Annotated[str | None, choice(DATASET_KINDS, "Dataset format.", "recognised by its files")]
Images = Annotated[Path | None, option("Folder of the images of a COCO .json.", metavar="DIR")]
MoreImages = Annotated[list[Path] | None, option(MORE_IMAGES, metavar="DATASET")]
MoreTags = Annotated[list[Path] | None, option(MORE_TAGS, metavar="DATASET")]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Skip bad images and labels, and list them.")
]
Supervision = Annotated[str, choice(SUPERVISION, SUPERVISION_HELP, synonyms=SYNONYMS)]
MethodSupervision = Annotated[
    str | None, choice(SUPERVISION, SUPERVISION_HELP, "that of --method", synonyms=SYNONYMS)
]
LIMIT = "Use only the first N images of DATASET."
Limit = Annotated[int | None, typer.Option(help=LIMIT, metavar="N", min=1)]
PRESET = "Preset of all options: {}.".format(
    "; ".join(f"{name} ({text})" for name, text in PRESETS.items())
)
WEIGHTS = "Folder with ImageNet weights of the backbones, such as resnet50*.pth."
Preset = Annotated[str, choice(PRESETS, PRESET)]
Weights = Annotated[Path | None, option(WEIGHTS, "download", metavar="DIR")]
Overrides = Annotated[list[str] | None, typer.Option("--set", help=OVERRIDES, metavar="KEY=VALUE")]
Regions = Annotated[Path | None, option("Regions from `annocoin regions`.", metavar="DIR")]
Classifier = Annotated[Path | None, option("Trained classifier.safetensors.", metavar="FILE")]
Jobs = Annotated[int | None, option("Worker processes.", "all CPU cores")]
Device = Annotated[str, option("Device: auto, cpu, cuda, cuda:1 or mps.", metavar="DEVICE")]
Polygons = Annotated[bool, typer.Option("--polygons", help=POLYGONS)]
PictureFile = Annotated[Path, option("Output image, .png or .jpg.", metavar="FILE")]


class DatasetSource:
    """A dataset as the command line names it: its path and how to read it."""

    def __init__(
        self, path: Path, split: str | None, kind: str | None, images: Path | None, skip_bad: bool
    ) -> None:
        self.path, self.problems = path, Problems(skip_bad)
        self.reading: Any = dict(split=split, kind=kind, images=images, problems=self.problems)

    def labelled(self) -> "LabelledImages":
        return annocoin.load_labelled(self.path, **self.reading)

    def weak(self, supervision: Any, split: str | None = None) -> "WeakDataset":
        """Images with weak labels; of another split, if one is passed."""
        reading = self.reading if split is None else {**self.reading, "split": split}
        return annocoin.load_weak(self.path, supervision, **reading)

    def more(
        self, paths: Iterable[Path] | None, supervision: Any, dataset: "WeakDataset"
    ) -> "WeakDataset | None":
        """All images of further datasets, with the classes of `dataset`; None without paths."""
        from annocoin.data.dataset import concatenate

        further = [
            annocoin.load_weak(
                path, supervision, images=self.reading["images"], problems=self.problems
            ).with_classes(dataset.classes, str(dataset.source))
            for path in paths or ()
        ]
        return concatenate(*further) if further else None

    def evaluation(self) -> "EvaluationDataset":
        return annocoin.load_evaluation(self.path, **self.reading)


def parse_overrides(assignments: Iterable[str] | None) -> dict[str, str]:
    """The values of --set KEY=VALUE, by key."""
    overrides = {}
    for assignment in assignments or ():
        key, equals, value = assignment.partition("=")
        if not equals:
            raise InputError(f"--set {assignment}: expected KEY=VALUE, such as rounds=2")
        overrides[key] = value
    return overrides


def print_loss(loss: "ConversionLoss") -> None:
    """List what the written format could not represent."""
    for line in loss.lines():
        print(f"  {line}")


def print_skipped(problems: Problems) -> None:
    """List what --skip-bad left out, on stderr."""
    if problems.skipped:
        print(f"annocoin: skipped {len(problems.skipped)} bad items:", file=sys.stderr)
        for line in problems.skipped:
            print(f"  {line}", file=sys.stderr)
