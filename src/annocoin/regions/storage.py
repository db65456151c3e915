"""Region sets on disk: one compressed, versioned file per image, checked when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torchvision.ops import box_convert

from annocoin import files, masks
from annocoin.data.artefacts import ArrayFormat, Arrays, ArtefactFolder, unpack_bits
from annocoin.data.images import MAX_PIXELS
from annocoin.errors import InputError, check_positive
from annocoin.progress import track
from annocoin.regions.region_set import RegionSet

FORMAT = ArrayFormat(
    "regions",
    "annocoin regions",
    version=2,
    fields={
        "shape": ((4,), ("int64",)),
        "superpixels": ((None, None), ("int16", "int32")),  # differences along the rows
        "membership": ((None,), ("uint8",)),  # packed bits
        "scores": ((None,), ("float32",)),
        "edge_strength": ((None,), ("float32",)),
    },
)


def write_regions(path: str | Path, regions: RegionSet) -> None:
    """Write a region set as .npz, atomically. Tens of kB for a photograph."""
    FORMAT.write(Path(path), regions_to_arrays(regions))


def regions_to_arrays(regions: RegionSet) -> Arrays:
    """The arrays of a file of regions, see `FORMAT`."""
    ids = regions.superpixels.cpu().numpy()
    members = regions.membership.cpu().numpy()
    steps = np.diff(ids, axis=1, prepend=0)  # mostly 0, which compresses well
    small = np.abs(steps).max() <= np.iinfo(np.int16).max
    return {
        "shape": np.asarray([*ids.shape, *members.shape], dtype=np.int64),
        "superpixels": steps.astype(np.int16 if small else np.int32),
        "membership": np.packbits(members),
        "scores": regions.scores.cpu().numpy(),
        "edge_strength": regions.edge_strength.cpu().numpy(),
    }


def read_regions(path: str | Path) -> RegionSet:
    """Read a file that `write_regions` wrote; raises `InputError` for anything else."""
    return FORMAT.read(Path(path), regions_from_arrays)


def regions_are_current(path: Path) -> bool:
    """Whether a file exists and has this version; its content is not checked."""
    return FORMAT.is_current(path)


class RegionFolder(ArtefactFolder[RegionSet]):
    """The region sets of a folder that `make_regions` wrote, by image id; read on access."""

    index_name = "regions.json"
    command = "`annocoin regions`"

    def read(self, path: Path) -> RegionSet:
        return read_regions(path)


def export_regions(folder: RegionFolder, out: str | Path, *, limit: int | None = None) -> int:
    """Write the regions as COCO RLE JSON, for other tools; the best `limit` of each image.

    The file is a list of ``{"image_id", "segmentation", "score", "bbox"}``. Returns its length.
    """
    if limit is not None:
        check_positive("limit", limit)
    if Path(out).resolve().is_relative_to(folder.path.resolve()):
        raise InputError(f"{out}: lies in the folder of regions; write to another folder")
    entries: list[dict[str, Any]] = []
    for image_id in track(list(folder), "exporting"):
        regions = folder[image_id][:limit]
        boxes = box_convert(regions.boxes, "xyxy", "xywh").tolist()
        entries += [
            {
                "image_id": image_id,
                "segmentation": masks.to_json(rle),
                "score": round(score, 6),
                "bbox": box,
            }
            for rle, score, box in zip(regions.rles(), regions.scores.tolist(), boxes, strict=True)
        ]
    files.write_json(Path(out), entries)
    return len(entries)


def regions_from_arrays(arrays: Arrays) -> RegionSet:
    """The inverse of `regions_to_arrays`; `ValueError` if the arrays do not fit."""
    height, width, count, superpixels = (int(value) for value in arrays["shape"])
    if arrays["superpixels"].shape != (height, width) or height * width > MAX_PIXELS:
        raise ValueError(f"a map {arrays['superpixels'].shape} for an image {(height, width)}")
    if count < 0 or not 1 <= superpixels <= height * width:
        raise ValueError(f"{count} x {superpixels} bits for {height} x {width} pixels")
    if (arrays["edge_strength"] < 0).any():
        raise ValueError("negative edge_strength")
    return RegionSet.of(
        np.cumsum(arrays["superpixels"], axis=1, dtype=np.int64),
        unpack_bits(arrays["membership"], (count, superpixels)),
        scores=arrays["scores"],
        edge_strength=arrays["edge_strength"],
    )
