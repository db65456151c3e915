"""Requirements: every kind of weak label as one idea, the paper's higher order term Q (eq. 4).

A requirement is a class and the regions compatible with one weak label. A labelling is consistent
with the annotation if each requirement is met by a different region that has its class.
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
from torchvision.ops import box_iou

from annocoin import masks as rle
from annocoin.data.artefacts import Arrays, Fields, unpack_bits
from annocoin.errors import InputError
from annocoin.masks import RLE, Size
from annocoin.regions.region_set import RegionSet, with_masks
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.votes import first_nonempty
from annocoin.types import Annotation, WeakLabel

Image = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

BOX_OVERLAP = 0.5
"""Least IoU of a box label with the tight box of a compatible region."""

BEST_FIT_SHARE = 0.9
"""The same, as a share of the IoU of the best fitting region."""

CROWD_OVERLAP = 0.5
"""A region belongs to a crowd if more than this share of it lies inside the label."""

GRAB_CUT_ITERATIONS = 3

REQUIREMENT_FIELDS: Fields = {
    "labels": ((None,), ("int64",)),
    "required": ((None, 3), ("int64",)),  # class, index in the annotation, whether it allows extra
    "num_peaks": ((None,), ("int64",)),
    "num_fallbacks": ((), ("int64",)),
    "requirement_bits": ((None,), ("uint8",)),
}
"""The arrays of `requirements_to_arrays`."""


class Requirement(NamedTuple):
    """One weak label that a labelling must account for.

    Args:
        label: its class.
        compatible: the regions that would meet it, bool [P].
        annotation_index: the index of the weak label in the annotation.
        allows_extra: whether it may have further instances, as tags and crowds do, and boxes with
            `box_allows_extra`.
    """

    label: int
    compatible: Tensor
    annotation_index: int
    allows_extra: bool


@dataclass(frozen=True, eq=False)
class Requirements:
    """The constraints that an annotation puts on the labelling of an image's regions.

    Args:
        regions: the P regions; annotated masks and fallback regions are the last ones.
        labels: the J classes of the annotation, ascending.
        required: each must be met by a different region.
        extra_allowed: the regions that may be instances of each class beyond those, bool [J, P].
        peaks: for each class, the peaks of its seeds that each region contains, bool [P, N]. If
            N > 0, every further instance of the class must contain a further peak.
        num_fallbacks: the number of regions added because no other region could meet a requirement.
    """

    regions: RegionSet
    labels: tuple[int, ...]
    required: tuple[Requirement, ...]
    extra_allowed: Tensor
    peaks: tuple[Tensor, ...]
    num_fallbacks: int = 0

    def unconstrained(self) -> Requirements:
        """The same without the higher order term (U and U+P of the paper's ablation).

        Nothing is required, and every region may be an instance of every class.
        """
        return replace(
            self,
            required=(),
            extra_allowed=torch.ones_like(self.extra_allowed),
            peaks=tuple(contains[:, :0] for contains in self.peaks),
        )

    def per_class(self) -> Requirements:
        """The same with a copy of every region for each class, which only that class may select.

        So classes select independently of each other, and may select the same region: copy j of
        region u has the index j P + u.
        """
        count, num_classes = len(self.regions), len(self.labels)
        if num_classes < 2:
            return self
        own = torch.eye(num_classes, dtype=torch.bool, device=self.extra_allowed.device)
        own = own.repeat_interleave(count, dim=1)  # [J, J P]
        index = torch.arange(count).repeat(num_classes)
        return replace(
            self,
            regions=self.regions[index],
            required=tuple(
                r._replace(
                    compatible=r.compatible.repeat(num_classes) & own[self.labels.index(r.label)]
                )
                for r in self.required
            ),
            extra_allowed=self.extra_allowed.repeat(1, num_classes) & own,
            peaks=tuple(contains.repeat(num_classes, 1) for contains in self.peaks),
        )

    def met_by(self, labels: Tensor) -> bool:
        """Whether a labelling, int64 [P] of 0..C, has a different region for each requirement."""
        if not self.required:
            return True
        meets = torch.stack([r.compatible & (labels == r.label) for r in self.required])
        return bool((_match(meets) >= 0).all())

    def to(self, device: torch.device | str) -> Requirements:
        """The same on another device."""
        return replace(
            self,
            regions=self.regions.to(device),
            required=tuple(r._replace(compatible=r.compatible.to(device)) for r in self.required),
            extra_allowed=self.extra_allowed.to(device),
            peaks=tuple(contains.to(device) for contains in self.peaks),
        )


def requirements_of(
    annotation: Annotation,
    regions: RegionSet,
    *,
    seeds: Seeds | None = None,
    image: Image | None = None,
    box_overlap: float = BOX_OVERLAP,
    best_fit_share: float = BEST_FIT_SHARE,
    box_allows_extra: bool = False,
) -> Requirements:
    """The requirements of an annotation, with a set of regions that can meet all of them.

    A point, a box or a mask requires exactly one region (a box at least one with
    `box_allows_extra`); an annotated mask is added to the regions as that one. A tag requires one
    region of its class, a crowd one inside its area, and both allow more. `compatible_regions`
    defines which regions meet which label. Where none is left for a label, `fallback_region` adds
    one.

    Args:
        seeds: restrict tags to regions that contain a peak of their class.
        image: for GrabCut, uint8 [H, W, 3].
        box_overlap: least IoU of a box label with the tight box of a region.
        best_fit_share: the same, as a share of the IoU of the best fitting region; 0, as in the
            paper, for `box_overlap` alone.
        box_allows_extra: a box requires at least one of its regions, as in the paper, instead of
            exactly one.
    """
    if regions.size != annotation.size:
        raise InputError(
            f"regions of an image {regions.size}, an annotation of {annotation.size}; "
            "expected one image"
        )
    if seeds is not None:
        seeds.check_for(annotation)
    annotation = replace(annotation, weak_labels=tuple(map(_without_empty_mask, annotation)))
    num_proposals = len(regions)
    exact = {i: w.mask for i, w in enumerate(annotation) if w.mask is not None and not w.crowd}
    if exact:
        regions = with_masks(regions, list(exact.values()))
    is_proposal = torch.arange(len(regions)) < num_proposals
    compatible = torch.zeros(len(annotation), len(regions), dtype=torch.bool)
    for i in range(len(annotation)):
        if i in exact:  # an annotated mask meets its own label only
            compatible[i, num_proposals + list(exact).index(i)] = True
        else:
            row = compatible_regions(i, annotation, regions, seeds, box_overlap, best_fit_share)
            compatible[i] = row & is_proposal
    required = _requiring_labels(annotation)
    is_tag = torch.tensor([kind == "tag" for kind in annotation.kinds], dtype=torch.bool)
    unseeded = torch.where(is_tag[:, None], is_proposal, compatible)
    if len(_unmatched(unseeded, required)) < len(_unmatched(compatible, required)):
        compatible = unseeded  # seeds are uncertain: with them, some requirements cannot be met
    unmatched = _unmatched(compatible, required)
    if unmatched:
        new = [fallback_region(annotation[i], regions, image, box_overlap) for i in unmatched]
        regions = with_masks(regions, new, score=0.0)
        fallbacks = torch.arange(len(annotation))[:, None] == torch.tensor(unmatched)
        compatible = torch.cat([compatible, fallbacks], dim=1)
    labels = annotation.distinct_labels
    allows_extra = [
        w.kind == "tag" or w.crowd or (box_allows_extra and w.kind == "box") for w in annotation
    ]
    extra_allowed = torch.zeros(len(labels), len(regions), dtype=torch.bool)
    for weak_label, row, allowed in zip(annotation, compatible, allows_extra, strict=True):
        if allowed:
            extra_allowed[labels.index(weak_label.label)] |= row
    return Requirements(
        regions=regions,
        labels=labels,
        required=tuple(
            Requirement(annotation[i].label, compatible[i], i, allows_extra[i]) for i in required
        ),
        extra_allowed=extra_allowed,
        peaks=tuple(_peaks(label, annotation, regions, seeds) for label in labels),
        num_fallbacks=len(unmatched),
    )


def requirements_to_arrays(requirements: Requirements) -> Arrays:
    """All of the requirements but their regions, as arrays.

    The bool tables are columns of one, [P, R + J + total number of peaks], packed as bits.
    """
    required, peaks = requirements.required, requirements.peaks
    columns = [*(r.compatible[:, None] for r in required), requirements.extra_allowed.T, *peaks]
    numbers = [(r.label, r.annotation_index, r.allows_extra) for r in required]
    return {
        "labels": np.asarray(requirements.labels, dtype=np.int64),
        "required": np.asarray(numbers, dtype=np.int64).reshape(-1, 3),
        "num_peaks": np.asarray([contains.shape[1] for contains in peaks], dtype=np.int64),
        "num_fallbacks": np.asarray(requirements.num_fallbacks, dtype=np.int64),
        "requirement_bits": np.packbits(torch.cat(columns, dim=1).cpu().numpy()),
    }


def requirements_from_arrays(arrays: Arrays, regions: RegionSet) -> Requirements:
    """The inverse of `requirements_to_arrays`; `ValueError` if the arrays are of other regions."""
    labels, required = tuple(arrays["labels"].tolist()), arrays["required"].tolist()
    widths = [*(1 for _ in required), len(labels), *arrays["num_peaks"].tolist()]
    if len(arrays["num_peaks"]) != len(labels) or min(widths) < 0:
        raise ValueError(f"{len(arrays['num_peaks'])} numbers of peaks for {len(labels)} labels")
    bits = unpack_bits(arrays["requirement_bits"], (len(regions), sum(widths)))
    columns = torch.from_numpy(bits).bool()
    tables = [table.contiguous() for table in columns.split(widths, dim=1)]
    return Requirements(
        regions=regions,
        labels=labels,
        required=tuple(
            Requirement(label, table[:, 0], index, bool(allows_extra))
            for (label, index, allows_extra), table in zip(required, tables, strict=False)
        ),
        extra_allowed=tables[len(required)].T,
        peaks=tuple(tables[len(required) + 1 :]),
        num_fallbacks=int(arrays["num_fallbacks"]),
    )


def compatible_regions(
    index: int,
    annotation: Annotation,
    regions: RegionSet,
    seeds: Seeds | None,
    box_overlap: float = BOX_OVERLAP,
    best_fit_share: float = BEST_FIT_SHARE,
) -> Tensor:
    """Which regions could be the object of the weak label at `index`, bool [P].

    - A tag: all; with seeds, those that contain a peak of its class and none of another class.
    - A point: those that contain it, and no other point.
    - A box: those whose tight box has an IoU of at least `box_overlap` with it, and at least
      `best_fit_share` of that of the best fitting one.
    - A crowd: those that lie mostly inside it.

    If no region satisfies both conditions, the second one is dropped.
    """
    weak_label = annotation[index]
    if len(regions) == 0:
        return torch.zeros(0, dtype=torch.bool)
    if weak_label.crowd and weak_label.kind in ("box", "mask"):
        inside = torch.from_numpy(_area(weak_label, regions.size))[None].float()
        return regions.pool(inside, over="region")[:, 0] > CROWD_OVERLAP
    if weak_label.box is not None:
        fit = regions.box_iou([weak_label.box])[:, 0]
        fits = (fit >= box_overlap) & (fit >= best_fit_share * fit.max())
        if weak_label.point is None:
            return fits
        return first_nonempty(fits & regions.contains([weak_label.point])[:, 0], fits)
    if weak_label.point is not None:
        contains = regions.contains([weak_label.point])[:, 0]
        others = annotation.points[[i for i in range(len(annotation)) if i != index]]
        others = others[others.isfinite().all(dim=1)]
        return first_nonempty(contains & ~regions.contains(others).any(dim=1), contains)
    everything = torch.ones(len(regions), dtype=torch.bool)
    if seeds is None or not len(seeds):
        return everything
    contains = regions.contains(seeds.points)
    of_class = seeds.labels == weak_label.label
    seeded = contains[:, of_class].any(dim=1)
    return first_nonempty(seeded & ~contains[:, ~of_class].any(dim=1), seeded, everything)


def fallback_region(
    weak_label: WeakLabel, regions: RegionSet, image: Image | None, box_overlap: float
) -> RLE:
    """A mask for a weak label without a compatible region.

    For a box, the result of GrabCut if its tight box fits, or else the whole box; for a point, its
    superpixel; for a tag, the whole image.

    Args:
        image: for GrabCut, [H, W, 3].
        box_overlap: least IoU of the tight box of GrabCut's result with the box.
    """
    height, width = regions.size
    mask: Mask = np.ones((height, width), dtype=bool)
    if weak_label.mask is not None or weak_label.box is not None:
        mask = _area(weak_label, regions.size)
        cut = grab_cut(image, mask) if image is not None and not weak_label.crowd else None
        if cut is not None:
            boxes = torch.from_numpy(rle.boxes(rle.encode(np.stack([cut, mask]))))
            mask = cut if float(box_iou(boxes[:1], boxes[1:])) >= box_overlap else mask
    elif weak_label.point is not None:
        x, y = min(int(weak_label.point[0]), width - 1), min(int(weak_label.point[1]), height - 1)
        superpixels = regions.superpixels.cpu().numpy()
        mask = superpixels == superpixels[y, x]
    return rle.encode(mask[None])[0]


def grab_cut(image: Image, area: Mask) -> Mask | None:
    """The object that fills most of an area by GrabCut, bool [H, W]; None without a result.

    Args:
        image: RGB, [H, W, 3].
        area: the pixels that may belong to the object, [H, W], such as a box.
    """
    if area.all() or not area.any():
        return None
    state = np.where(area, cv2.GC_PR_FGD, cv2.GC_BGD).astype(np.uint8)
    background, foreground = np.zeros((2, 1, 65))
    cv2.setRNGSeed(0)
    try:
        cv2.grabCut(
            image, state, (0, 0, 1, 1), background, foreground, GRAB_CUT_ITERATIONS,
            cv2.GC_INIT_WITH_MASK,
        )  # fmt: skip
    except cv2.error:  # too few pixels for its colour models
        return None
    cut = np.isin(state, (cv2.GC_FGD, cv2.GC_PR_FGD))
    return cut if cut.any() else None


def _without_empty_mask(weak_label: WeakLabel) -> WeakLabel:
    """Drop a mask without pixels, so that the label counts as a box, a point or a tag."""
    if weak_label.mask is not None and not rle.areas([weak_label.mask])[0]:
        return replace(weak_label, mask=None)
    return weak_label


def _requiring_labels(annotation: Annotation) -> list[int]:
    """The indices of all labels with a location, and of the first tag of each other class."""
    located = {w.label for w in annotation if w.kind != "tag"}
    labels = annotation.labels.tolist()
    return [
        i
        for i, w in enumerate(annotation)
        if w.kind != "tag" or (w.label not in located and labels.index(w.label) == i)
    ]


def _unmatched(compatible: Tensor, required: list[int]) -> list[int]:
    """The required rows of a bool table [N, P] that have no region in a maximum matching."""
    matches = _match(compatible[required]).tolist()
    return [i for i, region in zip(required, matches, strict=True) if region < 0]


def _match(table: Tensor) -> Tensor:
    """A different column for as many rows of a bool table [R, P] as possible: [R], -1 for none."""
    if table.numel() == 0:
        return torch.full((len(table),), -1)
    matches = maximum_bipartite_matching(csr_array(table.cpu().numpy()), perm_type="column")
    return torch.from_numpy(matches.astype(np.int64))


def _peaks(label: int, annotation: Annotation, regions: RegionSet, seeds: Seeds | None) -> Tensor:
    """The peaks of a class that each region contains, bool [P, N]; none if it has no tag.

    Nor if it has a crowd, which is several objects with one seed.
    """
    of_class = [w for w in annotation if w.label == label]
    points = torch.zeros(0, 2)
    if seeds is not None and any(w.kind == "tag" for w in of_class):
        points = seeds.points[seeds.labels == label]
    return regions.contains(points[:0] if any(w.crowd for w in of_class) else points)


def _area(weak_label: WeakLabel, size: Size) -> Mask:
    """The pixels of a label's mask, or else of its box: [H, W]."""
    if weak_label.mask is not None:
        return rle.decode([weak_label.mask], size)[0]
    assert weak_label.box is not None
    x0, y0 = np.floor(weak_label.box[:2]).astype(int)
    x1, y1 = np.ceil(weak_label.box[2:]).astype(int)
    inside: Mask = np.zeros(size, dtype=bool)
    inside[y0:y1, x0:x1] = True
    return inside
