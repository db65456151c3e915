"""The loss of box supervision against loops over lines and neighbours."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from annocoin.errors import InputError
from annocoin.prediction.soft_losses import LossOptions, projection_losses, smoothness


def naive_loss(logits: Tensor, box: tuple[int, int, int, int]) -> Tensor:
    """Of one mask [h, w] with a box x0, y0, x1, y1."""
    height, width = logits.shape
    x0, y0, x1, y1 = box
    bags = []
    for y in range(height):
        probability = logits[y].sigmoid().max()
        bags.append(-probability.log() if y0 <= y < y1 else -(1 - probability).log())
    for x in range(width):
        probability = logits[:, x].sigmoid().max()
        bags.append(-probability.log() if x0 <= x < x1 else -(1 - probability).log())
    directions = []
    for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
        squares = [
            (logits[y, x].sigmoid() - logits[y + down, x + right].sigmoid()) ** 2
            for y in range(height)
            for x in range(width)
            if y + down < height and 0 <= x + right < width
        ]
        directions.append(torch.stack(squares).mean())
    return torch.stack(bags).mean() + 0.05 * torch.stack(directions).mean()


@pytest.mark.parametrize("seed", range(3))
def test_losses_and_gradients_are_those_of_loops(seed: int) -> None:
    logits = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    corners = ((1, 0, 4, 3), (0, 2, 6, 5))
    boxes = torch.zeros(2, 5, 6)
    for box, (x0, y0, x1, y1) in zip(boxes, corners, strict=True):
        box[y0:y1, x0:x1] = 1
    losses = projection_losses(logits, boxes)
    expected = torch.stack([naive_loss(*pair) for pair in zip(logits, corners, strict=True)])
    torch.testing.assert_close(losses, expected)
    (actual,) = torch.autograd.grad(losses.sum(), logits)
    (wanted,) = torch.autograd.grad(expected.sum(), logits)
    torch.testing.assert_close(actual, wanted)


def test_only_the_highest_pixel_of_a_line_has_a_gradient_from_it() -> None:
    """By hand: a constant sigmoid has no smoothness gradient, so tie-free logits are far apart."""
    logits = torch.full((1, 3, 3), -40.0)
    logits[0, 1, 1] = 2.0
    logits.requires_grad_()
    box = torch.zeros(1, 3, 3)
    box[0, 1, 1] = 1
    (gradient,) = torch.autograd.grad(projection_losses(logits, box)[0], logits)
    p = 1 / (1 + math.exp(-2))
    # row 1 and column 1 of 6 lines, and 8 of the pairs: 2 of 6 in each straight direction, 2 of 4
    # in each diagonal one
    bags = 2 * (p - 1) / 6
    smooth = 0.05 * (2 * (2 / 6) + 2 * (2 / 4)) / 4 * 2 * p * p * (1 - p)
    assert gradient[0, 1, 1].item() == pytest.approx(bags + smooth, rel=1e-4)
    assert float(gradient[0].abs().sum() - gradient[0, 1, 1].abs()) < 1e-6


def test_the_best_mask_of_a_box_touches_its_sides_and_stays_inside() -> None:
    box = torch.zeros(1, 8, 8)
    box[0, 2:6, 1:7] = 1
    inside = 20 * (2 * box - 1)
    smaller = inside.clone()
    smaller[0, :, 6] = -20
    larger = inside.clone()
    larger[0, :, 7] = 20
    losses = [projection_losses(logits, box).item() for logits in (inside, smaller, larger)]
    assert losses[0] < 0.02 < min(losses[1:])


def test_masks_of_one_value_are_smooth() -> None:
    assert smoothness(torch.full((2, 4, 4), 0.3)).tolist() == [0, 0]
    assert smoothness(torch.zeros(0, 4, 4)).shape == (0,)


@pytest.mark.parametrize("change", [{"masks": "boxes"}, {"masks": ""}])
def test_unknown_losses_of_masks_are_refused(change: Any) -> None:
    with pytest.raises(InputError, match="expected one of targets, projection"):
        replace(LossOptions(), **change)
