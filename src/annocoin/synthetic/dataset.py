"""Write synthetic scenes as a VOC folder, so that every loader and tool works on them."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from annocoin import masks
from annocoin.data.dataset import LabelledImage, LabelledImages
from annocoin.data.formats import voc
from annocoin.errors import InputError
from annocoin.progress import track
from annocoin.synthetic.creatures import CLASSES, SPECIES, Sprite, paint_creature, pose_creature
from annocoin.synthetic.textures import Array, Rng, paint_backdrop
from annocoin.types import Annotation, WeakLabel

VAL_SHARE = 0.2


def write_synthetic(
    out: str | Path, *, images: int = 200, size: int | tuple[int, int] = 128, seed: int = 0
) -> None:
    """Write scenes 0 .. images - 1 of the collection `seed` as a new VOC folder.

    The splits are "train", then "val" (the last fifth), and "trainval". Scene number i is the same
    whatever `images` is.

    Args:
        out: the folder to make.
        images: how many, at least 1.
        size: side length, or (height, width), in pixels.
        seed: names the collection.
    """
    shape = (size, size) if isinstance(size, int) else size
    if images < 1 or seed < 0 or min(shape) < MIN_SIDE:
        raise InputError(
            f"{images} images of {shape[0]} x {shape[1]}, seed {seed}; expected 1 or more images, "
            f"sides of {MIN_SIDE} or more, and a seed of 0 or more"
        )
    with tempfile.TemporaryDirectory() as folder:
        labelled = [
            _save(render_scene(seed, index, shape), Path(folder), f"{seed:03d}_{index:06d}")
            for index in track(range(images), "painting scenes")
        ]
        stems = [str(image.image_id) for image in labelled]
        cut = images - max(int(images * VAL_SHARE), int(images > 1))
        splits = {"train": stems[:cut], "val": stems[cut:], "trainval": stems}
        dataset = LabelledImages.of(CLASSES, labelled, splits=splits, source=Path(folder))
        voc.write(dataset, Path(out))


def _save(scene: Scene, folder: Path, name: str) -> LabelledImage:
    path = folder / f"{name}.jpg"
    Image.fromarray(scene.image).save(path, quality=95, subsampling=0)
    ids = np.arange(1, len(scene.labels) + 1, dtype=scene.ids.dtype)
    rles = masks.encode(scene.ids[None] == ids[:, None, None])
    pairs = zip(scene.labels, rles, strict=True)
    weak_labels = tuple(WeakLabel(label, mask=rle) for label, rle in pairs)
    annotation = Annotation((scene.ids.shape[0], scene.ids.shape[1]), weak_labels)
    return LabelledImage(name, path.name, path, annotation)


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
        _add_sprite(rng, canvas, creature)
    labels = tuple(creature.sprite.traits.label for creature in placed)
    return Scene(_photograph(rng, canvas), ids, parts, labels)


def _add_sprite(rng: Rng, canvas: Array, creature: Placed) -> None:
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
