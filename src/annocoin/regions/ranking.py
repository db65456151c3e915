"""Ranking: the expected IoU of a candidate region with an object of any class.

A small network on features of the region (size, position, edge strength on its outline and inside,
colour), trained on BSDS500 by `tools/train_ranker.py` to predict the best IoU with the segments
that annotators drew. No masks of the user's dataset are involved.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load as load_safetensors

from annocoin.regions import algebra
from annocoin.regions.hierarchy import CandidateRegions
from annocoin.regions.superpixel_graph import SuperpixelGraph

Floats = npt.NDArray[np.float32]

WEAK_THRESHOLDS = (0.1, 0.2, 0.35, 0.5)
"""Edge strengths below which the fraction of the outline is measured."""

NUM_STRENGTHS = 3
"""Edge strengths measured per border: mean, weakest and strongest over the scales. So the number of
features does not depend on the number of scales."""

BLOCK = 1024
"""Candidates processed at once, to bound memory."""


class Ranker:
    """Candidate regions to scores. The default weights are part of the package."""

    def __init__(self, weights: dict[str, npt.NDArray[np.floating]] | None = None) -> None:
        if weights is None:
            path = resources.files("annocoin.weights").joinpath("ranker.safetensors")
            weights = load_safetensors(path.read_bytes())
        self.weights = {name: value.astype(np.float32) for name, value in weights.items()}

    def __call__(self, graph: SuperpixelGraph, candidates: CandidateRegions) -> Floats:
        """The expected IoU of each candidate with an object, float32 [N]."""
        w = self.weights
        x = np.clip((region_features(graph, candidates) - w["mean"]) / w["spread"], -5, 5)
        x = np.maximum(x @ w["0.weight"].T + w["0.bias"], 0)
        x = np.maximum(x @ w["2.weight"].T + w["2.bias"], 0)
        return np.asarray((x @ w["4.weight"].T + w["4.bias"])[:, 0], dtype=np.float32)


def region_features(graph: SuperpixelGraph, candidates: CandidateRegions) -> Floats:
    """The input of the ranker for every candidate, float32 [N, F]."""
    members = candidates.members.astype(np.float32)
    height, width = graph.ids.shape
    per_superpixel = _superpixel_sums(graph)
    sums = members @ per_superpixel
    area = sums[:, 0]
    contact = sums[:, 1:5]  # pixels on the upper, lower, left, right side of the image
    offset = sums[:, 5:7] / area[:, None] / (width, height) - 0.5  # of the centroid, x and y
    colour = sums[:, 7:10] / area[:, None]
    variance = sums[:, 10] / area - (colour**2).sum(axis=1)
    boxes = algebra.superpixel_boxes(torch.from_numpy(graph.ids), len(graph.areas)).to(torch.int16)
    boxes = algebra.region_boxes(torch.from_numpy(candidates.members), boxes)
    box_width, box_height = (boxes[:, 2:] - boxes[:, :2]).numpy().T.astype(np.float32)
    outline, inside = _border_sums(graph, candidates.members, members)
    length, inner_length = outline[:, 0] + 1e-3, inside[:, 0]
    on_outline = outline[:, 1:] / length[:, None]
    within = inside[:, 1:] / (inner_length[:, None] + 1)
    perimeter = length + contact.sum(axis=1)
    log_area = np.log(area / (height * width))
    touches = (contact > 0).astype(np.float32)
    mean_colour = per_superpixel[:, 7:10].sum(axis=0) / (height * width)
    columns = [
        log_area,
        log_area**2,
        box_width / width,
        box_height / height,
        area / (box_width * box_height),
        np.log(box_width * box_height / (height * width)),
        contact.sum(axis=1) / perimeter,
        touches[:, 0],
        touches[:, 1],
        touches[:, 2] + touches[:, 3],
        touches.sum(axis=1),
        np.log(perimeter**2 / area),
        np.abs(offset[:, 0]),
        offset[:, 1],
        np.hypot(offset[:, 0], offset[:, 1]),
        np.log1p(members.sum(axis=1)),
        np.sqrt(np.maximum(variance, 0)) / 20,
        np.linalg.norm(colour - mean_colour, axis=1) / 20,
        inner_length / np.sqrt(area),
        *on_outline.T,
        *within.T,
        *(on_outline[:, :NUM_STRENGTHS] - within[:, :NUM_STRENGTHS]).T,
        *(candidates.num_nodes == count for count in (1, 2, 3)),
        np.log1p(candidates.ranks) / 8,
        np.log1p(np.arange(len(members))) / 8,
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _superpixel_sums(graph: SuperpixelGraph) -> Floats:
    """Sums over each superpixel, [S, 11]: area, contact with the image's sides, x, y, Lab, Lab²."""
    ids, count = graph.ids, len(graph.areas)
    height, width = ids.shape
    contact = [
        np.bincount(side, minlength=count) for side in (ids[0], ids[-1], ids[:, 0], ids[:, -1])
    ]
    x, y, squared = graph.sums(
        np.tile(np.arange(width), height),
        np.repeat(np.arange(height), width),
        (graph.lab**2).sum(axis=1),
    ).T
    table = [graph.areas, *contact, x, y, *graph.colour_sums.T, squared]
    return np.stack(table, axis=1).astype(np.float32)


def _border_sums(
    graph: SuperpixelGraph, members: npt.NDArray[np.bool_], float_members: Floats
) -> tuple[Floats, Floats]:
    """Sums over the borders on each candidate's outline and inside of it, each [N, B].

    The columns are length, the strengths, length below each weak threshold, and colour difference.
    """
    average, scales = graph.mean_strength[0], graph.mean_strength[1:]
    values = [
        np.ones_like(average),
        average,
        scales.min(axis=0),
        scales.max(axis=0),
        *(average < threshold for threshold in WEAK_THRESHOLDS),
        graph.colour_differences,
    ]
    table = np.stack(values) * graph.elements.lengths
    first, second = graph.elements.pairs.T
    columns = np.ascontiguousarray(members.T)
    outline = np.empty((len(members), len(table)), dtype=np.float32)
    for start in range(0, len(members), BLOCK):
        block = columns[:, start : start + BLOCK]
        crossed = (block[first] != block[second]).astype(np.float32)
        outline[start : start + BLOCK] = (table.astype(np.float32) @ crossed).T
    count = members.shape[1]
    around = [np.bincount(first, row, count) + np.bincount(second, row, count) for row in table]
    # A border inside of a region is counted from both sides, one on the outline once.
    inside = (float_members @ np.stack(around, axis=1).astype(np.float32) - outline) / 2
    return outline, inside.astype(np.float32)
