"""The ground: colour fields, texture, hard-edged patches, and things that look like a creature."""

import cv2
import numpy as np

from annocoin.data.synthetic.outlines import Points, blob
from annocoin.data.synthetic.textures import (
    TEXTURES,
    Array,
    Rng,
    coat_colours,
    fractal,
    lch,
    noise,
    skin,
)


def paint_backdrop(rng: Rng, size: tuple[int, int]) -> Array:
    """A Lab background [H, W, 3] without any creature in it."""
    short = min(size)
    hue = rng.uniform(0, 360)
    canvas = _field(rng, size, hue)
    for _ in range(rng.integers(3, 7)):
        _patch(rng, canvas, hue, short)
    canvas[..., 0] += rng.uniform(1.5, 4.0) * fractal(rng, size, short * rng.uniform(0.03, 0.12))
    for _ in range(rng.integers(1, 4)):
        _stone(rng, canvas, short)
    for _ in range(rng.integers(2, 6)):
        _mark(rng, canvas, short)
    return canvas


def _field(rng: Rng, size: tuple[int, int], hue: float) -> Array:
    base = lch(rng.uniform(45, 72), rng.uniform(8, 22), hue)
    drift = noise(rng, size, min(size) * 0.5, 3)
    return base + drift * np.array([7.0, 6.0, 6.0], np.float32)


def _patch(rng: Rng, canvas: Array, hue: float, short: int) -> None:
    """A leaf, slab or shadow: a hue near the scene's own, and a hard edge."""
    outline = blob(rng, wobble=0.4)
    if rng.random() < 0.5:
        outline = outline[:: rng.integers(9, 18)]  # few corners: a broken slab
    scale = short * rng.uniform(0.2, 0.7)
    colour = lch(rng.uniform(35, 78), rng.uniform(6, 28), hue + rng.normal(0, 40))
    window, cover = _cover(rng, canvas, outline, scale)
    ground = canvas[window]
    ground += (cover * rng.uniform(0.5, 0.95))[..., None] * (colour - ground)


def _stone(rng: Rng, canvas: Array, short: int) -> None:
    """A body-like blob: a creature's colours and skin, but no limbs and no emblem."""
    diameter = short * rng.uniform(0.15, 0.45)
    window, cover = _cover(rng, canvas, blob(rng), diameter)
    ground = canvas[window]
    if min(cover.shape[:2]) < 2:
        return
    base, relief = coat_colours(rng, rng.uniform(0, 360))
    base += (ground.mean((0, 1)) - base) * rng.uniform(0, 0.6)
    rows, cols = np.indices(cover.shape[:2], dtype=np.float32) / np.float32(diameter)
    turn = rng.uniform(0, np.pi)
    u = np.cos(turn) * cols - np.sin(turn) * rows
    v = np.sin(turn) * cols + np.cos(turn) * rows
    pattern = skin(rng, str(rng.choice(TEXTURES)), u, v, rng.uniform(4, 9))
    colour = base + (rng.uniform(0.2, 0.5) * pattern)[..., None] * relief
    ground += cover[..., None] * (colour - ground)


def _mark(rng: Rng, canvas: Array, short: int) -> None:
    """A small plain mark with an emblem's contrast and nobody's pattern."""
    hue = rng.uniform(0, 360)
    light = lch(rng.uniform(80, 94), rng.uniform(5, 28), hue)
    dark = lch(rng.uniform(16, 32), rng.uniform(5, 24), hue)
    sides = rng.choice([3, 4, 4, 40, 40])
    angle = np.arange(sides) * 2 * np.pi / sides
    outline = 0.5 * np.stack([np.cos(angle), np.sin(angle)], 1)
    window, cover = _cover(rng, canvas, outline, short * rng.uniform(0.04, 0.13))
    ground = canvas[window]
    ground += cover[..., None] * ((light if rng.random() < 0.5 else dark) - ground)


def _cover(
    rng: Rng, canvas: Array, outline: Points, scale: float
) -> tuple[tuple[slice, slice], Array]:
    """Put an outline of unit size somewhere: the window it falls in, and its coverage there."""
    height, width = canvas.shape[:2]
    angle = rng.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    points = scale * outline @ turn.T + rng.uniform((0, 0), (width, height))
    left, top = np.clip(np.floor(points.min(0)) - 1, 0, (width - 1, height - 1)).astype(int)
    right, bottom = np.clip(np.ceil(points.max(0)) + 2, (left + 1, top + 1), (width, height))
    fine = 3
    shape = (int(bottom - top), int(right - left))
    raster = np.zeros((shape[0] * fine, shape[1] * fine), np.float32)
    placed = (points - (left, top) + 0.5) * fine - 0.5
    cv2.fillPoly(raster, [np.rint(placed * 16).astype(np.int32)], 1.0, cv2.LINE_8, 4)
    cover = cv2.resize(raster, (shape[1], shape[0]), interpolation=cv2.INTER_AREA)
    window = np.s_[int(top) : int(bottom), int(left) : int(right)]
    return window, cover.astype(np.float32)
