"""PASCAL VOC: JPEGImages, Annotations (XML), ImageSets, SegmentationObject and SegmentationClass.

Beyond VOC itself: a file `classes.txt` (one name per line) replaces the usual twenty classes, an
object without a box is a tag, and an object may have `<point>`, `<crowd>`, `<score>` and
`<confidence>`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, SubElement, indent, tostring

import defusedxml.ElementTree
import numpy as np
import numpy.typing as npt
from defusedxml import DefusedXmlException
from PIL import Image

from annocoin import masks
from annocoin.data.dataset import LabelledImage, LabelledImages, MaskPolicy, tight_box
from annocoin.data.formats import ConversionLoss
from annocoin.data.images import copy_image, find_image, image_size, read_index_map, safe_join
from annocoin.data.parsing import finite, label_of, located_label, unique
from annocoin.errors import InputError, Problems
from annocoin.files import new_directory, open_regular, read_lines
from annocoin.masks import RLE, Size
from annocoin.progress import track
from annocoin.types import Annotation, WeakLabel

CLASSES: tuple[str, ...] = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
MAX_XML_BYTES = 1 << 26
VOID = 255
"""Index of pixels that belong to no object."""


def read(
    root: Path, split: str | None, with_masks: MaskPolicy, problems: Problems
) -> LabelledImages:
    """Read the images of a split list; without `split`, those of all lists."""
    classes_file = root / "classes.txt"
    classes = CLASSES
    if classes_file.is_file():
        classes = tuple(unique(read_lines(classes_file), str(classes_file)))
    lists = _read_lists(root, split)
    images = []
    names = list(dict.fromkeys(name for listed in lists.values() for name in listed))
    for name in track(names, f"reading {root.name}"):
        with problems.caught():
            images.append(_read_image(root, name, classes, with_masks))
    splits = lists if split is None and "" not in lists else None
    return LabelledImages.of(classes, images, split=split, splits=splits, source=root)


def write(labelled: LabelledImages, out: Path) -> ConversionLoss:
    """Write a new VOC folder with copies of the images; overlapping masks lose pixels."""
    loss = ConversionLoss()
    if len(labelled.classes) >= VOID:
        raise InputError(
            f"{labelled.source}: {len(labelled.classes)} classes; VOC holds {VOID - 1}"
        )
    pairs = labelled.with_stems()
    stems = {image.image_id: stem for image, stem in pairs}
    splits = labelled.splits or {labelled.split or "all": tuple(stems)}
    with new_directory(out) as root:
        for folder in ("JPEGImages", "Annotations", "SegmentationObject", "SegmentationClass"):
            (root / folder).mkdir()
        for image, stem in track(pairs, "writing VOC"):
            copied = copy_image(image.image_path(), root / "JPEGImages", stem)
            xml = _to_xml(image.annotation, copied.name, labelled.classes)
            (root / "Annotations" / f"{stem}.xml").write_bytes(xml)
            _write_maps(root, stem, image.annotation, loss)
        _write_lines(root / "classes.txt", labelled.classes)
        (root / "ImageSets" / "Segmentation").mkdir(parents=True)
        for split, ids in splits.items():
            path = root / "ImageSets" / "Segmentation" / f"{split}.txt"
            _write_lines(path, [stems[image_id] for image_id in ids])
    return loss


def _write_lines(path: Path, lines: tuple[str, ...] | list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _read_lists(root: Path, split: str | None) -> dict[str, list[str]]:
    """The names in one list, or in all lists; without any list, all annotations under ""."""
    main, segmentation = (
        {path.stem: path for path in sorted((root / "ImageSets" / folder).glob("*.txt"))}
        for folder in ("Main", "Segmentation")
    )
    if split is None:
        selected = segmentation or main
    elif split in main | segmentation:
        selected = {split: (main | segmentation)[split]}
    else:
        known = ", ".join(segmentation or main) or "none"
        raise InputError(f"{root}: no split {split!r} in ImageSets; found: {known}")
    if not selected:
        return {"": sorted(path.stem for path in (root / "Annotations").glob("*.xml"))}
    return {name: unique(_read_list(path), str(path)) for name, path in selected.items()}


def _read_list(path: Path) -> list[str]:
    """Image names, one per line; the 1/-1 column of VOC's per-class lists is dropped."""
    annotations = path.parents[2] / "Annotations"
    names = []
    for line in read_lines(path):
        name, _, flag = line.rpartition(" ")
        flagged = flag in ("-1", "0", "1") and not (annotations / f"{line}.xml").is_file()
        names.append(name.strip() if flagged and name else line)
    return names


