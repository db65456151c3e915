"""Creatures of six species: body traits, posed shapes, and their colours on a background."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import cv2
import numpy as np
import numpy.typing as npt

from annocoin.synthetic.outlines import (
    Outline,
    Points,
    Rng,
    draw_outline,
    fill_polygons,
    rotation,
)
from annocoin.synthetic.textures import Array, coat_colours, lch, noise, skin

Mask = npt.NDArray[np.bool_]

PART_SHARE = (0.085, 0.13)  # of the creature's area


@dataclass(frozen=True)
class SceneStyle:
    """How difficult scenes are; `benchmarks/synthetic.py` measures the default.

    Args:
        camouflaged: share of creatures coloured like their background.
        faded: share of creatures whose outline fades on one side.
        min_contrast: Lab distance between a body and the mean of its background.
        typical_plan, typical_texture: probability of the species' body plan and texture instead of
            random ones.
        hue_spread: degrees, standard deviation around the species' hue.
        counts: probabilities of 1, 2, .. creatures.
        same_class: probability of the class of a creature already in the scene.
        adjacent: probability of a position beside or in front of another creature.
        min_visible: of a creature's area.
    """

    camouflaged: float = 0.40
    faded: float = 0.55
    min_contrast: float = 12.0
    typical_plan: float = 0.38
    typical_texture: float = 0.38
    hue_spread: float = 50.0
    counts: tuple[float, ...] = (0.22, 0.33, 0.27, 0.18)
    same_class: float = 0.35
    adjacent: float = 0.55
    min_visible: float = 0.40


HARD = SceneStyle()
"""Only the emblem tells the class for sure, outlines fade, creatures occlude each other."""

EASY = SceneStyle(
    camouflaged=0.0,
    faded=0.0,
    min_contrast=28.0,
    typical_plan=1.0,
    typical_texture=1.0,
    hue_spread=12.0,
    counts=(0.35, 0.4, 0.25),
    same_class=0.25,
    adjacent=0.2,
    min_visible=0.75,
)
"""Body, texture and colour tell the class, outlines are clear: the scenes of the demo."""

STYLES = {"hard": HARD, "easy": EASY}


@dataclass(frozen=True)
class Traits:
    """Emblem and body: the typical ones of a species, which is a class, or those of a creature."""

    name: str
    emblem: str
    emblem_hue: float  # degrees in Lab
    plan: str
    texture: str
    frequency: float  # texture periods per body diameter
    hue: float  # degrees in Lab


SPECIES = (
    Traits("ringtail", "ring", 75.0, "mammal", "mottle", 5.0, 65.0),
    Traits("crossbill", "cross", 25.0, "bird", "streaks", 8.0, 25.0),
    Traits("starfish", "star", 95.0, "star", "spots", 7.0, 330.0),
    Traits("zebra", "bars", 250.0, "horse", "stripes", 6.0, 105.0),
    Traits("checkerspot", "checker", 55.0, "butterfly", "plain", 4.0, 160.0),
    Traits("moonfish", "crescent", 205.0, "fish", "scales", 9.0, 240.0),
)
CLASSES: tuple[str, ...] = tuple(species.name for species in SPECIES)


@dataclass(frozen=True)
class Sprite:
    """A posed creature on a grid of its own, a little larger than its outline."""

    label: int  # 1-based class
    traits: Traits
    body: Array  # [h, w] coverage in [0, 1]
    part: Array  # [h, w] coverage of the emblem, within the body
    figure: Array  # [h, w] coverage of the emblem's figure, within the part
    u: Array  # [h, w] body coordinates, in diameters, head towards +u
    v: Array
    diameter: float  # pixels

    @property
    def solid(self) -> Mask:
        """The mask [h, w] of the creature."""
        return self.body > 0.5

    @property
    def solid_part(self) -> Mask:
        """The mask [h, w] of its emblem."""
        return self.solid & (self.part > 0.5)


def pose_creature(rng: Rng, label: int, diameter: float, style: SceneStyle = HARD) -> Sprite:
    """Draw a creature of the 1-based class `label` with its longer side `diameter` pixels."""
    traits = draw_traits(rng, label, style)
    outline = draw_outline(rng, traits.plan, rng.uniform(*PART_SHARE))
    upright = rng.random() < 0.7  # the others have any orientation
    angle = rng.normal(0, 0.45) if upright else rng.uniform(-np.pi, np.pi)
    mirror = rng.choice([-1.0, 1.0])
    # Rows grow downwards, the y of outlines upwards.
    to_pixels = diameter * rotation(angle) @ np.diag([mirror, -1.0])
    body = _coverage(outline, to_pixels, diameter)
    rows, cols = np.indices(body.shape, dtype=np.float32)
    u, v = _transform(
        np.linalg.inv(to_pixels).astype(np.float32),
        cols - body.shape[1] // 2,
        rows - body.shape[0] // 2,
    )
    part, figure = _draw_emblem(rng, outline, traits.emblem, to_pixels, body)
    return Sprite(label, traits, body, part, figure, u, v, diameter)


def draw_traits(rng: Rng, label: int, style: SceneStyle = HARD) -> Traits:
    """Draw the traits of one creature of the 1-based class `label`."""
    species = SPECIES[label - 1]
    random_plan = SPECIES[rng.integers(len(SPECIES))].plan
    random_texture = SPECIES[rng.integers(len(SPECIES))].texture
    return replace(
        species,
        plan=species.plan if rng.random() < style.typical_plan else random_plan,
        texture=species.texture if rng.random() < style.typical_texture else random_texture,
        frequency=float(np.clip(rng.normal(species.frequency, 2.0), 3.0, 11.0)),
        hue=float(rng.normal(species.hue, style.hue_spread)),
    )


def paint_creature(rng: Rng, sprite: Sprite, ground: Array, style: SceneStyle = HARD) -> Array:
    """Lab colours [h, w, 3] of a sprite on the Lab background `ground` [h, w, 3]."""
    colour = _coat(rng, sprite, ground, style)
    soft = cv2.GaussianBlur(sprite.body, (0, 0), max(0.045 * sprite.diameter, 0.8))
    rim = np.clip(2.0 - 2.0 * soft, 0, 1)  # 1 on the outline, falling to 0 inside
    colour[..., 0] += 7.0 * (sprite.v * 1.4 - 0.6 * rim)  # lit from above, rounded at the rim
    if rng.random() < style.faded:
        colour = _fade(rng, sprite, rim, colour, ground)
    return _paint_emblem(rng, sprite, colour)


def _coat(rng: Rng, sprite: Sprite, ground: Array, style: SceneStyle) -> Array:
    """Base colour, skin pattern and one inner edge, before light and fading: [h, w, 3]."""
    traits = sprite.traits
    base, relief = coat_colours(rng, traits.hue)
    local = np.average(ground.reshape(-1, 3), axis=0, weights=sprite.body.ravel())
    if rng.random() < style.camouflaged:
        base += (local - base) * rng.uniform(0.55, 0.9)
    # A body with the colour of its background could not be segmented.
    contrast = float(np.linalg.norm(base - local))
    base = local + (base - local) * max(1.0, style.min_contrast / max(contrast, 1e-3))
    pattern = skin(rng, traits.texture, sprite.u, sprite.v, traits.frequency)
    strength = rng.uniform(0.2, 0.5) * pattern
    strength += _marking(rng, sprite.u, sprite.v) * rng.uniform(0.5, 1.0)
    shape = (pattern.shape[0], pattern.shape[1])
    coat = base + strength[..., None] * relief
    coat += 1.6 * noise(rng, shape, sprite.diameter / 14, 3).reshape(*shape, 3)
    return coat.astype(np.float32)


def _marking(rng: Rng, u: Array, v: Array) -> Array:
    """A belly, a saddle or a seam [h, w]: an edge inside the body, as strong as its outline."""
    kind = rng.choice(["belly", "saddle", "seam", "none"], p=[0.35, 0.25, 0.25, 0.15])
    wave = 0.03 * np.sin(14 * u + rng.uniform(0, 6))
    if kind == "belly":
        inside = rng.uniform(-0.12, 0.0) - v + wave
    elif kind == "saddle":
        inside = rng.uniform(0.1, 0.16) - np.abs(u - rng.uniform(-0.2, 0.05) + 0.5 * wave)
    elif kind == "seam":
        inside = 0.022 - np.abs(v - rng.uniform(-0.05, 0.05) + wave)
    else:
        return np.zeros_like(u)
    return np.clip(inside / 0.02 + 0.5, 0, 1).astype(np.float32)


def _fade(rng: Rng, sprite: Sprite, rim: Array, colour: Array, ground: Array) -> Array:
    """Blend the outline on one side partly into the background."""
    direction = rng.uniform(0, 2 * np.pi)
    towards = np.cos(direction) * sprite.u + np.sin(direction) * sprite.v
    side = np.clip(towards / 0.25 + rng.uniform(0.0, 0.8), 0, 1)
    weight = rng.uniform(0.65, 0.88) * side * rim
    # Only the background's colour, not its detail: a creature is not transparent.
    haze = cv2.GaussianBlur(ground, (0, 0), max(0.05 * sprite.diameter, 0.8))
    return colour + weight[..., None] * (haze - colour)


def _paint_emblem(rng: Rng, sprite: Sprite, colour: Array) -> Array:
    """Paint the emblem: a light figure on a dark disc."""
    hue = sprite.traits.emblem_hue + rng.normal(0, 20)
    light = lch(rng.uniform(86, 94), rng.uniform(8, 28), hue)
    dark = lch(rng.uniform(16, 28), rng.uniform(8, 24), hue + rng.normal(0, 25))
    disc = dark + sprite.figure[..., None] * (light - dark)
    return colour + sprite.part[..., None] * (disc - colour)


def _coverage(outline: Outline, to_pixels: Points, diameter: float) -> Array:
    """Antialiased coverage [h, w] of the outline, with rounded joints."""
    fine = 4 if diameter < 80 else 2
    points = [polygon @ to_pixels.T for polygon in outline.polygons]
    reach = np.abs(np.concatenate(points)).max(0)
    half = np.ceil(reach + 0.08 * diameter + 2).astype(int)
    width, height = 2 * half + 1
    raster = np.zeros((height * fine, width * fine), np.uint8)
    fill_polygons(raster, [polygon + half for polygon in points], fine, 255)
    soft = cv2.GaussianBlur(raster, (0, 0), 0.018 * diameter * fine)
    smooth = (soft > 127).astype(np.float32)
    small = cv2.resize(smooth, (int(width), int(height)), interpolation=cv2.INTER_AREA)
    return small.astype(np.float32)


def _draw_emblem(
    rng: Rng, outline: Outline, emblem: str, to_pixels: Points, body: Array
) -> tuple[Array, Array]:
    """Coverage of the emblem's disc and of its figure, each [h, w]."""
    height, width = body.shape[:2]
    scale = np.sqrt(abs(np.linalg.det(to_pixels)))
    radius = outline.emblem_radius * scale
    centre = to_pixels @ outline.head
    to_disc = rotation(rng.normal(0, 0.3)) @ (np.linalg.inv(to_pixels / scale) / radius)
    fine = 4
    left, top = (int(np.floor(c - radius)) - 1 for c in centre)
    side = int(np.ceil(2 * radius)) + 3
    steps = (np.arange(side * fine, dtype=np.float32) + 0.5) / fine - 0.5
    grid = np.meshgrid(steps + left - centre[0], steps + top - centre[1])
    x, y = (values.astype(np.float32) for values in _transform(to_disc, *grid))
    part, figure = np.zeros_like(body), np.zeros_like(body)
    top, left = top + height // 2, left + width // 2
    for target, mask in ((part, np.hypot(x, y) < 1), (figure, FIGURES[emblem](x, y))):
        target[top : top + side, left : left + side] = cv2.resize(
            mask.astype(np.float32), (side, side), interpolation=cv2.INTER_AREA
        )
    return part, figure


