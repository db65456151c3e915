"""Inter-pixel relations of IRN: pairs of pixels and their losses, centroids, the random walk.

Pure functions. A pixel is a cell of the network's output here, and distances are in cells. Every
pixel has a displacement to the centroid of its instance and a probability to be a class boundary;
the affinity of two pixels is 1 minus the highest boundary on the line between them.
"""

from __future__ import annotations

from functools import lru_cache, reduce
from typing import NamedTuple

import cv2
import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from annocoin.masks import Size

IGNORED = -1
"""The label of pixels that are neither confidently background nor confidently of a class."""

LOG_OFFSET = 1e-5
"""Added to probabilities before the logarithm."""


class PixelPairs(NamedTuple):
    """All pairs of pixels of an image that are closer than a radius, each pair once.

    The second pixel of pair (o, y, x) is (y, x) + offsets[o].
    """

    offsets: Tensor  # rows and columns to the second pixel, int64 [O, 2]
    inside: Tensor  # whether the second pixel is in the image, bool [O, h, w]
    second: Tensor  # its number in reading order, 0 where it is outside, int64 [O, h, w]


class PairKinds(NamedTuple):
    """Pairs of labelled pixels: both of one class, both background, of different labels."""

    foreground: Tensor  # bool [O, h, w], as the others
    background: Tensor
    different: Tensor


def relation_losses(
    boundary: Tensor, displacement: Tensor, labels: Tensor, radius: int
) -> dict[str, Tensor]:
    """The losses of the pairs of labelled pixels in B images; their sum is IRN's loss.

    Affinities are 1 for equal labels and 0 for different ones (cross entropy). The displacements of
    two pixels of a class lead to the same point, those of two background pixels are equal (absolute
    differences). Each loss is a mean over its pairs in the batch.

    Args:
        boundary: probabilities, [B, h, w].
        displacement: rows and columns to the centroid, [B, 2, h, w].
        labels: classes, 0 for the background, or `IGNORED`: int64 [B, h, w].
        radius: pixels of a pair are closer than this.
    """
    pairs = pixel_pairs((labels.shape[1], labels.shape[2]), radius)
    pairs = PixelPairs(*(part.to(labels.device) for part in pairs))
    sums, counts = boundary.new_zeros(5), boundary.new_zeros(3)
    for image_boundary, field, image_labels in zip(boundary, displacement, labels, strict=True):
        kinds = pair_kinds(image_labels, pairs)
        affinity = affinities(image_boundary, pairs)
        difference = displacement_differences(field, pairs)
        shift = pairs.offsets.T[:, :, None, None]
        losses = (
            (-(affinity + LOG_OFFSET).log(), kinds.foreground),
            (-(affinity + LOG_OFFSET).log(), kinds.background),
            (-(1 - affinity + LOG_OFFSET).log(), kinds.different),
            ((difference - shift).abs().mean(dim=0), kinds.foreground),
            (difference.abs().mean(dim=0), kinds.background),
        )
        sums = sums + torch.stack([(loss * chosen).sum() for loss, chosen in losses])
        counts = counts + torch.stack([kind.sum() for kind in kinds])
    foreground, background, different = counts.clamp(min=1)
    return {
        "loss_affinity_foreground": sums[0] / foreground / 4,
        "loss_affinity_background": sums[1] / background / 4,
        "loss_affinity_different": sums[2] / different / 2,
        "loss_displacement_foreground": sums[3] / foreground / 2,
        "loss_displacement_background": sums[4] / background / 2,
    }


@lru_cache(maxsize=16)
def pixel_pairs(size: Size, radius: int) -> PixelPairs:
    """The pairs of pixels of an image of `size` that are closer than `radius`."""
    steps = range(1 - radius, radius)
    offsets = [
        (y, x) for y in steps for x in steps if (y, x) > (0, 0) and y * y + x * x < radius**2
    ]
    height, width = size
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    table = torch.tensor(offsets, dtype=torch.int64).reshape(-1, 2)
    second_rows = rows + table[:, 0, None, None]
    second_columns = columns + table[:, 1, None, None]
    inside = (second_rows < height) & (second_columns >= 0) & (second_columns < width)
    return PixelPairs(table, inside, (second_rows * width + second_columns) * inside)


def pair_kinds(labels: Tensor, pairs: PixelPairs) -> PairKinds:
    """Sort the pairs of pixels by their labels, int64 [h, w]; pairs with `IGNORED` are left out."""
    second = labels.flatten()[pairs.second]
    known = pairs.inside & (labels != IGNORED) & (second != IGNORED)
    equal = labels == second
    return PairKinds(known & equal & (labels > 0), known & equal & (labels == 0), known & ~equal)


