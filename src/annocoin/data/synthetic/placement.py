"""Where the creatures stand: overlapping, but each with enough of itself to be seen."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from annocoin.data.synthetic.creatures import Sprite, pose_creature
from annocoin.data.synthetic.species import SPECIES
from annocoin.data.synthetic.textures import Rng

Bytes = npt.NDArray[np.uint8]
Window = tuple[slice, slice]

COUNTS = (0.22, 0.33, 0.27, 0.18)  # how often a scene wants 1, 2, 3, 4 creatures
KIN = 0.35  # how often a creature is of the class of one already there
CROWD = 0.55  # how often it is put beside or before one already there
DIAMETER = (0.2, 0.6)  # of the image's short side
SMALLEST = 16.0  # pixels; below, no emblem can be read
TRIALS = 6

MIN_VISIBLE = 0.40  # of a creature's own area
MIN_PART_VISIBLE = 0.60  # of its emblem's own area
MIN_INSIDE = 0.80  # of its own area within the image
MIN_IMAGE = 0.004  # of the image's area


@dataclass(frozen=True)
class Placed:
    """A sprite, and where its first row and column lie in the image (possibly outside)."""

    sprite: Sprite
    top: int
    left: int

    def windows(self, size: tuple[int, ...]) -> tuple[Window, Window]:
        """The same pixels as slices of the image and as slices of the sprite."""
        height, width = self.sprite.body.shape[:2]
        top, left = max(self.top, 0), max(self.left, 0)
        bottom, right = min(self.top + height, size[0]), min(self.left + width, size[1])
        image = np.s_[top:bottom, left:right]
        sprite = np.s_[
            top - self.top : bottom - self.top,
            left - self.left : right - self.left,
        ]
        return image, sprite


def place_creatures(rng: Rng, size: tuple[int, int]) -> tuple[list[Placed], Bytes, Bytes]:
    """Choose creatures and places, back to front, at least one.

    Returns:
        the creatures, their visible pixels `ids` [H, W] and the visible pixels of their emblems
        `parts` [H, W], both numbered from 1 in the order of the creatures.
    """
    placed: list[Placed] = []
    ids: Bytes = np.zeros(size, np.uint8)
    parts: Bytes = np.zeros(size, np.uint8)
    wanted = 1 + int(rng.choice(len(COUNTS), p=COUNTS))
    for _ in range(wanted):
        sprite = pose_creature(rng, _label(rng, placed), _diameter(rng, size, bool(placed)))
        for _ in range(TRIALS):
            candidate = [*placed, _drop(rng, sprite, placed, size)]
            new_ids, new_parts = _stack(candidate, ids, parts)
            # The first stands alone and inside the image: it remains, so no scene is empty.
            if not placed or _all_visible(candidate, new_ids, new_parts):
                placed, ids, parts = candidate, new_ids, new_parts
                break
    return placed, ids, parts


def _label(rng: Rng, placed: list[Placed]) -> int:
    if placed and rng.random() < KIN:
        return placed[rng.integers(len(placed))].sprite.traits.label
    return int(rng.integers(len(SPECIES))) + 1


def _diameter(rng: Rng, size: tuple[int, int], company: bool) -> float:
    short = min(size)
    if company:
        return max(short * rng.uniform(*DIAMETER), SMALLEST)
    # The first is in the background: large enough to be hidden a little, and, in a very long
    # image, to take its share (the narrowest outline fills a quarter of its diameter squared).
    needed = np.sqrt(5 * MIN_IMAGE * size[0] * size[1])
    return max(short * rng.uniform(0.4, DIAMETER[1]), min(needed, 0.9 * short))


def _drop(rng: Rng, sprite: Sprite, placed: list[Placed], size: tuple[int, int]) -> Placed:
    half = np.array(sprite.body.shape) / 2
    if placed and rng.random() < CROWD:
        other = placed[rng.integers(len(placed))]
        centre = np.array([other.top, other.left]) + np.array(other.sprite.body.shape) / 2
        angle = rng.uniform(0, 2 * np.pi)
        apart = rng.uniform(0.4, 0.6) * (sprite.diameter + other.sprite.diameter)
        centre = centre + apart * np.array([np.sin(angle), np.cos(angle)])
        centre = np.clip(centre, 0.5 * half, np.maximum(np.array(size) - 0.5 * half, 0.5 * half))
    else:
        # A first creature stays inside; the others may be cut a little by the border.
        margin = np.minimum(half if not placed else 0.75 * half, np.array(size) / 2)
        centre = rng.uniform(margin, np.array(size) - margin + 1e-6)
    top, left = np.rint(centre - half).astype(int)
    return Placed(sprite, int(top), int(left))


def _stack(candidate: list[Placed], ids: Bytes, parts: Bytes) -> tuple[Bytes, Bytes]:
    """Lay the last creature of `candidate` over the others."""
    front = candidate[-1]
    window, inner = front.windows(ids.shape)
    ids, parts = ids.copy(), parts.copy()
    solid, part = front.sprite.solid[inner], front.sprite.solid_part[inner]
    ids[window][solid] = len(candidate)
    parts[window][solid] = 0
    parts[window][part] = len(candidate)
    return ids, parts


def _all_visible(candidate: list[Placed], ids: Bytes, parts: Bytes) -> bool:
    seen = np.bincount(ids.ravel(), minlength=len(candidate) + 1)
    seen_part = np.bincount(parts.ravel(), minlength=len(candidate) + 1)
    for number, creature in enumerate(candidate, 1):
        sprite = creature.sprite
        area = np.count_nonzero(sprite.solid)
        _, inner = creature.windows(ids.shape)
        inside = np.count_nonzero(sprite.solid[inner])
        enough = (
            seen[number] >= max(MIN_VISIBLE * area, MIN_IMAGE * ids.size)
            and seen_part[number] >= MIN_PART_VISIBLE * np.count_nonzero(sprite.solid_part)
            and inside >= MIN_INSIDE * area
        )
        if not enough:
            return False
    return True
