"""Regions that other programs made: MCG and COB files of MATLAB, masks as COCO RLE JSON.

A source finds what there is for an image; what it finds can be handed to another process and turned
into a region set there. All is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import scipy.io

from annocoin import masks
from annocoin.data.dataset import LabelledImage, LabelledImages
from annocoin.data.images import inside
from annocoin.data.parsing import field, finite
from annocoin.errors import InputError, brief
from annocoin.files import read_json
from annocoin.masks import RLE, Size
from annocoin.regions.region_set import RegionSet, regions_of_masks

Edges = npt.NDArray[np.floating]


class Found(Protocol):
    """The proposals of one image, not yet read."""

    def regions(self, size: Size, edges: Edges | None = None) -> RegionSet:
        """Them as a region set; `edges` [H, W] give the masses on their borders."""


class Source(Protocol):
    """Where regions come from, instead of our own proposals."""

    def find(self, image: LabelledImage) -> Found: ...


def open_source(text: str, images: LabelledImages) -> Source:
    """The source that "mcg:DIR" or "coco:FILE" names, for the images of a dataset."""
    kind, _, path = text.partition(":")
    if kind not in ("mcg", "coco") or not path:
        raise InputError(f"--from {text}; expected mcg:DIR or coco:FILE")
    if not Path(path).exists():
        raise InputError(f"{path}: no such file or folder")
    if kind == "mcg":
        if not Path(path).is_dir():
            raise InputError(f"{path}: not a folder; expected one .mat file an image in it")
        return _Folder(Path(path), ".mat", images)
    return _Folder(Path(path), ".json", images) if Path(path).is_dir() else _JsonOfAll(Path(path))


class _Folder:
    """A file for each image: MCG or COB (.mat), or a list of masks as SAM writes it (.json).

    It is called as the image, in the same subfolder; or without subfolders, where no two images of
    the dataset have the same name.
    """

    def __init__(self, folder: Path, suffix: str, images: LabelledImages) -> None:
        self.folder, self.suffix = folder, suffix
        names = [Path(image.file_name).stem for image in images]
        self.flat = len(set(names)) == len(names)

    def find(self, image: LabelledImage) -> Found:
        path = inside(self.folder, image.file_name, str(self.folder)).with_suffix(self.suffix)
        if self.flat and not path.is_file():
            path = self.folder / path.name
        if not path.is_file():
            raise InputError(f"{path}: no such file")
        return MatFile(path) if self.suffix == ".mat" else JsonFile(path)


class _JsonOfAll:
    """One file for all images: ``[{"image_id", "segmentation", "score"}, ...]``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.entries: dict[str, list[tuple[str, Any]]] = {}
        for where, entry in _listed(path):
            image_id = field(entry, "image_id", object, where)
            self.entries.setdefault(str(image_id), []).append((where, entry))

    def find(self, image: LabelledImage) -> Found:
        if str(image.image_id) not in self.entries:
            raise InputError(
                f"{self.path}: no masks for the image {image.image_id!r}; "
                f"it has such ids as {next(iter(self.entries))!r}"
            )
        return JsonMasks(self.entries[str(image.image_id)])


@dataclass(frozen=True)
class MatFile:
    """A file of MCG or COB."""

    path: Path

    def regions(self, size: Size, edges: Edges | None = None) -> RegionSet:
        return read_mat(self.path, size, edges)


@dataclass(frozen=True)
class JsonFile:
    """A file with the masks of one image."""

    path: Path

    def regions(self, size: Size, edges: Edges | None = None) -> RegionSet:
        return JsonMasks(_listed(self.path)).regions(size, edges)


@dataclass(frozen=True)
class JsonMasks:
    """Masks as COCO RLEs with where each stands, for messages.

    Where there is no "score", SAM's "predicted_iou" is it, else they are ranked as they stand.
    """

    entries: list[tuple[str, Any]]

    def regions(self, size: Size, edges: Edges | None = None) -> RegionSet:
        rles, scores = [], []
        for place, (where, entry) in enumerate(self.entries):
            rle = masks.from_json(field(entry, "segmentation", object, where), size, where)
            if not masks.areas([rle])[0]:
                raise InputError(f"{where}: an empty mask")
            score = entry.get("score", entry.get("predicted_iou", 1 - place / len(self.entries)))
            rles.append(rle)
            scores.append(finite(score, f"{where}: score"))
        return _by_score(rles, np.asarray(scores), size, edges)


def read_mat(path: Path, size: Size, edges: Edges | None = None) -> RegionSet:
    """The proposals in one file of MCG or COB, by falling score.

    Read are MCG's own output (a struct whose name begins with "candidates"), the downloads (the
    same fields at the top), and COB's cells of masks. MCG: `superpixels`, any numbers [H, W];
    `labels`, a cell with the superpixels' numbers of each region; `scores` [P], if there are any.
    COB: `maskmat`, a cell of P masks [H, W], and `scores`.
    """
    content = _load_mat(path)
    for struct in [value for name, value in content.items() if name.startswith("candidates")]:
        if struct.dtype.names is None or struct.size != 1:
            raise InputError(f"{path}: candidates is {struct.dtype} {struct.shape}; not a struct")
        content = {name: struct.flat[0][name] for name in struct.dtype.names}
    if "maskmat" in content:
        rles = _cell_masks(content["maskmat"], size, path)
        return _by_score(rles, _scores(content, len(rles), path), size, edges)
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
    if np.shape(superpixels) != size or np.asarray(superpixels).dtype.kind not in "iuf":
        raise InputError(f"{path}: superpixels of {np.shape(superpixels)}; the image is {size}")
    if np.asarray(labels).dtype != object:
        raise InputError(f"{path}: labels is no cell; expected one list of superpixels a region")
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


def _by_score(
    rles: list[RLE], scores: npt.NDArray[np.float64], size: Size, edges: Edges | None
) -> RegionSet:
    order = np.argsort(-scores, kind="stable")
    return regions_of_masks([rles[i] for i in order], size, scores=scores[order], edges=edges)


def _listed(path: Path) -> list[tuple[str, Any]]:
    """The masks of a JSON file, each with where it stands."""
    content = read_json(path)
    if isinstance(content, dict) and isinstance(content.get("annotations"), list):
        content = content["annotations"]
    if not isinstance(content, list) or not content:
        raise InputError(f"{path}: found {brief(content)}; expected a list of masks")
    return [(f"{path}: entry {number}", entry) for number, entry in enumerate(content)]
