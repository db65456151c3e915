"""A plain folder: `images/` and `labels.csv`, one line per image (tags) or per box or point.

The columns are known by their names in the first line, in any order:

- ``image``: the file's name in `images/`; the ending may be left out;
- ``class``: one class, or several with ";" between them; empty says that none is there;
- ``xmin, ymin, xmax, ymax`` (or ``x1, y1, x2, y2``): a box in pixels, last edges exclusive;
- ``x, y``: a point.

Without such a first line, the columns are image, class, then nothing, two or four numbers. Other
columns are passed over; so are images without a line, but their number is told. The list of classes
is all that occur, in the order of the alphabet. A file `NAME.txt` beside the CSV, with one image a
line, is the split NAME.
"""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path, PurePosixPath

from annocoin.data.dataset import LabelledImage, LabelledImages, tight_box
from annocoin.data.formats import ConversionLoss
from annocoin.data.images import SUFFIXES, copy_image, find_image, image_size, inside
from annocoin.data.parsing import checked_point, clipped_box, finite, unique
from annocoin.errors import InputError, Problems, brief
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
_Row = tuple[int, dict[str, str]]


def read(root: Path, split: str | None, problems: Problems) -> LabelledImages:
    """Read a folder; every line of the CSV belongs to an image in `images/`."""
    path = root / "labels.csv"
    rows = _rows(path, problems)
    names = sorted({name for _, row in rows for name in _names(row)})
    by_image: dict[Path, list[_Row]] = {}
    for line, row in rows:
        with problems.caught():
            by_image.setdefault(_image(root, row, f"{path}:{line}"), []).append((line, row))
    if split is not None:
        by_image = _chosen(by_image, root, split, problems)
    else:
        _tell_of_others(by_image, root)
    images = []
    for file, own in track(list(by_image.items()), f"reading {root.name}"):
        with problems.caught():
            size = image_size(file)
            weak_labels = [
                m for n, row in own for m in _weak_labels(row, names, size, f"{path}:{n}")
            ]
            name = file.relative_to(root / "images")
            image_id = name.with_suffix("").as_posix()
            images.append(
                LabelledImage(image_id, name.as_posix(), file, Annotation(size, tuple(weak_labels)))
            )
    unique([image.image_id for image in images], f"{path}: image names without ending")
    return LabelledImages.of(names, images, split=split, source=root)


def _chosen(
    by_image: dict[Path, list[_Row]], root: Path, split: str, problems: Problems
) -> dict[Path, list[_Row]]:
    """The images of a split, in its order."""
    path = inside(root, f"{split}.txt", "--split")
    chosen = {}
    for name in unique(read_lines(path), str(path)):
        with problems.caught():
            image = _image(root, {"image": name}, str(path))
            if image not in by_image:
                raise InputError(f"{path}: {name!r} has no line in labels.csv")
            chosen[image] = by_image[image]
    return chosen


def _tell_of_others(by_image: dict[Path, list[_Row]], root: Path) -> None:
    """Say how many images the CSV does not name."""
    files = (file for file in (root / "images").rglob("*") if file.suffix.lower() in SUFFIXES)
    others = sorted(set(files) - by_image.keys())
    if others:
        print(
            f"note: {root}: {len(others)} of the images have no line in labels.csv and are passed "
            f"over, such as {others[0].name}; 'NAME,' says that no class is there",
            file=sys.stderr,
        )


def write(labelled: LabelledImages, out: Path) -> ConversionLoss:
    """Write tags, points and boxes as a new folder, images copied. Masks have no place in it."""
    loss = ConversionLoss()
    if any(";" in name for name in labelled.classes):
        raise InputError(f"{labelled.source}: a class name with ';', which separates classes here")
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["image", "class", *_BOX, *_POINT])
    with new_directory(out) as root:
        (root / "images").mkdir()
        pairs = list(zip(labelled, labelled.stems(), strict=True))
        for image, stem in track(pairs, "writing folder"):
            copied = copy_image(image.image_path(), root / "images", stem)
            for weak_label in image.annotation:
                loss.leave_out(weak_label, held={"points"})
                box, point = tight_box(weak_label) or ("",) * 4, weak_label.point or ("",) * 2
                name = labelled.classes[weak_label.label - 1]
                table.writerow([copied.name, name, *box, *point])
            if not image.annotation:
                table.writerow([copied.name, *[""] * 7])
        loss.drop("classes without a label", labelled.unused_classes())
        (root / "labels.csv").write_text(text.getvalue(), encoding="utf-8")
    return loss


