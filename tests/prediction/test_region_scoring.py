"""Scores of regions against the RoI heads, region by region and pixel by pixel."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from annocoin.objective.task_loss import prediction_loss_table
from annocoin.prediction.networks import batch_images, resize_shortest_side
from annocoin.prediction.region_scoring import UNKNOWN_MASK_LOSS, crop_regions, score_regions
from annocoin.regions.region_set import RegionSet
from prediction.worlds import network
from regions.worlds import World, worlds


def smooth_l1(difference: float, beta: float = 1 / 9) -> float:
    """Quadratic up to beta, then linear."""
    size = abs(difference)
    return size**2 / (2 * beta) if size < beta else size - beta / 2


def quarters() -> tuple[np.ndarray, RegionSet]:
    """An image of 48 x 72 pixels, and unions of blocks of 8 x 8."""
    rng = np.random.default_rng(0)
    image = np.kron(rng.integers(0, 256, (6, 9, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    ids = np.kron(np.arange(54).reshape(6, 9), np.ones((8, 8))).astype(int)
    members = rng.random((12, 54)) < 0.05
    members[np.arange(12), rng.integers(0, 54, 12)] = True
    return image, RegionSet.of(ids, members)


@given(worlds(), st.integers(1, 9))
def test_crops_pixel_by_pixel(world: World, side: int) -> None:
    for mask, crop in zip(world.masks, crop_regions(world.regions, side), strict=True):
        rows, columns = np.nonzero(mask)
        y0, y1, x0, x1 = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
        for i in range(side):
            for j in range(side):
                # the pixel at (2i + 1) / (2 side) of the box, in integers
                y = y0 + (y1 - y0) * (2 * i + 1) // (2 * side)
                x = x0 + (x1 - x0) * (2 * j + 1) // (2 * side)
                assert crop[i, j] == mask[y, x]


@pytest.mark.parametrize("labels", [(1, 2, 3), (3,), (2, 1)])
def test_scores_are_those_of_the_heads_on_single_regions(labels: tuple[int, ...]) -> None:
    net = network().eval()
    heads = net.roi_heads
    image, regions = quarters()
    resized = resize_shortest_side(image, 64, 128)  # enlarged by 4 / 3
    logs, losses, box_losses = score_regions(net, resized, regions, labels)
    assert logs.shape == (12, len(labels) + 1)
    assert losses.shape == (12, len(labels))
    images = batch_images([resized])
    with torch.no_grad():
        features = net.backbone(images.tensors)
        for u, mask in enumerate(regions.masks()):
            rows, columns = mask.nonzero(as_tuple=True)
            y0, y1, x0, x1 = (
                int(v) for v in (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1)
            )
            box = torch.tensor([[x0, y0, x1, y1]]) * 4 / 3
            hidden = heads.box_head(heads.box_roi_pool(features, [box], images.image_sizes))
            logits, deltas = heads.box_predictor(hidden)
            expected = logits.softmax(dim=1)[0, [0, *labels]].log()
            torch.testing.assert_close(logs[u], expected, rtol=1e-4, atol=1e-5)
            for column, label in enumerate(labels):  # to the RoI, whose own offsets are 0
                offsets = deltas[0, 4 * label : 4 * label + 4].tolist()
                assert float(box_losses[u, column]) == pytest.approx(
                    sum(smooth_l1(offset) for offset in offsets), rel=1e-3, abs=1e-6
                )
            pooled = heads.mask_roi_pool(features, [box], images.image_sizes)
            masks = heads.mask_predictor(heads.mask_head(pooled))[0].sigmoid()
            for column, label in enumerate(labels):
                total = 0.0
                for i, row in enumerate(masks[label].tolist()):
                    for j, p in enumerate(row):
                        y = y0 + (y1 - y0) * (2 * i + 1) // 56
                        x = x0 + (x1 - x0) * (2 * j + 1) // 56
                        total -= math.log(p if mask[y, x] else 1 - p) / 28**2
                assert float(losses[u, column]) == pytest.approx(total, rel=1e-3)


def test_masks_of_unlikely_regions_are_not_scored() -> None:
    net = network().eval()
    image, regions = quarters()
    resized = resize_shortest_side(image, 64, 128)
    expected, exact, _ = score_regions(net, resized, regions, (1, 3), mask_scored_regions=None)
    logs, losses, _ = score_regions(net, resized, regions, (1, 3), mask_scored_regions=4)
    torch.testing.assert_close(logs, expected)
    likely = set(logs[:, 1:].amax(dim=1).argsort(descending=True)[:4].tolist())
    for u in range(12):
        if u in likely:
            torch.testing.assert_close(losses[u], exact[u], rtol=1e-4, atol=1e-5)
        else:
            assert losses[u].tolist() == pytest.approx([UNKNOWN_MASK_LOSS] * 2)
    assert not torch.allclose(losses, exact)
    unknown = F.binary_cross_entropy_with_logits(torch.zeros(1), torch.ones(1))
    assert float(unknown) == pytest.approx(UNKNOWN_MASK_LOSS)


@pytest.mark.parametrize(
    ("labels", "count"), [((1, 2, 3), 12), ((), 12), ((2,), 1), ((1, 2), 0), ((), 0)]
)
def test_the_loss_table_is_finite(labels: tuple[int, ...], count: int) -> None:
    image, regions = quarters()
    net = network().eval()
    scores = score_regions(net, resize_shortest_side(image, 64, 128), regions[:count], labels)
    table = prediction_loss_table(*scores, clamp=None)
    assert table.shape == (count, len(labels) + 1)
    assert bool(table.isfinite().all())
    assert bool((table >= 0).all())
