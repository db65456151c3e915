"""The regions of a whole dataset in a folder: one file an image, and a list of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from annocoin import atomic, masks
from annocoin.data.checks import field, read_json
from annocoin.data.dataset import ImageId
from annocoin.data.images import inside
from annocoin.errors import InputError, check_positive
from annocoin.progress import track
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import read_regions

INDEX = "regions.json"


class RegionFolder(Mapping[ImageId, RegionSet]):
    """The region sets in a folder that `make_regions` wrote, by image id; read when asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        index = self.path / INDEX
        if not index.is_file():
            raise InputError(f"{self.path}: no {INDEX} in it; make it with `annocoin regions`")
        content = read_json(index)
        self.made: dict[str, Any] = field(content, "made", dict, str(index))
        self.files: dict[ImageId, Path] = {}
        for entry in field(content, "images", list, str(index)):
            image_id: Any = field(entry, "image_id", object, str(index))
            file = inside(self.path, field(entry, "file", str, str(index)), str(index))
            if isinstance(image_id, str | int) and file.is_file():
                self.files[image_id] = file

    def __repr__(self) -> str:
        return f"RegionFolder({str(self.path)!r}, {len(self)} images)"

    def __getitem__(self, image_id: ImageId) -> RegionSet:
        return read_regions(self.files[image_id])

    def __contains__(self, image_id: object) -> bool:
        return image_id in self.files

    def __iter__(self) -> Iterator[ImageId]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


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
