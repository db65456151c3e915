"""Make the regions of a whole dataset: on all cores, resumable."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from pathlib import Path

import cv2
import torch

from annocoin import atomic
from annocoin.data.dataset import ImageId, LabelledImage, LabelledImages
from annocoin.data.images import inside, read_image
from annocoin.errors import InputError, Problems, check_choice, check_positive, one_line
from annocoin.progress import track
from annocoin.regions.boundaries import KINDS, BoundaryDetector, DetectorKind
from annocoin.regions.collection import INDEX, RegionFolder
from annocoin.regions.imports import Found, open_source
from annocoin.regions.proposals import LIMIT, RegionProposer
from annocoin.regions.storage import is_current, write_regions

LOCK = ".lock"
Task = tuple[LabelledImage, Found | None, Path]


@dataclass(frozen=True)
class RegionOptions:
    """How the regions of a folder are made.

    Args:
        boundaries: the boundary detector.
        limit: the most regions of an image; default 1,000 of our own, and all that others made.
        source: "mcg:DIR" or "coco:FILE" if they are somebody else's.
    """

    boundaries: DetectorKind = "network"
    limit: int | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        check_choice("boundary detector", self.boundaries, KINDS)
        if self.limit is not None:
            check_positive("limit", self.limit)


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
    jobs = _cores() if jobs is None else jobs
    check_positive("jobs", jobs)
    source = None if options.source is None else open_source(options.source, labelled)
    if out.exists() and not (out.is_dir() and _is_ours(out)):
        raise InputError(f"{out}: exists and holds no {INDEX}; give a new or empty folder")
    with atomic.only_one(out / LOCK):
        files = _write_index(out, labelled, options)
        todo = []
        for image in labelled:
            if not is_current(files[image.image_id]):
                with problems.caught():
                    found = None if source is None else source.find(image)
                    todo.append((image, found, files[image.image_id]))
        _work(todo, options, min(jobs, len(todo)), problems)
    return RegionFolder(out)


def _is_ours(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()}
    return INDEX in names or names <= {LOCK}


class _Maker:
    """One worker's tools: made once, used for many images."""

    def __init__(self, options: RegionOptions) -> None:
        self.limit = options.limit
        detector = BoundaryDetector(options.boundaries)
        self.propose = RegionProposer(detector, limit=options.limit or LIMIT)

    def __call__(self, image: LabelledImage, found: Found | None, path: Path) -> str | None:
        """Make one file; what is wrong with the image is returned, a full disk is raised."""
        try:
            pixels = read_image(image.image_path())
            if found is None:
                regions = self.propose(pixels)
            else:
                edges = self.propose.detector(pixels).mean(axis=0)
                regions = found.regions(image.annotation.size, edges)[: self.limit]
        except (InputError, OSError) as error:
            return one_line(error)
        write_regions(path, regions)
        return None


def _work(tasks: list[Task], options: RegionOptions, jobs: int, problems: Problems) -> None:
    if not tasks:
        return
    if jobs == 1:
        make = _Maker(options)
        _collect([partial(make, *task) for task in tasks], problems)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _start_worker, (options,)) as pool:
        try:
            with _interrupts_ignored():
                futures = [pool.submit(_work_once, *task) for task in tasks]
            _collect([future.result for future in futures], problems)
        except BrokenProcessPool:
            raise InputError(
                "a worker process died, perhaps for want of memory; "
                "run the same command again, with fewer --jobs"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _collect(results: list[Callable[[], str | None]], problems: Problems) -> None:
    for result in track(results, "regions"):
        wrong = result()
        if wrong is not None:
            with problems.caught():
                raise InputError(wrong)


_make: _Maker


def _start_worker(options: RegionOptions) -> None:
    global _make
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    _make = _Maker(options)


def _work_once(image: LabelledImage, found: Found | None, path: Path) -> str | None:
    return _make(image, found, path)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Processes started in the block never see Ctrl-C: it is for the one that gives the work."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _write_index(
    out: Path, labelled: LabelledImages, options: RegionOptions
) -> dict[ImageId, Path]:
    """Add the images to the folder's index; gives the file of each.

    Files that were made in another way are an error.
    """
    index = out / INDEX
    made = {**asdict(options), "weights": _weights(), "source": _state(options.source)}
    owners: dict[str, ImageId] = {}
    if index.exists() and len(there := RegionFolder(out)):
        for name, value in made.items():
            if there.made.get(name) != value:
                raise InputError(
                    f"{out}: made with {name} {there.made.get(name)}, now it is {value}; "
                    "give another --out, or the same options"
                )
        owners = {f.relative_to(out).as_posix(): i for i, f in there.files.items()}
    files = {}
    for image in labelled:
        path = inside(out, f"{image.file_name}.npz", str(out))
        file = path.relative_to(out).as_posix()
        if owners.setdefault(file, image.image_id) != image.image_id:
            raise InputError(
                f"{out}: {file} is of image {owners[file]!r}, not {image.image_id!r}; "
                "give each dataset its own --out, and each image its own file"
            )
        files[image.image_id] = path
    listed = [{"image_id": image_id, "file": file} for file, image_id in owners.items()]
    atomic.write_json(index, {"made": made, "images": listed}, indent=1)
    return files


def _state(source: str | None) -> str | None:
    """A source by its full path and, if it is one file, when it was written."""
    if source is None:
        return None
    kind, _, path = source.partition(":")
    written = "" if Path(path).is_dir() else f" of {Path(path).stat().st_mtime_ns}"
    return f"{kind}:{Path(path).resolve()}{written}"


def _weights() -> str:
    """A short name of the networks that come with this version."""
    folder = resources.files("annocoin.regions")
    content = [folder.joinpath(f"{n}.safetensors").read_bytes() for n in ("boundaries", "ranker")]
    return hashlib.sha256(b"".join(content)).hexdigest()[:12]


def _cores() -> int:
    """The cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not everywhere
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1
