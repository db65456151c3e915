"""Draw an image's seeds: its peaks, the class maps, the responses, and the regions retrieved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from annocoin.report.overlay import Picture, caption, colour, draw, sheet
from annocoin.seeds import Seeds
from annocoin.types import Annotation, Instances

SIDE = 320
"""The length of a panel's longer side."""


def draw_seeds(
    image: Picture,
    annotation: Annotation,
    seeds: Seeds,
    labels: Mapping[Any, Instances],
    classes: Sequence[str],
    *,
    most: int = 4,
) -> Picture:
    """Panels in a row: marks and peaks, the best seeds' responses, then each way's labels.

    Args:
        image: uint8 [H, W, 3].
        labels: what was retrieved, by the name of the way.
        most: how many responses are shown; the rest of the row stays empty.
    """
    scale = SIDE / max(image.shape[:2])
    peaks = draw(image, annotation, classes, scale=scale)
    order = seeds.scores.argsort(descending=True).tolist()
    for i in order:
        _cross(peaks, seeds.points[i].tolist(), scale, colour(int(seeds.labels[i])))
    panels = [peaks]
    for i in order[:most]:
        response = _heat(image, seeds[i].responses_in_image()[0].numpy(), scale)
        _cross(response, seeds.points[i].tolist(), scale, (255, 255, 255))
        name = classes[int(seeds.labels[i]) - 1]
        caption(response, f"{name} {float(seeds.scores[i].sigmoid()):.2f}", 2, 2, 0.45)
        panels.append(response)
    panels += [np.full_like(peaks, 255)] * (most - min(most, len(order)))
    for way, found in labels.items():
        panel = draw(image, found.annotation(), classes, scale=scale)
        caption(panel, f"by {way}", 2, panel.shape[0], 0.45)
        panels.append(panel)
    return sheet(panels, columns=len(panels))


def _cross(picture: Picture, point: list[float], scale: float, shade: tuple[int, int, int]) -> None:
    x, y = (round(value * scale) for value in point)
    cv2.drawMarker(picture, (x, y), (0, 0, 0), cv2.MARKER_CROSS, 15, 4)
    cv2.drawMarker(picture, (x, y), shade, cv2.MARKER_CROSS, 13, 2)


def _heat(image: Picture, response: npt.NDArray[np.float32], scale: float) -> Picture:
    """The image in grey under the square root of a response, whose spread is great."""
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    ground = cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)
    share = np.sqrt(response / max(float(response.max()), 1e-12))
    share = cv2.resize(share.astype(np.float32), (width, height))[:, :, None]
    heat = cv2.applyColorMap((255 * share).astype(np.uint8), cv2.COLORMAP_INFERNO)[:, :, ::-1]
    mixed = (1 - share) * 0.6 * ground[:, :, None] + share * heat
    return np.asarray(np.clip(mixed, 0, 255), dtype=np.uint8)
