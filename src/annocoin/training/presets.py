"""Presets of the conditional network: what it is and how it learns, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from annocoin.conditional.candidates import ScoringOptions
from annocoin.conditional.networks import Architecture
from annocoin.errors import check_choice
from annocoin.training.conditional import ConditionalOptions


@dataclass(frozen=True)
class ConditionalPreset:
    """A choice of everything about the conditional network.

    Args:
        architecture: what it is.
        learning: how it is scored and trained.
        seeded: whether tags admit only regions that hold a peak of their class.
    """

    architecture: Architecture
    learning: ConditionalOptions
    seeded: bool = True


def measured_best(classes: tuple[str, ...], trunk: str = "unet-resnet50") -> ConditionalPreset:
    """What measured best; docs/decisions.md says how."""
    return ConditionalPreset(Architecture(classes, trunk), ConditionalOptions())


def paper_literal(classes: tuple[str, ...], trunk: str = "unet") -> ConditionalPreset:
    """The paper's words at face value, where they leave a choice.

    A channel of noise for every pixel, one linear 1x1 convolution, averages over the image without
    a factor, sums of edges and of neighbours, the printed test of overlap and the printed algorithm
    that goes on until no region is left, pixels of the seeds as first labels.
    """
    architecture = Architecture(
        classes, trunk, noise="pixel", noise_channels=1, bend=False, over="image", scale=1.0
    )
    scoring = ScoringOptions(prior=0.0, pairwise="literal", overlap="later", exhaustive=True)
    learning = ConditionalOptions(
        scoring=scoring, targets="pixels", boldness=0.0, noise=0.0, diversity=1.0, rate=1e-4
    )
    return ConditionalPreset(architecture, learning, seeded=False)


PRESETS: dict[str, Callable[..., ConditionalPreset]] = {
    "default": measured_best,
    "paper-literal": paper_literal,
}


def preset(name: str, classes: tuple[str, ...], **changes: Any) -> ConditionalPreset:
    """A preset by name; `changes` are its function's arguments."""
    check_choice("preset", name, PRESETS)
    return PRESETS[name](classes, **changes)
