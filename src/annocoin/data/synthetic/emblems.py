"""The emblems: six patterns, each of which names its species wherever it is seen."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


def emblem_figure(emblem: str, x: Array, y: Array) -> Mask:
    """Where the light figure of `emblem` lies; x, y [h, w] span the unit disc."""
    return FIGURES[emblem](x, y)


def _ring(x: Array, y: Array) -> Mask:
    radius = np.hypot(x, y)
    return (radius > 0.36) & (radius < 0.72)


def _cross(x: Array, y: Array) -> Mask:
    arm, reach = 0.2, 0.86
    upright = (np.abs(x) < arm) & (np.abs(y) < reach)
    return upright | ((np.abs(y) < arm) & (np.abs(x) < reach))


def _star(x: Array, y: Array) -> Mask:
    turn = 2 * np.pi / 5
    # Fold the plane onto half of one point of the star; there the edge is a straight line.
    angle = np.abs((np.arctan2(y, x) + turn / 2) % turn - turn / 2)
    tip, notch = 0.95, 0.36
    corner = notch * np.exp(0.5j * turn)
    normal = np.array([-corner.imag, corner.real - tip])
    radius = np.hypot(x, y)
    side = (radius * np.cos(angle) - tip) * normal[0] + radius * np.sin(angle) * normal[1]
    return side > 0


def _bars(x: Array, y: Array) -> Mask:
    return np.cos(2 * np.pi * x / 0.72) > 0.0


def _checker(x: Array, y: Array) -> Mask:
    return np.sin(np.pi * x / 0.55) * np.sin(np.pi * y / 0.55) > 0


def _crescent(x: Array, y: Array) -> Mask:
    return (np.hypot(x, y) < 0.84) & (np.hypot(x - 0.42, y) > 0.62)


FIGURES: dict[str, Callable[[Array, Array], Mask]] = {
    "ring": _ring,
    "cross": _cross,
    "star": _star,
    "bars": _bars,
    "checker": _checker,
    "crescent": _crescent,
}
