"""Requirements: every kind of annotation as one idea, the paper's higher order term Q.

A requirement is a class and the regions that would meet it. A labelling is consistent with the
annotation if every requirement is met by a region of its own that has its class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from torch import Tensor

from annocoin import masks as rle
from annocoin.conditional.grab_cut import grab_cut
from annocoin.errors import InputError
from annocoin.masks import RLE
from annocoin.regions import RegionSet, with_masks
from annocoin.seeds import Seeds
from annocoin.types import Annotation, Mark

Image = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

BOX_OVERLAP = 0.5


class Requirement(NamedTuple):
    """A class, the regions that would meet it, bool [P], and the mark that says so."""

    label: int
    admissible: Tensor
    mark: int


@dataclass(frozen=True, eq=False)
class Requirements:
    """What an annotation demands of a labelling of regions.

    Args:
        regions: the P regions, with those that had to be added at the end.
        labels: the classes that the annotation names, rising, J of them.
        required: what must be met, each by another region.
        further: which regions may be instances beyond those, bool [J, P].
        peaks: the peaks of seeds that each region holds, bool [P, N]; none without seeds.
        added: how many regions were added because a requirement could not be met without.
    """

    regions: RegionSet
    labels: tuple[int, ...]
    required: tuple[Requirement, ...]
    further: Tensor
    peaks: Tensor
    added: int = 0

    def without_obligation(self) -> Requirements:
        """Nothing is required, every region may be anything that the annotation names.

        This leaves the higher order term out (U and U+P in the paper's ablation).
        """
        return replace(self, required=(), further=torch.ones_like(self.further))

    def met_by(self, labels: Tensor) -> bool:
        """Whether a labelling, int64 [P] of 0..C, has a region of its own for every requirement."""
        meets = [r.admissible & (labels == r.label) for r in self.required]
        return not len(meets) or bool((_matched(torch.stack(meets)) >= 0).all())


def requirements_of(
    annotation: Annotation,
    regions: RegionSet,
    *,
    seeds: Seeds | None = None,
    image: Image | None = None,
    box_overlap: float = BOX_OVERLAP,
) -> Requirements:
    """The requirements of an annotation, and the regions with which all of them can be met.

    - A tag admits every region; with seeds, those that hold a peak of its class and none of
      another, as far as there are any. More instances of its class may follow.
    - A point admits the regions that contain it (and no other point, as far as there are any), a
      box those whose tight box has an IoU of `box_overlap` with it. A mask joins the regions and
      admits itself alone.
    - A mark of a crowd is one of several objects: it admits regions that lie mostly in its place,
      and more may follow there.

    If no region is left for a mark, one is added: for a box GrabCut's answer or else the box, for a
    point the superpixel under it, for a tag the whole image.

    Args:
        image: for GrabCut, uint8 [H, W, 3].
    """
    if regions.size != annotation.size or (seeds is not None and seeds.size != annotation.size):
        raise InputError(
            f"regions of an image {regions.size}, an annotation of {annotation.size}; "
            "expected one image"
        )
    own = [mark.mask for mark in annotation if mark.mask is not None and not mark.crowd]
    count = len(regions)
    if own:
        regions = with_masks(regions, own)
    numbers = iter(range(count, len(regions)))
    admitted = [
        _only(next(numbers), len(regions))
        if mark.mask is not None and not mark.crowd
        else _admissible(number, annotation, regions, seeds, box_overlap)
        for number, mark in enumerate(annotation)
    ]
    free = torch.arange(len(regions)) < count  # a mask that is known is nobody else's
    for number, mark in enumerate(annotation):
        if mark.mask is None or mark.crowd:
            admitted[number] = admitted[number] & free
    needed = _needed(annotation)
    for number in _lacking(admitted, needed):  # seeds are guesses: tags fall back on any region
        if annotation[number].kind == "tag":
            admitted[number] = free
    regions, admitted, added = _completed(annotation, regions, admitted, needed, image, box_overlap)
    labels = annotation.distinct_labels
    further = torch.zeros(len(labels), len(regions), dtype=torch.bool)
    for mark, row in zip(annotation, admitted, strict=True):
        if mark.kind == "tag" or mark.crowd:
            further[labels.index(mark.label)] |= row
    required = tuple(Requirement(annotation[i].label, admitted[i], i) for i in needed)
    peaks = torch.zeros(len(regions), 0, dtype=torch.bool)
    if seeds is not None and len(regions):
        peaks = regions.contains(seeds.points)
    return Requirements(regions, labels, required, further, peaks, added)


def _needed(annotation: Annotation) -> list[int]:
    """The marks that require a region: all with a place, and tags of classes without any."""
    placed = {mark.label for mark in annotation if mark.kind != "tag"}
    needed: list[int] = []
    for number, mark in enumerate(annotation):
        if mark.kind != "tag":
            needed.append(number)
        elif mark.label not in placed:
            placed.add(mark.label)
            needed.append(number)
    return needed


def _admissible(
    number: int,
    annotation: Annotation,
    regions: RegionSet,
    seeds: Seeds | None,
    box_overlap: float,
) -> Tensor:
    """Which regions meet a mark, bool [P]; a tensor of its own."""
    mark = annotation[number]
    others = annotation.points[[i for i in range(len(annotation)) if i != number]]
    others = others[others.isfinite().all(dim=1)]
    if len(regions) == 0:
        return torch.zeros(0, dtype=torch.bool)
    if mark.crowd and mark.kind in ("box", "mask"):
        place = torch.from_numpy(_place(mark, regions.size))[None].float()
        return regions.pool(place, over="region")[:, 0] > 0.5
    if mark.box is not None:
        fits = regions.box_iou([mark.box])[:, 0] >= box_overlap
        if mark.point is None:
            return fits
        return _first_that_leaves_any(fits & regions.contains([mark.point])[:, 0], fits)
    if mark.point is not None:
        contains = regions.contains([mark.point])[:, 0]
        return _first_that_leaves_any(contains & ~regions.contains(others).any(dim=1), contains)
    return _seeded(mark.label, regions, seeds)


def _seeded(label: int, regions: RegionSet, seeds: Seeds | None) -> Tensor:
    """The regions that seeds leave for a tag."""
    everything = torch.ones(len(regions), dtype=torch.bool)
    if seeds is None or not len(seeds):
        return everything
    holds = regions.contains(seeds.points)
    own = holds[:, seeds.labels == label].any(dim=1)
    alone = own & ~holds[:, seeds.labels != label].any(dim=1)
    return _first_that_leaves_any(alone, own, everything)


def _first_that_leaves_any(*choices: Tensor) -> Tensor:
    """The first of some bool [P] that is true anywhere; else the last."""
    return next((choice for choice in choices if choice.any()), choices[-1])


def _completed(
    annotation: Annotation,
    regions: RegionSet,
    admitted: list[Tensor],
    needed: list[int],
    image: Image | None,
    box_overlap: float,
) -> tuple[RegionSet, list[Tensor], int]:
    """The same with a region of its own for every mark that cannot get one."""
    lacking = _lacking(admitted, needed)
    if not lacking:
        return regions, admitted, 0
    before = len(regions)
    new = [_made(annotation[i], regions, image, box_overlap) for i in lacking]
    regions = with_masks(regions, new, score=0.0)
    for number, row in enumerate(admitted):
        wider = torch.zeros(len(regions), dtype=torch.bool)
        wider[:before] = row
        if number in lacking:
            wider[before + lacking.index(number)] = True
        admitted[number] = wider
    return regions, admitted, len(new)


def _lacking(admitted: list[Tensor], needed: list[int]) -> list[int]:
    """The needed marks for which no region of their own is left."""
    if not needed:
        return []
    found = _matched(torch.stack([admitted[i] for i in needed])).tolist()
    return [i for i, region in zip(needed, found, strict=True) if region < 0]


def _matched(table: Tensor) -> Tensor:
    """A region of its own for as many rows of a bool table [R, P] as possible; -1 without one."""
    if table.shape[1] == 0:
        return torch.full((len(table),), -1)
    found = maximum_bipartite_matching(csr_array(table.cpu().numpy()), perm_type="column")
    return torch.from_numpy(found.astype(np.int64))


def _made(mark: Mark, regions: RegionSet, image: Image | None, box_overlap: float) -> RLE:
    """A region for a mark that none is left for."""
    height, width = regions.size
    mask: Mask = np.zeros((height, width), dtype=bool)
    if mark.mask is not None or mark.box is not None:
        mask = _place(mark, regions.size)
        cut = grab_cut(image, mask) if image is not None and not mark.crowd else None
        if cut is not None and _box_overlap(cut, mask) >= box_overlap:
            mask = cut
    elif mark.point is not None:
        x, y = min(int(mark.point[0]), width - 1), min(int(mark.point[1]), height - 1)
        superpixels = regions.superpixels.cpu().numpy()
        mask = superpixels == superpixels[y, x]
    else:
        mask[:] = True
    return rle.encode(mask[None])[0]


def _place(mark: Mark, size: tuple[int, int]) -> Mask:
    """The pixels of a mark's mask or box; at least one."""
    if mark.mask is not None:
        return rle.decode([mark.mask], size)[0].astype(bool)
    assert mark.box is not None
    x0, y0 = int(np.floor(mark.box[0])), int(np.floor(mark.box[1]))
    x1, y1 = int(np.ceil(mark.box[2])), int(np.ceil(mark.box[3]))
    mask: Mask = np.zeros(size, dtype=bool)
    mask[y0:y1, x0:x1] = True
    return mask


def _box_overlap(first: Mask, second: Mask) -> float:
    a, b = np.array(_tight(first)), np.array(_tight(second))
    sides = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None)
    common = float(sides.prod())
    return common / (float((a[2:] - a[:2]).prod()) + float((b[2:] - b[:2]).prod()) - common)


def _tight(mask: Mask) -> tuple[int, int, int, int]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1


def _only(place: int, count: int) -> Tensor:
    row = torch.zeros(count, dtype=torch.bool)
    row[place] = True
    return row
