"""Learning: the conditional network from seeds, and against a fixed prediction network."""

from annocoin.training.cases import Case, Cases
from annocoin.training.conditional import ConditionalOptions, train_against, train_from_seeds
from annocoin.training.presets import ConditionalPreset, preset

__all__ = [
    "Case",
    "Cases",
    "ConditionalOptions",
    "ConditionalPreset",
    "preset",
    "train_against",
    "train_from_seeds",
]
