"""A plain folder: `images/` and `labels.csv`, one line per image (tags) or per box or point.

The first line names the columns, in any order:

- ``image``: the file's name in `images/`, with or without suffix;
- ``class``: one class, or several separated by ";"; empty: the image shows none of the classes;
- ``xmin, ymin, xmax, ymax`` (or ``x1, y1, x2, y2``): a box in pixels, last edges exclusive;
- ``x, y``: a point.

Without such a first line, the columns are image, class, then nothing, two or four numbers. Other
columns are ignored, and so are images without a line, with a note of their number. A line with more
cells than the first one is an error: they are usually further classes. The classes are all that
occur, in alphabetical order. A file `NAME.txt` beside the CSV, with one image per line, is the
split NAME.

Cells are separated by commas, semicolons or tabs, as the first line shows; with the latter two,
numbers may have a decimal comma. The text is UTF-8, or else cp1252, both of which Excel writes.
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path, PurePosixPath

from annocoin.data.dataset import LabelledImage, LabelledImages, tight_box
from annocoin.data.formats import ConversionLoss
from annocoin.data.images import SUFFIXES, copy_image, find_image, image_size, safe_join
from annocoin.data.parsing import finite, located_label, unique
from annocoin.errors import InputError, Problems, brief, plural, printable
from annocoin.files import new_directory, read_lines, read_text
from annocoin.masks import Size
from annocoin.progress import track
from annocoin.types import Annotation, WeakLabel

_ALIASES = {
    "image": {"image", "file", "filename", "file_name", "image_id", "path", "name"},
    "class": {"class", "classes", "label", "labels", "tag", "tags", "category"},
    "xmin": {"xmin", "x0", "x1", "left"},
    "ymin": {"ymin", "y0", "y1", "top"},
    "xmax": {"xmax", "x2", "right"},
    "ymax": {"ymax", "y2", "bottom"},
    "x": {"x"},
    "y": {"y"},
}
_BOX = ("xmin", "ymin", "xmax", "ymax")
_POINT = ("x", "y")
_COLUMNS_BY_COUNT = {
    2: ("image", "class"),
    4: ("image", "class", *_POINT),
    6: ("image", "class", *_BOX),
}
DELIMITERS = ",;\t"
EXCEL_ENCODING = "cp1252"

_Row = tuple[int, dict[str, str]]
"""Line number and the cells by column."""


def read(root: Path, split: str | None, problems: Problems) -> LabelledImages:
    """Read a folder; every line of the CSV belongs to an image in `images/`."""
    path = root / "labels.csv"
    rows = _read_rows(path, problems)
    classes = sorted({name for _, row in rows for name in _class_names(row)})
    _check_commas(classes, path)
    by_image: dict[Path, list[_Row]] = {}
    for line, row in rows:
        with problems.caught():
            file = _image_file(root, row.get("image", ""), f"{path}:{line}")
            by_image.setdefault(file, []).append((line, row))
    if split is not None:
        by_image = _select(by_image, root, split, problems)
    else:
        _note_unlisted(by_image, root)
    images = []
    for file, image_rows in track(list(by_image.items()), f"reading {root.name}"):
        with problems.caught():
            size = image_size(file)
            weak_labels = [
                label
                for line, row in image_rows
                for label in _to_weak_labels(row, classes, size, f"{path}:{line}")
            ]
            name = file.relative_to(root / "images")
            image_id = name.with_suffix("").as_posix()
            annotation = Annotation(size, tuple(weak_labels))
            images.append(LabelledImage(image_id, name.as_posix(), file, annotation))
    unique([image.image_id for image in images], f"{path}: image names without suffix")
    return LabelledImages.of(classes, images, split=split, source=root)


def write(labelled: LabelledImages, out: Path) -> ConversionLoss:
    """Write tags, points and boxes as a new folder, with copies of the images; masks are lost."""
    loss = ConversionLoss()
    if any(";" in name for name in labelled.classes):
        raise InputError(f"{labelled.source}: a class name with ';', which separates classes here")
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["image", "class", *_BOX, *_POINT])
    with new_directory(out) as root:
        (root / "images").mkdir()
        for image, stem in track(labelled.with_stems(), "writing folder"):
            copied = copy_image(image.image_path(), root / "images", stem)
            for label in image.annotation:
                loss.drop_fields(label, supported={"points"})
                box, point = tight_box(label) or ("",) * 4, label.point or ("",) * 2
                table.writerow([copied.name, labelled.classes[label.label - 1], *box, *point])
            if not image.annotation:
                table.writerow([copied.name, *[""] * 7])
        loss.drop("classes without a label", labelled.unused_classes())
        (root / "labels.csv").write_text(text.getvalue(), encoding="utf-8")
    return loss


def _read_rows(path: Path, problems: Problems) -> list[_Row]:
    text = _read_table(path)
    delimiter = _delimiter(text)
    try:
        lines = [
            (number, [cell.strip() for cell in cells])
            for number, cells in enumerate(csv.reader(io.StringIO(text), delimiter=delimiter), 1)
            if any(cell.strip() for cell in cells)
        ]
    except csv.Error as error:
        raise InputError(f"{path}: broken CSV ({error})") from None
    if not lines:
        raise InputError(f"{path}: empty; expected lines such as 'a.jpg,cat'")
    first = lines[0][1]
    header = _parse_header(first, str(path))
    if header is not None:
        lines = lines[1:]
    elif not _is_image_name(first[0]):
        raise InputError(
            f"{path}:1: found {brief(first)}; expected the column names "
            "image,class[,xmin,ymin,xmax,ymax] or a line such as a.jpg,cat"
        )
    rows = []
    for number, cells in lines:
        with problems.caught():
            if header is not None:
                _check_surplus(cells, first, f"{path}:{number}")
            columns = header or _columns_by_count(cells, f"{path}:{number}")
            row = {column: cells[i] for column, i in columns.items() if i < len(cells)}
            if delimiter != ",":  # then the numbers may have a decimal comma
                row |= {key: row[key].replace(",", ".") for key in row.keys() & {*_BOX, *_POINT}}
            rows.append((number, row))
    return rows


def _read_table(path: Path) -> str:
    """The text of a CSV file in UTF-8 or, with a note, as Excel writes it on Windows."""
    try:
        return read_text(path)
    except InputError:
        text = read_text(path, EXCEL_ENCODING)  # raises again where there is no such file
        print(f"note: {path}: not in UTF-8, read as {EXCEL_ENCODING}", file=sys.stderr)
        return text


def _delimiter(text: str) -> str:
    """The one with which the first line names columns, or begins with an image; else a comma."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    for delimiter in DELIMITERS:
        cells = next(csv.reader([first], delimiter=delimiter))
        words = {cell.strip().lower() for cell in cells}
        names = all(words & _ALIASES[column] for column in ("image", "class"))
        if names or (len(cells) > 1 and _is_image_name(cells[0].strip())):
            return delimiter
    return DELIMITERS[0]


