"""Draw samples of the conditional distribution: each one, and where they agree."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from annocoin.conditional.samples import Samples
from annocoin.report.overlay import Picture, caption, draw, sheet
from annocoin.types import Annotation, Instances

SIDE = 224
"""The length of a panel's longer side."""


def draw_samples_of(
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
        panels.append(_panel(image, _unscored(samples.instances(k)), classes, scale, f"{k + 1}"))
    best = samples.consensus()
    sure = Instances(
        size=best.size,
        masks=best.masks,
        labels=best.labels,
        scores=best.confidence.nan_to_num(1.0),
    )
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


def _unscored(found: Instances) -> Instances:
    return Instances(size=found.size, masks=found.masks, labels=found.labels)
