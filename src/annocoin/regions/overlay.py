"""Overlay: any masks as a region set, exactly. The pieces that they cut the image into are its
superpixels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from annocoin.masks import RLE, Size, decode
from annocoin.regions.elements import Elements
from annocoin.regions.region_set import RegionSet
from annocoin.types import as_rles

Mask = npt.NDArray[np.bool_]
Masks = Sequence[RLE] | Tensor | npt.NDArray[np.generic]


def regions_of_masks(
    masks: Masks,
    size: Size,
    *,
    scores: npt.ArrayLike | None = None,
    edges: npt.NDArray[np.floating] | None = None,
) -> RegionSet:
    """P masks of one image as a region set: each mask is a region, pixel by pixel.

    Args:
        masks: RLEs, or a tensor or array [P, H, W] of 0 and 1; none of them empty.
        edges: the probability of a boundary at every pixel, [H, W].
    """
    pieces, inside = _overlay(np.zeros(size, dtype=np.int64), as_rles(masks, size))
    return RegionSet.of(pieces, inside, scores=scores, edges=edges)


def with_masks(
    regions: RegionSet, masks: Masks, *, score: float = 1.0, strength: float = 1.0
) -> RegionSet:
    """The region set with more masks as regions, after the others. Superpixels are cut as needed.

    Args:
        masks: as for `regions_of_masks`.
        score: of the new regions.
        strength: of the edge along a new cut, per pixel side. Pieces of an old border keep its
            mean strength.
    """
    old = regions.superpixels.cpu().numpy()
    rles = as_rles(masks, regions.size)
    pieces, inside = _overlay(old, rles)
    origin = np.zeros(int(pieces.max()) + 1, dtype=np.int64)
    origin[pieces.ravel()] = old.ravel()
    members = np.concatenate([regions.membership.cpu().numpy()[:, origin], inside])
    elements = Elements.of(pieces)
    mean = (regions.masses / regions.lengths).cpu().numpy()
    known = {(a, b): m for (a, b), m in zip(regions.elements.tolist(), mean.tolist(), strict=True)}
    ends = np.sort(origin[elements.pairs], axis=1).tolist()
    strengths = [strength if a == b else known[a, b] for a, b in ends]
    scores = np.append(regions.scores.cpu().numpy(), np.full(len(rles), score))
    added = RegionSet.of(
        pieces, members, scores=scores, masses=np.asarray(strengths) * elements.lengths
    )
    return added.to(regions.device)


def _overlay(
    base: npt.NDArray[np.integer], masks: Sequence[RLE]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The pieces that masks cut a partition [H, W] into, and which of them each mask holds [P, S].

    Every mask and every part of the base has a random number of 64 bits; pixels of one piece are
    those whose numbers, joined by exclusive or, are equal. That two pieces meet by chance is less
    likely than a fault of the machine.
    """
    random = np.random.default_rng(0)
    keys = random.integers(0, 1 << 63, int(base.max()) + 1, dtype=np.uint64)[base]
    numbers = random.integers(0, 1 << 63, len(masks), dtype=np.uint64)
    for number, mask in zip(numbers, _each(masks, base.shape), strict=True):
        keys ^= number * mask
    _, first, pieces = np.unique(keys.ravel(), return_index=True, return_inverse=True)
    inside = np.zeros((len(masks), len(first)), dtype=bool)
    for row, mask in zip(inside, _each(masks, base.shape), strict=True):
        row[:] = mask.ravel()[first]
    return pieces.reshape(base.shape), inside


def _each(masks: Iterable[RLE], size: Sequence[int]) -> Iterator[Mask]:
    for mask in masks:
        yield decode([mask], (size[0], size[1]))[0]
