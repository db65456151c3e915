"""How the conditional network learns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from annocoin.conditional.candidates import ScoringOptions
from annocoin.errors import InputError, check_choice, check_positive
from annocoin.objective.diversity import GAMMA
from annocoin.training.cases import Targets


@dataclass(frozen=True)
class ConditionalOptions:
    """How the conditional network learns.

    Args:
        scoring: how regions are scored and chosen.
        targets: what the initial training learns from, see `Case.targets`.
        initial_steps, steps: of the initial training, and of a later one.
        batch: images a step.
        initial_rate, rate: the greatest learning rates.
        weight_decay, clip: of AdamW, and the greatest norm of a gradient.
        samples: K.
        gamma: the share of the self diversity.
        epsilon: of the direct loss. Below 0 the network moves towards a labelling that is better
            for the loss, above 0, as the paper has it, away from a worse one.
        diversity: the factor of Delta between samples, which is 1 for an instance that moved away,
            beside the prediction network's log losses.
        conditioned: whether the prediction network's losses are read with the annotation, see
            `conditioned_loss_table`; else as the paper writes them.
        pointwise: PW_c, a single sample without noise and without self diversity.
        boldness: added, after the initial training, to every pixel's margin over the background.
            Seeds vote for parts as well as for wholes, so that a pixel of an object often gets
            less than half of the votes.
        noise: how much, after the initial training, noise moves features, see `redraw_noise`; with
            0 its weights are learned in the initial training instead.
        seed: of everything random.
    """

    scoring: ScoringOptions = field(default_factory=ScoringOptions)
    targets: Targets = "votes"
    initial_steps: int = 400
    steps: int = 200
    batch: int = 8
    initial_rate: float = 1e-3
    rate: float = 3e-4
    weight_decay: float = 1e-4
    clip: float = 5.0
    samples: int = 10
    gamma: float = GAMMA
    epsilon: float = -1.0
    diversity: float = 2.0
    conditioned: bool = True
    pointwise: bool = False
    boldness: float = 0.4
    noise: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("targets", self.targets, get_args(Targets))
        for name in ("initial_steps", "steps", "batch", "samples"):
            check_positive(name, getattr(self, name))
        if min(self.initial_rate, self.rate, self.clip) <= 0:
            raise InputError("learning rates and clip are above 0")
        if min(self.weight_decay, self.diversity, self.noise) < 0:
            raise InputError("weight_decay, diversity and noise are 0 or more")
        if not 0 <= self.gamma <= 1 or self.epsilon == 0:
            raise InputError(
                f"gamma {self.gamma}, epsilon {self.epsilon}; expected 0 to 1, and other than 0"
            )
