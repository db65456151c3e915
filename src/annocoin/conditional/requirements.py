"""Requirements: every kind of annotation as one idea, the paper's higher order term Q.

A requirement is a class and the regions that would meet it. A labelling is consistent with the
annotation if every requirement is met by a region of its own that has its class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching
from torch import Tensor

from annocoin import masks as rle
from annocoin.errors import InputError
from annocoin.masks import RLE, Size, areas
from annocoin.regions.region_set import RegionSet, with_masks
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.votes import first_that_leaves_any
from annocoin.types import Annotation, WeakLabel

Image = npt.NDArray[np.uint8]

BOX_OVERLAP = 0.5


class Requirement(NamedTuple):
    """A class, the regions that would meet it, bool [P], and the weak_label that says so.

    `more` says whether other instances may follow in its place: those of a tag or a crowd.
    """

    label: int
    compatible: Tensor
    annotation_index: int
    more: bool


@dataclass(frozen=True, eq=False)
class Requirements:
    """What an annotation demands of a labelling of regions.

    Args:
        regions: the P regions, with those that had to be added at the end.
        labels: the classes that the annotation names, rising, J of them.
        required: what must be met, each by another region.
        further: which regions may be instances beyond those, bool [J, P].
        peaks: for each of the labels the peaks of its seeds that a region holds, bool [P, N]. An
            instance of a tag needs a peak of its own; where N is 0, this is not asked for.
        added: how many regions were added because a requirement could not be met without.
    """

    regions: RegionSet
    labels: tuple[int, ...]
    required: tuple[Requirement, ...]
    further: Tensor
    peaks: tuple[Tensor, ...]
    added: int = 0

    def without_obligation(self) -> Requirements:
        """Nothing is required, every region may be anything that the annotation names.

        This leaves the higher order term out (U and U+P in the paper's ablation), and what seeds
        have to do with it.
        """
        return replace(
            self,
            required=(),
            further=torch.ones_like(self.further),
            peaks=tuple(held[:, :0] for held in self.peaks),
        )

    def met_by(self, labels: Tensor) -> bool:
        """Whether a labelling, int64 [P] of 0..C, has a region of its own for every requirement."""
        meets = [r.compatible & (labels == r.label) for r in self.required]
        return not len(meets) or bool((_matched(torch.stack(meets)) >= 0).all())

    def to(self, device: torch.device | str) -> Requirements:
        """The same on another device."""
        return replace(
            self,
            regions=self.regions.to(device),
            required=tuple(r._replace(compatible=r.compatible.to(device)) for r in self.required),
            further=self.further.to(device),
            peaks=tuple(held.to(device) for held in self.peaks),
        )


def requirements_of(
    annotation: Annotation,
    regions: RegionSet,
    *,
    seeds: Seeds | None = None,
    image: Image | None = None,
    box_overlap: float = BOX_OVERLAP,
) -> Requirements:
    """The requirements of an annotation, and the regions with which all of them can be met.

    A tag requires one region of its class, and more may follow; a point, a box or a mask requires
    exactly one, and a mask joins the regions as that one. A weak_label of a crowd requires one in its
    place, and more may follow there. `compatible_regions` says which would do.

    If no region is left for a weak_label, one is added: for a box GrabCut's answer or else the box, for a
    point the superpixel under it, for a tag the whole image.

    Args:
        seeds: with them, tags admit only regions that hold a peak of their class.
        image: for GrabCut, uint8 [H, W, 3].
    """
    if regions.size != annotation.size:
        raise InputError(
            f"regions of an image {regions.size}, an annotation of {annotation.size}; "
            "expected one image"
        )
    if seeds is not None:
        seeds.check_for(annotation)
    annotation = replace(annotation, weak_labels=tuple(map(_without_empty_mask, annotation)))
    is_own = [weak_label.mask is not None and not weak_label.crowd for weak_label in annotation]
    own = [
        weak_label.mask
        for weak_label in annotation
        if weak_label.mask is not None and not weak_label.crowd
    ]
    count = len(regions)
    if own:
        regions = with_masks(regions, own)
    places = torch.arange(len(regions))
    free = places < count  # a mask that is known is nobody else's
    admitted = [
        places == count + sum(is_own[:number])
        if is_own[number]
        else compatible_regions(number, annotation, regions, seeds, box_overlap) & free
        for number in range(len(annotation))
    ]
    needed = _needed(annotation)
    wider = [
        free if weak_label.kind == "tag" else row
        for weak_label, row in zip(annotation, admitted, strict=True)
    ]
    if len(_lacking(wider, needed)) < len(_lacking(admitted, needed)):
        admitted = wider  # seeds are guesses: tags fall back on any region
    regions, admitted, added = _completed(annotation, regions, admitted, needed, image, box_overlap)
    return _assembled(annotation, regions, admitted, needed, seeds, added)


def _assembled(
    annotation: Annotation,
    regions: RegionSet,
    admitted: list[Tensor],
    needed: list[int],
    seeds: Seeds | None,
    added: int,
) -> Requirements:
    labels = annotation.distinct_labels
    further = torch.zeros(len(labels), len(regions), dtype=torch.bool)
    peaks = [torch.zeros(len(regions), 0, dtype=torch.bool)] * len(labels)
    for weak_label, row in zip(annotation, admitted, strict=True):
        column = labels.index(weak_label.label)
        if _more_may_follow(weak_label):
            further[column] |= row
        if weak_label.kind == "tag" and seeds is not None and len(regions):
            peaks[column] = regions.contains(seeds.points[seeds.labels == weak_label.label])
    for weak_label in annotation:
        if weak_label.crowd:  # a crowd has one seed and several objects
            peaks[labels.index(weak_label.label)] = torch.zeros(len(regions), 0, dtype=torch.bool)
    required = tuple(
        Requirement(annotation[i].label, admitted[i], i, _more_may_follow(annotation[i]))
        for i in needed
    )
    return Requirements(regions, labels, required, further, tuple(peaks), added)


def _more_may_follow(weak_label: WeakLabel) -> bool:
    return weak_label.kind == "tag" or weak_label.crowd


def _without_empty_mask(weak_label: WeakLabel) -> WeakLabel:
    """A weak_label whose mask has no pixel says no more than its box, its point or its class."""
    if weak_label.mask is not None and not areas([weak_label.mask])[0]:
        return replace(weak_label, mask=None)
    return weak_label


def _needed(annotation: Annotation) -> list[int]:
    """The weak_labels that require a region: all with a place, and tags of classes without any."""
    placed = {weak_label.label for weak_label in annotation if weak_label.kind != "tag"}
    needed: list[int] = []
    for number, weak_label in enumerate(annotation):
        if weak_label.kind != "tag":
            needed.append(number)
        elif weak_label.label not in placed:
            placed.add(weak_label.label)
            needed.append(number)
    return needed


def _completed(
    annotation: Annotation,
    regions: RegionSet,
    admitted: list[Tensor],
    needed: list[int],
    image: Image | None,
    box_overlap: float,
) -> tuple[RegionSet, list[Tensor], int]:
    """The same with a region of its own for every weak_label that cannot get one."""
    lacking = _lacking(admitted, needed)
    if not lacking:
        return regions, admitted, 0
    before = len(regions)
    new = [fallback_region(annotation[i], regions, image, box_overlap) for i in lacking]
    regions = with_masks(regions, new, score=0.0)
    wider = []
    for number, row in enumerate(admitted):
        longer = torch.zeros(len(regions), dtype=torch.bool)
        longer[:before] = row
        if number in lacking:
            longer[before + lacking.index(number)] = True
        wider.append(longer)
    return regions, wider, len(new)


def _lacking(admitted: list[Tensor], needed: list[int]) -> list[int]:
    """The needed weak_labels for which no region of their own is left."""
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


NEARLY = 0.9
"""A region fits a box nearly as well as the best one if its IoU is at least this share of that."""

MOSTLY = 0.5
"""A region belongs to the place of a crowd if more than this share of it lies there."""


def compatible_regions(
    number: int,
    annotation: Annotation,
    regions: RegionSet,
    seeds: Seeds | None,
    box_overlap: float,
) -> Tensor:
    """Which regions meet weak_label `number` of the annotation, bool [P].

    - A tag: all; with seeds, those that hold a peak of its class and none of another.
    - A point: those that contain it, and no other point.
    - A box: those whose tight box has an IoU of `box_overlap` with it and fits nearly as well as
      any.
    - A crowd: those that lie mostly in its place.

    Where two conditions leave no region, the second of them is dropped.
    """
    weak_label = annotation[number]
    if len(regions) == 0:
        return torch.zeros(0, dtype=torch.bool)
    if weak_label.crowd and weak_label.kind in ("box", "mask"):
        inside = torch.from_numpy(place_of(weak_label, regions.size))[None].float()
        return regions.pool(inside, over="region")[:, 0] > MOSTLY
    if weak_label.box is not None:
        fit = regions.box_iou([weak_label.box])[:, 0]
        fits = (fit >= box_overlap) & (fit >= NEARLY * fit.max())
        if weak_label.point is None:
            return fits
        return first_that_leaves_any(fits & regions.contains([weak_label.point])[:, 0], fits)
    if weak_label.point is not None:
        contains = regions.contains([weak_label.point])[:, 0]
        others = annotation.points[[i for i in range(len(annotation)) if i != number]]
        others = others[others.isfinite().all(dim=1)]
        return first_that_leaves_any(contains & ~regions.contains(others).any(dim=1), contains)
    return _seeded(weak_label.label, regions, seeds)


def place_of(weak_label: WeakLabel, size: Size) -> npt.NDArray[np.bool_]:
    """The pixels of a weak_label's mask, or else of its box."""
    if weak_label.mask is not None:
        return rle.decode([weak_label.mask], size)[0].astype(bool)
    assert weak_label.box is not None
    x0, y0 = int(np.floor(weak_label.box[0])), int(np.floor(weak_label.box[1]))
    x1, y1 = int(np.ceil(weak_label.box[2])), int(np.ceil(weak_label.box[3]))
    inside: npt.NDArray[np.bool_] = np.zeros(size, dtype=bool)
    inside[y0:y1, x0:x1] = True
    return inside


def _seeded(label: int, regions: RegionSet, seeds: Seeds | None) -> Tensor:
    """The regions that seeds leave for a tag."""
    everything = torch.ones(len(regions), dtype=torch.bool)
    if seeds is None or not len(seeds):
        return everything
    holds = regions.contains(seeds.points)
    own = holds[:, seeds.labels == label].any(dim=1)
    alone = own & ~holds[:, seeds.labels != label].any(dim=1)
    return first_that_leaves_any(alone, own, everything)


Mask = npt.NDArray[np.bool_]


def fallback_region(
    weak_label: WeakLabel,
    regions: RegionSet,
    image: npt.NDArray[np.uint8] | None,
    box_overlap: float,
) -> RLE:
    """A region for a weak_label: GrabCut's answer or else the box, the superpixel of a point, or all.

    Args:
        image: for GrabCut, [H, W, 3].
        box_overlap: the IoU that the tight box of GrabCut's answer must have with the box.
    """
    height, width = regions.size
    mask: Mask = np.ones((height, width), dtype=bool)
    if weak_label.mask is not None or weak_label.box is not None:
        mask = place_of(weak_label, regions.size)
        cut = grab_cut(image, mask) if image is not None and not weak_label.crowd else None
        if cut is not None and _box_overlap(cut, mask) >= box_overlap:
            mask = cut
    elif weak_label.point is not None:
        x, y = min(int(weak_label.point[0]), width - 1), min(int(weak_label.point[1]), height - 1)
        superpixels = regions.superpixels.cpu().numpy()
        mask = superpixels == superpixels[y, x]
    return rle.encode(mask[None])[0]


def _box_overlap(first: Mask, second: Mask) -> float:
    """The IoU of two masks' tight boxes."""
    a, b = rle.boxes(rle.encode(np.stack([first, second])))
    sides = np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None)
    common = float(sides.prod())
    return common / (float((a[2:] - a[:2]).prod()) + float((b[2:] - b[:2]).prod()) - common)


ROUNDS = 3


def grab_cut(
    image: npt.NDArray[np.uint8], place: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_] | None:
    """The object that fills most of a place, bool [H, W]; None if there is nothing to go by.

    Args:
        image: RGB, [H, W, 3].
        place: where the object may be, [H, W], such as a box; not all of the image.
    """
    if place.all() or not place.any():
        return None
    state = np.where(place, cv2.GC_PR_FGD, cv2.GC_BGD).astype(np.uint8)
    models = np.zeros((2, 1, 65))
    cv2.setRNGSeed(0)
    try:
        cv2.grabCut(image, state, (0, 0, 1, 1), models[0], models[1], ROUNDS, cv2.GC_INIT_WITH_MASK)
    except cv2.error:  # too few pixels for its colour models
        return None
    cut = np.isin(state, (cv2.GC_FGD, cv2.GC_PR_FGD))
    return cut if cut.any() else None