def _read_image(
    root: Path, name: str, classes: tuple[str, ...], with_masks: MaskPolicy
) -> LabelledImage:
    xml_path = safe_join(root / "Annotations", f"{name}.xml", f"{root}: split list")
    where = str(xml_path)
    tree = _read_xml(xml_path)
    safe_join(root / "JPEGImages", tree.findtext("filename", "").strip() or name, where)
    image_path = find_image(root / "JPEGImages", name, where)
    size = image_size(image_path)
    _check_size(tree, size, where)
    weak_labels = [_to_weak_label(node, size, classes, where) for node in tree.findall("object")]
    listed = None
    has_maps = (root / "SegmentationObject" / f"{name}.png").is_file()
    if with_masks == "required" and not has_maps:
        raise InputError(f"{root}: no SegmentationObject/{name}.png; evaluation needs its masks")
    if with_masks != "never" and has_maps:
        rles, labels = _read_maps(root, name, size, len(classes))
        weak_labels, listed = _join_masks(weak_labels, rles, labels, where)
    return LabelledImage(
        image_id=name,
        file_name=image_path.relative_to(root / "JPEGImages").as_posix(),
        path=image_path,
        annotation=Annotation(size, tuple(weak_labels)),
        listed_labels=listed,
    )


def _read_xml(path: Path) -> Element:
    """The root of an XML file; document types and entities are refused."""
    try:
        if not path.exists():
            raise InputError(f"{path}: no such annotation file")
        with open_regular(path, MAX_XML_BYTES) as file:
            tree: Element | None = defusedxml.ElementTree.parse(file, forbid_dtd=True).getroot()
        if tree is None:
            raise ParseError("no element")
        return tree
    except InputError:
        raise
    except DefusedXmlException as error:
        raise InputError(f"{path}: a document type or entities in the XML ({error})") from None
    except (ParseError, ValueError, LookupError) as error:
        raise InputError(f"{path}: broken XML ({error})") from None


def _check_size(tree: Element, size: Size, where: str) -> None:
    height, width = (
        finite(tree.findtext(f"size/{key}", "0"), f"{where}: {key}") for key in ("height", "width")
    )
    if height and width and (height, width) != size:  # many tools write zeros
        raise InputError(
            f"{where}: size {height:g} x {width:g}; the image has {size[0]} x {size[1]} "
            "(height x width)"
        )


def _to_weak_label(node: Element, size: Size, classes: tuple[str, ...], where: str) -> WeakLabel:
    def numbers(*tags: str) -> list[float] | None:
        if node.find(tags[0].split("/")[0]) is None:
            return None
        return [finite(node.findtext(tag), f"{where}: {tag}") for tag in tags]

    def number(tag: str) -> float | None:
        return None if node.find(tag) is None else finite(node.findtext(tag), f"{where}: {tag}")

    box = numbers("bndbox/xmin", "bndbox/ymin", "bndbox/xmax", "bndbox/ymax")
    if box is not None:  # VOC counts pixels from 1 and includes the last one
        box = [box[0] - 1, box[1] - 1, box[2], box[3]]
    point = numbers("point/x", "point/y")
    if point is not None:
        point = [point[0] - 0.5, point[1] - 0.5]
    return located_label(
        label_of(node.findtext("name", "").strip(), classes, where),
        size,
        where,
        box=box,
        point=point,
        crowd=number("crowd") == 1,
        difficult=number("difficult") == 1,
        score=number("score"),
        confidence=number("confidence"),
    )


def _to_xml(annotation: Annotation, file_name: str, classes: tuple[str, ...]) -> bytes:
    tree = Element("annotation")
    SubElement(tree, "filename").text = file_name
    height, width = annotation.size
    _add(tree, "size", width=width, height=height, depth=3)
    SubElement(tree, "segmented").text = str(int("mask" in annotation.kinds))
    for label in annotation:
        node = SubElement(tree, "object")
        SubElement(node, "name").text = classes[label.label - 1]
        SubElement(node, "difficult").text = str(int(label.difficult))
        box = tight_box(label)
        if box is not None:
            x0, y0, x1, y1 = box
            _add(node, "bndbox", xmin=x0 + 1, ymin=y0 + 1, xmax=x1, ymax=y1)
        if label.point is not None:
            _add(node, "point", x=label.point[0] + 0.5, y=label.point[1] + 0.5)
        for tag, value in (("score", label.score), ("confidence", label.confidence)):
            if value is not None:
                SubElement(node, tag).text = repr(value)
        if label.crowd:
            SubElement(node, "crowd").text = "1"
    indent(tree)
    return bytes(tostring(tree, encoding="utf-8"))


