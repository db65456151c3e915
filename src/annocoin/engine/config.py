"""A run's configuration: one frozen dataclass a stage, in one."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

from annocoin.backbones import IMAGENET, SCRATCH
from annocoin.conditional.networks import ConditionalArchitecture, ConditionalNetwork
from annocoin.conditional.samples import Samples
from annocoin.conditional.scoring import ScoringOptions, draw_samples
from annocoin.data.dataset import WeakDataset
from annocoin.engine.classifier_training import ClassifierOptions
from annocoin.engine.conditional_dataset import ConditionalDataset, ConditionalExample, Targets
from annocoin.engine.trainer import OptimizerName
from annocoin.errors import InputError, check_choice, check_positive
from annocoin.files import read_json
from annocoin.objective.diversity import GAMMA
from annocoin.objective.task_loss import (
    annotation_loss_table,
    clamp_log_odds,
    prediction_loss_table,
)
from annocoin.prediction.networks import PredictionArchitecture
from annocoin.prediction.soft_losses import LossOptions
from annocoin.regions.proposals import RegionOptions
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.seed_set import SeedFolder
from annocoin.seeds.seeder import SeedOptions
from annocoin.seeds.votes import BEST
from annocoin.types import ImageId

FROM_CLASSIFIER = "classifier"
"""Weights of a network whose backbone starts from the trunk of the run's own classifier."""

T = TypeVar("T")


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


