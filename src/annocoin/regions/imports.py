"""Regions that other programs made: MCG and COB files of MATLAB, masks as COCO RLE JSON.

A source is called with an image of a dataset and gives its proposals; both are exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.io

from annocoin import masks
from annocoin.data.checks import field, finite, read_json
from annocoin.data.dataset import LabelledImage
from annocoin.errors import InputError, brief
from annocoin.masks import RLE, Size
from annocoin.regions.overlay import regions_of_masks
from annocoin.regions.region_set import RegionSet

Edges = npt.NDArray[np.floating]


class Source(Protocol):
    """Where regions come from, instead of our own proposals."""

    def __call__(self, image: LabelledImage, edges: Edges) -> RegionSet:
        """The regions of one image; `edges` [H, W] give the masses on their borders."""


def open_source(text: str) -> Source:
    """The source that "mcg:DIR" or "coco:FILE" names."""
    kind, _, path = text.partition(":")
    if kind not in ("mcg", "coco") or not path:
        raise InputError(f"--from {text}; expected mcg:DIR or coco:FILE")
    if not Path(path).exists():
        raise InputError(f"{path}: no such file or folder")
    return MatFolder(Path(path)) if kind == "mcg" else JsonMasks(Path(path))


class MatFolder:
    """A folder of MCG or COB files, `<image>.mat` each."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise InputError(f"{folder}: not a folder; expected one .mat file an image in it")
        self.folder = folder

    def __call__(self, image: LabelledImage, edges: Edges) -> RegionSet:
        path = self.folder / f"{Path(image.file_name).stem}.mat"
        return read_mat(path, image.annotation.size, edges)


class JsonMasks:
    """Masks as COCO RLEs: one file for all images, or a folder with `<image>.json` each.

    One file: ``[{"image_id", "segmentation", "score"}, ...]``, or the same list under
    "annotations". A file for each image needs no "image_id". Where there is no "score", SAM's
    "predicted_iou" is it, else the masks are ranked as they stand.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, list[tuple[str, Any]]] = {}
        if not path.is_dir():
            for number, entry in enumerate(_listed(path)):
                where = f"{path}: entry {number}"
                image_id = field(entry, "image_id", object, where)
                self._entries.setdefault(str(image_id), []).append((where, entry))

    def __call__(self, image: LabelledImage, edges: Edges) -> RegionSet:
        own = self._entries.get(str(image.image_id), [])
        if self.path.is_dir():
            path = self.path / f"{Path(image.file_name).stem}.json"
            own = [(f"{path}: entry {i}", entry) for i, entry in enumerate(_listed(path))]
        return _from_entries(own, image, self.path, edges)


def read_mat(path: Path, size: Size, edges: Edges | None = None) -> RegionSet:
    """The proposals in one file of MCG or COB, by falling score.

    Read are MCG's own output (a struct whose name begins with "candidates"), the downloads (the
    same fields at the top), and COB's cells of masks (`maskmat`).
    """
    content = _load_mat(path)
    for struct in [value for name, value in content.items() if name.startswith("candidates")]:
        if struct.dtype.names is None or struct.size != 1:
            raise InputError(f"{path}: candidates is {struct.dtype} {struct.shape}; not a struct")
        content = {name: struct.flat[0][name] for name in struct.dtype.names}
    if "maskmat" in content:
        rles = _cell_masks(content["maskmat"], size, path)
        scores = _scores(content, len(rles), path)
        order = np.argsort(-scores, kind="stable")
        return regions_of_masks([rles[i] for i in order], size, scores=scores[order], edges=edges)
    for name in ("superpixels", "labels"):
        if name not in content:
            found = [key for key in content if not key.startswith("__")]
            raise InputError(
                f"{path}: no {name!r} in it, found {brief(found)}; expected MCG's superpixels and "
                "labels, or COB's maskmat"
            )
    ids, members = _from_labels(content["superpixels"], content["labels"], size, path)
    scores = _scores(content, len(members), path)
    order = np.argsort(-scores, kind="stable")
    return RegionSet.of(ids, members[order], scores=scores[order], edges=edges)


def _load_mat(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        content: dict[str, Any] = scipy.io.loadmat(path)
    except NotImplementedError:
        raise InputError(f"{path}: MATLAB's format 7.3; save it with -v7 in MATLAB") from None
    except Exception as error:  # scipy's reader raises whatever it stumbles over
        raise InputError(f"{path}: broken .mat file ({error})") from None
    return content


def _from_labels(
    superpixels: Any, labels: Any, size: Size, path: Path
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Ids 0..S-1 and membership [P, S] from MCG's map and its cells of superpixel numbers."""
    if superpixels.shape != size or superpixels.dtype.kind not in "iuf":
        raise InputError(
            f"{path}: superpixels {superpixels.dtype} {superpixels.shape}; the image is {size}"
        )
    numbers, ids = np.unique(superpixels, return_inverse=True)
    cells = [np.asarray(cell).ravel() for cell in np.asarray(labels, dtype=object).ravel()]
    members = np.zeros((len(cells), len(numbers)), dtype=bool)
    for i, (row, cell) in enumerate(zip(members, cells, strict=True)):
        own = np.asarray(cell[0]).ravel() if cell.dtype == object and len(cell) == 1 else cell
        if own.dtype.kind not in "iuf" or not len(own) or not np.isin(own, numbers).all():
            raise InputError(
                f"{path}: region {i} has the superpixels {brief(own.tolist())}; "
                f"the map has {numbers[0]:g}..{numbers[-1]:g}"
            )
        row[np.searchsorted(numbers, own)] = True
    return ids.reshape(size), members


