"""RegionSet: the regions of one image as sets of superpixels, with mask operations on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.ops import box_iou

from annocoin import masks as rle
from annocoin.errors import check_choice
from annocoin.masks import RLE, Size
from annocoin.regions import algebra
from annocoin.regions.superpixel_graph import BoundaryElements
from annocoin.types import as_rles

Over = Literal["image", "region", "sum"]
Masks = Sequence[RLE] | Tensor | npt.NDArray[np.generic]


@dataclass(frozen=True, eq=False)
class RegionSet:
    """P regions over S superpixels of one image, best first. Built by `RegionSet.of`.

    All tensors are on one device; `to` moves them. Only `masks` creates a [P, H, W] tensor.

    Args:
        superpixels: the id 0..S-1 of every pixel, int32 [H, W].
        membership: which superpixels belong to a region, M in `algebra.py`, bool [P, S].
        scores: falling, float32 [P]; for annocoin's own regions the expected IoU with an object of
            any class, in 0..1.
        elements: the E pairs of adjacent superpixels a < b, int64 [E, 2].
        lengths: the length of each border in pixel sides, float32 [E].
        edge_strength: boundary probability summed along each border, float32 [E]; zeros if unknown.

    Example:
        >>> halves = np.array([[0, 0, 1, 1]] * 4)
        >>> regions = RegionSet.of(halves, [[1, 0], [0, 1], [1, 1]], edges=np.full((4, 4), 0.5))
        >>> regions.areas.tolist(), regions.boxes[1].tolist()
        ([8, 8, 16], [2.0, 0.0, 4.0, 4.0])
        >>> regions.iou()[0].tolist(), regions.edge_strength_between()[0].tolist()
        ([1.0, 0.0, 0.5], [0.0, 2.0, 2.0])
    """

    superpixels: Tensor
    membership: Tensor
    scores: Tensor
    elements: Tensor
    lengths: Tensor
    edge_strength: Tensor

    @classmethod
    def of(
        cls,
        superpixels: npt.ArrayLike | Tensor,
        membership: npt.ArrayLike | Tensor,
        *,
        scores: npt.ArrayLike | Tensor | None = None,
        edges: npt.NDArray[np.floating] | None = None,
        edge_strength: npt.ArrayLike | None = None,
    ) -> RegionSet:
        """A region set from a map [H, W] of ids 0..S-1, all of them used, and M [P, S].

        Args:
            scores: [P]; default falling from 1 to 0.
            edges: the probability of a boundary at every pixel, [H, W].
            edge_strength: [E], instead of `edges`.
        """
        ids = _array(superpixels)
        members = _array(membership).astype(bool)
        _check(ids, members)
        elements = BoundaryElements.of(ids)
        if edges is not None and edges.shape != ids.shape:
            raise ValueError(f"edges of shape {edges.shape}; the superpixels are {ids.shape}")
        if edge_strength is None:
            edge_strength = (
                np.zeros(len(elements.pairs)) if edges is None else elements.edge_strength(edges)
            )
        if scores is None:
            scores = np.linspace(1, 0, len(members) + 1)[:-1]
        regions = cls(
            superpixels=torch.from_numpy(ids.astype(np.int32)),
            membership=torch.from_numpy(members),
            scores=torch.tensor(_array(scores), dtype=torch.float32),
            elements=torch.from_numpy(elements.pairs),
            lengths=torch.from_numpy(elements.lengths).float(),
            edge_strength=torch.tensor(_array(edge_strength), dtype=torch.float32),
        )
        for name, count in (("scores", len(members)), ("edge_strength", len(elements.pairs))):
            values = getattr(regions, name)
            if values.shape != (count,):
                raise ValueError(f"{name} of shape {tuple(values.shape)}; expected ({count},)")
            if not values.isfinite().all():
                raise ValueError(f"{name}: NaN or infinite; expected finite numbers")
        return regions

    def __len__(self) -> int:
        return len(self.membership)

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> RegionSet:
        """Some of the regions over the same superpixels, by index, slice, list, or bool [P]."""
        if isinstance(index, Tensor):
            index = index.tolist()
        positions = np.atleast_1d(np.arange(len(self))[index]).copy()
        chosen = torch.from_numpy(positions).to(self.device)
        return replace(self, membership=self.membership[chosen], scores=self.scores[chosen])

    def __repr__(self) -> str:
        height, width = self.size
        return f"RegionSet({len(self)} over {self.membership.shape[1]} in {height}x{width})"

    def to(self, device: torch.device | str) -> RegionSet:
        """The same regions on another device."""
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
        boxes = algebra.superpixel_boxes(self.superpixels, self.membership.shape[1])
        return algebra.region_boxes(self.membership, boxes).float()

    def intersections(self) -> Tensor:
        """Pixels that two regions have in common, [P, P]."""
        return algebra.intersections(self.membership, self.superpixel_areas)

    def iou(self) -> Tensor:
        """Intersection over union of all pairs, float32 [P, P]."""
        return algebra.iou_of_intersections(self.intersections(), self.areas, self.areas)

    def containment(self) -> Tensor:
        """The fraction of region u that lies in region v, float32 [P, P].

        The greater of it and its transpose is the intersection over the smaller area.
        """
        return (self.intersections() / self.areas[:, None]).float()

    def iou_with(self, masks: Tensor) -> Tensor:
        """Intersection over union with the nonzero pixels of masks [N, H, W]: [P, N]."""
        if masks.ndim != 3 or tuple(masks.shape[1:]) != self.size:
            raise ValueError(f"masks of shape {tuple(masks.shape)}; expected (N, *{self.size})")
        dtype = algebra.exact_dtype(self.superpixels.numel(), self.device)
        dense = (masks != 0).to(self.device, dtype)
        common = algebra.pool(self.membership, self.superpixels, dense)
        return algebra.iou_of_intersections(common, self.areas, dense.sum(dim=(1, 2)))

    def contains(self, points: Tensor | npt.ArrayLike) -> Tensor:
        """Whether a region contains the pixel under a point: x, y [N, 2] to bool [P, N].

        Points on the right and lower image border count for the last pixels; no region contains a
        point outside of the image.
        """
        height, width = self.size
        x, y = _rows(points, 2, "points").to(self.device).T
        inside = (x >= 0) & (x <= width) & (y >= 0) & (y <= height)
        column = x.floor().long().clamp(0, width - 1)
        row = y.floor().long().clamp(0, height - 1)
        return self.membership[:, self.superpixels[row, column].long()] & inside

    def box_iou(self, boxes: Tensor | npt.ArrayLike) -> Tensor:
        """Intersection over union of the regions' tight boxes with boxes [N, 4]: [P, N]."""
        return box_iou(self.boxes, _rows(boxes, 4, "boxes").to(self.boxes))

    def edge_strength_between(self, *, mean: bool = False) -> Tensor:
        """I_uv, the edge strength that separates two regions, [P, P]; or its mean per pixel side.

        For disjoint neighbours it is summed along their common border, for nested regions along
        the outline of the inner one (defined in `algebra.separating_sum`); 0 without such a border.
        """
        total = algebra.separating_sum(self.membership, self.elements, self.edge_strength)
        if not mean:
            return total
        length = algebra.separating_sum(self.membership, self.elements, self.lengths)
        return torch.where(length > 0.5, total / length.clamp(min=1), 0)

    def neighbours(self) -> Tensor:
        """N_u: the regions that overlap or touch region u, without u itself; bool [P, P]."""
        members = self.membership.float()
        near = (members @ members.T > 0) | algebra.touching(self.membership, self.elements)
        return near.fill_diagonal_(False)

    def rings(self) -> Tensor:
        """The superpixels that touch each region from outside: bool [P, S]."""
        count = self.membership.shape[1]
        adjacent = self.lengths.new_zeros(count, count)
        first, second = self.elements.T
        adjacent[first, second] = adjacent[second, first] = 1
        return (self.membership.float() @ adjacent > 0) & ~self.membership

    def superpixel_means(self, maps: Tensor) -> Tensor:
        """Maps [C, h, w], interpolated to the image, averaged over each superpixel: [C, S]."""
        resized = F.interpolate(maps[None].float(), self.size, mode="bilinear")[0].flatten(1)
        sums = resized.new_zeros(len(maps), self.membership.shape[1])
        sums.index_add_(1, self.superpixels.flatten().long(), resized)
        return sums / self.superpixel_areas

    def pool(self, features: Tensor, over: Over = "image") -> Tensor:
        """Features summed over each region, differentiable: [..., C, h, w] to [..., P, C].

        The features may have another resolution than the image: each of their pixels counts for the
        superpixel under its centre, so that small regions may get nothing at a coarse resolution.

        Args:
            over: the divisor of the sum: the area of the "image" (the paper's global average
                pooling), that of the "region", or none ("sum").
        """
        check_choice("over", over, get_args(Over))
        if features.ndim < 3 or not features.is_floating_point():
            kind = f"{features.dtype} {tuple(features.shape)}"
            raise ValueError(f"features: {kind}; expected floats [..., C, h, w]")
        size = features.shape[-2:]
        ids = algebra.resize_superpixels(self.superpixels, size)
        sums = algebra.pool(self.membership, ids, features)
        if over == "image":
            sums = sums / (size[0] * size[1])
        elif over == "region":
            ones = torch.ones(1, *size, device=features.device)
            sums = sums / algebra.pool(self.membership, ids, ones).clamp(min=1)
        return sums.to(features.dtype)

    def masks(self) -> Tensor:
        """The regions as masks, bool [P, H, W]; large, so select a few regions first."""
        return self.membership[:, self.superpixels.long()]

    def rles(self) -> list[RLE]:
        """The regions as run-length masks."""
        members, ids = self.membership.cpu().numpy(), self.superpixels.cpu().numpy()
        return [rle.encode(row[ids][None])[0] for row in members]


