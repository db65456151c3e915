"""Noise, Lab colours, skin patterns and backgrounds. Every array is float32."""

from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

from annocoin.synthetic.outlines import Points, Rng, blob, fill_polygons, rotation

Array = npt.NDArray[np.float32]


def lch(lightness: float, chroma: float, hue: float) -> Array:
    """A Lab colour [3] from lightness, chroma and hue (degrees)."""
    angle = np.deg2rad(hue)
    return np.array([lightness, chroma * np.cos(angle), chroma * np.sin(angle)], np.float32)


def coat_colours(rng: Rng, hue: float) -> tuple[Array, Array]:
    """A body's base colour in Lab [3], and the colour [3] that pattern and markings add to it."""
    base = lch(rng.uniform(42, 72), rng.uniform(18, 40), hue)
    lift = rng.choice([-1, 1]) * rng.uniform(12, 24)
    return base, lch(lift, rng.uniform(0, 12), hue)


def noise(rng: Rng, shape: tuple[int, int], cell: float, channels: int = 1) -> Array:
    """Smooth noise of about unit variance [h, w] (or [h, w, channels]), one bump per `cell` px."""
    scale = max(cell, 1.0)
    rows, cols = (int(np.ceil(side / scale)) + 3 for side in shape)
    grid = rng.standard_normal((rows, cols, channels), dtype=np.float32)
    # Enlarge past the border and crop, so that bumps have the same size in every direction.
    wide = cv2.resize(grid, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC)
    return np.ascontiguousarray(wide[: shape[0], : shape[1]])


def fractal(rng: Rng, shape: tuple[int, int], cell: float, octaves: int = 3) -> Array:
    """Noise [h, w] summed over octaves, from bumps of `cell` px downwards."""
    total = np.zeros(shape, np.float32)
    for octave in range(octaves):
        total += noise(rng, shape, cell / 2**octave) * np.float32(0.6**octave)
    return total


def skin(rng: Rng, texture: str, u: Array, v: Array, frequency: float) -> Array:
    """A skin pattern [h, w] in about [-1, 1] over body coordinates u, v [h, w] (diameters)."""
    step = float(np.hypot(u[0, 1] - u[0, 0], u[1, 0] - u[0, 0]))  # diameters per pixel
    period = 1.0 / (step * frequency)  # pixels
    distortion = 0.22 / frequency
    shape = (u.shape[0], u.shape[1])
    phase = rng.uniform(0, 1, 2)
    x = (u + distortion * noise(rng, shape, 2.5 * period)) * np.float32(frequency) + phase[0]
    y = (v + distortion * noise(rng, shape, 2.5 * period)) * np.float32(frequency) + phase[1]
    if texture == "mottle":
        return np.tanh(1.2 * fractal(rng, shape, 0.8 * period, 2)).astype(np.float32)
    return SKINS[texture](x, y).astype(np.float32)


def _spots(x: Array, y: Array) -> Array:
    bumps = np.sin(2 * np.pi * (0.7 * x + 0.3 * y)) * np.sin(2 * np.pi * (0.7 * y - 0.3 * x))
    return np.tanh(3.5 * (bumps - 0.3))


def _scales(x: Array, y: Array) -> Array:
    row = np.floor(y)
    centred = (x + 0.5 * (row % 2)) % 1.0 - 0.5
    return np.tanh(5.0 * (np.hypot(1.6 * centred, y - row) - 0.75))


SKINS: dict[str, Callable[[Array, Array], Array]] = {
    "stripes": lambda x, y: np.tanh(2.0 * np.sin(2 * np.pi * x)),
    "streaks": lambda x, y: np.tanh(2.0 * np.sin(2 * np.pi * y)),
    "spots": _spots,
    "scales": _scales,
    "plain": lambda x, y: 0.5 * np.sin(0.6 * np.pi * x),
}
TEXTURES: tuple[str, ...] = (*SKINS, "mottle")


def paint_backdrop(rng: Rng, size: tuple[int, int]) -> Array:
    """A Lab background [H, W, 3] with distractors, but without creatures."""
    short = min(size)
    hue = rng.uniform(0, 360)
    base = lch(rng.uniform(45, 72), rng.uniform(8, 22), hue)
    canvas = base + noise(rng, size, short * 0.5, 3) * np.array([7.0, 6.0, 6.0], np.float32)
    for _ in range(rng.integers(3, 7)):
        _patch(rng, canvas, hue, short)
    canvas[..., 0] += rng.uniform(1.5, 4.0) * fractal(rng, size, short * rng.uniform(0.03, 0.12))
    for _ in range(rng.integers(1, 4)):
        _stone(rng, canvas, short)
    for _ in range(rng.integers(2, 6)):
        _spot(rng, canvas, short)
    return canvas


def _patch(rng: Rng, canvas: Array, hue: float, short: int) -> None:
    """A leaf, slab or shadow: a hue near that of the scene, and a hard edge."""
    outline = blob(rng, wobble=0.4)
    if rng.random() < 0.5:
        outline = outline[:: rng.integers(9, 18)]  # few corners: a broken slab
    scale = short * rng.uniform(0.2, 0.7)
    colour = lch(rng.uniform(35, 78), rng.uniform(6, 28), hue + rng.normal(0, 40))
    window, cover = _cover(rng, canvas, outline, scale)
    ground = canvas[window]
    ground += (cover * rng.uniform(0.5, 0.95))[..., None] * (colour - ground)


def _stone(rng: Rng, canvas: Array, short: int) -> None:
    """A distractor: a blob with a creature's colours and skin, but no limbs and no emblem."""
    diameter = short * rng.uniform(0.15, 0.45)
    window, cover = _cover(rng, canvas, blob(rng), diameter)
    ground = canvas[window]
    if min(cover.shape[:2]) < 2:
        return
    base, relief = coat_colours(rng, rng.uniform(0, 360))
    base += (ground.mean((0, 1)) - base) * rng.uniform(0, 0.6)
    rows, cols = np.indices(cover.shape[:2], dtype=np.float32) / np.float32(diameter)
    angle = rng.uniform(0, np.pi)
    u = np.cos(angle) * cols - np.sin(angle) * rows
    v = np.sin(angle) * cols + np.cos(angle) * rows
    pattern = skin(rng, str(rng.choice(TEXTURES)), u, v, rng.uniform(4, 9))
    colour = base + (rng.uniform(0.2, 0.5) * pattern)[..., None] * relief
    ground += cover[..., None] * (colour - ground)


def _spot(rng: Rng, canvas: Array, short: int) -> None:
    """A small plain polygon or disc with the contrast of an emblem, but no figure."""
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
    """Place an outline of unit size at random: its window in the canvas and its coverage there."""
    height, width = canvas.shape[:2]
    turn = rotation(rng.uniform(0, 2 * np.pi))
    points = scale * outline @ turn.T + rng.uniform((0, 0), (width, height))
    left, top = np.clip(np.floor(points.min(0)) - 1, 0, (width - 1, height - 1)).astype(int)
    right, bottom = np.clip(np.ceil(points.max(0)) + 2, (left + 1, top + 1), (width, height))
    fine = 3
    shape = (int(bottom - top), int(right - left))
    raster = np.zeros((shape[0] * fine, shape[1] * fine), np.float32)
    fill_polygons(raster, [points - (left, top)], fine, 1.0)
    cover = cv2.resize(raster, (shape[1], shape[0]), interpolation=cv2.INTER_AREA)
    window = np.s_[int(top) : int(bottom), int(left) : int(right)]
    return window, cover.astype(np.float32)
