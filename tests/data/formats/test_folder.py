"""A plain folder, a small example, and files that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from annocoin.data.loading import load_labelled, load_weak
from annocoin.errors import InputError, Problems
from pictures import picture


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
        ('image;class\na;"cat;dog"\nb;\n', {"a": [("cat", None), ("dog", None)], "b": []}),
        (
            "image;class;xmin;ymin;xmax;ymax\na;cat;1,5;2;3,5;4\n",
            {"a": [("cat", (1.5, 2, 3.5, 4))]},
        ),
        ("a.jpg;cat;1;2;3;4\n", {"a": [("cat", (1, 2, 3, 4))]}),
        ("a.jpg\tcat\nb.png\tdog\n", {"a": [("cat", None)], "b": [("dog", None)]}),
        ("a.jpg,cat;dog\n", {"a": [("cat", None), ("dog", None)]}),
        ("image,class\na,cat,,\n", {"a": [("cat", None)]}),
    ],
)
def test_labels_csv(folder: Path, text: str, expected: dict[str, list[Any]]) -> None:
    (folder / "labels.csv").write_text(text, encoding="utf-8")
    labelled = load_labelled(folder)
    found = {
        image.image_id: [(labelled.classes[w.label - 1], w.box) for w in image.annotation]
        for image in labelled
    }
    assert found == expected
    assert list(labelled.classes) == sorted({n for labels in expected.values() for n, _ in labels})


def test_images_without_a_line_are_noted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "labels.csv").write_text("a.jpg,cat\nb.png,\n")
    (folder / "few.txt").write_text("a\n")
    assert [image.image_id for image in load_weak(folder)] == ["a", "b"]
    note = capsys.readouterr().err
    assert "1 image without a line in labels.csv" in note
    assert "c.jpg" in note
    load_weak(folder, split="few")
    assert capsys.readouterr().err == ""
    (folder / "labels.csv").write_text("a.jpg,cat\nb.png,\nsub/c.jpg,cat\n")
    load_weak(folder)
    assert capsys.readouterr().err == ""


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
        ("image,class,xmin,ymin,xmax,ymax\na,cat;dog,1,2,3,4\n", "2 classes for one box"),
        ("image,class,x,y\na,cat,50,1\n", "outside the image"),
        ("a.jpg,cat,1,2,3\n", "5 columns"),
        ("image,class\na,cat,dog\n", r"labels\.csv:2: \['dog'\] beyond the 2 columns .* cat;dog"),
        ("image;class\na;cat;dog\n", "beyond the 2 columns"),
        ('image,class\na,cat\nb,dog\na,"cat, dog"\n', "'cat, dog' beside 'cat' and 'dog'"),
        ("image,class\nh.heic,cat\n", r"labels\.csv:2: .*images/h\.heic: images of this kind"),
        ("image,class\ng.HEIC,cat\n", r"g\.HEIC: no such file, and images of this kind"),
    ],
)
def test_bad_labels_csv_is_one_clear_line(folder: Path, text: str, expected: str) -> None:
    (folder / "labels.csv").write_text(text)
    (folder / "images" / "h.heic").write_bytes(b"not read")
    with pytest.raises(InputError, match=expected) as caught:
        load_weak(folder, "box" if "xmin" in text else "image")
    assert "\n" not in str(caught.value)


def test_two_images_of_one_stem_are_refused(folder: Path) -> None:
    picture(folder / "images" / "a.png")
    (folder / "labels.csv").write_text("a.jpg,cat\na.png,cat\n")
    with pytest.raises(InputError, match="'a' occurs twice"):
        load_weak(folder)


def test_a_file_of_excel_is_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture(folder / "images" / "müsli.jpg")
    (folder / "labels.csv").write_bytes("image;class\r\nmüsli.jpg;Löwe\r\n".encode("cp1252"))
    labelled = load_labelled(folder)
    assert (labelled.classes, labelled[0].image_id) == (("Löwe",), "müsli")
    assert "not in UTF-8, read as cp1252" in capsys.readouterr().err
    (folder / "labels.csv").write_bytes(b"image,class\n\x81\x8d,cat\n")  # in neither of them
    with pytest.raises(InputError, match="not a text file in cp1252"):
        load_labelled(folder)
    (folder / "labels.csv").unlink()
    with pytest.raises(InputError, match="no such file"):
        load_labelled(folder, kind="folder")


def test_lines_with_surplus_cells_can_be_skipped(folder: Path) -> None:
    (folder / "labels.csv").write_text("image,class\na,cat\nb,dog,cat\n")
    problems = Problems(skip=True)
    assert [image.image_id for image in load_weak(folder, problems=problems)] == ["a"]
    assert len(problems.skipped) == 1