def affinities(boundary: Tensor, pairs: PixelPairs) -> Tensor:
    """1 minus the highest boundary on the line between two pixels, [O, h, w]; 0 outside.

    The line has all pixels at a distance below 1 from it, and both ends.

    Args:
        boundary: probabilities, [h, w].
    """
    height, width = boundary.shape
    # Only the highest pixel of a line gets a gradient: it is found first, then indexed once. The
    # bits of floats of 0 or more are ordered as the floats are; below them is the pixel's number.
    numbers = torch.arange(height * width, device=boundary.device).view(height, width)
    values = (boundary.detach().float().contiguous().view(torch.int32).long() << 32) + numbers
    highest = torch.zeros_like(pairs.second)
    for o, (down, right) in enumerate(pairs.offsets.tolist()):
        rows, columns, left = height - down, width - abs(right), max(0, -right)
        if rows <= 0 or columns <= 0:
            continue
        line = [
            values[y : y + rows, left + x : left + x + columns] for y, x in line_pixels(down, right)
        ]
        highest[o, :rows, left : left + columns] = reduce(torch.maximum, line)
    return (1 - boundary.flatten()[highest & (2**32 - 1)]) * pairs.inside


@lru_cache(maxsize=1024)
def line_pixels(down: int, right: int) -> tuple[tuple[int, int], ...]:
    """Rows and columns of the pixels on the line from (0, 0) to (down, right), both included."""
    length = (down * down + right * right) ** 0.5
    return tuple(
        (y, x)
        for y in range(min(0, down), max(0, down) + 1)
        for x in range(min(0, right), max(0, right) + 1)
        if abs(down * x - right * y) < length
    )


def displacement_differences(displacement: Tensor, pairs: PixelPairs) -> Tensor:
    """The first pixel's displacement minus that of the second: [2, h, w] to [2, O, h, w].

    If both lead to the same point, it is the offset of the pair.
    """
    return displacement[:, None] - displacement.flatten(1)[:, pairs.second]


def find_centroids(displacement: Tensor, iterations: int) -> Tensor:
    """Where the displacement field [2, h, w] leads each pixel: rows and columns, [2, h, w].

    Every pixel starts at itself and moves by the displacement at its current point, interpolated,
    within the image.
    """
    height, width = displacement.shape[1:]
    limits = displacement.new_tensor([height - 1, width - 1])[:, None, None]
    axes = [torch.arange(n, device=displacement.device) for n in (height, width)]
    points = torch.stack(torch.meshgrid(*axes, indexing="ij")).to(displacement.dtype)
    for _ in range(iterations):
        points = torch.minimum((points + _interpolate(displacement, points)).clamp(min=0), limits)
    return points


def _interpolate(field: Tensor, points: Tensor) -> Tensor:
    """The bilinear interpolation of a field [C, h, w] at points [2, ...], exact at pixels.

    `grid_sample` is not: its rounding errors would grow with every iteration.
    """
    height, width = field.shape[1:]
    low = points.floor()
    down, right = points - low
    top, left = low.long()
    bottom, end = (top + 1).clamp(max=height - 1), (left + 1).clamp(max=width - 1)
    upper = (1 - right) * field[:, top, left] + right * field[:, top, end]
    lower = (1 - right) * field[:, bottom, left] + right * field[:, bottom, end]
    return (1 - down) * upper + down * lower


def cluster_centroids(centroids: Tensor, displacement: Tensor, max_displacement: float) -> Tensor:
    """The cluster of each pixel, int64 [h, w] of 0..n-1.

    Pixels belong together if their centroids are in one connected area of short displacements;
    those whose centroid is in no such area are a cluster too.

    Args:
        centroids: rows and columns, [2, h, w].
        displacement: [2, h, w].
        max_displacement: areas have displacements shorter than this.
    """
    short = displacement.norm(dim=0) < max_displacement
    _, areas = cv2.connectedComponents(short.cpu().numpy().astype(np.uint8), connectivity=4)
    rows, columns = centroids.round().long().cpu()
    clusters: Tensor = torch.from_numpy(areas)[rows, columns].unique(return_inverse=True)[1]
    return clusters


def random_walk(
    values: Tensor, boundary: Tensor, *, radius: int, beta: float, steps: int
) -> Tensor:
    """Spread values [N, h, w] over pixels of high affinity, by `steps` steps of a random walk.

    A step replaces the value of a pixel by the mean over all pixels closer than `radius`, weighted
    by affinity ** beta; a pixel has affinity 1 to itself. The result is on the CPU.

    Args:
        boundary: probabilities, [h, w].
    """
    height, width = boundary.shape
    pairs = pixel_pairs((height, width), radius)
    weights = affinities(boundary.cpu(), pairs)[pairs.inside].double().numpy() ** beta
    _, rows, columns = pairs.inside.nonzero(as_tuple=True)
    first = (rows * width + columns).numpy()
    second = pairs.second[pairs.inside].numpy()
    count = height * width
    graph = sparse.coo_array((weights, (first, second)), shape=(count, count))
    graph = graph + graph.T + sparse.eye_array(count)
    transition = (sparse.diags_array(1 / graph.sum(axis=1)) @ graph).tocsr().astype(np.float32)
    state = np.ascontiguousarray(values.cpu().float().flatten(1).numpy().T)
    for _ in range(steps):
        state = transition @ state
    return torch.from_numpy(state.T.copy()).view(-1, height, width)
