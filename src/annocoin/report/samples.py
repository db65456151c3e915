"""Draw samples of the conditional distribution: each one, and where they agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from annocoin.conditional.samples import Samples
from annocoin.report.overlay import Picture, caption, draw, sheet
from annocoin.types import Annotation, Instances

SIDE = 224
"""The length of a panel's longer side."""


def picture_of_samples(
    image: Picture,
    annotation: Annotation,
    samples: Samples,
    classes: Sequence[str],
    truth: Instances | None = None,
) -> Picture:
    """Panels in a row: what was said, the K samples, their consensus with confidences, the truth.

    Args:
        image: uint8 [H, W, 3].
        truth: the true instances, if they are to be shown.
    """
    scale = SIDE / max(image.shape[:2])
    panels = [draw(image, annotation, classes, scale=scale)]
    for k in range(len(samples)):
        panels.append(_panel(image, _scored(samples.instances(k)), classes, scale, f"{k + 1}"))
    best = samples.consensus()
    sure = _scored(best, best.confidence) if len(samples) > 1 else _scored(best)
    panels.append(_panel(image, sure, classes, scale, "consensus"))
    if truth is not None:
        panels.append(_panel(image, truth, classes, scale, "truth"))
    return sheet(panels, columns=len(panels), gap=3)


def _panel(
    image: Picture, found: Instances, classes: Sequence[str], scale: float, name: str
) -> Picture:
    panel = draw(image, found.annotation(), classes, scale=scale)
    caption(panel, name, 2, panel.shape[0], 0.4)
    return np.asarray(panel, dtype=np.uint8)


def _scored(found: Instances, scores: Tensor | None = None) -> Instances:
    """With these numbers to be shown, or without any."""
    return Instances(size=found.size, masks=found.masks, labels=found.labels, scores=scores)
