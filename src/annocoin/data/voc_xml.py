"""VOC's annotation files: one XML an image, with an `<object>` for every mark."""

from __future__ import annotations

from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, SubElement, indent, tostring

import defusedxml.ElementTree
from defusedxml import DefusedXmlException

from annocoin.data.checks import checked_point, clipped_box, finite, label_of
from annocoin.data.dataset import tight_box
from annocoin.errors import InputError
from annocoin.masks import Size
from annocoin.types import Annotation, Mark


def parse(path: Path) -> Element:
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


def to_marks(tree: Element, size: Size, classes: tuple[str, ...], path: Path) -> list[Mark]:
    """The objects in their order; `size` is the image's own, and the file must agree."""
    _check_size(tree, size, path)
    return [_to_mark(element, size, classes, path) for element in tree.findall("object")]


def _to_mark(element: Element, size: Size, classes: tuple[str, ...], path: Path) -> Mark:
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
    return Mark(
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
    for mark in annotation:
        element = SubElement(tree, "object")
        SubElement(element, "name").text = classes[mark.label - 1]
        SubElement(element, "difficult").text = str(int(mark.difficult))
        box = tight_box(mark)
        if box is not None:
            x0, y0, x1, y1 = box
            _add(element, "bndbox", xmin=x0 + 1, ymin=y0 + 1, xmax=x1, ymax=y1)
        if mark.point is not None:
            _add(element, "point", x=mark.point[0] + 0.5, y=mark.point[1] + 0.5)
        for tag, value in (("score", mark.score), ("confidence", mark.confidence)):
            if value is not None:
                SubElement(element, tag).text = repr(value)
        if mark.crowd:
            SubElement(element, "crowd").text = "1"
    indent(tree)
    return bytes(tostring(tree, encoding="utf-8"))


def _add(parent: Element, tag: str, **numbers: float) -> None:
    element = SubElement(parent, tag)
    for key, value in numbers.items():
        SubElement(element, key).text = str(int(value)) if value == int(value) else repr(value)
