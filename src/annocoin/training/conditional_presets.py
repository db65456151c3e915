"""Presets of the conditional network: what it is and how it learns, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from annocoin.conditional import (
    Architecture,
    ConditionalNetwork,
    Samples,
    ScoringOptions,
    draw_samples,
)
from annocoin.data.dataset import ImageId, WeakDataset
from annocoin.errors import check_choice
from annocoin.objective.task_loss import conditioned_loss_table, evened, prediction_loss_table
from annocoin.regions import RegionFolder
from annocoin.seeds import SeedFolder
from annocoin.seeds.backbones import IMAGENET
from annocoin.seeds.filtering import BEST
from annocoin.training.cases import Case, Cases
from annocoin.training.conditional_options import ConditionalOptions


@dataclass(frozen=True)
class ConditionalPreset:
    """A choice of everything about the conditional network.

    Args:
        architecture: what it is.
        learning: how it is scored and trained.
        best: how many of the most object-like regions stay beside those that seeds touch.
        seeded: whether tags admit only regions that hold a peak of their class.
        weights: of its trunk at the start, see `annocoin.conditional.trunks.build_trunk`; in a run
            also "classifier", the run's own.
    """

    architecture: Architecture
    learning: ConditionalOptions
    best: int = BEST
    seeded: bool = True
    weights: str = IMAGENET

    def cases(
        self,
        dataset: WeakDataset,
        regions: RegionFolder,
        seeds: SeedFolder,
        tables: Mapping[ImageId, Tensor] | None = None,
    ) -> Cases:
        """The images of a dataset, as this preset wants them; with loss tables, if there are."""
        return Cases(
            dataset,
            regions,
            seeds,
            size=self.architecture.size,
            best=self.best,
            seeded=self.seeded,
            tables=tables,
        )

    def table(self, class_log_probabilities: Tensor, mask_losses: Tensor) -> Tensor:
        """D [P, J+1] of what a prediction network thinks of P regions, see `judge`."""
        if self.learning.conditioned:
            return conditioned_loss_table(class_log_probabilities, mask_losses)
        return prediction_loss_table(class_log_probabilities, mask_losses)

    def table_to_learn(self, table: Tensor) -> Tensor:
        """The same as the direct loss wants it."""
        return evened(table) if self.learning.conditioned else table

    def samples(
        self,
        net: ConditionalNetwork,
        case: Case,
        count: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Samples:
        """Samples for a case, K if not said otherwise; one without noise if it is pointwise."""
        if count is None:
            count = 0 if self.learning.pointwise else self.learning.samples
        candidates = case.candidates(self.learning.scoring)
        return draw_samples(net, case.pixels, candidates, count, generator)


def measured_best(classes: tuple[str, ...], trunk: str = "unet-resnet50") -> ConditionalPreset:
    """What measured best; docs/decisions.md says how."""
    return ConditionalPreset(Architecture(classes, trunk), ConditionalOptions())


def paper_literal(classes: tuple[str, ...], trunk: str = "unet") -> ConditionalPreset:
    """The paper's words at face value, where they leave a choice.

    A channel of noise for every pixel, one linear 1x1 convolution, averages over the image without
    a factor, sums of edges and of neighbours, the printed test of overlap and the printed algorithm
    that goes on until no region is left, pixels of the seeds as first labels, regions that a seed
    touches, rates of the probabilistic U-Net.
    """
    architecture = Architecture(
        classes, trunk, noise="pixel", noise_channels=1, bend=False, over="image", scale=1.0
    )
    scoring = ScoringOptions(
        prior=0.0,
        trust=0.0,
        doubt=0.0,
        pairwise="literal",
        overlap="later",
        between=1.0,
        exhaustive=True,
    )
    learning = ConditionalOptions(
        scoring=scoring,
        targets="pixels",
        boldness=0.0,
        noise=0.0,
        epsilon=1.0,
        diversity=1.0,
        conditioned=False,
        initial_rate=1e-4,
        rate=1e-4,
        weight_decay=1e-5,
    )
    return ConditionalPreset(architecture, learning, best=0, seeded=False)


PRESETS: dict[str, Callable[..., ConditionalPreset]] = {
    "default": measured_best,
    "paper-literal": paper_literal,
}


def preset(name: str, classes: tuple[str, ...], **changes: Any) -> ConditionalPreset:
    """A preset by name; `changes` are its function's arguments."""
    check_choice("preset", name, PRESETS)
    return PRESETS[name](classes, **changes)