@dataclass(frozen=True)
class ConditionalOptions:
    """How the conditional network learns.

    Args:
        scoring: how regions are scored and chosen.
        targets: what the initial training learns from, see `ConditionalExample.targets`.
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
            `annotation_loss_table`; else as the paper writes them.
        pointwise: PW_c, a single sample without noise and without self diversity.
        foreground_bias: added, after the initial training, to every pixel's margin over the background.
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
    foreground_bias: float = 0.4
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

    architecture: ConditionalArchitecture
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
    ) -> ConditionalDataset:
        """The images of a dataset, as this conditional_preset wants them; with loss tables, if there are."""
        return ConditionalDataset(
            dataset,
            regions,
            seeds,
            size=self.architecture.size,
            best=self.best,
            seeded=self.seeded,
            tables=tables,
        )

    def table(self, class_log_probabilities: Tensor, mask_losses: Tensor) -> Tensor:
        """D [P, J+1] of what a prediction network thinks of P regions, see `score_regions`."""
        if self.learning.conditioned:
            return annotation_loss_table(class_log_probabilities, mask_losses)
        return prediction_loss_table(class_log_probabilities, mask_losses)

    def table_to_learn(self, table: Tensor) -> Tensor:
        """The same as the direct loss wants it."""
        return clamp_log_odds(table) if self.learning.conditioned else table

    def samples(
        self,
        net: ConditionalNetwork,
        case: ConditionalExample,
        count: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Samples:
        """Samples for a case, K if not said otherwise; one without noise if it is pointwise."""
        if count is None:
            count = 0 if self.learning.pointwise else self.learning.samples
        candidates = case.candidates(self.learning.scoring)
        return draw_samples(net, case.pixels, candidates, count, generator)


@dataclass(frozen=True)
class PredictionPreset:
    """A choice of everything about the prediction network.

    Args:
        architecture: what it is.
        learning: how it is trained.
        weights: of its backbone at the start, see `annocoin.seeds.backbones.build_trunk`; or
            "classifier", the run's own: its features know the classes already.
    """

    architecture: PredictionArchitecture
    learning: PredictionOptions = field(default_factory=PredictionOptions)
    weights: str = IMAGENET


@dataclass(frozen=True)
class Config:
    """Everything about a run but the dataset and the machine.

    Args:
        regions, classifier, seeds: of the first stages.
        conditional, prediction: the two networks.
        rounds: R; with 0 the prediction network is trained once, on the regions that seeds
            retrieve (WISE's idea).
        seed: of everything random; that of the stages is set by it.
    """

    regions: RegionOptions
    classifier: ClassifierOptions
    seeds: SeedOptions
    conditional: ConditionalPreset
    prediction: PredictionPreset
    rounds: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rounds < 0 or self.seed < 0:
            raise InputError(f"rounds {self.rounds}, seed {self.seed}; expected 0 or more")
        own = (self.classifier.backbone, self.classifier.stride_in_1x1)
        for name, (weights, backbone) in self._backbones().items():
            if weights == FROM_CLASSIFIER and backbone != own:
                raise InputError(
                    f"{name}.weights {FROM_CLASSIFIER}: the classifier is a {_named(*own)}, the "
                    f"{name} network's backbone a {_named(*backbone)}; expected the same, or "
                    f"--set {name}.weights=imagenet"
                )

    def _backbones(self) -> dict[str, tuple[str, tuple[str, bool]]]:
        """The two networks' first weights, their backbones, and whether those stride in 1x1."""
        a, b = self.conditional, self.prediction
        trunk = a.architecture.trunk.removeprefix("unet-")
        return {
            "conditional": (a.weights, (trunk, a.architecture.stride_in_1x1)),
            "prediction": (b.weights, (b.architecture.backbone, b.architecture.stride_in_1x1)),
        }

    @property
    def from_classifier(self) -> bool:
        """Whether a network that is trained starts from the classifier."""
        return FROM_CLASSIFIER in (
            self.prediction.weights,
            self.conditional.weights if self.rounds else None,
        )

    @property
    def classes(self) -> tuple[str, ...]:
        return self.prediction.architecture.classes

    @property
    def prediction_steps(self) -> int:
        """All steps of the prediction network, over all rounds."""
        learning = self.prediction.learning
        return self.rounds * learning.steps + learning.final_steps

    def without_rounds(self) -> Config:
        """The same steps of the prediction network, in one training."""
        learning = replace(self.prediction.learning, final_steps=self.prediction_steps)
        return replace(self, rounds=0, prediction=replace(self.prediction, learning=learning))

    def seeded(self) -> Config:
        """The same, with the stages' seeds set by the run's, which is the only one to be set."""
        conditional, prediction = self.conditional, self.prediction
        return replace(
            self,
            classifier=replace(self.classifier, seed=self.seed),
            conditional=replace(
                conditional, learning=replace(conditional.learning, seed=self.seed)
            ),
            prediction=replace(prediction, learning=replace(prediction.learning, seed=self.seed)),
        )

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def read_config(path: Path) -> Config:
    """Read what `to_json` gave, from a file."""
    return config_from(read_json(path), str(path))


def config_from(content: Any, where: str) -> Config:
    """A configuration from what `to_json` gave; anything else is an `InputError`."""
    try:
        found: Config = _built(Config, content)
    except (TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{where}: no configuration of a run ({error})") from None
    return found


def with_weights(config: Config, folder: Path) -> Config:
    """The configuration with backbone weights from files whose names begin with a backbone's.

    A name with "stride1x1" in it is of a ResNet that halves the resolution in 1x1 convolutions.
    """

    def file_of(backbone: str) -> tuple[str, bool] | None:
        found = sorted(
            path
            for path in folder.glob(f"{backbone}*")
            if path.suffix in (".pth", ".pt", ".safetensors")
        )
        return (str(found[0]), "stride1x1" in found[0].name) if found else None

    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of backbone weights")
    classifier, conditional, prediction = config.classifier, config.conditional, config.prediction
    if given := file_of(classifier.backbone):
        classifier = replace(classifier, backbone_weights=given[0], stride_in_1x1=given[1])
    if given := file_of(conditional.architecture.trunk.removeprefix("unet-")):
        architecture = replace(conditional.architecture, stride_in_1x1=given[1])
        weights = _unless_from_classifier(conditional.weights, given[0])
        conditional = replace(conditional, architecture=architecture, weights=weights)
    if given := file_of(prediction.architecture.backbone):
        own = replace(prediction.architecture, stride_in_1x1=given[1])
        weights = _unless_from_classifier(prediction.weights, given[0])
        prediction = replace(prediction, architecture=own, weights=weights)
    return replace(config, classifier=classifier, conditional=conditional, prediction=prediction)


def check_weights(config: Config) -> None:
    """Raise if a file of weights is not there: it would be missed after hours."""
    said = {
        "classifier.backbone_weights": config.classifier.backbone_weights,
        "conditional.weights": config.conditional.weights,
        "prediction.weights": config.prediction.weights,
    }
    for name, weights in said.items():
        if weights not in (IMAGENET, SCRATCH, FROM_CLASSIFIER) and not Path(weights).is_file():
            raise InputError(
                f"{name} {weights}: no such file; expected one, or {IMAGENET} or {SCRATCH}"
            )


def with_classifier(config: Config, backbone: str, stride_in_1x1: bool) -> Config:
    """The configuration for a classifier that is there already, whose backbone is this one."""
    classifier = replace(config.classifier, backbone=backbone, stride_in_1x1=stride_in_1x1)
    conditional, prediction = config.conditional, config.prediction
    if conditional.weights == FROM_CLASSIFIER:
        own = replace(conditional.architecture, stride_in_1x1=stride_in_1x1)
        conditional = replace(conditional, architecture=own)
    if prediction.weights == FROM_CLASSIFIER:
        architecture = replace(prediction.architecture, stride_in_1x1=stride_in_1x1)
        prediction = replace(prediction, architecture=architecture)
    return replace(config, classifier=classifier, conditional=conditional, prediction=prediction)


def _unless_from_classifier(weights: str, file: str) -> str:
    return weights if weights == FROM_CLASSIFIER else file


def _named(backbone: str, stride_in_1x1: bool) -> str:
    return f"{backbone}, strides in 1x1" if stride_in_1x1 else backbone


def override(config: Config, assignments: Mapping[str, str]) -> Config:
    """The configuration with values at dotted names, such as "prediction.learning.rate" = "1e-3".

    Example:
        >>> from annocoin.training.run_presets import preset
        >>> config = preset("synthetic", ("cat",))
        >>> override(config, {"rounds": "2"}).rounds
        2
    """
    return _changed(config, "", assignments)


def _changed(owner: T, prefix: str, assignments: Mapping[str, str]) -> T:
    """All changes at once: options that must agree are only compared when all are in place.

    Args:
        prefix: the owner's own dotted name with a dot behind it, for messages.
        assignments: texts by dotted names within it.
    """
    names = [own.name for own in dataclasses.fields(owner)]  # type: ignore[arg-type]
    hints = typing.get_type_hints(type(owner))
    new: dict[str, Any] = {}
    parts: dict[str, dict[str, str]] = {}
    for path, text in assignments.items():
        first, _, rest = path.partition(".")
        name = prefix + path
        if first not in names:
            raise InputError(f"--set {name}: no {first!r} here; there are {', '.join(names)}")
        value = getattr(owner, first)
        if rest and dataclasses.is_dataclass(value):
            parts.setdefault(first, {})[rest] = text
        elif rest:
            raise InputError(f"--set {name}: {first} has no parts")
        elif dataclasses.is_dataclass(value):
            own = ", ".join(field.name for field in dataclasses.fields(value))
            raise InputError(f"--set {name}: say which part of it: {own}")
        else:
            new[first] = _parsed(text, hints[first], name)
    for first, own_changes in parts.items():
        new[first] = _changed(getattr(owner, first), f"{prefix}{first}.", own_changes)
    return replace(owner, **new)  # type: ignore[type-var]


def _parsed(text: str, kind: Any, name: str) -> Any:
    """A value of a field's type."""
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    for own in kinds:
        origin = typing.get_origin(own)
        if own is type(None) and value is None:
            return None
        if own is bool and isinstance(value, bool):
            return value
        if own is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if own is float and _is_number(value):
            return float(value)
        if origin is tuple and isinstance(value, list):
            parts = typing.get_args(own)
            if len(parts) == len(value) and set(parts) == {float} and all(map(_is_number, value)):
                return tuple(float(part) for part in value)
            if len(parts) == 2 and parts[1] is Ellipsis and all(isinstance(v, str) for v in value):
                return tuple(value)
    for own in kinds:
        if own is str or typing.get_origin(own) is typing.Literal:
            return text
    wanted = getattr(kind, "__name__", str(kind))
    raise InputError(f"--set {name}={text}: expected {wanted}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _built(kind: Any, content: Any) -> Any:
    """A dataclass from what `asdict` and JSON made of it."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _built(hints[name], value) for name, value in content.items()})  # type: ignore[operator]
    return tuple(content) if isinstance(content, list) else content
