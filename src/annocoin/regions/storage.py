"""Region sets on disk: one compressed file an image, versioned, checked when it is read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from annocoin import files, masks
from annocoin.data.artefacts import (
    Arrays,
    ArtefactFolder,
    Fields,
    has_version,
    read_arrays,
    write_arrays,
)
from annocoin.data.images import MAX_PIXELS
from annocoin.errors import InputError, check_positive
from annocoin.progress import track
from annocoin.regions.region_set import RegionSet

VERSION = 1
FIELDS: Fields = {
    "shape": ((4,), ("int64",)),
    "superpixels": ((None, None), ("int16", "int32")),
    "membership": ((None,), ("uint8",)),
    "scores": ((None,), ("float32",)),
    "masses": ((None,), ("float32",)),
}
"""What a file holds: the map as steps along its rows, M in bits."""


def write_regions(path: str | Path, regions: RegionSet) -> None:
    """Write a region set as .npz, whole or not at all. Tens of kB for a photograph."""
    ids = regions.superpixels.cpu().numpy()
    members = regions.membership.cpu().numpy()
    # Steps between neighbours are mostly 0, and neighbouring bits mostly equal: both compress well.
    steps = np.diff(ids, axis=1, prepend=0)
    small = np.abs(steps).max() <= np.iinfo(np.int16).max
    content: Arrays = {
        "shape": np.asarray([*ids.shape, *members.shape], dtype=np.int64),
        "superpixels": steps.astype(np.int16 if small else np.int32),
        "membership": np.packbits(members),
        "scores": regions.scores.cpu().numpy(),
        "masses": regions.masses.cpu().numpy(),
    }
    write_arrays(Path(path), VERSION, content)


def read_regions(path: str | Path) -> RegionSet:
    """Read what `write_regions` wrote; anything else is an `InputError`."""
    return read_arrays(
        Path(path), VERSION, FIELDS, _decode, what="regions", made="annocoin regions"
    )


def regions_are_current(path: Path) -> bool:
    """Whether a file is there and of this version; its content is not looked at."""
    return has_version(path, VERSION)


def _decode(fields: Arrays) -> RegionSet:
    height, width, count, superpixels = (int(value) for value in fields["shape"])
    if fields["superpixels"].shape != (height, width) or height * width > MAX_PIXELS:
        raise ValueError(f"a map {fields['superpixels'].shape} for an image {(height, width)}")
    fits = count >= 0 and 1 <= superpixels <= height * width
    if not fits or fields["membership"].size != -(-count * superpixels // 8):
        raise ValueError(f"{fields['membership'].size} bytes for {count} x {superpixels} bits")
    if (fields["masses"] < 0).any():
        raise ValueError("negative masses")
    bits = np.unpackbits(fields["membership"], count=count * superpixels)
    return RegionSet.of(
        np.cumsum(fields["superpixels"], axis=1, dtype=np.int64),
        bits.reshape(count, superpixels),
        scores=fields["scores"],
        masses=fields["masses"],
    )


class RegionFolder(ArtefactFolder[RegionSet]):
    """The region sets in a folder that `make_regions` wrote, by image id; read when asked for."""

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
        raise InputError(f"{out}: lies in the folder of regions; write to another place")
    entries = []
    for image_id in track(list(folder), "exporting"):
        regions = folder[image_id][:limit]
        for rle, score, box in zip(
            regions.rles(), regions.scores.tolist(), regions.boxes.tolist(), strict=True
        ):
            x0, y0, x1, y1 = box
            entries.append(
                {
                    "image_id": image_id,
                    "segmentation": masks.to_json(rle),
                    "score": round(score, 6),
                    "bbox": [x0, y0, x1 - x0, y1 - y0],
                }
            )
    files.write_json(Path(out), entries)
    return len(entries)