def regions_of_masks(
    masks: Masks,
    size: Size,
    *,
    scores: npt.ArrayLike | None = None,
    edges: npt.NDArray[np.floating] | None = None,
) -> RegionSet:
    """A region set whose regions are exactly the P masks of one image.

    Args:
        masks: RLEs, or a tensor or array [P, H, W] of 0 and 1; none of them empty.
        edges: the probability of a boundary at every pixel, [H, W].
    """
    superpixels, membership = _overlay(np.zeros(size, dtype=np.int64), as_rles(masks, size))
    return RegionSet.of(superpixels, membership, scores=scores, edges=edges)


def with_masks(
    regions: RegionSet, masks: Masks, *, score: float = 1.0, strength: float = 1.0
) -> RegionSet:
    """The region set with masks appended as regions. Superpixels are split where needed.

    Args:
        masks: as for `regions_of_masks`.
        score: of the new regions.
        strength: edge strength per pixel side where a superpixel is split. Parts of an old border
            keep its mean strength.
    """
    old = regions.superpixels.cpu().numpy()
    rles = as_rles(masks, regions.size)
    superpixels, inside = _overlay(old, rles)
    origin = np.zeros(int(superpixels.max()) + 1, dtype=np.int64)
    origin[superpixels.ravel()] = old.ravel()
    elements = BoundaryElements.of(superpixels)
    mean = (regions.edge_strength / regions.lengths).tolist()
    known = {(a, b): m for (a, b), m in zip(regions.elements.tolist(), mean, strict=True)}
    ends = np.sort(origin[elements.pairs], axis=1).tolist()
    strengths = np.asarray([strength if a == b else known[a, b] for a, b in ends])
    extended = RegionSet.of(
        superpixels,
        np.concatenate([regions.membership.cpu().numpy()[:, origin], inside]),
        scores=np.append(regions.scores.cpu().numpy(), np.full(len(rles), score)),
        edge_strength=strengths * elements.lengths,
    )
    return extended.to(regions.device)


