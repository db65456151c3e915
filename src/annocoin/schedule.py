"""The learning rate over a training: a short rise, then half a cosine down."""

from __future__ import annotations

import math

WARM_UP = 0.05
"""The share of the training in which the rate rises."""


def rate_share(progress: float) -> float:
    """The share of the greatest learning rate at this share of the training, both 0..1."""
    return min(1.0, progress / WARM_UP) * 0.5 * (1 + math.cos(math.pi * progress))
