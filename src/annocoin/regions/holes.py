"""Holes: what a region encloses without holding it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from annocoin.regions.elements import Elements

Members = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]


def without_holes(members: Members, elements: Elements, rim: npt.NDArray[np.bool_]) -> Members:
    """The regions [N, S] with their holes filled.

    A superpixel lies in a hole if no path outside of the region leads from it to the rim of the
    image. All regions are flooded from the rim at once, 64 of them in every machine word.

    Args:
        rim: whether a superpixel touches a side of the image, [S].
    """
    free = _packed(~members)
    reached = free * rim[:, None]
    ends = np.concatenate([elements.pairs, elements.pairs[:, ::-1]])
    ends = ends[np.argsort(ends[:, 1], kind="stable")]
    targets, starts = np.unique(ends[:, 1], return_index=True)
    while len(targets):
        arriving = np.bitwise_or.reduceat(reached[ends[:, 0]], starts, axis=0)
        fresh = reached[targets] | (arriving & free[targets])
        if (fresh == reached[targets]).all():
            break
        reached[targets] = fresh
    outside = np.unpackbits(reached.view(np.uint8), axis=1, count=len(members)).T
    return outside == 0


def rim_of(ids: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Which superpixels of a map [H, W] touch a side of the image, [S]."""
    rim = np.zeros(int(ids.max()) + 1, dtype=bool)
    for side in (ids[0], ids[-1], ids[:, 0], ids[:, -1]):
        rim[side] = True
    return rim


def _packed(members: Members) -> Words:
    """M [N, S] as bits, [S, ceil(N / 64)]: one row a superpixel."""
    count = -(-len(members) // 64) * 64
    rows = np.zeros((members.shape[1], count), dtype=bool)
    rows[:, : len(members)] = members.T
    return np.packbits(rows, axis=1).view(np.uint64)
