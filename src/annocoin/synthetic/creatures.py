"""One creature: its shape on a pixel grid, and its colours on the ground where it stands."""

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from annocoin.synthetic.outlines import Outline, Points, draw_outline
from annocoin.synthetic.textures import Array, Rng, coat_colours, lch, noise, skin

CAMOUFLAGED = 0.40  # share of creatures coloured like the ground they stand on
FADED = 0.55  # share of creatures whose outline fades on one side
MIN_GAP = 12.0  # Lab distance between a body and the mean of its ground
PART_SHARE = (0.085, 0.13)  # of the creature's area


FAVOUR_PLAN = 0.38


FAVOUR_TEXTURE = 0.38


HUE_SPREAD = 50.0  # degrees, standard deviation around the species' hue


@dataclass(frozen=True)
class Species:
    """One class: its emblem, and the favourites its bodies lean towards."""

    name: str
    emblem: str
    emblem_hue: float  # degrees in Lab
    plan: str
    texture: str
    frequency: float  # texture periods per body diameter
    hue: float  # degrees in Lab


@dataclass(frozen=True)
class Traits:
    """What one creature was born with."""

    label: int  # 1-based class
    plan: str
    texture: str
    frequency: float
    hue: float


SPECIES = (
    Species("ringtail", "ring", 75.0, "mammal", "mottle", 5.0, 65.0),
    Species("crossbill", "cross", 25.0, "bird", "streaks", 8.0, 25.0),
    Species("starfish", "star", 95.0, "star", "spots", 7.0, 330.0),
    Species("zebra", "bars", 250.0, "horse", "stripes", 6.0, 105.0),
    Species("checkerspot", "checker", 55.0, "butterfly", "plain", 4.0, 160.0),
    Species("moonfish", "crescent", 205.0, "fish", "scales", 9.0, 240.0),
)


@dataclass(frozen=True)
class Sprite:
    """A posed creature on its own small grid, cut out a little wider than its outline."""

    traits: Traits
    body: Array  # [h, w] coverage in [0, 1]
    part: Array  # [h, w] coverage of the emblem, within the body
    figure: Array  # [h, w] coverage of the emblem's figure, within the part
    u: Array  # [h, w] body coordinates, in diameters, head towards +u
    v: Array
    diameter: float  # pixels

    @property
    def solid(self) -> npt.NDArray[np.bool_]:
        """The pixels [h, w] that the creature owns."""
        return self.body > 0.5

    @property
    def solid_part(self) -> npt.NDArray[np.bool_]:
        """The pixels [h, w] that its emblem owns."""
        return self.solid & (self.part > 0.5)


def pose_creature(rng: Rng, label: int, diameter: float) -> Sprite:
    """Draw a creature of the 1-based class `label` with its longer side `diameter` pixels."""
    traits = born(rng, label)
    outline = draw_outline(rng, traits.plan, rng.uniform(*PART_SHARE))
    lazy = rng.random() < 0.7  # most stand roughly upright, the others lie anyhow
    angle = rng.normal(0, 0.45) if lazy else rng.uniform(-np.pi, np.pi)
    mirror = rng.choice([-1.0, 1.0])
    # Rows grow downwards, the creature's y grows upwards.
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    to_pixels = diameter * turn @ np.diag([mirror, -1.0])
    body = _coverage(outline, to_pixels, diameter)
    u, v = _body_coordinates(body.shape, to_pixels)
    part, figure = _paint_emblem(rng, outline, SPECIES[label - 1].emblem, to_pixels, body)
    return Sprite(traits, body, part, figure, u, v, diameter)


def paint_creature(rng: Rng, sprite: Sprite, ground: Array) -> Array:
    """Lab colours [h, w, 3] of a sprite standing on the Lab `ground` [h, w, 3]."""
    colour = _coat(rng, sprite, ground)
    rim = _rim(sprite)
    colour[..., 0] += 7.0 * (sprite.v * 1.4 - 0.6 * rim)  # lit from above, rounded at the rim
    colour = _fade(rng, sprite, rim, colour, ground)
    return _stamp(rng, sprite, colour)


