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

from annocoin.conditional.admission import admissible_regions
from annocoin.conditional.stand_ins import stand_in
from annocoin.errors import InputError
from annocoin.masks import areas
from annocoin.regions import RegionSet, with_masks
from annocoin.seeds import Seeds
from annocoin.types import Annotation, Mark

Image = npt.NDArray[np.uint8]

BOX_OVERLAP = 0.5


class Requirement(NamedTuple):
    """A class, the regions that would meet it, bool [P], and the mark that says so.

    `more` says whether other instances may follow in its place: those of a tag or a crowd.
    """

    label: int
    admissible: Tensor
    mark: int
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
        meets = [r.admissible & (labels == r.label) for r in self.required]
        return not len(meets) or bool((_matched(torch.stack(meets)) >= 0).all())

    def to(self, device: torch.device | str) -> Requirements:
        """The same on another device."""
        return replace(
            self,
            regions=self.regions.to(device),
            required=tuple(r._replace(admissible=r.admissible.to(device)) for r in self.required),
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
    exactly one, and a mask joins the regions as that one. A mark of a crowd requires one in its
    place, and more may follow there. `admissible_regions` says which would do.

    If no region is left for a mark, one is added: for a box GrabCut's answer or else the box, for a
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
    annotation = replace(annotation, marks=tuple(map(_without_empty_mask, annotation)))
    is_own = [mark.mask is not None and not mark.crowd for mark in annotation]
    own = [mark.mask for mark in annotation if mark.mask is not None and not mark.crowd]
    count = len(regions)
    if own:
        regions = with_masks(regions, own)
    places = torch.arange(len(regions))
    free = places < count  # a mask that is known is nobody else's
    admitted = [
        places == count + sum(is_own[:number])
        if is_own[number]
        else admissible_regions(number, annotation, regions, seeds, box_overlap) & free
        for number in range(len(annotation))
    ]
    needed = _needed(annotation)
    wider = [
        free if mark.kind == "tag" else row for mark, row in zip(annotation, admitted, strict=True)
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
    for mark, row in zip(annotation, admitted, strict=True):
        column = labels.index(mark.label)
        if _more_may_follow(mark):
            further[column] |= row
        if mark.kind == "tag" and seeds is not None and len(regions):
            peaks[column] = regions.contains(seeds.points[seeds.labels == mark.label])
    for mark in annotation:
        if mark.crowd:  # a crowd has one seed and several objects
            peaks[labels.index(mark.label)] = torch.zeros(len(regions), 0, dtype=torch.bool)
    required = tuple(
        Requirement(annotation[i].label, admitted[i], i, _more_may_follow(annotation[i]))
        for i in needed
    )
    return Requirements(regions, labels, required, further, tuple(peaks), added)


def _more_may_follow(mark: Mark) -> bool:
    return mark.kind == "tag" or mark.crowd


def _without_empty_mask(mark: Mark) -> Mark:
    """A mark whose mask has no pixel says no more than its box, its point or its class."""
    if mark.mask is not None and not areas([mark.mask])[0]:
        return replace(mark, mask=None)
    return mark


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
    new = [stand_in(annotation[i], regions, image, box_overlap) for i in lacking]
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
