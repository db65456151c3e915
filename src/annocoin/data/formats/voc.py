"""PASCAL VOC: JPEGImages, Annotations (XML), ImageSets, SegmentationObject and SegmentationClass.

Beyond VOC itself: a file `classes.txt` (one name a line) replaces the usual twenty classes, an
object without a box is a tag, and `<crowd>`, `<score>` and `<confidence>` may stand in an object.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, SubElement, indent, tostring

import defusedxml.ElementTree
import numpy as np
import numpy.typing as npt
from defusedxml import DefusedXmlException
from PIL import Image

from annocoin import masks
from annocoin.data.dataset import LabelledImage, LabelledImages, Masks, tight_box
from annocoin.data.formats import ConversionLoss
from annocoin.data.images import copy_image, find_image, image_size, inside, read_index_map
from annocoin.data.parsing import checked_point, clipped_box, finite, label_of, unique
from annocoin.errors import InputError, Problems
from annocoin.files import new_directory, read_lines
from annocoin.masks import RLE, Size
from annocoin.progress import track
from annocoin.types import Annotation, WeakLabel

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
            xml = to_xml(image.annotation, copied.name, labelled.classes)
            (root / "Annotations" / f"{stem}.xml").write_bytes(xml)
            write_maps(root, stem, image.annotation, loss)
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
    tree = parse_xml(xml_path)
    inside(root / "JPEGImages", tree.findtext("filename", "").strip() or name, str(xml_path))
    image_path = find_image(root / "JPEGImages", name, str(xml_path))
    size = image_size(image_path)
    weak_labels = to_weak_labels(tree, size, classes, xml_path)
    listed = None
    has_maps = (root / "SegmentationObject" / f"{name}.png").is_file()
    if with_masks == "required" and not has_maps:
        raise InputError(f"{root}: no SegmentationObject/{name}.png; evaluation needs its masks")
    if with_masks != "never" and has_maps:
        weak_labels, listed = join_masks(
            weak_labels, *read_maps(root, name, size, len(classes)), str(xml_path)
        )
    return LabelledImage(
        image_id=name,
        file_name=image_path.relative_to(root / "JPEGImages").as_posix(),
        path=image_path,
        annotation=Annotation(size, tuple(weak_labels)),
        listed_labels=listed,
    )


def parse_xml(path: Path) -> Element:
    """The root of an XML file; document types and entities are refused."""
    try:
        tree: Element | None = defusedxml.ElementTree.parse(path, forbid_dtd=True).getroot()
        if tree is None:
            raise ParseError("no element")
        return tree
    except FileNotFoundError:
        raise InputError(f"{path}: no such annotation file") from None
    except DefusedXmlException as error:
        raise InputError(f"{path}: a document type or entities in the XML ({error})") from None
    except (ParseError, ValueError, LookupError) as error:
        raise InputError(f"{path}: broken XML ({error})") from None


def to_weak_labels(
    tree: Element, size: Size, classes: tuple[str, ...], path: Path
) -> list[WeakLabel]:
    """The objects in their order; `size` is the image's own, and the file must agree."""
    _check_size(tree, size, path)
    return [_to_weak_label(element, size, classes, path) for element in tree.findall("object")]


def _to_weak_label(element: Element, size: Size, classes: tuple[str, ...], path: Path) -> WeakLabel:
    def numbers(tag: str, *keys: str) -> list[float] | None:
        parent = element.find(tag)
        if parent is None:
            return None
        return [finite(parent.findtext(key), f"{path}: {tag}/{key}") for key in keys]

    def number(tag: str) -> float | None:
        text = element.findtext(tag)
        return None if text is None else finite(text, f"{path}: {tag}")

    where = str(path)
    box = numbers("bndbox", "xmin", "ymin", "xmax", "ymax")
    if box is not None:  # VOC counts pixels from 1 and includes the last one
        box = [box[0] - 1, box[1] - 1, box[2], box[3]]
    point = numbers("point", "x", "y")
    if point is not None:
        point = [point[0] - 0.5, point[1] - 0.5]
    return WeakLabel(
        label=label_of(element.findtext("name", "").strip(), classes, where),
        box=None if box is None else clipped_box(box, size, where),
        point=None if point is None else checked_point(point, size, where),
        crowd=number("crowd") == 1,
        difficult=number("difficult") == 1,
        score=number("score"),
        confidence=number("confidence"),
    )


def _check_size(tree: Element, size: Size, path: Path) -> None:
    said = [
        finite(tree.findtext(f"size/{key}", "0"), f"{path}: {key}") for key in ("height", "width")
    ]
    if all(said) and tuple(said) != size:  # many tools leave zeros
        raise InputError(
            f"{path}: size {said[0]:g} x {said[1]:g}; the image has {size[0]} x {size[1]} "
            "(height x width)"
        )


