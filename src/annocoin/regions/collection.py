"""The regions of a whole dataset in a folder: one file an image, and a list of them."""

from __future__ import annotations

from pathlib import Path

from annocoin import atomic, masks
from annocoin.data.artefacts import ArtefactFolder
from annocoin.errors import InputError, check_positive
from annocoin.progress import track
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import read_regions


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
    atomic.write_json(Path(out), entries)
    return len(entries)
