"""The regions of a whole dataset: one file an image in a folder, made by all cores, resumable."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import torch

from annocoin import atomic, masks
from annocoin.data.checks import field, read_json
from annocoin.data.dataset import ImageId, LabelledImage, LabelledImages
from annocoin.data.images import inside, read_image
from annocoin.errors import InputError, Problems
from annocoin.progress import track
from annocoin.regions.boundaries import BoundaryDetector, DetectorKind
from annocoin.regions.imports import open_source
from annocoin.regions.proposals import RegionProposer
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import read_regions, write_regions

INDEX = "regions.json"


@dataclass(frozen=True)
class RegionOptions:
    """How the regions of a folder were made.

    Args:
        boundaries: the boundary detector.
        limit: the most regions of an image, where they are our own.
        source: "mcg:DIR" or "coco:FILE" if they are somebody else's.
    """

    boundaries: DetectorKind = "network"
    limit: int = 1000
    source: str | None = None


class RegionFolder(Mapping[ImageId, RegionSet]):
    """The region sets in a folder that `make_regions` wrote, by image id; read when asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        index = self.path / INDEX
        if not index.is_file():
            raise InputError(f"{self.path}: no {INDEX} in it; make it with `annocoin regions`")
        content = read_json(index)
        self.options: dict[str, Any] = field(content, "options", dict, str(index))
        self.files: dict[ImageId, str] = {}
        for entry in field(content, "images", list, str(index)):
            image_id: Any = field(entry, "image_id", object, str(index))
            file = field(entry, "file", str, str(index))
            if inside(self.path, file, str(index)).is_file():
                self.files[image_id] = file

    def __getitem__(self, image_id: ImageId) -> RegionSet:
        return read_regions(self.path / self.files[image_id])

    def __iter__(self) -> Iterator[ImageId]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def make_regions(
    labelled: LabelledImages,
    out: str | Path,
    options: RegionOptions | None = None,
    *,
    jobs: int | None = None,
    problems: Problems | None = None,
) -> RegionFolder:
    """Make the regions of every image that has none in `out` yet.

    Each file is written whole, so that the same call goes on after an interruption.

    Args:
        jobs: processes, one thread each; default all cores. With 1 the work is done in this one.
            More need the guard ``if __name__ == "__main__"`` in a script that calls this.
        problems: `Problems(skip=True)` leaves bad images out instead of stopping.
    """
    out, options, problems = Path(out), options or RegionOptions(), problems or Problems()
    if options.limit < 1 or (jobs is not None and jobs < 1):
        raise InputError("--limit and --jobs are at least 1")
    if options.source is not None:
        open_source(options.source)  # a bad one is found before any work
    files = {image.image_id: f"{image.file_name}.npz" for image in labelled}
    _write_index(out, files, options)
    todo = [(image, inside(out, files[image.image_id], str(out))) for image in labelled]
    todo = [(image, path) for image, path in todo if not path.exists()]
    _work(todo, options, min(jobs or _cores(), len(todo)), problems)
    return RegionFolder(out)


def export_regions(folder: RegionFolder, out: str | Path, *, limit: int | None = None) -> int:
    """Write the regions as COCO RLE JSON, for other tools; the best `limit` of each image.

    The file is a list of ``{"image_id", "segmentation", "score", "bbox"}``. Returns its length.
    """
    entries = []
    for image_id in track(list(folder), "exporting"):
        regions = folder[image_id][:limit]
        for rle, score, box in zip(
            regions.rles(), regions.scores.tolist(), regions.boxes.tolist(), strict=True
        ):
            corner, opposite = box[:2], box[2:]
            size = [high - low for low, high in zip(corner, opposite, strict=True)]
            entries.append(
                {
                    "image_id": image_id,
                    "segmentation": masks.to_json(rle),
                    "score": round(score, 6),
                    "bbox": [*corner, *size],
                }
            )
    atomic.write_json(Path(out), entries)
    return len(entries)


class _Maker:
    """One worker's tools: made once, used for many images."""

    def __init__(self, options: RegionOptions) -> None:
        detector = BoundaryDetector(options.boundaries)
        self.propose = RegionProposer(detector, limit=options.limit)
        self.source = None if options.source is None else open_source(options.source)

    def make(self, image: LabelledImage, path: Path) -> None:
        pixels = read_image(image.image_path())
        if self.source is None:
            regions = self.propose(pixels)
        else:
            regions = self.source(image, self.propose.detector(pixels).mean(axis=0))
        write_regions(path, regions)


_maker: _Maker


def _start_worker(options: RegionOptions) -> None:
    global _maker
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that gives the work
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    _maker = _Maker(options)


def _work_once(image: LabelledImage, path: Path) -> None:
    _maker.make(image, path)


def _work(
    todo: list[tuple[LabelledImage, Path]], options: RegionOptions, jobs: int, problems: Problems
) -> None:
    if jobs <= 1:
        maker = _Maker(options) if todo else None
        for image, path in track(todo, "regions"):
            with problems.caught():
                assert maker is not None
                maker.make(image, path)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _start_worker, (options,)) as pool:
        futures = [pool.submit(_work_once, image, path) for image, path in todo]
        try:
            for future in track(futures, "regions"):
                with problems.caught():
                    future.result()
        except BrokenProcessPool:
            raise InputError(
                "a worker process died, perhaps for want of memory; "
                "run the same command again, with fewer --jobs"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _write_index(out: Path, files: Mapping[ImageId, str], options: RegionOptions) -> None:
    """Add these images to the folder's index; options that differ from its own are an error."""
    index = out / INDEX
    entries: list[Any] = []
    if index.exists():
        entries = field(read_json(index), "images", list, str(index))
        made = RegionFolder(out).options
        for name, value in asdict(options).items():
            if made.get(name) != value:
                raise InputError(
                    f"{out}: made with {name} {made.get(name)}, now it is {value}; "
                    "give another --out, or the same options"
                )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists and holds no {INDEX}; give a new or empty folder")
    owners = {entry["file"]: entry["image_id"] for entry in entries}
    for image_id, file in files.items():
        if owners.setdefault(file, image_id) != image_id:
            raise InputError(
                f"{out}: {file} belongs to image {owners[file]!r}, not {image_id!r}; "
                "give each dataset its own --out"
            )
    listed = [{"image_id": image_id, "file": file} for file, image_id in owners.items()]
    atomic.write_json(index, {"options": asdict(options), "images": listed}, indent=1)


def _cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not everywhere
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