def _coat(rng: Rng, sprite: Sprite, ground: Array) -> Array:
    """Base colour, skin pattern and one inner edge, all before light and fading."""
    traits = sprite.traits
    base, relief = coat_colours(rng, traits.hue)
    local = np.average(ground.reshape(-1, 3), axis=0, weights=sprite.body.ravel())
    if rng.random() < CAMOUFLAGED:
        base += (local - base) * rng.uniform(0.55, 0.9)
    # However it came about, no body may equal its ground: there would be nothing to segment.
    gap = float(np.linalg.norm(base - local))
    base = local + (base - local) * max(1.0, MIN_GAP / max(gap, 1e-3))
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


def _rim(sprite: Sprite) -> Array:
    """1 on the outline, falling to 0 inside [h, w]."""
    soft = cv2.GaussianBlur(sprite.body, (0, 0), max(0.045 * sprite.diameter, 0.8))
    return np.clip(2.0 - 2.0 * soft, 0, 1)


def _fade(rng: Rng, sprite: Sprite, rim: Array, colour: Array, ground: Array) -> Array:
    """Let the outline dissolve into the ground on one side, never entirely."""
    if rng.random() >= FADED:
        return colour
    direction = rng.uniform(0, 2 * np.pi)
    towards = np.cos(direction) * sprite.u + np.sin(direction) * sprite.v
    side = np.clip(towards / 0.25 + rng.uniform(0.0, 0.8), 0, 1)
    weight = rng.uniform(0.65, 0.88) * side * rim
    # Only the ground's colour, not its detail: a creature is not transparent.
    haze = cv2.GaussianBlur(ground, (0, 0), max(0.05 * sprite.diameter, 0.8))
    return colour + weight[..., None] * (haze - colour)


def _stamp(rng: Rng, sprite: Sprite, colour: Array) -> Array:
    """Paint the emblem: a light figure on a dark disc, or the reverse."""
    hue = SPECIES[sprite.traits.label - 1].emblem_hue + rng.normal(0, 20)
    light = lch(rng.uniform(86, 94), rng.uniform(8, 28), hue)
    dark = lch(rng.uniform(16, 28), rng.uniform(8, 24), hue + rng.normal(0, 25))
    disc = dark + sprite.figure[..., None] * (light - dark)
    return colour + sprite.part[..., None] * (disc - colour)


def _coverage(outline: Outline, to_pixels: Points, diameter: float) -> Array:
    """Antialiased coverage [h, w] of the outline, its joints rounded as skin rounds them."""
    fine = 4 if diameter < 80 else 2
    points = [polygon @ to_pixels.T for polygon in outline.polygons]
    reach = np.abs(np.concatenate(points)).max(0)
    half = np.ceil(reach + 0.08 * diameter + 2).astype(int)
    width, height = 2 * half + 1
    raster = np.zeros((height * fine, width * fine), np.uint8)
    for polygon in points:
        # Pixel centres lie on integers; 4 fractional bits keep the vertices exact.
        placed = (polygon + half + 0.5) * fine - 0.5
        cv2.fillPoly(raster, [np.rint(placed * 16).astype(np.int32)], 255, cv2.LINE_8, 4)
    soft = cv2.GaussianBlur(raster, (0, 0), 0.018 * diameter * fine)
    smooth = (soft > 127).astype(np.float32)
    small = cv2.resize(smooth, (int(width), int(height)), interpolation=cv2.INTER_AREA)
    return small.astype(np.float32)


def _body_coordinates(shape: tuple[int, ...], to_pixels: Points) -> tuple[Array, Array]:
    rows, cols = np.indices(shape[:2], dtype=np.float32)
    back = np.linalg.inv(to_pixels).astype(np.float32)
    x, y = cols - shape[1] // 2, rows - shape[0] // 2
    return back[0, 0] * x + back[0, 1] * y, back[1, 0] * x + back[1, 1] * y


