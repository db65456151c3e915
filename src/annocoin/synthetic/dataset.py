"""Synthetic scenes and datasets of them in VOC layout."""

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
from annocoin.errors import InputError, check_positive
from annocoin.progress import track
from annocoin.synthetic.creatures import (
    CLASSES,
    HARD,
    SPECIES,
    SceneStyle,
    Sprite,
    paint_creature,
    pose_creature,
)
from annocoin.synthetic.outlines import Rng
from annocoin.synthetic.textures import Array, paint_backdrop
from annocoin.types import Annotation, WeakLabel

Bytes = npt.NDArray[np.uint8]
Window = tuple[slice, slice]

VAL_SHARE = 0.2
MIN_SIDE = 48  # pixels of an image; emblems would be too small in smaller ones
MIN_DIAMETER = 16.0  # pixels of a creature; likewise
DIAMETER = (0.2, 0.6)  # of the image's short side

TRIALS = 6  # random positions before a creature is given up

MIN_PART_VISIBLE = 0.60  # of its emblem's area
MIN_INSIDE = 0.80  # of its area, within the image
MIN_IMAGE_SHARE = 0.004  # of the image's area


@dataclass(frozen=True)
class Scene:
    """An image with its ground truth.

    Args:
        image: uint8 [H, W, 3], RGB.
        ids: uint8 [H, W], 0 on the background, k on the visible pixels of the k-th object.
        parts: uint8 [H, W], like `ids`, but only on the emblems. For measuring, not for training.
        labels: the 1-based class of the k-th object at position k - 1.
    """

    image: Bytes
    ids: Bytes
    parts: Bytes
    labels: tuple[int, ...]


def write_synthetic(
    out: str | Path,
    *,
    images: int = 200,
    size: int | tuple[int, int] = 128,
    seed: int = 0,
    style: SceneStyle = HARD,
) -> None:
    """Write scenes 0 .. images - 1 of the collection `seed` as a new VOC folder.

    The splits are "train", "val" (the last fifth), and "trainval". A scene does not depend on the
    number of images.

    Args:
        out: the new folder.
        images: number of images, at least 1.
        size: side length, or (height, width), in pixels.
        seed: random seed of the collection.
        style: how difficult the scenes are.
    """
    check_positive("images", images)
    shape = (size, size) if isinstance(size, int) else size
    with tempfile.TemporaryDirectory() as folder:
        labelled = [
            _save(render_scene(seed, index, shape, style), Path(folder), f"{seed:03d}_{index:06d}")
            for index in track(range(images), "rendering scenes")
        ]
        stems = [str(image.image_id) for image in labelled]
        cut = images - max(int(images * VAL_SHARE), int(images > 1))
        splits = {"train": stems[:cut], "val": stems[cut:], "trainval": stems}
        dataset = LabelledImages.of(CLASSES, labelled, splits=splits, source=Path(folder))
        voc.write(dataset, Path(out))


def render_scene(
    seed: int, index: int, size: tuple[int, int] = (128, 128), style: SceneStyle = HARD
) -> Scene:
    """Render scene number `index` of the collection `seed`.

    Args:
        seed: random seed of the collection, at least 0.
        index: the scene's number in it, at least 0.
        size: height and width in pixels, each at least 48.
        style: how difficult the scene is.
    """
    if seed < 0 or index < 0:
        raise InputError(f"seed {seed}, index {index}; expected 0 or more")
    if min(size) < MIN_SIDE:
        raise InputError(f"an image of {size[0]} x {size[1]}; expected sides of {MIN_SIDE} or more")
    rng = np.random.default_rng([seed, index])
    placed, ids, parts = place_creatures(rng, size, style)
    canvas = paint_backdrop(rng, size)
    for creature in placed:
        _paint(rng, canvas, creature, style)
    labels = tuple(creature.sprite.label for creature in placed)
    return Scene(_photograph(rng, canvas), ids, parts, labels)


@dataclass(frozen=True)
class Placed:
    """A sprite, and the row and column of its upper left corner in the image (may be outside)."""

    sprite: Sprite
    top: int
    left: int

    def windows(self, size: tuple[int, ...]) -> tuple[Window, Window]:
        """The visible window in an image of `size`, and the same window in the sprite."""
        height, width = self.sprite.body.shape[:2]
        top, left = max(self.top, 0), max(self.left, 0)
        bottom, right = min(self.top + height, size[0]), min(self.left + width, size[1])
        image = np.s_[top:bottom, left:right]
        sprite = np.s_[top - self.top : bottom - self.top, left - self.left : right - self.left]
        return image, sprite


def place_creatures(
    rng: Rng, size: tuple[int, int], style: SceneStyle = HARD
) -> tuple[list[Placed], Bytes, Bytes]:
    """Draw at least one creature and place them, back to front.

    Returns:
        the creatures, their visible pixels `ids` [H, W] and the visible pixels of their emblems
        `parts` [H, W], both numbered from 1 in the order of the creatures.
    """
    placed: list[Placed] = []
    ids: Bytes = np.zeros(size, np.uint8)
    parts: Bytes = np.zeros(size, np.uint8)
    for _ in range(1 + int(rng.choice(len(style.counts), p=style.counts))):
        label, diameter = _label(rng, placed, style), _diameter(rng, size, bool(placed))
        sprite = pose_creature(rng, label, diameter, style)
        for _ in range(TRIALS):
            candidate = [*placed, _position(rng, sprite, placed, size, style)]
            new_ids, new_parts = _stack(candidate, ids, parts)
            # The first creature lies inside the image and always stays, so that no scene is empty.
            if not placed or _all_visible(candidate, new_ids, new_parts, style):
                placed, ids, parts = candidate, new_ids, new_parts
                break
    return placed, ids, parts


