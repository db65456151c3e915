"""Learning: the conditional network from seeds, and against a fixed prediction network."""

from annocoin.training.against import train_against
from annocoin.training.cases import Case, Cases
from annocoin.training.conditional_options import ConditionalOptions
from annocoin.training.conditional_presets import ConditionalPreset, preset
from annocoin.training.from_seeds import train_from_seeds

__all__ = [
    "Case",
    "Cases",
    "ConditionalOptions",
    "ConditionalPreset",
    "preset",
    "train_against",
    "train_from_seeds",
]
