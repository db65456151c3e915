"""VOC, a small example, and files that are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from annocoin.data.formats.voc import CLASSES as VOC_CLASSES
from annocoin.data.loading import load_evaluation, load_labelled, load_weak
from annocoin.errors import InputError, Problems
from annocoin.types import WeakLabel
from pictures import picture

XML = """<annotation><filename>{name}.jpg</filename>
<size><width>20</width><height>10</height></size>
{objects}</annotation>"""
OBJECT = """<object><name>{name}</name><difficult>{difficult}</difficult>
<bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox>
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>
</object>"""


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """One image of 10 x 20: an aeroplane (id 1), a person without pixels, a dog (id 3)."""
    root = tmp_path / "VOC2012"
    picture(root / "JPEGImages" / "a.jpg")
    objects = [
        OBJECT.format(name="aeroplane", difficult=0, box=(1, 1, 8, 5)),
        OBJECT.format(name="person", difficult=1, box=(2.5, 2, 20, 10)),
        OBJECT.format(name="dog", difficult=0, box=(11, 6, 20, 10)),
    ]
    (root / "Annotations").mkdir()
    (root / "Annotations" / "a.xml").write_text(XML.format(name="a", objects="".join(objects)))
    (root / "ImageSets" / "Segmentation").mkdir(parents=True)
    (root / "ImageSets" / "Segmentation" / "val.txt").write_text("a\n\n")
    ids, classes = np.zeros((10, 20), np.uint8), np.zeros((10, 20), np.uint8)
    ids[:5, :8], classes[:5, :8] = 1, VOC_CLASSES.index("aeroplane") + 1
    ids[6:, 10:], classes[6:, 10:] = 3, VOC_CLASSES.index("cat") + 1  # the XML says dog
    ids[5], classes[5] = 255, 255
    for folder, values in (("SegmentationObject", ids), ("SegmentationClass", classes)):
        (root / folder).mkdir()
        Image.fromarray(values).convert("P").save(root / folder / "a.png")
    return root


def test_voc_boxes_count_from_zero_and_flags_are_read(voc: Path) -> None:
    labelled = load_labelled(voc, split="val", with_masks="never")
    assert labelled.classes == VOC_CLASSES
    assert labelled[0].annotation.weak_labels == (
        WeakLabel(1, box=(0, 0, 8, 5)),
        WeakLabel(15, box=(1.5, 1, 20, 10), difficult=True),
        WeakLabel(12, box=(10, 5, 20, 10)),
    )


def test_voc_masks_by_pixels_and_by_the_object_list(voc: Path) -> None:
    truth = load_evaluation(voc, split="val")
    found = truth.truth("a")
    assert [VOC_CLASSES[j - 1] for j in found.labels.tolist()] == ["aeroplane", "cat"]
    assert found.areas.tolist() == [40, 40]  # void pixels belong to nobody
    listed = truth.truth("a", classes_from="objects")
    assert [VOC_CLASSES[j - 1] for j in listed.labels.tolist()] == ["aeroplane", "dog"]


def test_voc_without_a_split_is_all_lists_or_all_annotations(voc: Path) -> None:
    assert len(load_weak(voc)) == 1
    shutil.rmtree(voc / "ImageSets")
    assert len(load_weak(voc)) == 1
    (voc / "ImageSets" / "Main").mkdir(parents=True)
    (voc / "ImageSets" / "Main" / "cat_val.txt").write_text("a  1\n")
    assert len(load_weak(voc, split="cat_val")) == 1


def test_voc_points_are_the_deepest_pixel_unless_given(voc: Path) -> None:
    objects = "<object><name>cat</name><point><x>3</x><y>4</y></point></object>"
    (voc / "Annotations" / "a.xml").write_text(XML.format(name="a", objects=objects))
    shutil.rmtree(voc / "SegmentationObject")
    assert load_weak(voc, "point")[0].annotation.points.tolist() == [[2.5, 3.5]]


def test_an_object_without_pixels_is_a_tag_under_point_supervision(voc: Path) -> None:
    weak = load_weak(voc, "point")
    assert weak[0].annotation.kinds == ("point", "tag", "point")


def test_objects_without_pixels_are_counted(voc: Path) -> None:
    assert load_evaluation(voc).without_mask == 1


def test_a_map_without_classes_takes_them_from_the_xml(voc: Path) -> None:
    shutil.rmtree(voc / "SegmentationClass")
    labels = load_evaluation(voc).truth("a").labels.tolist()
    assert [VOC_CLASSES[j - 1] for j in labels] == ["aeroplane", "dog"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300])


def xml(objects: str, name: str = "a") -> Callable[[Path], None]:
    text = XML.format(name=name, objects=objects)
    return lambda root: (root / "Annotations" / "a.xml").write_text(text) and None


BOMB = """<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>
<annotation><filename>&b;</filename></annotation>"""
OUTSIDE = """<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>
<annotation><filename>&a;</filename></annotation>"""


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda r: (r / "JPEGImages" / "a.jpg").unlink(), "no image"),
        (lambda r: cut(r / "JPEGImages" / "a.jpg"), "broken image"),
        (lambda r: (r / "Annotations" / "a.xml").unlink(), "no such annotation"),
        (lambda r: (r / "Annotations" / "a.xml").write_text("<annotation>"), "broken XML"),
        (lambda r: (r / "Annotations" / "a.xml").write_text(BOMB), "entities"),
        (lambda r: (r / "Annotations" / "a.xml").write_text(OUTSIDE), "entities"),
        (xml("", name="../../a"), "expected a name inside"),
        (xml("<object><name>unicorn</name></object>"), "unknown class 'unicorn'"),
        (xml(OBJECT.format(name="cat", difficult=0, box=(5, 5, 4, 9))), "empty or outside"),
        (xml(OBJECT.format(name="cat", difficult=0, box=(30, 5, 40, 9))), "empty or outside"),
        (xml(OBJECT.format(name="cat", difficult=0, box=("x", 5, 40, 9))), "finite number"),
        (xml(OBJECT.format(name="cat", difficult=0, box=("nan", 5, 40, 9))), "finite number"),
        (lambda r: picture(r / "JPEGImages" / "a.jpg", (10, 21)), "the image has 10 x 21"),
        (lambda r: picture(r / "SegmentationObject" / "a.png"), "palette"),
        (
            lambda r: Image.fromarray(np.zeros((9, 9), np.uint8)).save(
                r / "SegmentationObject" / "a.png"
            ),
            "the image has",
        ),
        (
            lambda r: Image.fromarray(np.full((10, 20), 77, np.uint8)).save(
                r / "SegmentationClass" / "a.png"
            ),
            "expected 1 to 20",
        ),
        (lambda r: (r / "ImageSets/Segmentation/val.txt").write_text("\n"), "no usable image"),
        (lambda r: (r / "ImageSets/Segmentation/val.txt").write_text("a\na\n"), "occurs twice"),
        (lambda r: (r / "ImageSets/Segmentation/val.txt").write_text("../a\n"), "a name inside"),
        (lambda r: (r / "classes.txt").write_text("cat\ncat\n"), "occurs twice"),
        (lambda r: (r / "SegmentationObject" / "a.png").unlink(), "evaluation needs its masks"),
        (
            lambda r: (r / "Annotations" / "a.xml").write_bytes(
                b'<?xml version="1.0" encoding="klingon"?><annotation/>'
            ),
            "broken XML",
        ),
        (lambda r: (r / "ImageSets/Segmentation/val.txt").unlink(), "no split 'val'"),
    ],
)
def test_bad_voc_is_one_clear_line(
    voc: Path, damage: Callable[[Path], object], expected: str
) -> None:
    damage(voc)
    with pytest.raises(InputError, match=expected) as caught:
        load_evaluation(voc, split="val")
    assert str(voc) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_images_can_be_skipped(voc: Path) -> None:
    (voc / "ImageSets" / "Segmentation" / "val.txt").write_text("missing\na\n")
    problems = Problems(skip=True)
    assert len(load_evaluation(voc, split="val", problems=problems)) == 1
    assert len(problems.skipped) == 1
    assert "missing.xml" in problems.skipped[0]