def _label(rng: Rng, placed: list[Placed], style: SceneStyle) -> int:
    if placed and rng.random() < style.same_class:
        return placed[rng.integers(len(placed))].sprite.label
    return int(rng.integers(len(SPECIES))) + 1


def _diameter(rng: Rng, size: tuple[int, int], has_others: bool) -> float:
    short = min(size)
    if has_others:
        return max(short * rng.uniform(*DIAMETER), MIN_DIAMETER)
    # The first creature may be occluded by others and is therefore large. In a very long image it
    # must reach the minimum share: the narrowest outline fills a quarter of its diameter squared.
    needed = np.sqrt(5 * MIN_IMAGE_SHARE * size[0] * size[1])
    return max(short * rng.uniform(0.4, DIAMETER[1]), min(needed, 0.9 * short))


def _position(
    rng: Rng, sprite: Sprite, placed: list[Placed], size: tuple[int, int], style: SceneStyle
) -> Placed:
    half = np.array(sprite.body.shape) / 2
    if placed and rng.random() < style.adjacent:
        other = placed[rng.integers(len(placed))]
        centre = np.array([other.top, other.left]) + np.array(other.sprite.body.shape) / 2
        angle = rng.uniform(0, 2 * np.pi)
        distance = rng.uniform(0.4, 0.6) * (sprite.diameter + other.sprite.diameter)
        centre = centre + distance * np.array([np.sin(angle), np.cos(angle)])
        centre = np.clip(centre, 0.5 * half, np.maximum(np.array(size) - 0.5 * half, 0.5 * half))
    else:
        # A first creature stays inside; the others may be cut a little by the border.
        margin = np.minimum(half if not placed else 0.75 * half, np.array(size) / 2)
        centre = rng.uniform(margin, np.array(size) - margin + 1e-6)
    top, left = np.rint(centre - half).astype(int)
    return Placed(sprite, int(top), int(left))


def _stack(candidate: list[Placed], ids: Bytes, parts: Bytes) -> tuple[Bytes, Bytes]:
    """Ids and parts with the last creature of `candidate` in front of the others."""
    front = candidate[-1]
    window, inner = front.windows(ids.shape)
    ids, parts = ids.copy(), parts.copy()
    solid, part = front.sprite.solid[inner], front.sprite.solid_part[inner]
    ids[window][solid] = len(candidate)
    parts[window][solid] = 0
    parts[window][part] = len(candidate)
    return ids, parts


def _all_visible(candidate: list[Placed], ids: Bytes, parts: Bytes, style: SceneStyle) -> bool:
    visible = np.bincount(ids.ravel(), minlength=len(candidate) + 1)
    visible_part = np.bincount(parts.ravel(), minlength=len(candidate) + 1)
    for number, creature in enumerate(candidate, 1):
        solid, part = creature.sprite.solid, creature.sprite.solid_part
        area = np.count_nonzero(solid)
        inside = np.count_nonzero(solid[creature.windows(ids.shape)[1]])
        if (
            visible[number] < max(style.min_visible * area, MIN_IMAGE_SHARE * ids.size)
            or visible_part[number] < MIN_PART_VISIBLE * np.count_nonzero(part)
            or inside < MIN_INSIDE * area
        ):
            return False
    return True


def _paint(rng: Rng, canvas: Array, creature: Placed, style: SceneStyle) -> None:
    """Paint a creature and its soft shadow on the canvas [H, W, 3]."""
    sprite = creature.sprite
    window, inner = creature.windows(canvas.shape[:2])
    # The colours depend on the background under the whole sprite, which may reach out of the image.
    padding = [
        (part.start, length - part.stop)
        for part, length in zip(inner, sprite.body.shape, strict=True)
    ]
    ground = np.pad(canvas[window], (*padding, (0, 0)), mode="edge")
    shadow = cv2.GaussianBlur(sprite.body, (0, 0), max(0.035 * sprite.diameter, 0.8))
    ground[..., 0] -= rng.uniform(0, 9) * shadow
    colour = paint_creature(rng, sprite, ground, style)
    blended = ground + sprite.body[..., None] * (colour - ground)
    canvas[window] = blended[inner]


def _photograph(rng: Rng, canvas: Array) -> Bytes:
    """Lighting, blur and noise: from Lab [H, W, 3] to uint8 RGB [H, W, 3]."""
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


def _save(scene: Scene, folder: Path, name: str) -> LabelledImage:
    path = folder / f"{name}.jpg"
    Image.fromarray(scene.image).save(path, quality=95, subsampling=0)
    ids = np.arange(1, len(scene.labels) + 1, dtype=scene.ids.dtype)
    rles = masks.encode(scene.ids[None] == ids[:, None, None])
    pairs = zip(scene.labels, rles, strict=True)
    weak_labels = tuple(WeakLabel(label, mask=rle) for label, rle in pairs)
    annotation = Annotation((scene.ids.shape[0], scene.ids.shape[1]), weak_labels)
    return LabelledImage(name, path.name, path, annotation)
