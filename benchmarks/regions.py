"""How well regions cover objects, and time and memory per image.

    python benchmarks/regions.py VOCdevkit/VOC2012 --split devval
    python benchmarks/regions.py VOCdevkit/VOC2012 --split train --methods --folders REGIONS SAM

For every object, the best IoU among the first 100, 300, 500 and 1,000 regions: its average (ABO),
and the recall at .5 and .7. Void pixels of VOC (255 in SegmentationObject) are ignored, as in the
benchmark of MCG, so that the figures compare with those published for it. The baseline is
Felzenszwalb's segmentation (scikit-image) at five scales in two colour spaces, coarse segments
first. One core; seconds are means over the images. Folders are outputs of `annocoin regions`; the
images that all of them have are measured, without times.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from annocoin.data.images import read_image, read_index_map
from annocoin.data.loading import load_evaluation
from annocoin.files import write_json
from annocoin.masks import encode
from annocoin.progress import track
from annocoin.regions import proposals
from annocoin.regions.boundaries import BoundaryDetector
from annocoin.regions.proposals import RegionProposer
from annocoin.regions.region_set import RegionSet, regions_of_masks
from annocoin.regions.storage import RegionFolder
from annocoin.types import ImageId

COUNTS = (100, 300, 500, 1000)
SIZES = {"small (< 1 % of the image)": 0.01, "medium (< 10 %)": 0.1, "large": 1.01}
Image = npt.NDArray[np.uint8]
Seconds = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--split")
    parser.add_argument("--limit", type=int, help="number of images")
    parser.add_argument(
        "--methods",
        nargs="*",
        default=["network", "gradient", "felzenszwalb"],
        help="default: these; network-bf16 is the network in bfloat16",
    )
    parser.add_argument("--folders", nargs="+", type=Path, default=[], metavar="DIR")
    parser.add_argument("--counts", nargs="+", type=int, default=COUNTS, help="of first regions")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    for method in [*options.methods, *map(str, options.folders)]:
        # One process per method, to measure its memory.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            results[method] = pool.submit(measure, method, options).result()
        print_result(method, results[method])
    if options.json is not None:
        write_json(options.json, results, indent=1)


def measure(method: str, options: argparse.Namespace) -> dict[str, Any]:
    """IoU, seconds and memory of one method."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    truth = load_evaluation(options.dataset, split=options.split)
    folders = {str(path): RegionFolder(path) for path in options.folders}
    ids = [i for i in truth if all(i in folder for folder in folders.values())][: options.limit]
    if not ids:
        sys.exit("no image of the dataset is in all folders")
    paths = {image.image_id: image.image_path() for image in truth.labelled}
    seconds: Seconds = {}
    if method in folders:
        regions_of: Callable[[ImageId], RegionSet] = folders[method].__getitem__
    else:
        propose = timed(proposer_of(method, seconds), "all", seconds)
        regions_of = lambda image_id: propose(read_image(paths[image_id]))  # noqa: E731
    overlaps, shares, counts = [], [], []
    for image_id in track(ids, method):
        regions = regions_of(image_id)
        counts.append(len(regions))
        valid = valid_pixels(options.dataset, image_id, regions.size)
        dense = truth.truth(image_id).dense()
        overlaps.append(best_overlaps(regions, dense, valid, options.counts))
        shares += (dense.sum(dim=(1, 2)) / valid.size).tolist()
    table = np.concatenate(overlaps)
    sizes = np.digitize(shares, list(SIZES.values()))
    by_size = {name: figures(table[sizes == i], options.counts) for i, name in enumerate(SIZES)}
    return {
        "images": len(ids),
        "objects": len(table),
        "regions": float(np.mean(counts)),
        "all": figures(table, options.counts),
        "by_size": by_size,
        "seconds": {phase: spent / len(ids) for phase, spent in seconds.items()},
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def proposer_of(method: str, seconds: Seconds) -> Callable[[Image], RegionSet]:
    """Image to regions, by a method's name; its phases are timed."""
    return felzenszwalb(seconds) if method == "felzenszwalb" else region_proposer(method, seconds)


PHASES = {
    "boundaries": "BoundaryDetector.__call__",
    "superpixels": "build_graph",
    "trees": "build_trees",
    "candidates": "candidate_regions",
    "ranking": "Ranker.__call__",
    "selection": "select_diverse",
    "region set": "RegionSet.of",
}
"""The function of each phase in `annocoin.regions.proposals`."""


def region_proposer(detector: str, seconds: Seconds) -> Callable[[Image], RegionSet]:
    """The region proposer, with its phases timed."""
    for phase, name in PHASES.items():
        owner: Any = proposals
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, last, timed(getattr(owner, last), phase, seconds))
    kind, _, precision = detector.partition("-")
    return RegionProposer(BoundaryDetector(kind, precision=precision or "32"))  # type: ignore[arg-type]


