"""Time and memory of the superpixel algebra, compared with dense masks.

    python benchmarks/region_algebra.py

1,000 regions over 1,500 superpixels: discs over a random Voronoi partition of 512 x 512 pixels.
Pooling has 32 channels at 256 x 256. It is compared with one matrix product of masks and features,
from bool masks (RegionSet starts from a bool M) and from float32 masks. Memory is Linux's peak
resident set size. One core; median of nine runs.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from scipy.spatial import cKDTree

from annocoin.files import write_json
from annocoin.regions import algebra
from annocoin.regions.region_set import RegionSet

REGIONS, SUPERPIXELS, SIDE = 1000, 1500, 512
CHANNELS, FEATURE_SIDE = 32, 256


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    regions = random_regions(np.random.default_rng(0))
    features = torch.rand(CHANNELS, FEATURE_SIDE, FEATURE_SIDE)
    ids = algebra.resize_superpixels(regions.superpixels, (FEATURE_SIDE, FEATURE_SIDE))
    masks = regions.membership[:, ids.long()].flatten(1)
    float_masks = masks.float()
    flat = features.flatten(1)
    expected = float_masks @ flat.T
    torch.testing.assert_close(regions.pool(features, "sum"), expected, rtol=1e-3, atol=0.1)
    seconds = {
        "all-pairs IoU": median(regions.iou),
        "edge strength": median(regions.edge_strength_between),
        "neighbours": median(regions.neighbours),
        "boxes": median(lambda: fresh(regions).boxes),
        "pooling": median(lambda: regions.pool(features)),
        "masks x features": median(lambda: masks.float() @ flat.T),
        "masks, float32": median(lambda: float_masks @ flat.T),
    }
    float_masks = masks[:1]  # free the memory
    memory = {
        "pooling": peak_bytes(lambda: regions.pool(features)),
        "masks x features": peak_bytes(
            lambda: regions.membership[:, ids.long()].flatten(1).float() @ flat.T
        ),
    }
    print(f"{REGIONS} regions, {regions.membership.shape[1]} superpixels, "
          f"{len(regions.elements)} boundary elements")  # fmt: skip
    for name, value in seconds.items():
        print(f"  {name:18s} {1000 * value:7.1f} ms")
    ratio = seconds["masks x features"] / seconds["pooling"]
    less = memory["masks x features"] / memory["pooling"]
    print(f"  pooling: {ratio:.0f} times faster, {less:.0f} times less memory than the masks")
    if options.json is not None:
        write_json(options.json, {"seconds": seconds, "bytes": memory}, indent=1)


def random_regions(rng: np.random.Generator) -> RegionSet:
    sites = rng.uniform(0, SIDE, (SUPERPIXELS, 2))
    rows, columns = np.mgrid[:SIDE, :SIDE]
    pixels = np.stack([rows.ravel(), columns.ravel()], axis=1)
    nearest = cKDTree(sites).query(pixels)[1]
    used, ids = np.unique(nearest, return_inverse=True)
    sites = sites[used]
    centres, radii = rng.uniform(0, SIDE, (REGIONS, 1, 2)), rng.uniform(10, 240, (REGIONS, 1))
    distance = np.linalg.norm(sites[None] - centres, axis=2)
    members = distance < np.maximum(radii, distance.min(axis=1, keepdims=True) + 1e-9)
    return RegionSet.of(ids.reshape(SIDE, SIDE), members, edges=rng.random((SIDE, SIDE)))


def fresh(regions: RegionSet) -> RegionSet:
    """The same regions without cached properties."""
    return regions[:]


def peak_bytes(work: Callable[[], object]) -> int:
    """Peak increase of the process's memory during some work."""

    def status(name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # memory that is kept for reuse would hide the increase
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = status("VmRSS")
    work()
    return max(1, status("VmHWM") - before)


def median(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(9):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    main()
