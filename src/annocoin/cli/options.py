"""Arguments and options that several commands have, and what they all do with them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from annocoin.data import loading
from annocoin.data.dataset import LabelledImages, Supervision, WeakDataset
from annocoin.data.loading import DatasetKind
from annocoin.errors import InputError, Problems

Dataset = Annotated[
    Path,
    typer.Argument(
        help="A VOC folder, a COCO .json, a folder with images/ and labels.csv, "
        "or a YOLO or labelme folder."
    ),
]
Split = Annotated[str | None, typer.Option(help="Name of the list of images; default all.")]
KindOption = Annotated[
    str | None,
    typer.Option("--kind", metavar="voc|coco|folder|yolo|labelme", help="Default: recognised."),
]
Images = Annotated[Path | None, typer.Option(help="Folder of the images of a COCO file.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave bad items out and report them.")]

SupervisionOption = Annotated[
    str,
    typer.Option(
        "--supervision",
        metavar="image|box|point|mixed|mask",
        help="What may be seen; mask is full supervision, the upper bound.",
    ),
]


def load(
    path: Path, split: str | None, kind: str | None, images: Path | None, problems: Problems
) -> LabelledImages:
    return loading.load_labelled(
        path, split=split, kind=cast(DatasetKind | None, kind), images=images, problems=problems
    )


def load_weak(
    path: Path,
    supervision: str,
    split: str | None,
    kind: str | None,
    images: Path | None,
    problems: Problems,
) -> WeakDataset:
    return loading.load_weak(
        path,
        cast(Supervision, supervision),
        split=split,
        kind=cast(DatasetKind | None, kind),
        images=images,
        problems=problems,
    )


def report(problems: Problems) -> None:
    if problems.skipped:
        print(f"annocoin: skipped {len(problems.skipped)} bad items:", file=sys.stderr)
        for line in problems.skipped:
            print(f"  {line}", file=sys.stderr)


def assignments(lines: list[str]) -> dict[str, str]:
    """What --set KEY=VALUE says, by key."""
    found = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if not equals:
            raise InputError(f"--set {line}: expected KEY=VALUE, such as rounds=2")
        found[name] = value
    return found


class DatasetFirst(TyperGroup):
    """`annocoin regions DATASET ...`: what is no other command's name begins the main one, make."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:
            args = ["--help"]
        elif args[0] not in self.commands and args[0] != "--help":
            args = ["make", *args]
        return super().parse_args(ctx, args)
