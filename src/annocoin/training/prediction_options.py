"""How the prediction network learns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import get_args

from annocoin.errors import InputError, check_choice, check_positive
from annocoin.prediction import LossOptions
from annocoin.training.learning import OptimizerName


@dataclass(frozen=True)
class PredictionOptions:
    """How the prediction network learns.

    Args:
        losses: what of an image the losses look at, and the weight of the entropy.
        steps: of each round.
        final_steps: of the last training, after all rounds.
        batch: images a step.
        rate: the greatest learning rate.
        body_rate: that of the backbone's pretrained layers, as a share of it.
        optimizer: "adamw", or "sgd" with momentum, Mask R-CNN's own.
        weight_decay, clip: of the optimizer, and the greatest norm of a gradient.
        frozen: how many of the backbone's first parts stay as they are.
        scales: an image's size varies by factors between these two.
        seed: of everything random.
    """

    losses: LossOptions = field(default_factory=LossOptions)
    steps: int = 2000
    final_steps: int = 4000
    batch: int = 4
    rate: float = 2e-4
    body_rate: float = 0.2
    optimizer: OptimizerName = "adamw"
    weight_decay: float = 0.01
    clip: float = 10.0
    frozen: int = 0
    scales: tuple[float, float] = (1.0, 1.0)
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "final_steps", "batch"):
            check_positive(name, getattr(self, name))
        check_choice("optimizer", self.optimizer, get_args(OptimizerName))
        if min(self.rate, self.body_rate, self.clip) <= 0 or self.weight_decay < 0:
            raise InputError("rate, body_rate and clip are above 0, weight_decay 0 or more")
        if not 0.25 <= self.scales[0] <= self.scales[1] <= 4:
            raise InputError(f"scales {self.scales}; expected two factors, .25 to 4, rising")
        if self.frozen < 0:
            raise InputError(f"frozen {self.frozen}; expected 0 or more")
