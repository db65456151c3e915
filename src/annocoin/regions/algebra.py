"""Superpixel algebra: mask work on regions that are sets of superpixels, as small dense products.

Pure functions on tensors of one device. Symbols: P regions, S superpixels, E boundary elements (a
pair of superpixels that touch, with the length of their border and the edge mass on it);
`membership` is M [P, S] of bool. Each function is tested against one that works pixel by pixel.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

# The product of two sparse matrices goes through a format that torch calls beta, aloud.
warnings.filterwarnings("ignore", "Sparse CSR tensor support", UserWarning, __name__)

EXACT_IN_FLOAT32 = 1 << 24
"""Sums of whole numbers up to here are exact in float32."""


def full_precision(device: torch.device) -> torch.autocast:
    """Keeps a trainer's mixed precision out of the block."""
    return torch.autocast(device.type, enabled=False)


def exact_dtype(total: int, device: torch.device) -> torch.dtype:
    """The type in which sums of pixels up to `total` are exact.

    On CUDA float32 products may be rounded (TF32); Apple's devices have no float64.
    """
    if device.type == "mps" or (device.type == "cpu" and total < EXACT_IN_FLOAT32):
        return torch.float32
    return torch.float64


def intersections(membership: Tensor, areas: Tensor, other: Tensor | None = None) -> Tensor:
    """Pixels in common, [P, Q], of the regions of M [P, S] and those of `other` [Q, S] (default M).

    Args:
        areas: pixels of each superpixel, [S]; the sums are exact.
    """
    dtype = exact_dtype(int(areas.sum()), areas.device)
    second = membership if other is None else other
    with full_precision(areas.device):
        return (membership * areas.to(dtype)) @ second.to(dtype).T


def iou(intersection: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union [P, Q], float32, from intersections [P, Q] and areas [P] and [Q]."""
    union = first[:, None] + second[None, :] - intersection
    return (intersection / union.clamp(min=1)).float()


def superpixel_boxes(superpixels: Tensor, count: int) -> Tensor:
    """Tight boxes of the superpixels of a map [H, W], int64 [S, 4], right and lower exclusive."""
    height, width = superpixels.shape
    ids = superpixels.long()
    rows = torch.arange(height, device=ids.device)[:, None].expand(height, width)
    columns = torch.arange(width, device=ids.device)[None, :].expand(height, width)
    sides = []
    for place, empty, least in (
        (columns, width, "amin"),
        (rows, height, "amin"),
        (columns, -1, "amax"),
        (rows, -1, "amax"),
    ):
        start = torch.full((count,), empty, dtype=torch.int64, device=ids.device)
        sides.append(start.scatter_reduce(0, ids.flatten(), place.flatten(), least))
    return torch.stack([sides[0], sides[1], sides[2] + 1, sides[3] + 1], dim=1)


def region_boxes(membership: Tensor, boxes: Tensor) -> Tensor:
    """Tight boxes [P, 4] of regions, from those of their superpixels [S, 4]; zeros if empty."""
    far = torch.iinfo(boxes.dtype).max
    least = [torch.where(membership, boxes[:, k], far).amin(dim=1) for k in (0, 1)]
    most = [torch.where(membership, boxes[:, k], 0).amax(dim=1) for k in (2, 3)]
    found = torch.stack(least + most, dim=1)
    return torch.where(membership.any(dim=1)[:, None], found, 0)


def edge_mass(membership: Tensor, elements: Tensor, masses: Tensor) -> Tensor:
    """The mass I_uv on the elements that separate regions u and v: [P, P].

    An element separates them if it crosses out of u or out of v while both its sides lie in u or v:
    for disjoint neighbours their common border, for nested regions the inner one's outline.
    I = Y + Y^T - B, where Y_uv is the mass on u's outline with its outer side in v, and B, which is
    in both, the border between u without v and v without u.

    Args:
        elements: superpixels a < b that touch, int64 [E, 2].
        masses: what to sum over the elements, [E].
    """
    out, back = _crossings(membership, elements)
    outer = _outer(out, back, elements, masses, membership.shape[1])
    ones = torch.ones_like(masses)
    with full_precision(masses.device):
        inside = outer @ membership.to(masses.dtype).T
        border = torch.sparse.mm(_sparse(out, masses).t(), _sparse(back, ones)).to_dense()
    return inside + inside.T - (border + border.T)


def touching(membership: Tensor, elements: Tensor) -> Tensor:
    """Whether region u's outline has region v on its outer side, or the reverse: bool [P, P]."""
    out, back = _crossings(membership, elements)
    ones = torch.ones(len(elements), device=membership.device)
    outer = _outer(out, back, elements, ones, membership.shape[1])
    with full_precision(ones.device):
        inside = outer @ membership.to(ones.dtype).T > 0
    return inside | inside.T


def outlines(membership: Tensor, elements: Tensor) -> Tensor:
    """Which elements lie on each region's outline: bool [E, P]. The image's rim is no element."""
    out, back = _crossings(membership, elements)
    return out | back


def pool(membership: Tensor, superpixels: Tensor, features: Tensor) -> Tensor:
    """Sums of features over regions, differentiable: [..., C, H, W] to [..., P, C].

    Summed per superpixel first, so that no [P, H, W] tensor comes to be; in float32 at least, for
    sums over pixels leave the range of half precision.

    Args:
        superpixels: their ids at the features' own resolution, [H, W].
    """
    regions, count = membership.shape
    *leading, channels, height, width = features.shape
    precise = features.to(torch.promote_types(features.dtype, torch.float32))
    flat = precise.reshape(math.prod(leading) * channels, height * width)
    ids = superpixels.flatten().long()  # with 32 bits it takes three times as long
    sums = flat.new_zeros(flat.shape[0], count).index_add(1, ids, flat)
    with full_precision(features.device):
        pooled = sums @ membership.to(sums.dtype).T
    return pooled.view(*leading, channels, regions).transpose(-1, -2)


def resized(superpixels: Tensor, size: Sequence[int]) -> Tensor:
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


def _outer(out: Tensor, back: Tensor, elements: Tensor, masses: Tensor, count: int) -> Tensor:
    """The mass on each region's outline, by the superpixel on the outer side: [P, S]."""
    out_element, out_region = out.nonzero(as_tuple=True)
    back_element, back_region = back.nonzero(as_tuple=True)
    outside = torch.cat([elements[out_element, 1], elements[back_element, 0]])
    place = torch.cat([out_region, back_region]) * count + outside
    flat = masses.new_zeros(out.shape[1] * count)
    return flat.index_add_(0, place, masses[torch.cat([out_element, back_element])]).view(
        out.shape[1], count
    )


def _sparse(pattern: Tensor, values: Tensor) -> Tensor:
    """A sparse matrix with `values` [E] along the rows of a bool pattern [E, P]."""
    places = pattern.nonzero().T
    return torch.sparse_coo_tensor(
        places, values[places[0]], tuple(pattern.shape), is_coalesced=True, check_invariants=False
    )
