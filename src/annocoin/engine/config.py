"""The configuration of a run: the options of all stages, collected in `Config`."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field, replace
from typing import Any

from annocoin.engine.methods import ANNOCOIN, METHODS, BaselineTraining
from annocoin.engine.network_config import (
    FROM_CLASSIFIER,
    ClassifierOptions,
    ConditionalConfig,
    PredictionConfig,
)
from annocoin.errors import InputError, check_choice, check_range
from annocoin.objective.diversity import GAMMA
from annocoin.regions.proposals import RegionOptions
from annocoin.seeds.seeder import SeedOptions


@dataclass(frozen=True)
class Config:
    """All options of a run, but for the dataset and the machine.

    Args:
        regions, classifier, seeds: of the first stages.
        conditional, prediction: the two networks.
        teacher: the prediction network of the rounds, if it is another one than that of the result;
            only its labels are used. None for the same.
        rounds: R, alternating rounds; 0 trains the prediction network once on the regions that
            are retrieved for the seeds (as WISE does).
        gamma: of the dissimilarity coefficient: the weight of the conditional distribution's self
            diversity; 1 - gamma is that of the prediction distribution's.
        seed: random seed.
        method: "annocoin", or the name of a peer, see `annocoin.engine.methods`; it has no rounds.
        baseline: training of the peer's own network, if it has one.
    """

    regions: RegionOptions
    classifier: ClassifierOptions
    seeds: SeedOptions
    conditional: ConditionalConfig
    prediction: PredictionConfig
    teacher: PredictionConfig | None = None
    rounds: int = 4
    gamma: float = GAMMA
    seed: int = 0
    method: str = ANNOCOIN
    baseline: BaselineTraining = field(default_factory=BaselineTraining)

    def __post_init__(self) -> None:
        check_range(self, least=("rounds", "seed"), fraction=("gamma",))
        check_choice("method", self.method, METHODS)
        if self.rounds and self.method != ANNOCOIN:
            raise InputError(
                f"method {self.method} with {self.rounds} rounds; only {ANNOCOIN} has rounds, name "
                "a peer with --method"
            )
        if self.regions.source is not None:
            raise InputError(
                f"regions.source {self.regions.source}: import the regions with `annocoin regions "
                "--from` and pass them with --regions"
            )
        if self.teacher is not None:
            self._check_teacher(self.teacher)
        self._check_backbones()

    def _check_teacher(self, teacher: PredictionConfig) -> None:
        """Raise unless the result can be trained apart from the rounds."""
        if teacher.architecture.classes != self.classes:
            raise InputError("the teacher has other classes than the prediction network")
        if not self.prediction.training.final_steps:
            raise InputError(
                "prediction.training.final_steps 0; with a teacher, the result is trained after "
                "the rounds: expected at least 1, or --set teacher=null"
            )
        for name in ("teacher", "prediction"):
            if getattr(self, name).training.continued:
                raise InputError(
                    f"{name}.training.continued true; with a teacher, each training starts anew: "
                    "expected false, or --set teacher=null"
                )

    def _check_backbones(self) -> None:
        """Raise if a network starts from a classifier with another backbone."""
        expected = (self.classifier.backbone, self.classifier.stride_in_1x1)
        conditional = self.conditional
        backbones = {
            "conditional": (conditional.encoder, conditional.architecture.stride_in_1x1),
            **{
                name: (network.architecture.backbone, network.architecture.stride_in_1x1)
                for name, network in self.prediction_networks.items()
            },
        }
        for name, backbone in backbones.items():
            if getattr(self, name).weights == FROM_CLASSIFIER and backbone != expected:
                raise InputError(
                    f"{name}.weights {FROM_CLASSIFIER}: the classifier is a {_title(*expected)}, "
                    f"the {name} network's backbone a {_title(*backbone)}; expected the same, or "
                    f"--set {name}.weights=imagenet"
                )

    @property
    def needs_classifier(self) -> bool:
        """Whether a network that is trained starts from the classifier."""
        names = self.trained_networks if self.rounds else ("prediction",)
        return FROM_CLASSIFIER in [getattr(self, name).weights for name in names]

    @property
    def prediction_networks(self) -> dict[str, PredictionConfig]:
        """The options of the prediction network and of the teacher, if there is one, by name."""
        networks = {"prediction": self.prediction, "teacher": self.teacher}
        return {name: network for name, network in networks.items() if network is not None}

    @property
    def labelling_network(self) -> PredictionConfig:
        """The options of the prediction network of the rounds."""
        return self.teacher or self.prediction

    @property
    def trained_networks(self) -> tuple[str, ...]:
        """The names of all networks but the classifier."""
        return ("conditional", *self.prediction_networks)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.prediction.architecture.classes

    @property
    def prediction_steps(self) -> int:
        """Steps of the prediction network whose weights are the result."""
        training = self.prediction.training
        continued = self.rounds * training.steps * training.continued
        return continued + training.final_steps or training.steps

    def without_rounds(self) -> Config:
        """The same number of steps of the prediction network in a single training."""
        training = replace(self.prediction.training, final_steps=self.prediction_steps)
        prediction = replace(self.prediction, training=training)
        return replace(self, rounds=0, prediction=prediction, teacher=None)

    def with_method(self, method: str) -> Config:
        """The same with a peer, whose labels train the same network for as many steps."""
        check_choice("method", method, METHODS)
        if method == ANNOCOIN:
            return self
        config, seeds = self.without_rounds(), METHODS[method].seed_options(self.seeds)
        if METHODS[method].projection:
            losses = replace(self.prediction.losses, masks="projection", pointwise=True)
            config = replace(config, prediction=replace(config.prediction, losses=losses))
        return replace(config, method=method, seeds=seeds)

    def in_bfloat16(self, *, regions: bool = True) -> Config:
        """The same with bfloat16 in every stage that has a precision of its own.

        Args:
            regions: also in that of the regions, which are computed on the CPU on any machine.
        """
        parts: dict[str, Any] = {
            name: replace(network, training=replace(network.training, precision="bf16"))
            for name, network in self.prediction_networks.items()
        }
        parts["classifier"] = replace(self.classifier, precision="bf16")
        if regions:
            parts["regions"] = replace(self.regions, precision="bf16")
        return replace(self, seeds=replace(self.seeds, precision="bf16"), **parts)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, content: Any, where: str) -> Config:
        """The configuration that `to_json` gave; anything else is an `InputError`."""
        try:
            config: Config = _build(cls, content)
        except (TypeError, KeyError, AttributeError) as error:
            raise InputError(
                f"{where}: not a configuration of this version of annocoin ({error}); train anew"
            ) from None
        return config


def _build(kind: Any, content: Any) -> Any:
    """A dataclass from what `asdict` and JSON made of it."""
    if isinstance(kind, types.UnionType) and content is not None:
        kind = next(filter(dataclasses.is_dataclass, typing.get_args(kind)), kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: _build(hints[name], value) for name, value in content.items()})  # type: ignore[operator]
    return tuple(content) if isinstance(content, list) else content


def _title(backbone: str | None, stride_in_1x1: bool) -> str:
    return f"{backbone}, strides in 1x1" if stride_in_1x1 else str(backbone)