def _add(parent: Element, tag: str, **numbers: float) -> None:
    node = SubElement(parent, tag)
    for key, value in numbers.items():
        SubElement(node, key).text = str(int(value)) if value == int(value) else repr(value)


def _read_maps(
    root: Path, name: str, size: Size, num_classes: int
) -> tuple[dict[int, RLE], dict[int, int]]:
    """The mask of every object id, and its class by the class map if that exists."""
    object_path, class_path = (
        root / folder / f"{name}.png" for folder in ("SegmentationObject", "SegmentationClass")
    )
    ids = _read_map(object_path, size)
    objects = [int(k) for k in np.unique(ids) if k not in (0, VOID)]
    rles = {k: masks.encode((ids == k)[None])[0] for k in objects}
    if not class_path.is_file():
        return rles, {}
    classes = _read_map(class_path, size)
    labels = {k: int(classes[ids == k].min()) for k in objects}
    for k, label in labels.items():
        if not 1 <= label <= num_classes:
            raise InputError(
                f"{class_path}: class {label} under object {k}; expected 1 to {num_classes}"
            )
    return rles, labels


def _read_map(path: Path, size: Size) -> npt.NDArray[np.uint8]:
    values = read_index_map(path)
    if values.shape != size:
        raise InputError(f"{path}: size {list(values.shape)}; the image has {list(size)}")
    return values


def _join_masks(
    weak_labels: list[WeakLabel], rles: dict[int, RLE], labels: dict[int, int], where: str
) -> tuple[list[WeakLabel], tuple[int, ...]]:
    """The objects of the XML with their masks: object k, from 1, has id k in the map.

    Some objects have no pixels, and some ids no object. The class of the pixels is preferred; the
    second result is the class by the XML's list.
    """
    joined, listed = [], []
    for k in range(1, max([len(weak_labels), *rles]) + 1):
        from_xml = weak_labels[k - 1] if k <= len(weak_labels) else None
        label = labels.get(k) or (from_xml.label if from_xml else None)
        if label is None:
            if k in rles:
                raise InputError(f"{where}: object {k} has no class, in the XML or the class map")
            continue
        joined.append(replace(from_xml or WeakLabel(label), label=label, mask=rles.get(k)))
        listed.append(from_xml.label if from_xml else label)
    return joined, tuple(listed)


def _write_maps(root: Path, stem: str, annotation: Annotation, loss: ConversionLoss) -> None:
    """Paint the masks, large ones first, so that the smaller of two that overlap stays whole."""
    rles = {k: label.mask for k, label in enumerate(annotation, start=1) if label.mask is not None}
    if not rles:
        return
    if max(rles) >= VOID:
        raise InputError(
            f"image {stem}: {len(annotation)} objects; VOC's maps hold at most {VOID - 1}"
        )
    ids = np.zeros(annotation.size, dtype=np.uint8)
    classes = np.zeros(annotation.size, dtype=np.uint8)
    areas = dict(zip(rles, masks.areas(list(rles.values())).tolist(), strict=True))
    for k in sorted(rles, key=lambda k: -areas[k]):
        mask = masks.decode([rles[k]], annotation.size)[0]
        ids[mask], classes[mask] = k, annotation[k - 1].label
    visible = np.bincount(ids.ravel(), minlength=VOID + 1)
    loss.ious += [float(visible[k] / area) if area else 0.0 for k, area in areas.items()]
    for folder, values in (("SegmentationObject", ids), ("SegmentationClass", classes)):
        picture = Image.fromarray(values, mode="P")
        picture.putpalette(_palette().tobytes())
        picture.save(root / folder / f"{stem}.png")


def _palette() -> npt.NDArray[np.uint8]:
    """VOC's colours [256, 3]: bit 3b + c of the index is bit 7 - b of channel c."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    padded = np.pad(bits, ((0, 0), (0, 24 - 8))).reshape(256, 8, 3)
    return np.packbits(padded, axis=1)[:, 0]
