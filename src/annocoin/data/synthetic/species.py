"""The six species: what names each of them, and what merely hints at it.

An emblem belongs to exactly one species. Hue, texture and body plan are only *favoured* by a
species: every creature may have any of them, so the body alone leaves the class in doubt.
"""

from dataclasses import dataclass

import numpy as np

# How often a creature shows its species' favourite instead of anybody's. Together with HUE_SPREAD
# these set how much the body gives away; `benchmarks/synthetic.py` measures the outcome.
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