def timed(work: Callable[..., Any], phase: str, seconds: Seconds) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        result = work(*arguments, **named)
        seconds[phase] = seconds.get(phase, 0.0) + time.perf_counter() - started
        return result

    return run


def felzenszwalb(seconds: Seconds) -> Callable[[Image], RegionSet]:
    """Felzenszwalb's segments, with the segmentation timed."""
    from skimage import segmentation

    segment = timed(segmentation.felzenszwalb, "segmentation", seconds)
    return lambda image: segments(image, segment)


def segments(image: Image, segment: Callable[..., Any]) -> RegionSet:
    """Segments at several scales in RGB and Lab, coarse ones first, each once."""
    distinct: dict[bytes, npt.NDArray[np.bool_]] = {}
    lab = cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_RGB2Lab) / 100
    for scale in (1000, 500, 250, 120, 60):
        for pixels in (image.astype(np.float32) / 255, lab):
            ids = segment(pixels, scale=scale, sigma=0.8, min_size=60)
            for i in np.argsort(-np.bincount(ids.ravel()), kind="stable"):
                mask = ids == i
                distinct.setdefault(np.packbits(mask).tobytes(), mask)
    masks = list(distinct.values())[: COUNTS[-1]]
    return regions_of_masks(encode(np.stack(masks)), (image.shape[0], image.shape[1]))


def best_overlaps(
    regions: RegionSet,
    truth: torch.Tensor,
    valid: npt.NDArray[np.bool_],
    counts: Sequence[int] = COUNTS,
) -> npt.NDArray[np.float64]:
    """The best IoU of each of N objects [N, H, W] among the first regions, [N, len(counts)]."""
    ids = regions.superpixels.numpy().ravel()
    count = regions.membership.shape[1]
    members = regions.membership.double().numpy()
    sizes = members @ np.bincount(ids, valid.ravel().astype(np.float64), count)
    rows = []
    for mask in truth.numpy():
        inside = members @ np.bincount(ids, mask.ravel().astype(np.float64), count)
        iou = inside / (sizes + mask.sum() - inside)
        rows.append([iou[:n].max() for n in counts])
    return np.asarray(rows).reshape(len(rows), len(counts))


def valid_pixels(root: Path, image_id: ImageId, size: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    path = root / "SegmentationObject" / f"{image_id}.png"
    if not path.is_file():
        return np.ones(size[:2], dtype=bool)
    return np.asarray(read_index_map(path) != 255)


def figures(
    overlaps: npt.NDArray[np.float64], counts: Sequence[int]
) -> dict[str, dict[str, float]]:
    """ABO and recall by the number of regions."""
    return {
        str(n): {
            "abo": float(column.mean()),
            "recall_50": float((column > 0.5).mean()),
            "recall_70": float((column > 0.7).mean()),
        }
        for n, column in zip(counts, overlaps.T, strict=True)
        if len(column)
    }


def print_result(method: str, result: dict[str, Any]) -> None:
    print(
        f"\n{method}: {result['images']} images, {result['objects']} objects, "
        f"{result['regions']:.0f} regions an image"
    )
    rows = {"all": result["all"], **result["by_size"]}
    for name, row in rows.items():
        cells = [f"{n}: {f['abo']:.3f} / {f['recall_50']:.3f} / {f['recall_70']:.3f}"
                 for n, f in row.items()]  # fmt: skip
        print(f"  {name:28s} " + "   ".join(cells))
    if result["seconds"]:
        phases = ", ".join(f"{name} {value:.3f}" for name, value in result["seconds"].items())
        print(f"  seconds an image: {phases}")
    print(f"  peak memory {result['peak_memory_mb']:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