def _paint_emblem(
    rng: Rng, outline: Outline, emblem: str, to_pixels: Points, body: Array
) -> tuple[Array, Array]:
    """Coverage of the emblem's disc and of its figure, each [h, w]."""
    height, width = body.shape[:2]
    radius = outline.emblem_radius * np.sqrt(abs(np.linalg.det(to_pixels)))
    centre = to_pixels @ outline.head
    tilt = rng.normal(0, 0.3)
    back = np.linalg.inv(to_pixels / np.sqrt(abs(np.linalg.det(to_pixels)))) / radius
    back = np.array([[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]]) @ back
    fine = 4
    left, top = (int(np.floor(c - radius)) - 1 for c in centre)
    side = int(np.ceil(2 * radius)) + 3
    steps = (np.arange(side * fine, dtype=np.float32) + 0.5) / fine - 0.5
    dx, dy = np.meshgrid(steps + left - centre[0], steps + top - centre[1])
    x = (back[0, 0] * dx + back[0, 1] * dy).astype(np.float32)
    y = (back[1, 0] * dx + back[1, 1] * dy).astype(np.float32)
    disc = np.hypot(x, y) < 1
    part, figure = np.zeros_like(body), np.zeros_like(body)
    window = np.s_[
        top + height // 2 : top + height // 2 + side, left + width // 2 : left + width // 2 + side
    ]
    for target, mask in ((part, disc), (figure, emblem_figure(emblem, x, y))):
        target[window] = cv2.resize(
            mask.astype(np.float32), (side, side), interpolation=cv2.INTER_AREA
        )
    return part, figure


# How often a creature shows its species' favourite instead of anybody's. Together with HUE_SPREAD
# these set how much the body gives away; `benchmarks/synthetic.py` measures the outcome.


CLASSES: tuple[str, ...] = tuple(species.name for species in SPECIES)


def born(rng: np.random.Generator, label: int) -> Traits:
    """Draw the traits of one creature of the 1-based class `label`."""
    own = SPECIES[label - 1]
    stranger = SPECIES[rng.integers(len(SPECIES))]
    other = SPECIES[rng.integers(len(SPECIES))]
    return Traits(
        label=label,
        plan=own.plan if rng.random() < FAVOUR_PLAN else stranger.plan,
        texture=own.texture if rng.random() < FAVOUR_TEXTURE else other.texture,
        frequency=float(np.clip(rng.normal(own.frequency, 2.0), 3.0, 11.0)),
        hue=float(rng.normal(own.hue, HUE_SPREAD)),
    )


Mask = npt.NDArray[np.bool_]


def emblem_figure(emblem: str, x: Array, y: Array) -> Mask:
    """Where the light figure of `emblem` lies; x, y [h, w] span the unit disc."""
    return FIGURES[emblem](x, y)


def _ring(x: Array, y: Array) -> Mask:
    radius = np.hypot(x, y)
    return (radius > 0.36) & (radius < 0.72)


def _cross(x: Array, y: Array) -> Mask:
    arm, reach = 0.2, 0.86
    upright = (np.abs(x) < arm) & (np.abs(y) < reach)
    return upright | ((np.abs(y) < arm) & (np.abs(x) < reach))


def _star(x: Array, y: Array) -> Mask:
    turn = 2 * np.pi / 5
    # Fold the plane onto half of one point of the star; there the edge is a straight line.
    angle = np.abs((np.arctan2(y, x) + turn / 2) % turn - turn / 2)
    tip, notch = 0.95, 0.36
    corner = notch * np.exp(0.5j * turn)
    normal = np.array([-corner.imag, corner.real - tip])
    radius = np.hypot(x, y)
    side = (radius * np.cos(angle) - tip) * normal[0] + radius * np.sin(angle) * normal[1]
    return side > 0


def _bars(x: Array, y: Array) -> Mask:
    return np.cos(2 * np.pi * x / 0.72) > 0.0


def _checker(x: Array, y: Array) -> Mask:
    return np.sin(np.pi * x / 0.55) * np.sin(np.pi * y / 0.55) > 0


def _crescent(x: Array, y: Array) -> Mask:
    return (np.hypot(x, y) < 0.84) & (np.hypot(x - 0.42, y) > 0.62)


FIGURES: dict[str, Callable[[Array, Array], Mask]] = {
    "ring": _ring,
    "cross": _cross,
    "star": _star,
    "bars": _bars,
    "checker": _checker,
    "crescent": _crescent,
}