def to_xml(annotation: Annotation, file_name: str, classes: tuple[str, ...]) -> bytes:
    """The text of an annotation file."""
    tree = Element("annotation")
    SubElement(tree, "filename").text = file_name
    height, width = annotation.size
    _add(tree, "size", width=width, height=height, depth=3)
    SubElement(tree, "segmented").text = str(int("mask" in annotation.kinds))
    for weak_label in annotation:
        element = SubElement(tree, "object")
        SubElement(element, "name").text = classes[weak_label.label - 1]
        SubElement(element, "difficult").text = str(int(weak_label.difficult))
        box = tight_box(weak_label)
        if box is not None:
            x0, y0, x1, y1 = box
            _add(element, "bndbox", xmin=x0 + 1, ymin=y0 + 1, xmax=x1, ymax=y1)
        if weak_label.point is not None:
            _add(element, "point", x=weak_label.point[0] + 0.5, y=weak_label.point[1] + 0.5)
        for tag, value in (("score", weak_label.score), ("confidence", weak_label.confidence)):
            if value is not None:
                SubElement(element, tag).text = repr(value)
        if weak_label.crowd:
            SubElement(element, "crowd").text = "1"
    indent(tree)
    return bytes(tostring(tree, encoding="utf-8"))


def _add(parent: Element, tag: str, **numbers: float) -> None:
    element = SubElement(parent, tag)
    for key, value in numbers.items():
        SubElement(element, key).text = str(int(value)) if value == int(value) else repr(value)


VOID = 255
"""Pixels of nobody."""


def read_maps(
    root: Path, name: str, size: Size, number_of_classes: int
) -> tuple[dict[int, RLE], dict[int, int]]:
    """The mask of every object id, and its class by the class map where there is one."""
    object_path, class_path = (
        root / folder / f"{name}.png" for folder in ("SegmentationObject", "SegmentationClass")
    )
    ids = _read_map(object_path, size)
    counts = np.bincount(ids.ravel(), minlength=VOID + 1)
    found = [int(k) for k in np.flatnonzero(counts) if k not in (0, VOID)]
    rles = {k: masks.encode((ids == k)[None])[0] for k in found}
    if not class_path.is_file():
        return rles, {}
    classes = _read_map(class_path, size)
    labels = {k: int(classes[ids == k].min()) for k in found}
    for k, label in labels.items():
        if not 1 <= label <= number_of_classes:
            raise InputError(
                f"{class_path}: class {label} under object {k}; expected 1 to {number_of_classes}"
            )
    return rles, labels


def join_masks(
    weak_labels: list[WeakLabel], rles: dict[int, RLE], labels: dict[int, int], where: str
) -> tuple[list[WeakLabel], tuple[int, ...]]:
    """Object k of the XML has id k in the map. Some objects have no pixels, and the reverse.

    The pixels' class wins; the second result is the class by the XML's list.
    """
    joined, listed = [], []
    for k in range(1, max([len(weak_labels), *rles]) + 1):
        said = weak_labels[k - 1] if k <= len(weak_labels) else None
        label = labels.get(k) or (said.label if said else None)
        if label is None:
            if k in rles:
                raise InputError(f"{where}: object {k} has no class, in the XML or the class map")
            continue
        joined.append(replace(said or WeakLabel(label), label=label, mask=rles.get(k)))
        listed.append(said.label if said else label)
    return joined, tuple(listed)


def write_maps(root: Path, stem: str, annotation: Annotation, loss: ConversionLoss) -> None:
    """Paint the masks, large ones first, so that the smaller of two that overlap stays whole."""
    numbered = enumerate(annotation, start=1)
    weak_labels = {
        k: (weak_label.label, weak_label.mask)
        for k, weak_label in numbered
        if weak_label.mask is not None
    }
    if not weak_labels:
        return
    if max(weak_labels) >= VOID:
        raise InputError(
            f"image {stem}: {len(annotation)} objects; VOC's maps hold at most {VOID - 1}"
        )
    ids = np.zeros(annotation.size, dtype=np.uint8)
    classes = np.zeros(annotation.size, dtype=np.uint8)
    areas = {k: float(masks.areas([rle])[0]) for k, (_, rle) in weak_labels.items()}
    for k in sorted(weak_labels, key=lambda k: -areas[k]):
        label, rle = weak_labels[k]
        painted = masks.decode([rle], annotation.size)[0]
        ids[painted] = k
        classes[painted] = label
    left = np.bincount(ids.ravel(), minlength=VOID + 1)
    for k, area in areas.items():
        loss.mask(left[k] / area if area else 0.0)
    for folder, values in (("SegmentationObject", ids), ("SegmentationClass", classes)):
        picture = Image.fromarray(values, mode="P")
        picture.putpalette(_palette().tobytes())
        picture.save(root / folder / f"{stem}.png")


def _read_map(path: Path, size: Size) -> npt.NDArray[np.uint8]:
    values = read_index_map(path)
    if values.shape != size:
        raise InputError(f"{path}: size {list(values.shape)}; the image has {list(size)}")
    return values


@cache
def _palette() -> npt.NDArray[np.uint8]:
    """VOC's colours [256, 3]: the bits of the index, dealt out to red, green and blue in turn."""
    index = np.arange(256)
    colours = np.zeros((256, 3), dtype=np.uint8)
    for bit in range(8):
        for channel in range(3):
            if 3 * bit + channel < 8:
                colours[:, channel] |= (((index >> (3 * bit + channel)) & 1) << (7 - bit)).astype(
                    np.uint8
                )
    return colours
