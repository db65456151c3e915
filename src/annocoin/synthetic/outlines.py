"""Smooth, non-convex animal outlines: six randomised body plans with limbs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
Rng = np.random.Generator
Plan = tuple[list[Points], tuple[float, float]]
"""Polygons [N, 2] of a body, and the centre of its emblem."""

AREA_RASTER = 96  # pixels: side of the raster on which an outline's area is measured


@dataclass(frozen=True)
class Outline:
    """A creature's shape, facing +x, centred, with its longer side equal to 1.

    The shape is the union of `polygons` (each [N, 2], x and y). The emblem is a disc of
    `emblem_radius` around `head` [2], inside the shape and near one of its ends.
    """

    polygons: tuple[Points, ...]
    head: Points
    emblem_radius: float


def draw_outline(rng: Rng, plan: str, part_share: float) -> Outline:
    """Draw an outline of the body plan `plan` whose emblem takes `part_share` of its area."""
    polygons, anchor = PLANS[plan](rng)
    polygons, head = _deform(rng, polygons, np.asarray(anchor))
    radius = np.sqrt(part_share * _area(polygons) / np.pi)
    # A disc around the emblem joins the body, so that the emblem never leaves it.
    polygons = [*polygons, ellipse(head[0], head[1], 1.2 * radius, 1.2 * radius)]
    points = np.concatenate(polygons)
    centre = (points.min(0) + points.max(0)) / 2
    extent = float(np.ptp(points, axis=0).max())
    normalised = tuple((polygon - centre) / extent for polygon in polygons)
    return Outline(normalised, (head - centre) / extent, float(radius) / extent)


def blob(rng: Rng, waves: int = 5, wobble: float = 0.16) -> Points:
    """A limbless Fourier blob [N, 2] with its longer side equal to 1."""
    angle = _angles(72)
    radius = np.ones_like(angle)
    for wave in range(2, 2 + waves):
        phase = rng.uniform(0, 2 * np.pi)
        radius += rng.normal(0, wobble / wave) * np.cos(wave * angle + phase)
    points = np.stack([np.cos(angle), rng.uniform(0.55, 1.0) * np.sin(angle)], 1) * radius[:, None]
    return points / np.ptp(points, axis=0).max()


def ellipse(
    x: float, y: float, a: float, b: float, tilt: float = 0.0, power: float = 2.0
) -> Points:
    """A superellipse [N, 2] with half axes `a`, `b`, rotated by `tilt` radians."""
    angle = _angles(48)
    cos, sin = np.cos(angle), np.sin(angle)
    u = a * np.sign(cos) * np.abs(cos) ** (2 / power)
    v = b * np.sign(sin) * np.abs(sin) ** (2 / power)
    rotated = [x + np.cos(tilt) * u - np.sin(tilt) * v, y + np.sin(tilt) * u + np.cos(tilt) * v]
    return np.stack(rotated, 1)


def limb(
    start: tuple[float, float],
    end: tuple[float, float],
    width: tuple[float, float],
    bend: float = 0.0,
) -> Points:
    """A tapered, bent limb [N, 2]: half width `width[0]` at `start`, `width[1]` at `end`."""
    t = np.linspace(0, 1, 16)[:, None]
    first, last = np.asarray(start), np.asarray(end)
    along = last - first
    across = np.array([-along[1], along[0]])
    spine = first + t * along + bend * 4 * t * (1 - t) * across
    normal = np.gradient(spine, axis=0)[:, ::-1] * (-1, 1)
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    half = width[0] + (width[1] - width[0]) * t
    half *= np.sqrt(1 - np.clip((t - 0.8) / 0.2, 0, 1) ** 2)  # a round tip
    return np.concatenate([spine + half * normal, (spine - half * normal)[::-1]])


def rotation(angle: float) -> Points:
    """The rotation matrix [2, 2] of an angle in radians."""
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def fill_polygons(
    raster: npt.NDArray[np.uint8 | np.float32], polygons: Sequence[Points], fine: int, value: float
) -> None:
    """Fill polygons [N, 2], in pixels, on a raster with `fine` x `fine` cells per pixel."""
    for polygon in polygons:
        # Pixel centres lie on integers; 4 fractional bits keep the vertices exact.
        points = (polygon + 0.5) * fine - 0.5
        cv2.fillPoly(raster, [np.rint(points * 16).astype(np.int32)], value, cv2.LINE_8, 4)


def _mammal(rng: Rng) -> Plan:
    lift, swing = rng.uniform(0.1, 0.7), rng.uniform(-0.35, 0.35)
    return [
        ellipse(-0.05, 0.0, 0.62, rng.uniform(0.34, 0.44), power=2.3),
        ellipse(0.58, 0.25, 0.32, 0.29),
        limb((0.45, 0.42), (0.4, 0.72), (0.12, 0.05)),
        limb((0.68, 0.42), (0.76, 0.72), (0.12, 0.05)),
        limb((-0.5, 0.05), (-1.15, lift), (0.14, 0.11), swing),
        limb((0.3, -0.2), (0.38 + 0.2 * swing, -0.68), (0.13, 0.09)),
        limb((-0.38, -0.2), (-0.42 - 0.3 * swing, -0.68), (0.15, 0.09)),
    ], (0.58, 0.24)


def _bird(rng: Rng) -> Plan:
    wing = rng.uniform(-0.5, 0.3)
    return [
        ellipse(0.0, 0.0, 0.58, rng.uniform(0.34, 0.42), tilt=0.25),
        ellipse(0.5, 0.3, 0.29, 0.28),
        limb((0.65, 0.3), (1.1, 0.2), (0.15, 0.02), 0.12),
        limb((-0.35, -0.05), (-1.1, rng.uniform(-0.4, 0.0)), (0.17, 0.24)),
        limb((0.08, 0.12), (wing, 0.92), (0.27, 0.07), rng.uniform(-0.3, 0.3)),
    ], (0.48, 0.28)


def _star(rng: Rng) -> Plan:
    angle = _angles(120)
    arms = rng.choice([4, 5, 5, 6])
    radius = 0.62 + rng.uniform(0.2, 0.3) * np.cos(arms * angle)
    radius += 0.12 * np.cos(angle)  # a leading arm, where the emblem sits
    points = np.stack([np.cos(angle), np.sin(angle)], 1) * radius[:, None]
    return [points], (0.36, 0.0)


def _horse(rng: Rng) -> Plan:
    stride = rng.uniform(-0.2, 0.2)
    polygons = [
        ellipse(-0.1, 0.0, 0.66, rng.uniform(0.27, 0.34), power=2.5),
        limb((0.35, 0.05), (0.72, 0.52), (0.26, 0.17), -0.08),
        limb((0.66, 0.5), (1.08, 0.32), (0.2, 0.11)),
        limb((-0.66, 0.12), (-0.98, -0.35), (0.08, 0.07), 0.25),
    ]
    for x, lean in ((0.38, stride), (0.16, -stride), (-0.42, -stride), (-0.62, stride)):
        polygons.append(limb((x, -0.12), (x + lean, -0.78), (0.11, 0.07)))
    return polygons, (0.68, 0.42)


def _butterfly(rng: Rng) -> Plan:
    spread, sweep = rng.uniform(0.42, 0.56), rng.uniform(-0.15, 0.35)
    polygons = [ellipse(0.0, 0.0, 0.78, 0.2)]
    for side in (-1, 1):
        polygons += [
            ellipse(0.12, side * spread, 0.5, 0.3, tilt=side * (1.1 + sweep), power=2.2),
            ellipse(-0.42, side * 0.8 * spread, 0.36, 0.26, tilt=-side * 0.6),
            limb((0.66, side * 0.04), (1.02, side * 0.24), (0.06, 0.05), side * 0.15),
        ]
    return polygons, (0.46, 0.0)


def _fish(rng: Rng) -> Plan:
    fork, sail = rng.uniform(0.3, 0.5), rng.uniform(0.6, 0.85)
    return [
        ellipse(0.12, 0.0, 0.74, rng.uniform(0.36, 0.52), power=1.9),
        limb((-0.45, 0.0), (-1.05, fork), (0.15, 0.1), 0.15),
        limb((-0.45, 0.0), (-1.05, -fork), (0.15, 0.1), -0.15),
        limb((0.2, 0.25), (-0.25, sail), (0.26, 0.04), -0.15),
        limb((0.15, -0.25), (-0.2, -0.9 * sail), (0.2, 0.04), 0.15),
    ], (0.48, 0.02)


PLANS: dict[str, Callable[[Rng], Plan]] = {
    "mammal": _mammal,
    "bird": _bird,
    "star": _star,
    "horse": _horse,
    "butterfly": _butterfly,
    "fish": _fish,
}


def _deform(rng: Rng, polygons: list[Points], head: Points) -> tuple[list[Points], Points]:
    """Stretch, bend and wave a shape, so that the body plans overlap in appearance."""
    stretch = np.exp(rng.normal(0, 0.12, 2))
    curl = rng.normal(0, 0.14)
    sway = rng.normal(0, 0.05, 2)
    phase = rng.uniform(0, 2 * np.pi, 2)

    def warp(points: Points) -> Points:
        x, y = (points * stretch).T
        waved_x = x + sway[0] * np.sin(3.0 * y + phase[0])
        waved_y = y + curl * x * x + sway[1] * np.sin(3.5 * x + phase[1])
        return np.stack([waved_x, waved_y], 1)

    return [warp(polygon) for polygon in polygons], warp(head[None])[0]


def _area(polygons: list[Points]) -> float:
    """Area of the union of polygons."""
    points = np.concatenate(polygons)
    scale = (AREA_RASTER - 1) / np.ptp(points, axis=0).max()
    raster = np.zeros((AREA_RASTER, AREA_RASTER), np.uint8)
    for polygon in polygons:
        cv2.fillPoly(raster, [np.rint((polygon - points.min(0)) * scale).astype(np.int32)], 1)
    return float(np.count_nonzero(raster)) / scale**2


def _angles(steps: int) -> Points:
    return np.linspace(0, 2 * np.pi, steps, endpoint=False, dtype=np.float64)
