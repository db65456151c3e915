"""Reading a dataset by its path: the format is recognised, the type is that of the function."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from annocoin.data.dataset import (
    EvaluationDataset,
    LabelledImages,
    MaskPolicy,
    Supervision,
    WeakDataset,
    weak_dataset,
)
from annocoin.data.formats import coco, folder, labelme, voc, yolo
from annocoin.errors import InputError, Problems, check_choice

DatasetKind = Literal["voc", "coco", "folder", "yolo", "labelme"]


def load_weak(
    path: str | Path,
    supervision: Supervision = "image",
    *,
    split: str | None = None,
    kind: DatasetKind | None = None,
    images: str | Path | None = None,
    problems: Problems | None = None,
) -> WeakDataset:
    """Images with weak labels, for training.

    Args:
        path: a VOC folder, a COCO .json or folder, a folder with labels.csv, a YOLO or a labelme
            folder.
        supervision: the weak labels to keep: "image" (tags), "count" (tags with the number of
            objects of their class), "box", "point", "mixed", or "mask", which is full supervision,
            for comparison.
        split: the name of the list of images; default all images.
        kind: the format; default recognised by the files.
        images: the folder with the images of a COCO file.
        problems: `Problems(skip=True)` leaves bad images out instead of stopping.

    VOC's segmentation maps are opened only to derive points; they are labels only with "mask".
    """
    kind = kind or recognise(Path(path))
    needed = supervision in ("point", "mask") or (supervision == "mixed" and kind != "voc")
    policy: MaskPolicy = "optional" if needed else "never"
    labelled = load_labelled(
        path, split=split, kind=kind, images=images, with_masks=policy, problems=problems
    )
    return weak_dataset(labelled, supervision, problems)


def load_evaluation(
    path: str | Path,
    *,
    split: str | None = None,
    kind: DatasetKind | None = None,
    images: str | Path | None = None,
    problems: Problems | None = None,
) -> EvaluationDataset:
    """Images with ground truth masks, for evaluation. The arguments are those of `load_weak`."""
    labelled = load_labelled(
        path, split=split, kind=kind, images=images, with_masks="required", problems=problems
    )
    return EvaluationDataset(labelled)


def load_labelled(
    path: str | Path,
    *,
    split: str | None = None,
    kind: DatasetKind | None = None,
    images: str | Path | None = None,
    with_masks: MaskPolicy = "optional",
    problems: Problems | None = None,
) -> LabelledImages:
    """All labels of a dataset, for conversion. The arguments are those of `load_weak`.

    `with_masks`: "never" reads none, "required" needs maps for every image of a VOC folder.
    """
    path, problems = Path(path), problems or Problems()
    kind = kind or recognise(path)
    folder_of_images = None if images is None else Path(images)
    try:
        return _read(path, kind, split, folder_of_images, with_masks, problems)
    except InputError as error:
        if problems.skipped:  # no image is left: add the reason
            raise InputError(
                f"{error}; skipped {len(problems.skipped)}: {problems.skipped[0]}"
            ) from None
        raise


def recognise(path: Path) -> DatasetKind:
    """The format of the dataset at `path`."""
    if (path.is_file() and path.suffix == ".json") or any(path.glob(coco.INSTANCES)):
        return "coco"
    if (path / "Annotations").is_dir() and (path / "JPEGImages").is_dir():
        return "voc"
    if (path / "labels.csv").is_file():
        return "folder"
    if (path / "data.yaml").is_file():
        return "yolo"
    if any(path.glob(Path(coco.INSTANCES).name)):
        raise InputError(
            f"{path}: a folder of COCO annotations; expected the folder above it, with --split, or "
            "one of its files, with --images DIR"
        )
    if path.is_dir() and any(path.glob("*.json")):
        return "labelme"
    problem = "not a dataset of a known format" if path.exists() else "no such file or folder"
    raise InputError(
        f"{path}: {problem}; expected a VOC folder (Annotations, JPEGImages), a COCO .json, a "
        f"COCO folder ({coco.INSTANCES}), a folder with images/ and labels.csv, a YOLO folder "
        "(data.yaml) or a labelme folder"
    )


def _read(
    path: Path,
    kind: DatasetKind,
    split: str | None,
    images: Path | None,
    with_masks: MaskPolicy,
    problems: Problems,
) -> LabelledImages:
    check_choice("kind", kind, get_args(DatasetKind))
    if kind == "coco" and path.is_dir():
        path, beside = coco.find_file(path, split)
        images, split = images or beside, None
    if kind in ("coco", "labelme") and split is not None:
        raise InputError(f"{path}: a {kind} dataset has no split lists; leave out --split")
    if kind == "voc":
        return voc.read(path, split, with_masks, problems)
    if kind == "coco":
        if images is not None and not images.is_dir():
            raise InputError(f"{images}: no such folder of images")
        return coco.read(path, images, with_masks != "never", problems)
    if kind == "folder":
        return folder.read(path, split, problems)
    if kind == "yolo":
        return yolo.read(path, split, with_masks != "never", problems)
    return labelme.read(path, with_masks != "never", problems)
