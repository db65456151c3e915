"""Ranking: how likely a candidate region is a whole object, of any class.

A small network on measurements of the region (size, place, strength of its outline and of what lies
inside, colour). It was trained on BSDS500 by `tools/train_ranker.py` to foresee the region's best
IoU with the segments that people drew; no mask of the data at hand has a part in it.
"""

from __future__ import annotations

from importlib import resources

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load as load_safetensors

from annocoin.regions import algebra
from annocoin.regions.hierarchy import RegionGroups
from annocoin.regions.superpixel_graph import SuperpixelGraph

Floats = npt.NDArray[np.float32]

WEAK = (0.1, 0.2, 0.35, 0.5)
"""Strengths of border below which the share of the outline is measured."""

STRENGTHS = 3
"""The strengths of a border that are measured: on average, and at its weakest and strongest scale.
Their number does not depend on the detector's."""

BLOCK = 1024


class Ranker:
    """RegionGroups to scores. The weights come with the package."""

    def __init__(self, weights: dict[str, npt.NDArray[np.floating]] | None = None) -> None:
        if weights is None:
            path = resources.files("annocoin.weights").joinpath("ranker.safetensors")
            weights = load_safetensors(path.read_bytes())
        self.weights = {name: value.astype(np.float32) for name, value in weights.items()}

    def __call__(self, graph: SuperpixelGraph, candidates: RegionGroups) -> Floats:
        """The expected overlap of each candidate with an object, float32 [N]."""
        w = self.weights
        x = np.clip((measure(graph, candidates) - w["mean"]) / w["spread"], -5, 5)
        x = np.maximum(x @ w["0.weight"].T + w["0.bias"], 0)
        x = np.maximum(x @ w["2.weight"].T + w["2.bias"], 0)
        return np.asarray((x @ w["4.weight"].T + w["4.bias"])[:, 0], dtype=np.float32)


def measure(graph: SuperpixelGraph, candidates: RegionGroups) -> Floats:
    """The measurements of every candidate, [N, F]."""
    members = candidates.members.astype(np.float32)
    height, width = graph.ids.shape
    pixels = _per_superpixel(graph)
    sums = members @ pixels
    area = sums[:, 0]
    contact = sums[:, 1:5]  # pixels on the upper, lower, left, right side of the image
    place = sums[:, 5:7] / area[:, None] / (width, height) - 0.5
    colour = sums[:, 7:10] / area[:, None]
    variance = sums[:, 10] / area - (colour**2).sum(axis=1)
    own = algebra.superpixel_boxes(torch.from_numpy(graph.ids), len(pixels)).to(torch.int16)
    boxes = algebra.region_boxes(torch.from_numpy(candidates.members), own).numpy()
    box_width, box_height = (boxes[:, 2:] - boxes[:, :2]).T.astype(np.float32)
    outline, inside = _borders(graph, candidates.members, members)
    length, inner = outline[:, 0] + 1e-3, inside[:, 0]
    on_outline = outline[:, 1:] / length[:, None]
    within = inside[:, 1:] / (inner[:, None] + 1)
    share = np.log(area / (height * width))
    touches = (contact > 0).astype(np.float32)
    mean_colour = pixels[:, 7:10].sum(axis=0) / (height * width)
    order = np.arange(len(members))
    columns = [
        share,
        share**2,
        box_width / width,
        box_height / height,
        area / (box_width * box_height),
        np.log(box_width * box_height / (height * width)),
        contact.sum(axis=1) / (length + contact.sum(axis=1)),
        touches[:, 0],
        touches[:, 1],
        touches[:, 2] + touches[:, 3],
        touches.sum(axis=1),
        np.log((length + contact.sum(axis=1)) ** 2 / area),
        np.abs(place[:, 0]),
        place[:, 1],
        np.hypot(place[:, 0], place[:, 1]),
        np.log1p(members.sum(axis=1)),
        np.sqrt(np.maximum(variance, 0)) / 20,
        np.linalg.norm(colour - mean_colour, axis=1) / 20,
        inner / np.sqrt(area),
        *on_outline.T,
        *within.T,
        *(on_outline[:, :STRENGTHS] - within[:, :STRENGTHS]).T,
        *(candidates.parts == parts for parts in (1, 2, 3)),
        np.log1p(candidates.places) / 8,
        np.log1p(order) / 8,
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _per_superpixel(graph: SuperpixelGraph) -> Floats:
    """Sums over each superpixel, [S, 11]: area, contact with the image's sides, x, y, Lab, Lab²."""
    ids, count = graph.ids, len(graph.areas)
    height, width = ids.shape
    sides = [
        np.bincount(side, minlength=count) for side in (ids[0], ids[-1], ids[:, 0], ids[:, -1])
    ]
    rest = graph.sums(
        np.tile(np.arange(width), height),
        np.repeat(np.arange(height), width),
        (graph.lab**2).sum(axis=1),
    )
    table = [graph.areas, *sides, *rest[:, :2].T, *graph.colour_sums.T, rest[:, 2]]
    return np.stack(table, axis=1).astype(np.float32)


def _borders(
    graph: SuperpixelGraph, members: npt.NDArray[np.bool_], numbers: Floats
) -> tuple[Floats, Floats]:
    """Sums over the borders on each candidate's outline and inside of it, [N, B] both.

    The first column is the length, then the strengths, the length of weak border, the colours.
    """
    lengths = graph.elements.lengths
    average, scales = graph.strengths[0], graph.strengths[1:]
    values = [
        np.ones_like(average),
        average,
        scales.min(axis=0),
        scales.max(axis=0),
        *(average < limit for limit in WEAK),
        graph.colour_differences,
    ]
    table = np.stack(values) * lengths
    stats = table.astype(np.float32)
    first, second = graph.elements.pairs.T
    columns = np.ascontiguousarray(members.T)
    outline = np.empty((len(members), len(stats)), dtype=np.float32)
    for start in range(0, len(members), BLOCK):
        block = columns[:, start : start + BLOCK]
        crossed = block[first] != block[second]
        outline[start : start + BLOCK] = (stats @ crossed.astype(np.float32)).T
    around = np.stack(
        [
            np.bincount(first, row, members.shape[1]) + np.bincount(second, row, members.shape[1])
            for row in table
        ],
        axis=1,
    )
    inside = (numbers @ around.astype(np.float32) - outline) / 2
    return outline, inside.astype(np.float32)