def _overlay(
    base: npt.NDArray[np.integer], masks: Sequence[RLE]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """The common refinement of a partition [H, W] and P masks, and the masks as members [P, S].

    Every mask and every part of the base has a random key of 64 bits. Two pixels are in the same
    part if the exclusive or of their keys is equal; an accidental collision is practically
    impossible.
    """
    size = (base.shape[0], base.shape[1])
    random = np.random.default_rng(0)
    keys = random.integers(0, 1 << 63, int(base.max()) + 1, dtype=np.uint64)[base]
    mask_keys = random.integers(0, 1 << 63, len(masks), dtype=np.uint64)
    for key, mask in zip(mask_keys, masks, strict=True):
        keys ^= key * rle.decode([mask], size)[0]
    _, first, parts = np.unique(keys.ravel(), return_index=True, return_inverse=True)
    inside = np.zeros((len(masks), len(first)), dtype=bool)
    for row, mask in zip(inside, masks, strict=True):
        row[:] = rle.decode([mask], size)[0].ravel()[first]
    return parts.reshape(base.shape), inside


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
    in_range = superpixels.min() >= 0 and superpixels.max() < count
    if not in_range or not np.bincount(superpixels.ravel(), minlength=count).all():
        raise ValueError(
            f"superpixels {superpixels.min()}..{superpixels.max()} and membership of shape "
            f"{membership.shape}; expected ids 0..S-1, each used, and [P, S]"
        )
    if not membership.any(axis=1).all():
        raise ValueError("membership: an empty region; expected at least one superpixel in each")
