"""RegionSet: the regions of one image, each a set of superpixels, and what can be asked of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.ops import box_iou

from annocoin import masks as rle
from annocoin.errors import check_choice
from annocoin.masks import RLE, Size, decode
from annocoin.regions import algebra
from annocoin.regions.superpixel_graph import Elements
from annocoin.types import as_rles

Over = Literal["image", "region", "sum"]


@dataclass(frozen=True, eq=False)
class RegionSet:
    """P regions over S superpixels of one image, the most promising first. Made by `RegionSet.of`.

    All tensors are on one device; `to` moves them. Nothing but `masks` makes a [P, H, W] tensor.
    `write_regions` and `read_regions` keep it in a file.

    Args:
        superpixels: the id 0..S-1 of every pixel, int32 [H, W].
        membership: which superpixels make up a region, bool [P, S]; M in `algebra.py`.
        scores: the expected overlap with an object of any class, in 0..1 if the regions are our
            own, falling, float32 [P]; or what another program says.
        elements: the E pairs of superpixels a < b that touch, int64 [E, 2].
        lengths: the length of each such border in pixel sides, float32 [E].
        masses: the edge mass on it, float32 [E]; zeros if nothing is known about edges.

    Example:
        >>> halves = np.array([[0, 0, 1, 1]] * 4)
        >>> regions = RegionSet.of(halves, [[1, 0], [0, 1], [1, 1]], edges=np.full((4, 4), 0.5))
        >>> regions.areas.tolist(), regions.boxes[1].tolist()
        ([8, 8, 16], [2.0, 0.0, 4.0, 4.0])
        >>> regions.iou()[0].tolist(), regions.edge_mass()[0].tolist()
        ([1.0, 0.0, 0.5], [0.0, 2.0, 2.0])
    """

    superpixels: Tensor
    membership: Tensor
    scores: Tensor
    elements: Tensor
    lengths: Tensor
    masses: Tensor

    @classmethod
    def of(
        cls,
        superpixels: npt.ArrayLike | Tensor,
        membership: npt.ArrayLike | Tensor,
        *,
        scores: npt.ArrayLike | Tensor | None = None,
        edges: npt.NDArray[np.floating] | None = None,
        masses: npt.ArrayLike | None = None,
    ) -> RegionSet:
        """A region set from a map [H, W] of ids 0..S-1, all of them used, and M [P, S].

        Args:
            scores: [P]; falling from 1 to 0 in the order given, if not given.
            edges: the probability of a boundary at every pixel, [H, W].
            masses: the edge mass of every element, [E], where it is known already.
        """
        ids = _array(superpixels)
        members = _array(membership).astype(bool)
        _check(ids, members)
        elements = Elements.of(ids)
        if edges is not None and edges.shape != ids.shape:
            raise ValueError(f"edges of shape {edges.shape}; the superpixels are {ids.shape}")
        if masses is None:
            masses = elements.masses(edges) if edges is not None else np.zeros(len(elements.pairs))
        if scores is None:
            scores = np.linspace(1, 0, len(members) + 1)[:-1]
        found = cls(
            superpixels=torch.from_numpy(ids.astype(np.int32)),
            membership=torch.from_numpy(members),
            scores=torch.tensor(_array(scores), dtype=torch.float32),
            elements=torch.from_numpy(elements.pairs),
            lengths=torch.from_numpy(elements.lengths).float(),
            masses=torch.tensor(_array(masses), dtype=torch.float32),
        )
        if found.scores.shape != (len(members),) or found.masses.shape != found.lengths.shape:
            raise ValueError(
                f"scores of shape {tuple(found.scores.shape)}, masses of "
                f"{tuple(found.masses.shape)}; expected ({len(members)},), {len(elements.pairs)}"
            )
        if not (found.scores.isfinite().all() and found.masses.isfinite().all()):
            raise ValueError("scores or masses are NaN or infinite; expected finite numbers")
        return found

    def __len__(self) -> int:
        return len(self.membership)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> RegionSet:
        """The chosen regions over the same superpixels: a position, slice, list, or bool [P]."""
        if isinstance(index, Tensor):
            index = index.tolist()
        chosen = np.atleast_1d(np.arange(len(self))[index])
        positions = torch.from_numpy(chosen.copy()).to(self.device)
        return replace(self, membership=self.membership[positions], scores=self.scores[positions])

    def __repr__(self) -> str:
        height, width = self.size
        return f"RegionSet({len(self)} over {self.membership.shape[1]} in {height}x{width})"

    def to(self, device: torch.device | str) -> RegionSet:
        """The same on another device."""
        moved: dict[str, Any] = {f.name: getattr(self, f.name).to(device) for f in fields(self)}
        return RegionSet(**moved)

    @property
    def size(self) -> Size:
        """(height, width) of the image."""
        return int(self.superpixels.shape[0]), int(self.superpixels.shape[1])

    @property
    def device(self) -> torch.device:
        return self.membership.device

    @cached_property
    def superpixel_areas(self) -> Tensor:
        """Pixels of each superpixel, int64 [S]."""
        return torch.bincount(self.superpixels.flatten(), minlength=self.membership.shape[1])

    @cached_property
    def areas(self) -> Tensor:
        """Pixels of each region, int64 [P]."""
        return (self.membership * self.superpixel_areas).sum(dim=1)

    @cached_property
    def boxes(self) -> Tensor:
        """Tight boxes, float32 [P, 4], right and lower edge exclusive."""
        own = algebra.superpixel_boxes(self.superpixels, self.membership.shape[1])
        return algebra.region_boxes(self.membership, own).float()

    def intersections(self) -> Tensor:
        """Pixels that two regions have in common, [P, P]."""
        return algebra.intersections(self.membership, self.superpixel_areas)

    def iou(self) -> Tensor:
        """Intersection over union of all pairs, float32 [P, P]."""
        return algebra.iou(self.intersections(), self.areas, self.areas)

    def containment(self) -> Tensor:
        """The share of region u that lies in region v, float32 [P, P].

        The greater of it and its transpose is the intersection over the smaller area.
        """
        return (self.intersections() / self.areas[:, None]).float()

    def iou_with(self, masks: Tensor) -> Tensor:
        """Intersection over union with masks [N, H, W], whose nonzero pixels count: [P, N]."""
        if masks.ndim != 3 or tuple(masks.shape[1:]) != self.size:
            raise ValueError(f"masks of shape {tuple(masks.shape)}; expected (N, *{self.size})")
        dtype = algebra.exact_dtype(self.superpixels.numel(), self.device)
        dense = (masks != 0).to(self.device, dtype)
        common = algebra.pool(self.membership, self.superpixels, dense)
        return algebra.iou(common, self.areas, dense.sum(dim=(1, 2)))

    def contains(self, points: Tensor | npt.ArrayLike) -> Tensor:
        """Whether a region holds the pixel under a point: [N, 2] as x, y to bool [P, N].

        The right and lower rim belong to the last pixels; points outside of the image to no region.
        """
        height, width = self.size
        points = _rows(points, 2, "points").to(self.device)
        x, y = points[:, 0], points[:, 1]
        inside = (x >= 0) & (x <= width) & (y >= 0) & (y <= height)
        column = x.floor().long().clamp(0, width - 1)
        row = y.floor().long().clamp(0, height - 1)
        return self.membership[:, self.superpixels[row, column].long()] & inside

    def box_iou(self, boxes: Tensor | npt.ArrayLike) -> Tensor:
        """Intersection over union of the regions' tight boxes with boxes [N, 4]: [P, N]."""
        return box_iou(self.boxes, _rows(boxes, 4, "boxes").to(self.boxes))

    def edge_mass(self, *, mean: bool = False) -> Tensor:
        """I_uv, the edge mass that separates two regions, [P, P]; or its mean per pixel side.

        Between disjoint neighbours it is the edge on their common border, between nested regions
        that on the inner one's outline (`algebra.edge_mass` has the definition); if nothing
        separates them, it is 0.
        """
        mass = algebra.edge_mass(self.membership, self.elements, self.masses)
        if not mean:
            return mass
        length = algebra.edge_mass(self.membership, self.elements, self.lengths)
        return torch.where(length > 0.5, mass / length.clamp(min=1), 0)

    def neighbours(self) -> Tensor:
        """N_u: the regions that overlap or touch region u, but not u itself; bool [P, P]."""
        members = self.membership.float()
        near = (members @ members.T > 0) | algebra.touching(self.membership, self.elements)
        return near.fill_diagonal_(False)

    def pool(self, features: Tensor, over: Over = "image") -> Tensor:
        """Features summed over each region, differentiable: [..., C, h, w] to [..., P, C].

        The features may have another resolution than the image; each of their pixels counts for the
        superpixel under its centre, so that at a coarse one small regions may get nothing.

        Args:
            over: what the sum is divided by: the area of the "image" (the paper's global average
                pooling), that of the "region", or nothing ("sum").
        """
        check_choice("over", over, get_args(Over))
        if features.ndim < 3 or not features.is_floating_point():
            found = f"{features.dtype} {tuple(features.shape)}"
            raise ValueError(f"features: {found}; expected floats [..., C, h, w]")
        size = features.shape[-2:]
        ids = algebra.resized(self.superpixels, size)
        sums = algebra.pool(self.membership, ids, features)
        if over == "image":
            sums = sums / (size[0] * size[1])
        elif over == "region":
            ones = torch.ones(1, *size, device=features.device)
            sums = sums / algebra.pool(self.membership, ids, ones).clamp(min=1)
        return sums.to(features.dtype)

    def masks(self) -> Tensor:
        """The regions as masks, bool [P, H, W]: choose a few first."""
        return self.membership[:, self.superpixels.long()]

    def rles(self) -> list[RLE]:
        """The regions as run-length masks."""
        members, ids = self.membership.cpu().numpy(), self.superpixels.cpu().numpy()
        return [rle.encode(row[ids][None])[0] for row in members]


