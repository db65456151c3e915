"""Superpixel algebra: mask operations on regions that are sets of superpixels, as matrix products.

Pure functions on tensors of one device. Symbols: P regions, S superpixels, E boundary elements
(pairs of adjacent superpixels); `membership` is M, bool [P, S].
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

# The product of two sparse matrices uses the CSR format, for which torch warns that it is in beta.
warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning, __name__)

EXACT_IN_FLOAT32 = 1 << 24
"""Sums of whole numbers below this are exact in float32."""


def full_precision(device: torch.device) -> torch.autocast:
    """Context in which mixed precision is off."""
    return torch.autocast(device.type, enabled=False)


def exact_dtype(total: int, device: torch.device) -> torch.dtype:
    """The type in which sums of pixels up to `total` are exact.

    On CUDA float32 products may be rounded (TF32); Apple's devices have no float64.
    """
    if device.type == "mps" or (device.type == "cpu" and total < EXACT_IN_FLOAT32):
        return torch.float32
    return torch.float64


def intersections(membership: Tensor, areas: Tensor) -> Tensor:
    """Pixels in common of all pairs of regions, [P, P], exact; `areas` [S] are of superpixels."""
    dtype = exact_dtype(int(areas.sum()), areas.device)
    with full_precision(areas.device):
        return (membership * areas.to(dtype)) @ membership.to(dtype).T


def iou_of_intersections(intersection: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union [P, Q], float32, from intersections [P, Q] and areas [P] and [Q]."""
    union = first[:, None] + second[None, :] - intersection
    return (intersection / union.clamp(min=1)).float()


def superpixel_boxes(superpixels: Tensor, count: int) -> Tensor:
    """Tight boxes of the superpixels of a map [H, W], int64 [S, 4], right and lower exclusive."""
    ids = superpixels.flatten().long()
    sides = [torch.arange(side, device=ids.device) for side in superpixels.shape]
    y, x = (grid.flatten() for grid in torch.meshgrid(*sides, indexing="ij"))
    corners = [
        values.new_zeros(count).scatter_reduce(0, ids, values, reduce, include_self=False)
        for values, reduce in ((x, "amin"), (y, "amin"), (x + 1, "amax"), (y + 1, "amax"))
    ]
    return torch.stack(corners, dim=1)


def region_boxes(membership: Tensor, boxes: Tensor) -> Tensor:
    """Tight boxes [P, 4] of regions, from those of their superpixels [S, 4]; zeros if empty."""
    far = torch.iinfo(boxes.dtype).max
    lower = [torch.where(membership, boxes[:, k], far).amin(dim=1) for k in (0, 1)]
    upper = [torch.where(membership, boxes[:, k], 0).amax(dim=1) for k in (2, 3)]
    return torch.where(membership.any(dim=1)[:, None], torch.stack(lower + upper, dim=1), 0)


def separating_sum(membership: Tensor, elements: Tensor, values: Tensor) -> Tensor:
    """The sum of `values` [E] over the elements that separate regions u and v: [P, P].

    An element separates them if it crosses the outline of u or of v and both its sides lie in the
    union of u and v: for disjoint neighbours it is on their common border, for nested regions on
    the outline of the inner one. The sum is Y + Y^T - B, where Y_uv is over the outline of u with
    its outer side in v, and B over the border between u \\ v and v \\ u, which Y and Y^T share.

    Args:
        elements: adjacent superpixels a < b, int64 [E, 2].
    """
    outline = _outline_sum(membership, elements, values)
    forward, backward = _crossings(membership, elements)
    ones = torch.ones_like(values)
    with full_precision(values.device):
        shared = torch.sparse.mm(_sparse(forward, values).t(), _sparse(backward, ones)).to_dense()
    return outline + outline.T - (shared + shared.T)


def touching(membership: Tensor, elements: Tensor) -> Tensor:
    """Whether region u's outline has region v on its outer side, or the reverse: bool [P, P]."""
    ones = torch.ones(len(elements), device=membership.device)
    adjacent = _outline_sum(membership, elements, ones) > 0
    return adjacent | adjacent.T


def outlines(membership: Tensor, elements: Tensor) -> Tensor:
    """Which elements lie on each region's outline: bool [E, P]. Image borders have no elements."""
    forward, backward = _crossings(membership, elements)
    return forward | backward


def pool(membership: Tensor, superpixels: Tensor, features: Tensor) -> Tensor:
    """Sums of features over regions, differentiable: [..., C, H, W] to [..., P, C].

    Features are summed per superpixel first, which avoids a [P, H, W] tensor, and in float32 at
    least, since sums over pixels exceed the range of half precision.

    Args:
        superpixels: their ids at the resolution of the features, [H, W].
    """
    regions, count = membership.shape
    *leading, channels, height, width = features.shape
    values = features.to(torch.promote_types(features.dtype, torch.float32))
    flat = values.reshape(math.prod(leading) * channels, height * width)
    ids = superpixels.flatten().long()  # index_add is three times slower with int32
    sums = flat.new_zeros(flat.shape[0], count).index_add(1, ids, flat)
    with full_precision(features.device):
        pooled = sums @ membership.to(sums.dtype).T
    return pooled.view(*leading, channels, regions).transpose(-1, -2)


def resize_superpixels(superpixels: Tensor, size: Sequence[int]) -> Tensor:
    """The superpixel map [H, W] sampled at another size: the id under each pixel's centre."""
    if tuple(superpixels.shape) == tuple(size):
        return superpixels
    sampled = F.interpolate(
        superpixels[None, None].double(), size=tuple(size), mode="nearest-exact"
    )
    return sampled[0, 0].to(superpixels.dtype)


def _crossings(membership: Tensor, elements: Tensor) -> tuple[Tensor, Tensor]:
    """Whether element (a, b) leads out of a region from a to b, and from b to a: bool [E, P]."""
    columns = membership.T.contiguous()
    first, second = columns[elements[:, 0]], columns[elements[:, 1]]
    return first & ~second, second & ~first


def _outline_sum(membership: Tensor, elements: Tensor, values: Tensor) -> Tensor:
    """The sum of values over region u's outline where its outer side lies in region v: [P, P]."""
    regions, count = membership.shape
    forward, backward = (crossing.nonzero() for crossing in _crossings(membership, elements))
    element, region = torch.cat([forward, backward]).T
    outer = torch.cat([elements[forward[:, 0], 1], elements[backward[:, 0], 0]])
    by_superpixel = values.new_zeros(regions * count)
    by_superpixel.index_add_(0, region * count + outer, values[element])
    with full_precision(values.device):
        return by_superpixel.view(regions, count) @ membership.to(values.dtype).T


def _sparse(pattern: Tensor, values: Tensor) -> Tensor:
    """A sparse matrix with `values` [E] along the rows of a bool pattern [E, P]."""
    indices = pattern.nonzero().T
    return torch.sparse_coo_tensor(
        indices, values[indices[0]], tuple(pattern.shape), is_coalesced=True, check_invariants=False
    )