def _cell_masks(cells: Any, size: Size, path: Path) -> list[RLE]:
    found = []
    for i, cell in enumerate(np.asarray(cells, dtype=object).ravel()):
        mask = np.asarray(cell)
        if mask.shape != size or mask.dtype.kind not in "biuf" or not mask.any():
            raise InputError(f"{path}: mask {i} is empty or {mask.shape}; the image is {size}")
        found += masks.encode(mask[None] != 0)
    return found


def _scores(content: dict[str, Any], count: int, path: Path) -> npt.NDArray[np.float64]:
    """The scores of the file; falling ones if it has none."""
    if "scores" not in content:
        return np.linspace(1, 0, count + 1)[:-1]
    scores = np.asarray(content["scores"]).ravel()
    if scores.dtype.kind not in "iuf" or len(scores) != count or not np.isfinite(scores).all():
        raise InputError(f"{path}: {len(scores)} scores for {count} regions; expected finite ones")
    return scores.astype(np.float64)


def _listed(path: Path) -> list[Any]:
    content = read_json(path)
    if isinstance(content, dict) and isinstance(content.get("annotations"), list):
        content = content["annotations"]
    if not isinstance(content, list):
        raise InputError(f"{path}: found {brief(content)}; expected a list of masks")
    return content


def _from_entries(
    entries: list[tuple[str, Any]], image: LabelledImage, path: Path, edges: Edges
) -> RegionSet:
    if not entries:
        raise InputError(f"{path}: no masks for the image {image.image_id!r}")
    size = image.annotation.size
    rles, scores = [], []
    for place, (where, entry) in enumerate(entries):
        rle = masks.from_json(field(entry, "segmentation", object, where), size, where)
        if not masks.areas([rle])[0]:
            raise InputError(f"{where}: an empty mask")
        score = entry.get("score", entry.get("predicted_iou", 1 - place / len(entries)))
        rles.append(rle)
        scores.append(finite(score, f"{where}: score"))
    order = np.argsort(-np.asarray(scores), kind="stable")
    return regions_of_masks(
        [rles[i] for i in order], size, scores=np.asarray(scores)[order], edges=edges
    )