def _is_image_name(name: str) -> bool:
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def _check_surplus(cells: list[str], header: list[str], where: str) -> None:
    """Raise if cells without a column would be lost."""
    surplus = [cell for cell in cells[len(header) :] if cell]
    if surplus:
        raise InputError(
            f"{where}: {brief(surplus)} beyond the {len(header)} columns {brief(header)}; several "
            "classes are one cell, separated by ';', such as cat;dog"
        )


def _check_commas(classes: list[str], path: Path) -> None:
    """Raise if a class is a list of other classes."""
    for name in classes:
        parts = [part.strip() for part in name.split(",")]
        if len(parts) > 1 and set(parts) <= set(classes):
            raise InputError(
                f"{path}: class {name!r} beside {' and '.join(map(repr, parts))}; classes are "
                f"separated by ';', such as {';'.join(parts)}"
            )


def _parse_header(cells: list[str], where: str) -> dict[str, int] | None:
    """The index of each known column; None if the line names no image or no class column."""
    words = [cell.lower() for cell in cells]
    if "x0" in words:  # then x1, y1 is the lower right corner
        words = [{"x1": "xmax", "y1": "ymax"}.get(word, word) for word in words]
    columns = {
        column: next(i for i, word in enumerate(words) if word in aliases)
        for column, aliases in _ALIASES.items()
        if aliases & set(words)
    }
    if not {"image", "class"} <= columns.keys():
        return None
    corners = columns.keys() & set(_BOX)
    extent = {"x", "y"} <= columns.keys() and {"w", "h", "width", "height"} & set(words)
    if len(corners) not in (0, 4) or (extent and not corners):
        raise InputError(f"{where}: columns {brief(cells)}; expected a box as {', '.join(_BOX)}")
    return columns


def _columns_by_count(cells: list[str], where: str) -> dict[str, int]:
    if len(cells) not in _COLUMNS_BY_COUNT:
        raise InputError(
            f"{where}: {len(cells)} columns; expected image, class, then nothing, x, y or "
            "xmin, ymin, xmax, ymax"
        )
    return {column: i for i, column in enumerate(_COLUMNS_BY_COUNT[len(cells)])}


def _select(
    by_image: dict[Path, list[_Row]], root: Path, split: str, problems: Problems
) -> dict[Path, list[_Row]]:
    """The images of a split, in its order."""
    path = safe_join(root, f"{split}.txt", "--split")
    selected = {}
    for name in unique(read_lines(path), str(path)):
        with problems.caught():
            image = _image_file(root, name, str(path))
            if image not in by_image:
                raise InputError(f"{path}: {name!r} has no line in labels.csv")
            selected[image] = by_image[image]
    return selected


def _note_unlisted(by_image: dict[Path, list[_Row]], root: Path) -> None:
    files = (file for file in (root / "images").rglob("*") if file.suffix.lower() in SUFFIXES)
    unlisted = sorted(set(files) - by_image.keys())
    if unlisted:
        example = printable(unlisted[0].name)
        print(
            f"note: {root}: {plural(len(unlisted), 'image')} without a line in labels.csv, such as "
            f"{example}: ignored; 'NAME,' marks an image without classes",
            file=sys.stderr,
        )


def _class_names(row: dict[str, str]) -> list[str]:
    return [name.strip() for name in row.get("class", "").split(";") if name.strip()]


def _image_file(root: Path, name: str, where: str) -> Path:
    if not name:
        raise InputError(f"{where}: no image name")
    path = safe_join(root / "images", name, where)
    if path.suffix.lower() not in SUFFIXES:
        return find_image(root / "images", name, where)
    if not path.is_file():
        raise InputError(f"{where}: no image file {path}")
    return path


def _to_weak_labels(
    row: dict[str, str], classes: list[str], size: Size, where: str
) -> list[WeakLabel]:
    labels = [classes.index(name) + 1 for name in _class_names(row)]
    box, point = _numbers(row, _BOX, where), _numbers(row, _POINT, where)
    if box is None and point is None:
        return [WeakLabel(label) for label in labels]
    if len(labels) != 1:
        raise InputError(f"{where}: {len(labels)} classes for one box or point; expected one")
    return [located_label(labels[0], size, where, box=box, point=point)]


def _numbers(row: dict[str, str], keys: tuple[str, ...], where: str) -> list[float] | None:
    if not any(row.get(key) for key in keys):
        return None
    return [finite(row.get(key, ""), f"{where}: {key}") for key in keys]
