"""Noise, colour fields and the patterns of skins. Every array is float32."""

from collections.abc import Callable

import cv2
import numpy as np
import numpy.typing as npt

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
