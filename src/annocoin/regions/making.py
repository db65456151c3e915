"""Make the regions of a whole dataset: on all cores, resumable."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib import resources
from pathlib import Path

from annocoin.data.dataset import LabelledImage, LabelledImages, WeakDataset, WeakImage
from annocoin.data.images import read_image
from annocoin.distribution import Party, workers
from annocoin.errors import InputError, Problems, check_choice, check_positive, one_line
from annocoin.parallel import BadItem, work_through
from annocoin.regions.boundaries import KINDS, BoundaryDetector, DetectorKind
from annocoin.regions.collection import RegionFolder
from annocoin.regions.imports import Found, Source, open_source
from annocoin.regions.proposals import LIMIT, RegionProposer
from annocoin.regions.storage import is_current, write_regions


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
    labelled: LabelledImages | WeakDataset,
    out: str | Path,
    options: RegionOptions | None = None,
    *,
    jobs: int | None = None,
    problems: Problems | None = None,
    party: Party | None = None,
) -> RegionFolder:
    """Make the regions of every image that has none in `out` yet.

    Each file is written whole, so that the same call goes on after an interruption.

    Args:
        jobs: processes, one thread each; default all cores. With 1 the work is done in this one.
            More need the guard ``if __name__ == "__main__"`` in a script that calls this.
        problems: `Problems(skip=True)` leaves bad images out instead of stopping.
        party: the processes among which the images are shared.
    """
    out, options, problems = Path(out), options or RegionOptions(), problems or Problems()
    jobs = workers(jobs, party)
    source: Source | None = None
    if options.source is not None:
        if isinstance(labelled, WeakDataset):
            raise InputError("regions of another's making: import them with `annocoin regions`")
        source = open_source(options.source, labelled)
    made = {**asdict(options), "weights": _weights(), "source": _state(options.source)}
    names = [(image.image_id, f"{image.file_name}.npz") for image in labelled]
    with RegionFolder.writing(out, made, names, party) as files:
        todo: list[tuple[LabelledImage | WeakImage, Found | None, Path]] = []
        images: Sequence[LabelledImage | WeakImage] = labelled.images
        for image in images if party is None else party.share(images):
            if not is_current(files[image.image_id]):
                with problems.caught():
                    found = None
                    if source is not None and isinstance(image, LabelledImage):
                        found = source.find(image)
                    todo.append((image, found, files[image.image_id]))
        work_through(todo, partial(_Maker, options), "regions", jobs=jobs, problems=problems)
    return RegionFolder(out)


class _Maker:
    """One worker's tools: made once, used for many images."""

    def __init__(self, options: RegionOptions) -> None:
        self.limit = options.limit
        detector = BoundaryDetector(options.boundaries)
        self.propose = RegionProposer(detector, limit=options.limit or LIMIT)

    def __call__(
        self, image: LabelledImage | WeakImage, found: Found | None, path: Path
    ) -> BadItem | None:
        """Make one file; what is wrong with the image is returned, a full disk is raised."""
        try:
            pixels = read_image(image.image_path())
            if found is None:
                regions = self.propose(pixels)
            else:
                edges = self.propose.detector(pixels).mean(axis=0)
                regions = found.regions(image.annotation.size, edges)[: self.limit]
        except (InputError, OSError) as error:
            return BadItem(one_line(error))
        write_regions(path, regions)
        return None


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
