"""Imported region proposals: MATLAB files of MCG and COB, and masks as COCO RLE JSON.

The proposals of an image are looked up first and can then be decoded in another process. The
regions are exactly the imported masks.
"""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy.io

from annocoin import masks
from annocoin.data.dataset import LabelledImage, LabelledImages
from annocoin.data.images import safe_join
from annocoin.data.parsing import field, finite
from annocoin.errors import InputError, brief
from annocoin.files import read_bytes, read_json
from annocoin.masks import RLE, Size
from annocoin.regions.region_set import RegionSet, regions_of_masks

MAX_MAT_BYTES = 1 << 28
MAT_HEADER, MAT_COMPRESSED = 128, 15
"""Bytes of the header of a .mat file, and the type of compressed parts, by its format."""

Edges = npt.NDArray[np.floating]
Entries = list[tuple[str, Any]]
"""Masks of a JSON file, each with its location for error messages."""


@dataclass(frozen=True)
class ImageProposals:
    """The proposals of one image, not yet decoded.

    Args:
        path: a MATLAB file (.mat) of MCG or COB, or a JSON file.
        entries: those of the image in a JSON file of all images; None if the file has one image.
    """

    path: Path
    entries: Entries | None = None

    def regions(self, size: Size, edges: Edges | None = None) -> RegionSet:
        """The region set; `edges` [H, W] determine the edge strength of its borders."""
        if self.path.suffix == ".mat":
            return read_mat(self.path, size, edges)
        entries = _json_entries(self.path) if self.entries is None else self.entries
        rles, scores = [], []
        for i, (where, entry) in enumerate(entries):
            rle = masks.from_json(field(entry, "segmentation", object, where), size, where)
            if not masks.areas([rle])[0]:
                raise InputError(f"{where}: an empty mask")
            score = entry.get("score", entry.get("predicted_iou", 1 - i / len(entries)))
            rles.append(rle)
            scores.append(finite(score, f"{where}: score"))
        return _by_score(rles, np.asarray(scores), size, edges)


class ProposalSource:
    """The proposals of a dataset, by image.

    A folder has one file per image: MCG or COB (.mat), or a list of masks as SAM writes it (.json).
    Files have the names and subfolders of the images; if the names alone are unique, the files may
    also lie directly in the folder. A JSON file of all images is a list
    ``[{"image_id", "segmentation", "score"}, ...]``.

    Args:
        source: "mcg:DIR", "coco:FILE" or "coco:DIR".
        images: the dataset.
    """

    def __init__(self, source: str, images: LabelledImages) -> None:
        kind, _, name = source.partition(":")
        self.path = Path(name)
        if kind not in ("mcg", "coco") or not name:
            raise InputError(
                f"--from {source}; expected mcg:DIR or coco:FILE, or sam:ENCODER.onnx,DECODER.onnx"
            )
        if not self.path.exists():
            raise InputError(f"{name}: no such file or folder")
        if kind == "mcg" and not self.path.is_dir():
            raise InputError(f"{name}: not a folder; expected one with a .mat file for each image")
        self.suffix = ".mat" if kind == "mcg" else ".json"
        stems = [Path(image.file_name).stem for image in images]
        self.flat = len(set(stems)) == len(stems)
        self.entries: dict[str, Entries] = {}
        for where, entry in _json_entries(self.path) if self.path.is_file() else ():
            image_id = field(entry, "image_id", object, where)
            self.entries.setdefault(str(image_id), []).append((where, entry))

    def find(self, image: LabelledImage) -> ImageProposals:
        """The proposals of an image, which must have some."""
        if self.path.is_dir():
            path = safe_join(self.path, image.file_name, str(self.path)).with_suffix(self.suffix)
            if self.flat and not path.is_file():
                path = self.path / path.name
            if not path.is_file():
                raise InputError(f"{path}: no such file")
            return ImageProposals(path)
        if str(image.image_id) not in self.entries:
            raise InputError(
                f"{self.path}: no masks for the image {image.image_id!r}; "
                f"it has such ids as {next(iter(self.entries))!r}"
            )
        return ImageProposals(self.path, self.entries[str(image.image_id)])


