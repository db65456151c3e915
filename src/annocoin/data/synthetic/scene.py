"""Scenes: one to four creatures on a cluttered ground, with the truth about every pixel."""

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from annocoin.data.synthetic.backdrop import paint_backdrop
from annocoin.data.synthetic.creatures import paint_creature
from annocoin.data.synthetic.placement import Placed, place_creatures
from annocoin.data.synthetic.textures import Array, Rng

Bytes = npt.NDArray[np.uint8]

MIN_SIDE = 48  # pixels; below, an emblem is too small to be read


@dataclass(frozen=True)
class Scene:
    """An image and the truth about it.

    Attributes:
        image: uint8 [H, W, 3], RGB.
        ids: uint8 [H, W], 0 on the background, k on the visible pixels of the k-th object.
        parts: uint8 [H, W], like `ids`, but only on the emblems. For measuring, not for training.
        labels: the 1-based class of the k-th object at position k - 1.
    """

    image: Bytes
    ids: Bytes
    parts: Bytes
    labels: tuple[int, ...]


def render_scene(seed: int, index: int, size: tuple[int, int] = (128, 128)) -> Scene:
    """Render scene number `index` of the collection `seed`.

    A scene depends on `seed`, `index` and `size` alone, never on how many others are rendered.

    Args:
        seed: names the collection; not negative.
        index: the scene's number in it; not negative.
        size: height and width in pixels, each at least 48.

    Raises:
        ValueError: if a number is negative or the size too small.
    """
    if seed < 0 or index < 0:
        raise ValueError(f"seed and index must be 0 or more, found seed {seed}, index {index}")
    if min(size) < MIN_SIDE:
        raise ValueError(
            f"size (height, width) must be at least {MIN_SIDE} each, found {size[0]} x {size[1]}"
        )
    rng = np.random.default_rng([seed, index])
    placed, ids, parts = place_creatures(rng, size)
    canvas = paint_backdrop(rng, size)
    for creature in placed:
        _add(rng, canvas, creature)
    labels = tuple(creature.sprite.traits.label for creature in placed)
    return Scene(_photograph(rng, canvas), ids, parts, labels)


def _add(rng: Rng, canvas: Array, creature: Placed) -> None:
    """Lay a creature over the canvas [H, W, 3], with a soft shadow under it."""
    sprite = creature.sprite
    window, inner = creature.windows(canvas.shape[:2])
    ground = canvas[window]
    # The colours need the ground under the whole sprite; outside the image its border goes on.
    above, left = inner[0].start, inner[1].start
    below = sprite.body.shape[0] - inner[0].stop
    right = sprite.body.shape[1] - inner[1].stop
    whole = np.pad(ground, ((above, below), (left, right), (0, 0)), mode="edge")
    shadow = cv2.GaussianBlur(sprite.body, (0, 0), max(0.035 * sprite.diameter, 0.8))
    whole[..., 0] -= rng.uniform(0, 9) * shadow
    colour = paint_creature(rng, sprite, whole)
    blended = whole + sprite.body[..., None] * (colour - whole)
    canvas[window] = blended[inner]


def _photograph(rng: Rng, canvas: Array) -> Bytes:
    """Light, lens and sensor: from Lab [H, W, 3] to uint8 RGB [H, W, 3]."""
    height, width = canvas.shape[:2]
    angle = rng.uniform(0, 2 * np.pi)
    down = np.linspace(-0.5, 0.5, height, dtype=np.float32)[:, None]
    across = np.linspace(-0.5, 0.5, width, dtype=np.float32)[None]
    slope = np.sin(angle) * down + np.cos(angle) * across
    lit = canvas.copy()
    lit[..., 0] *= 1 + rng.uniform(0.05, 0.25) * slope
    lit[..., 0] = np.clip(lit[..., 0], 2, 98)
    rgb = cv2.cvtColor(lit.astype(np.float32), cv2.COLOR_Lab2RGB)
    rgb = cv2.GaussianBlur(rgb, (0, 0), rng.uniform(0.35, 0.65))
    grain = rng.standard_normal(rgb.shape, dtype=np.float32)
    noisy = np.asarray(rgb, np.float32) + np.float32(rng.uniform(0.008, 0.02)) * grain
    return np.clip(noisy * 255 + 0.5, 0, 255).astype(np.uint8)
