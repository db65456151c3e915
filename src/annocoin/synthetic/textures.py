"""Noise, colour fields and the patterns of skins. Every array is float32."""

from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

from annocoin.synthetic.outlines import Points, blob

Array = npt.NDArray[np.float32]
Rng = np.random.Generator


def lch(lightness: float, chroma: float, hue: float) -> Array:
    """A Lab colour [3] from lightness, chroma and hue (degrees)."""
    angle = np.deg2rad(hue)
    return np.array([lightness, chroma * np.cos(angle), chroma * np.sin(angle)], np.float32)


def coat_colours(rng: Rng, hue: float) -> tuple[Array, Array]:
    """A body's base colour in Lab [3], and what its pattern and markings add to it [3]."""
    base = lch(rng.uniform(42, 72), rng.uniform(18, 40), hue)
    lift = rng.choice([-1, 1]) * rng.uniform(12, 24)
    return base, lch(lift, rng.uniform(0, 12), hue)


def noise(rng: Rng, shape: tuple[int, int], cell: float, channels: int = 1) -> Array:
    """Smooth noise of about unit variance [h, w] (or [h, w, channels]), one bump per `cell` px."""
    rows, cols = (int(np.ceil(side / max(cell, 1.0))) + 3 for side in shape)
    grid = rng.standard_normal((rows, cols, channels), dtype=np.float32)
    # Enlarge past the border and crop, so that bumps have the same size in every direction.
    scale = max(cell, 1.0)
    wide = cv2.resize(grid, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
    cropped = wide[: shape[0], : shape[1]]
    return np.ascontiguousarray(cropped)


def fractal(rng: Rng, shape: tuple[int, int], cell: float, octaves: int = 3) -> Array:
    """Noise [h, w] summed over octaves, from bumps of `cell` px downwards."""
    total = np.zeros(shape, np.float32)
    for octave in range(octaves):
        total += noise(rng, shape, cell / 2**octave) * np.float32(0.6**octave)
    return total


def skin(rng: Rng, texture: str, u: Array, v: Array, frequency: float) -> Array:
    """A skin pattern [h, w] in about [-1, 1] over body coordinates u, v [h, w] (diameters)."""
    pixels = frequency_to_cell(u, frequency)
    wander = 0.22 / frequency
    shape = (u.shape[0], u.shape[1])
    phase = rng.uniform(0, 1, 2)
    x = (u + wander * noise(rng, shape, 2.5 * pixels)) * np.float32(frequency) + phase[0]
    y = (v + wander * noise(rng, shape, 2.5 * pixels)) * np.float32(frequency) + phase[1]
    if texture == "mottle":
        return np.tanh(1.2 * fractal(rng, shape, 0.8 * pixels, 2)).astype(np.float32)
    return SKINS[texture](x, y).astype(np.float32)


def frequency_to_cell(u: Array, frequency: float) -> float:
    """Pixels in one period of a pattern over the body coordinate u [h, w]."""
    step = float(np.hypot(u[0, 1] - u[0, 0], u[1, 0] - u[0, 0]))
    return 1.0 / (step * frequency)


def _stripes(x: Array, y: Array) -> Array:
    return np.tanh(2.0 * np.sin(2 * np.pi * x))


def _streaks(x: Array, y: Array) -> Array:
    return np.tanh(2.0 * np.sin(2 * np.pi * y))


def _spots(x: Array, y: Array) -> Array:
    bumps = np.sin(2 * np.pi * (0.7 * x + 0.3 * y)) * np.sin(2 * np.pi * (0.7 * y - 0.3 * x))
    return np.tanh(3.5 * (bumps - 0.3))


def _scales(x: Array, y: Array) -> Array:
    row = np.floor(y)
    centred = (x + 0.5 * (row % 2)) % 1.0 - 0.5
    return np.tanh(5.0 * (np.hypot(1.6 * centred, y - row) - 0.75))


def _plain(x: Array, y: Array) -> Array:
    return 0.5 * np.sin(0.6 * np.pi * x)


SKINS: dict[str, Callable[[Array, Array], Array]] = {
    "stripes": _stripes,
    "streaks": _streaks,
    "spots": _spots,
    "scales": _scales,
    "plain": _plain,
}
TEXTURES: tuple[str, ...] = (*SKINS, "mottle")


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
        _mottle(rng, canvas, short)
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


def _mottle(rng: Rng, canvas: Array, short: int) -> None:
    """A small plain weak_label with an emblem's contrast and nobody's pattern."""
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
