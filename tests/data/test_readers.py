"""Each format by a small example that can be checked by hand, and by what must be refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from annocoin import InputError, Problems, load_evaluation, load_labelled, load_weak, masks
from annocoin.data.voc import CLASSES as VOC_CLASSES
from annocoin.types import Mark

XML = """<annotation><filename>{name}.jpg</filename>
<size><width>20</width><height>10</height></size>
{objects}</annotation>"""
OBJECT = """<object><name>{name}</name><difficult>{difficult}</difficult>
<bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox>
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part>
</object>"""


def picture(path: Path, size: tuple[int, int] = (10, 20)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), 128, np.uint8)).save(path)
    return path


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
    assert labelled[0].annotation.marks == (
        Mark(1, box=(0, 0, 8, 5)),
        Mark(15, box=(1.5, 1, 20, 10), difficult=True),
        Mark(12, box=(10, 5, 20, 10)),
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


def coco_content() -> dict[str, Any]:
    return {
        "images": [{"id": 7, "file_name": "sub/a.jpg", "height": 10, "width": 20}],
        "categories": [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}],
        "annotations": [
            {
                "id": 1,
                "image_id": 7,
                "category_id": 18,
                "bbox": [2, 3, 4, 5],
                "segmentation": [[2, 3, 6, 3, 6, 8, 2, 8]],
                "iscrowd": 0,
            },
            {
                "id": 2,
                "image_id": 7,
                "category_id": 3,
                "bbox": [0, 0, 20, 10],
                "segmentation": {"size": [10, 20], "counts": [0, 200]},
                "iscrowd": 1,
            },
        ],
    }


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    picture(tmp_path / "images" / "sub" / "a.jpg")
    (tmp_path / "a.json").write_text(json.dumps(coco_content()))
    return tmp_path / "a.json"


def test_coco_classes_go_by_rising_id(coco: Path) -> None:
    labelled = load_labelled(coco, images=coco.parent / "images")
    assert (labelled.classes, labelled.category_ids) == (("car", "dog"), (3, 18))
    first, second = labelled[0].annotation
    assert (first.label, first.box, first.crowd) == (2, (2, 3, 6, 8), False)
    assert (second.label, second.crowd) == (1, True)
    assert masks.areas([first.mask, second.mask]).tolist() == [20, 200]  # type: ignore[list-item]
    assert labelled[0].image_id == 7


def test_an_empty_box_beside_a_mask_says_nothing(coco: Path) -> None:
    content = coco_content()
    content["annotations"][0]["bbox"] = [2, 3, 4, 0]
    coco.write_text(json.dumps(content))
    assert load_labelled(coco)[0].annotation[0].box is None
    content["annotations"][1]["iscrowd"] = 0
    coco.write_text(json.dumps(content))
    weak = load_weak(coco, "box", images=coco.parent / "images")
    assert weak[0].annotation.kinds == ("tag", "box")  # masks are not read for boxes


def test_coco_crowds_are_tags_for_training(coco: Path) -> None:
    weak = load_weak(coco, "box", images=coco.parent / "images")
    assert weak[0].annotation.marks == (Mark(2, box=(2, 3, 6, 8)), Mark(1))


def changed(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["annotations"][0].update(fields)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda c: c.pop("images"), "no 'images'"),
        (lambda c: c.update(images=[]), "which is not among the images"),
        (lambda c: c["images"].append(dict(c["images"][0])), "image id 7 occurs twice"),
        (lambda c: c["annotations"].append(dict(c["annotations"][0])), "id 1 occurs twice"),
        (lambda c: c["categories"].append({"id": 3, "name": "x"}), "3 occurs twice"),
        (lambda c: c["categories"].append({"id": 4, "name": "car"}), "'car' occurs twice"),
        (lambda c: c["categories"].append({"name": "x"}), "no 'id'"),
        (lambda c: c["images"][0].update(file_name="../a.jpg"), "a name inside"),
        (lambda c: c["images"][0].update(file_name="/a.jpg"), "a name inside"),
        (lambda c: c["images"][0].update(file_name="b.jpg"), "no such image"),
        (lambda c: c["images"][0].update(file_name=3), "expected str"),
        (lambda c: c["images"][0].update(height=11), "says 11 x 20"),
        (lambda c: c["images"][0].update(height=-1), "expected whole numbers"),
        (lambda c: c["images"][0].update(height=10**9), "at most"),
        (lambda c: c["images"][0].update(id=[1]), "expected a whole number or a text"),
        (changed(category_id=4), "category_id 4"),
        (changed(category_id="dog"), "expected int"),
        (changed(image_id=8), "image 8"),
        (changed(bbox=[1, 2, 3]), "expected 4 numbers"),
        (changed(bbox=[1, 2, float("nan"), 4]), "finite"),
        (changed(bbox="1 2 3 4"), "expected list"),
        (changed(bbox=[30, 30, 5, 5]), "empty or outside"),
        (changed(bbox=[3, 3, 0, 5], segmentation=None), "empty or outside"),
        (changed(segmentation={"size": [5, 5], "counts": [25]}), "RLE of size"),
        (changed(segmentation={"size": [10, 20], "counts": [25]}), "covers 25 pixels"),
        (changed(score=float("inf")), "finite"),
        (lambda c: c["annotations"].append(3), "expected an object"),
    ],
)
def test_bad_coco_is_one_clear_line(
    coco: Path, damage: Callable[[dict[str, Any]], object], expected: str
) -> None:
    content = coco_content()
    damage(content)
    coco.write_text(json.dumps(content))
    with pytest.raises(InputError, match=expected) as caught:
        load_evaluation(coco, images=coco.parent / "images")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1, 2", "[]", '"x"', "\x00", "[" * 100_000])
def test_what_is_no_coco_file(coco: Path, text: str) -> None:
    coco.write_text(text)
    with pytest.raises(InputError, match=r"a\.json: "):
        load_evaluation(coco)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.jpg", "b.png", "sub/c.jpg"):
        picture(tmp_path / "data" / "images" / name)
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("image,class\na.jpg,cat;dog\nb,\n", {"a": [("cat", None), ("dog", None)], "b": []}),
        ("a.jpg,dog\nb.png,cat\n", {"a": [("dog", None)], "b": [("cat", None)]}),
        (
            "label,filename,xmin,ymin,xmax,ymax,note\ncat,a.jpg,1,2,3,4,x\ncat,a,5,5,9,9,\n",
            {"a": [("cat", (1, 2, 3, 4)), ("cat", (5, 5, 9, 9))]},
        ),
        ("image,class,x0,y0,x1,y1\na,cat,1,2,3,4\n", {"a": [("cat", (1, 2, 3, 4))]}),
        (
            "filename,width,height,class,xmin,ymin,xmax,ymax\na.jpg,20,10,cat,1,2,3,4\n",
            {"a": [("cat", (1, 2, 3, 4))]},
        ),
        ("image,class,x1,y1,x2,y2\na,cat,1,2,3,4\n", {"a": [("cat", (1, 2, 3, 4))]}),
        ("a.jpg,cat,1,2,300,4\n", {"a": [("cat", (1, 2, 20, 4))]}),
        ("image,class,xmin,ymin,xmax,ymax\na,cat,,,,\n", {"a": [("cat", None)]}),
        ('\ufeffimage,class\nsub/c,"cat, big"\n', {"sub/c": [("cat, big", None)]}),
    ],
)
def test_labels_csv(folder: Path, text: str, expected: dict[str, list[Any]]) -> None:
    (folder / "labels.csv").write_text(text, encoding="utf-8")
    labelled = load_labelled(folder)
    found = {
        image.image_id: [(labelled.classes[m.label - 1], m.box) for m in image.annotation]
        for image in labelled
    }
    assert found == expected
    assert list(labelled.classes) == sorted({n for own in expected.values() for n, _ in own})


def test_points_and_splits_of_a_folder(folder: Path) -> None:
    (folder / "labels.csv").write_text("image,class,x,y\na,cat,3,4\nb,dog,1,1\n")
    (folder / "few.txt").write_text("a\n")
    weak = load_weak(folder, "point", split="few")
    assert [image.image_id for image in weak] == ["a"]
    assert weak[0].annotation.points.tolist() == [[3, 4]]
    assert weak.classes == ("cat", "dog")
    with pytest.raises(InputError, match="no such file"):
        load_weak(folder, split="none")
    (folder / "few.txt").write_text("b\na\nsub/c\n")
    with pytest.raises(InputError, match="'sub/c' has no line"):
        load_weak(folder, split="few")
    problems = Problems(skip=True)
    weak = load_weak(folder, split="few", problems=problems)
    assert ([image.image_id for image in weak], len(problems.skipped)) == (["b", "a"], 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "empty"),
        ("image,class\n", "no usable image"),
        ("foo,bar\na.jpg,cat\n", "expected the column names"),
        ("image,class\nz.jpg,cat\n", r"labels\.csv:2: no image file"),
        ("image,class\nz,cat\n", r"labels\.csv:2: no image"),
        ("image,class\n../../secret.jpg,cat\n", "a name inside"),
        ("image,class\n/etc/passwd,cat\n", "a name inside"),
        ("image,class\n,cat\n", "no image name"),
        ("image,class,xmin,ymin,xmax\na,cat,1,2,3\n", "expected a box as"),
        ("image,class,x,y,w,h\na,cat,1,2,3,4\n", "expected a box as"),
        ("image,class,x,y,width,height\na,cat,1,2,3,4\n", "expected a box as"),
        ("image,class,xmin,ymin,xmax,ymax\na,cat,1,2,3\n", "finite number"),
        ("image,class,xmin,ymin,xmax,ymax\na,cat,1,2,nan,4\n", "finite number"),
        ("image,class,xmin,ymin,xmax,ymax\na,cat,3,2,1,4\n", "empty or outside"),
        ("image,class,xmin,ymin,xmax,ymax\na,cat;dog,1,2,3,4\n", "2 classes for one place"),
        ("image,class,x,y\na,cat,50,1\n", "outside the image"),
        ("a.jpg,cat,1,2,3\n", "5 columns"),
    ],
)
def test_bad_labels_csv_is_one_clear_line(folder: Path, text: str, expected: str) -> None:
    (folder / "labels.csv").write_text(text)
    with pytest.raises(InputError, match=expected) as caught:
        load_weak(folder, "box" if "xmin" in text else "image")
    assert "\n" not in str(caught.value)


def test_two_images_of_one_stem_are_refused(folder: Path) -> None:
    picture(folder / "images" / "a.png")
    (folder / "labels.csv").write_text("a.jpg,cat\na.png,cat\n")
    with pytest.raises(InputError, match="'a' occurs twice"):
        load_weak(folder)


@pytest.fixture
def yolo(tmp_path: Path) -> Path:
    root = tmp_path / "yolo"
    picture(root / "images" / "train" / "a.jpg")
    picture(root / "images" / "train" / "empty.jpg")
    (root / "labels" / "train").mkdir(parents=True)
    lines = "1 0.5 0.5 0.2 0.4\n0 0.1 0.1 0.3 0.1 0.3 0.5 0.1 0.5\n"
    (root / "labels" / "train" / "a.txt").write_text(lines)
    (root / "data.yaml").write_text("train: images/train\nnames: [cat, dog]\n")
    return root


def test_yolo_boxes_polygons_and_images_without_labels(yolo: Path) -> None:
    labelled = load_labelled(yolo, split="train")
    box, polygon = labelled[0].annotation
    assert box == Mark(2, box=pytest.approx((8, 3, 12, 7)))
    assert polygon.label == 1
    assert masks.boxes([polygon.mask]).tolist() == [[2, 1, 7, 6]]  # type: ignore[list-item]
    assert len(labelled[1].annotation) == 0


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("labels/train/a.txt", "2 0.5 0.5 0.2 0.4", "expected 0 to 1"),
        ("labels/train/a.txt", "0 0.5 0.5 0.2", "4 numbers"),
        ("labels/train/a.txt", "0 0.5 0.5 0.2 x", "finite"),
        ("labels/train/a.txt", "0 50 50 20 20", "from 0 to 1"),
        ("data.yaml", "names: [cat]\ntrain: ../..", "inside"),
        ("data.yaml", "names: [cat]\ntrain: /etc", "inside"),
        ("data.yaml", "names: [cat]\ntrain: nowhere", "no folder 'nowhere'"),
        ("data.yaml", "names: {a: cat, 1: dog}\ntrain: images/train", "expected a list"),
        ("data.yaml", "names: 2024-13-45\ntrain: images/train", "broken YAML"),
        ("data.yaml", "names: {0: cat, 2: dog}\ntrain: images/train", "expected a list"),
        ("data.yaml", "train: images/train", "no 'names'"),
        ("data.yaml", "a: [", "broken YAML"),
        ("data.yaml", "!!python/object/apply:os.system [ls]", "broken YAML"),
        ("data.yaml", "names: [cat]\nval: images/train", "no split 'train'"),
    ],
)
def test_bad_yolo_is_one_clear_line(yolo: Path, file: str, text: str, expected: str) -> None:
    (yolo / file).write_text(text)
    with pytest.raises(InputError, match=expected) as caught:
        load_labelled(yolo, split="train")
    assert "\n" not in str(caught.value)


def test_the_layout_of_other_yolo_tools(yolo: Path) -> None:
    (yolo / "train").mkdir()
    shutil.move(yolo / "images" / "train", yolo / "train" / "images")
    shutil.move(yolo / "labels" / "train", yolo / "train" / "labels")
    (yolo / "data.yaml").write_text("train: ../train/images\nnames: [cat, dog]\n")
    assert [len(image.annotation) for image in load_labelled(yolo)] == [2, 0]


@pytest.fixture
def labelme(tmp_path: Path) -> Path:
    picture(tmp_path / "lm" / "a.jpg")
    shapes = [
        {"label": "dog", "shape_type": "rectangle", "points": [[12, 8], [2, 1]]},
        {"label": "cat", "shape_type": "polygon", "points": [[1, 1], [4, 1], [4, 4], [1, 4]]},
        {"label": "cat", "shape_type": "point", "points": [[3, 3]]},
    ]
    content = {"flags": {"sky": True, "sea": False}, "shapes": shapes, "imagePath": "a.jpg"}
    (tmp_path / "lm" / "a.json").write_text(json.dumps(content))
    return tmp_path / "lm"


def test_labelme_shapes_and_flags(labelme: Path) -> None:
    labelled = load_labelled(labelme)
    assert labelled.classes == ("cat", "dog", "sky")
    tag, box, polygon, point = labelled[0].annotation
    assert (tag, box) == (Mark(3), Mark(2, box=(2, 1, 12, 8)))
    assert masks.boxes([polygon.mask]).tolist() == [[1, 1, 5, 5]]  # type: ignore[list-item]
    assert point == Mark(1, point=(3, 3))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"imagePath": "../a.jpg"}, "a name inside"),
        ({"imagePath": "b.jpg"}, "no such image"),
        ({"shapes": [{"label": "x", "points": [[1, 1]], "flags": ["a"]}]}, "with 1 points"),
        ({"imagePath": None}, "expected str"),
        ({"shapes": [{"label": "x", "shape_type": "circle", "points": [[1, 1]]}]}, "circle"),
        ({"shapes": [{"label": "x", "points": [[1, 1, 1]]}]}, "expected"),
        ({"shapes": [{"label": "x", "points": [[1, 1], [2, "b"], [3, 3]]}]}, "finite"),
        ({"shapes": [{"label": "x", "points": [[1, 1], [2, 1e30], [3, 3]]}]}, "far outside"),
        ({"shapes": [{"points": [[1, 1]]}]}, "no 'label'"),
        ({"shapes": [{"label": "x", "points": [[99, 99], [98, 98], [97, 99]]}]}, "outside"),
        (
            {
                "shapes": [
                    {"label": "x", "shape_type": "mask", "points": [[0, 0], [1, 1]], "mask": "!"}
                ]
            },
            "broken mask",
        ),
        (
            {
                "shapes": [
                    {"label": "x", "shape_type": "mask", "points": [[0, 0], [1, 1]], "mask": "é"}
                ]
            },
            "broken mask",
        ),
        (
            {
                "shapes": [
                    {"label": "x", "shape_type": "mask", "points": [[0, 0], [1, 1]], "mask": "aaaa"}
                ]
            },
            "mask: not an image",
        ),
    ],
)
def test_bad_labelme_is_one_clear_line(
    labelme: Path, change: dict[str, Any], expected: str
) -> None:
    content = json.loads((labelme / "a.json").read_text()) | change
    (labelme / "a.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=expected) as caught:
        load_labelled(labelme)
    assert "\n" not in str(caught.value)


def test_kinds_are_recognised_or_named(
    voc: Path, coco: Path, folder: Path, yolo: Path, tmp_path: Path
) -> None:
    (folder / "labels.csv").write_text("a.jpg,cat\n")
    assert load_labelled(voc).classes == VOC_CLASSES
    assert load_labelled(coco).classes == ("car", "dog")
    assert load_labelled(folder).classes == ("cat",)
    assert load_labelled(yolo).classes == ("cat", "dog")
    assert load_labelled(folder, kind="folder").classes == ("cat",)
    (tmp_path / "empty").mkdir()
    for name, expected in (("none", "no such file"), ("empty", "not a dataset")):
        with pytest.raises(InputError, match=expected):
            load_labelled(tmp_path / name)
    with pytest.raises(InputError, match="kind 'pascal'"):
        load_labelled(voc, kind="pascal")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no split lists"):
        load_labelled(coco, split="train")
    with pytest.raises(InputError, match="no such folder of images"):
        load_labelled(coco, images=tmp_path / "none")
