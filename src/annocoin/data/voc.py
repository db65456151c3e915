"""PASCAL VOC: JPEGImages, Annotations (XML), ImageSets, SegmentationObject and SegmentationClass.

Beyond VOC itself: a file `classes.txt` (one name a line) replaces the usual twenty classes, an
object without a box is a tag, and `<crowd>`, `<score>` and `<confidence>` may stand in an object.
"""

from __future__ import annotations

from pathlib import Path

from annocoin.atomic import new_directory
from annocoin.data import voc_maps, voc_xml
from annocoin.data.checks import read_lines, unique
from annocoin.data.conversion_loss import ConversionLoss
from annocoin.data.dataset import LabelledImage, LabelledImages, Masks
from annocoin.data.images import copy_image, find_image, image_size, inside
from annocoin.data.voc_maps import VOID
from annocoin.errors import InputError, Problems
from annocoin.progress import track
from annocoin.types import Annotation

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip


def read(root: Path, split: str | None, with_masks: Masks, problems: Problems) -> LabelledImages:
    """Read the images of a split list; without `split`, those of all lists.

    The segmentation maps are not opened, or read where they are, or must be there for every image.
    """
    listed = root / "classes.txt"
    classes = tuple(unique(read_lines(listed), str(listed))) if listed.is_file() else CLASSES
    lists = _split_lists(root, split)
    images = []
    names = list(dict.fromkeys(name for listed in lists.values() for name in listed))
    for name in track(names, f"reading {root.name}"):
        with problems.caught():
            images.append(_read_image(root, name, classes, with_masks))
    splits = lists if split is None and "" not in lists else None
    return LabelledImages.of(classes, images, split=split, splits=splits, source=root)


def write(labelled: LabelledImages, out: Path) -> ConversionLoss:
    """Write a new VOC folder, images copied. Where masks overlap, the smaller one stays whole."""
    loss = ConversionLoss()
    stems = labelled.stems()
    if len(labelled.classes) >= VOID:
        raise InputError(
            f"{labelled.source}: {len(labelled.classes)} classes; VOC holds {VOID - 1}"
        )
    names = {image.image_id: stem for image, stem in zip(labelled, stems, strict=True)}
    splits = labelled.splits or {labelled.split or "all": tuple(names)}
    with new_directory(out) as root:
        for folder in ("JPEGImages", "Annotations", "SegmentationObject", "SegmentationClass"):
            (root / folder).mkdir()
        for image, stem in track(list(zip(labelled, stems, strict=True)), "writing VOC"):
            copied = copy_image(image.image_path(), root / "JPEGImages", stem)
            xml = voc_xml.to_xml(image.annotation, copied.name, labelled.classes)
            (root / "Annotations" / f"{stem}.xml").write_bytes(xml)
            voc_maps.write_maps(root, stem, image.annotation, loss)
        (root / "classes.txt").write_text(
            "".join(f"{name}\n" for name in labelled.classes), encoding="utf-8"
        )
        lists = root / "ImageSets" / "Segmentation"
        lists.mkdir(parents=True)
        for split, ids in splits.items():
            text = "".join(f"{names[image_id]}\n" for image_id in ids)
            (lists / f"{split}.txt").write_text(text, encoding="utf-8")
    return loss


def _split_lists(root: Path, split: str | None) -> dict[str, list[str]]:
    """The names in one list, or in all lists; without any list, all annotations under ""."""
    main = {path.stem: path for path in sorted((root / "ImageSets" / "Main").glob("*.txt"))}
    own = {path.stem: path for path in sorted((root / "ImageSets" / "Segmentation").glob("*.txt"))}
    if split is None:
        chosen = own or main
    elif split in {**main, **own}:
        chosen = {split: {**main, **own}[split]}
    else:
        known = ", ".join(own or main) or "none"
        raise InputError(f"{root}: no split {split!r} in ImageSets; found: {known}")
    if not chosen:
        return {"": sorted(path.stem for path in (root / "Annotations").glob("*.xml"))}
    return {name: unique(_read_list(path), str(path)) for name, path in chosen.items()}


def _read_list(path: Path) -> list[str]:
    """Image names, one a line; the 1/-1 column of VOC's per-class lists is dropped."""
    annotations = path.parents[2] / "Annotations"
    names = []
    for line in read_lines(path):
        name, _, flag = line.rpartition(" ")
        flagged = flag in ("-1", "0", "1") and not (annotations / f"{line}.xml").is_file()
        names.append(name.strip() if flagged and name else line)
    return names


def _read_image(
    root: Path, name: str, classes: tuple[str, ...], with_masks: Masks
) -> LabelledImage:
    xml_path = inside(root / "Annotations", f"{name}.xml", f"{root}: split list")
    tree = voc_xml.parse(xml_path)
    inside(root / "JPEGImages", tree.findtext("filename", "").strip() or name, str(xml_path))
    image_path = find_image(root / "JPEGImages", name, str(xml_path))
    size = image_size(image_path)
    marks = voc_xml.to_marks(tree, size, classes, xml_path)
    listed = None
    has_maps = (root / "SegmentationObject" / f"{name}.png").is_file()
    if with_masks == "required" and not has_maps:
        raise InputError(f"{root}: no SegmentationObject/{name}.png; evaluation needs its masks")
    if with_masks != "never" and has_maps:
        marks, listed = voc_maps.join_masks(
            marks, *voc_maps.read_maps(root, name, size, len(classes)), str(xml_path)
        )
    return LabelledImage(
        image_id=name,
        file_name=image_path.relative_to(root / "JPEGImages").as_posix(),
        path=image_path,
        annotation=Annotation(size, tuple(marks)),
        listed_labels=listed,
    )
