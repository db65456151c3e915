"""Peaks of class maps: where they are, and the class score that they stimulate."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

WINDOW = 3


def find_peaks(maps: Tensor, window: int = WINDOW) -> Tensor:
    """Which places are peaks: maps [..., C, h, w] to bool of the same shape.

    A peak is the greatest value of the window around it, and at least the map's median. Of equal
    values in one window the first one in reading order is the peak.
    """
    *leading, height, width = maps.shape
    flat = maps.detach().reshape(-1, 1, height, width)
    reach = window // 2
    padded = F.pad(flat, (reach,) * 4, value=-torch.inf)
    _, chosen = F.max_pool2d(padded, window, stride=1, return_indices=True)
    rows, columns = chosen // (width + 2 * reach) - reach, chosen % (width + 2 * reach) - reach
    own = torch.arange(height * width, device=maps.device).view(height, width)
    median = flat.flatten(1).median(dim=1).values[:, None, None, None]
    return ((rows * width + columns == own) & (flat >= median)).view(*leading, height, width)


def peak_scores(maps: Tensor, window: int = WINDOW, sharpness: float = 0.0) -> Tensor:
    """Peak stimulation: a map's mean over its peaks, [..., C, h, w] to [..., C], differentiable.

    Every map has a peak: its greatest value.

    Args:
        sharpness: peaks count by exp(sharpness * value); 0 is the plain mean, as PRM has it, and a
            great number leaves the greatest peak alone.
    """
    peaks = find_peaks(maps, window).flatten(-2)
    values = maps.flatten(-2)
    weights = torch.where(peaks, sharpness * values, -torch.inf).softmax(dim=-1)
    return (weights * values).sum(dim=-1)