def read_mat(path: Path, size: Size, edges: Edges | None = None) -> RegionSet:
    """The proposals in one file of MCG or COB, by falling score.

    Supported are MCG's output (a struct whose name begins with "candidates"), its downloads (the
    same fields at the top level), and COB's cells of masks. MCG: `superpixels`, any numbers [H, W];
    `labels`, a cell with the superpixels of each region; `scores` [P], optional. COB: `maskmat`, a
    cell of P masks [H, W], and `scores`.
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
            names = [key for key in content if not key.startswith("__")]
            raise InputError(
                f"{path}: no {name!r} in it, found {brief(names)}; expected MCG's superpixels and "
                "labels, or COB's maskmat"
            )
    ids, members = _cell_members(content["superpixels"], content["labels"], size, path)
    scores = _scores(content, len(members), path)
    order = np.argsort(-scores, kind="stable")
    return RegionSet.of(ids, members[order], scores=scores[order], edges=edges)


def _load_mat(path: Path) -> dict[str, Any]:
    packed = read_bytes(path, MAX_MAT_BYTES)
    try:
        _check_unpacked(packed)
        content: dict[str, Any] = scipy.io.loadmat(io.BytesIO(packed))
    except NotImplementedError:
        raise InputError(f"{path}: MATLAB's format 7.3; save it with -v7 in MATLAB") from None
    except Exception as error:  # scipy's reader raises exceptions of many kinds
        raise InputError(f"{path}: broken .mat file ({error})") from None
    return content


def _check_unpacked(content: bytes) -> None:
    """Raise if the compressed parts of a .mat file, of format 5, are too large to be unpacked.

    After a header, whose last two bytes tell the byte order, each part has a type and a length.
    """
    if content[126:128] not in (b"IM", b"MI"):  # format 4, which is not compressed
        return
    order: Literal["little", "big"] = "big" if content[126:128] == b"MI" else "little"
    position, total = MAT_HEADER, 0
    while position + 8 <= len(content):
        kind, length = (int.from_bytes(content[i : i + 4], order) for i in (position, position + 4))
        position += 8
        if kind == MAT_COMPRESSED:
            unpacker, rest = zlib.decompressobj(), content[position : position + length]
            while rest and not unpacker.eof:
                total += len(unpacker.decompress(rest, 1 << 20))
                rest = unpacker.unconsumed_tail
                if total > MAX_MAT_BYTES:
                    raise ValueError(f"more than {MAX_MAT_BYTES:,} bytes when unpacked")
        position += length if kind == MAT_COMPRESSED else -(-length // 8) * 8


def _cell_members(
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
    for i, cell in enumerate(cells):
        if cell.dtype == object and len(cell) == 1:  # a cell in a cell, as in some downloads
            cell = np.asarray(cell[0]).ravel()
        if cell.dtype.kind not in "iuf" or not len(cell) or not np.isin(cell, numbers).all():
            raise InputError(
                f"{path}: region {i} has the superpixels {brief(cell.tolist())}; "
                f"the map has {numbers[0]:g}..{numbers[-1]:g}"
            )
        members[i, np.searchsorted(numbers, cell)] = True
    return ids.reshape(size), members


def _cell_masks(cells: Any, size: Size, path: Path) -> list[RLE]:
    rles = []
    for i, cell in enumerate(np.asarray(cells, dtype=object).ravel()):
        mask = np.asarray(cell)
        if mask.shape != size or mask.dtype.kind not in "biuf" or not mask.any():
            raise InputError(f"{path}: mask {i} is empty or {mask.shape}; the image is {size}")
        rles += masks.encode(mask[None] != 0)
    return rles


def _scores(content: dict[str, Any], count: int, path: Path) -> npt.NDArray[np.float64]:
    """The scores of the file; falling from 1 to 0 if it has none."""
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


def _json_entries(path: Path) -> Entries:
    content = read_json(path)
    if isinstance(content, dict) and isinstance(content.get("annotations"), list):
        content = content["annotations"]
    if not isinstance(content, list) or not content:
        raise InputError(f"{path}: found {brief(content)}; expected a list of masks")
    return [(f"{path}: entry {number}", entry) for number, entry in enumerate(content)]