def _rows(path: Path, problems: Problems) -> list[_Row]:
    """The lines as {column: value}, with their numbers."""
    try:
        lines = [
            (number, [cell.strip() for cell in cells])
            for number, cells in enumerate(csv.reader(io.StringIO(read_text(path))), start=1)
            if any(cell.strip() for cell in cells)
        ]
    except csv.Error as error:
        raise InputError(f"{path}: broken CSV ({error})") from None
    if not lines:
        raise InputError(f"{path}: empty; expected lines such as 'a.jpg,cat'")
    first = lines[0][1]
    columns = _columns(first, str(path))
    if columns is not None:
        lines = lines[1:]
    elif PurePosixPath(first[0]).suffix.lower() not in SUFFIXES:
        raise InputError(
            f"{path}:1: found {brief(first)}; expected the column names "
            "image,class[,xmin,ymin,xmax,ymax] or a line such as a.jpg,cat"
        )
    rows = []
    for number, cells in lines:
        with problems.caught():
            places = columns or _columns_by_count(cells, f"{path}:{number}")
            row = {column: cells[i] for column, i in places.items() if i < len(cells)}
            rows.append((number, row))
    return rows


def _columns(cells: list[str], where: str) -> dict[str, int] | None:
    """Where each known column stands; None if the line names no image or no class column."""
    words = [cell.lower() for cell in cells]
    if "x0" in words:  # then x1, y1 is the far corner, not the near one
        words = [{"x1": "xmax", "y1": "ymax"}.get(word, word) for word in words]
    found = {
        column: next(i for i, word in enumerate(words) if word in aliases)
        for column, aliases in _ALIASES.items()
        if aliases & set(words)
    }
    if not {"image", "class"} <= found.keys():
        return None
    corners = found.keys() & set(_BOX)
    extent = {"x", "y"} <= found.keys() and {"w", "h", "width", "height"} & set(words)
    if len(corners) not in (0, 4) or (extent and not corners):
        raise InputError(f"{where}: columns {brief(cells)}; expected a box as {', '.join(_BOX)}")
    return found


def _columns_by_count(cells: list[str], where: str) -> dict[str, int]:
    places: dict[int, tuple[str, ...]] = {2: (), 4: _POINT, 6: _BOX}
    if len(cells) not in places:
        raise InputError(
            f"{where}: {len(cells)} columns; expected image, class, then nothing, x, y or "
            "xmin, ymin, xmax, ymax"
        )
    return {column: i for i, column in enumerate(("image", "class", *places[len(cells)]))}


def _names(row: dict[str, str]) -> list[str]:
    return [name.strip() for name in row.get("class", "").split(";") if name.strip()]


def _image(root: Path, row: dict[str, str], where: str) -> Path:
    name = row.get("image", "")
    if not name:
        raise InputError(f"{where}: no image name")
    path = inside(root / "images", name, where)
    if path.suffix.lower() in SUFFIXES:
        if not path.is_file():
            raise InputError(f"{where}: no image file {path}")
        return path
    return find_image(root / "images", name, where)


def _weak_labels(row: dict[str, str], names: list[str], size: Size, where: str) -> list[WeakLabel]:
    labels = [names.index(name) + 1 for name in _names(row)]
    box, point = _numbers(row, _BOX, where), _numbers(row, _POINT, where)
    if box is None and point is None:
        return [WeakLabel(label) for label in labels]
    if len(labels) != 1:
        raise InputError(f"{where}: {len(labels)} classes for one place; expected one")
    return [
        WeakLabel(
            labels[0],
            box=None if box is None else clipped_box(box, size, where),
            point=None if point is None else checked_point(point, size, where),
        )
    ]


def _numbers(row: dict[str, str], keys: tuple[str, ...], where: str) -> list[float] | None:
    if not any(row.get(key) for key in keys):
        return None
    return [finite(row.get(key, ""), f"{where}: {key}") for key in keys]