def _transform(
    matrix: npt.NDArray[np.floating], x: npt.NDArray[np.floating], y: npt.NDArray[np.floating]
) -> tuple[Array, Array]:
    return matrix[0, 0] * x + matrix[0, 1] * y, matrix[1, 0] * x + matrix[1, 1] * y


def _cross(x: Array, y: Array) -> Mask:
    arm, reach = 0.2, 0.86
    upright = (np.abs(x) < arm) & (np.abs(y) < reach)
    return upright | ((np.abs(y) < arm) & (np.abs(x) < reach))


def _star(x: Array, y: Array) -> Mask:
    turn = 2 * np.pi / 5
    # Fold the plane onto half of one point of the star, whose edge is a straight line.
    angle = np.abs((np.arctan2(y, x) + turn / 2) % turn - turn / 2)
    tip, notch = 0.95, 0.36
    corner = notch * np.exp(0.5j * turn)
    normal = np.array([-corner.imag, corner.real - tip])
    radius = np.hypot(x, y)
    side = (radius * np.cos(angle) - tip) * normal[0] + radius * np.sin(angle) * normal[1]
    return side > 0


FIGURES: dict[str, Callable[[Array, Array], Mask]] = {
    "ring": lambda x, y: (np.hypot(x, y) > 0.36) & (np.hypot(x, y) < 0.72),
    "cross": _cross,
    "star": _star,
    "bars": lambda x, y: np.cos(2 * np.pi * x / 0.72) > 0.0,
    "checker": lambda x, y: np.sin(np.pi * x / 0.55) * np.sin(np.pi * y / 0.55) > 0,
    "crescent": lambda x, y: (np.hypot(x, y) < 0.84) & (np.hypot(x - 0.42, y) > 0.62),
}
"""Where the light figure of an emblem lies; x, y [h, w] span the unit disc."""