def _rows(values: Tensor | npt.ArrayLike, width: int, name: str) -> Tensor:
    rows = torch.as_tensor(values)
    if rows.ndim != 2 or rows.shape[1] != width:
        raise ValueError(f"{name} of shape {tuple(rows.shape)}; expected [N, {width}]")
    return rows


def _array(values: npt.ArrayLike | Tensor) -> npt.NDArray[Any]:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)


def _check(superpixels: npt.NDArray[Any], membership: npt.NDArray[np.bool_]) -> None:
    if superpixels.ndim != 2 or superpixels.dtype.kind not in "iu" or superpixels.size == 0:
        raise ValueError(
            f"superpixels: {superpixels.dtype} {superpixels.shape}; expected whole numbers [H, W]"
        )
    count = membership.shape[1] if membership.ndim == 2 else -1
    used = superpixels.min() >= 0 and superpixels.max() < count
    if not used or not np.bincount(superpixels.ravel(), minlength=count).all():
        raise ValueError(
            f"superpixels {superpixels.min()}..{superpixels.max()} and membership of shape "
            f"{membership.shape}; expected ids 0..S-1, each used, and [P, S]"
        )
    if not membership.any(axis=1).all():
        raise ValueError("membership: an empty region; expected at least one superpixel in each")


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
