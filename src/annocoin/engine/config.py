"""The configuration of a run: one frozen dataclass per stage, collected in `Config`."""

from __future__ import annotations

import dataclasses
import types
import typing
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from annocoin.backbones import IMAGENET, Precision
from annocoin.conditional.networks import ConditionalArchitecture
from annocoin.conditional.requirements import BEST_FIT_SHARE, BOX_OVERLAP
from annocoin.conditional.scoring import ScoringOptions
from annocoin.engine.methods import ANNOCOIN, METHODS, BaselineTraining
from annocoin.errors import InputError, check_choice, check_positive, check_range
from annocoin.objective.diversity import GAMMA
from annocoin.objective.task_loss import TaskLossOptions
from annocoin.prediction.networks import PredictionArchitecture
from annocoin.prediction.soft_losses import LossOptions
from annocoin.regions.proposals import RegionOptions
from annocoin.seeds.region_filter import TOP_REGIONS
from annocoin.seeds.seeder import SeedOptions

FROM_CLASSIFIER = "classifier"
"""Weights of a network whose backbone starts from the backbone of the run's classifier."""

OptimizerName = Literal["adamw", "sgd"]
Targets = Literal["votes", "maps", "pixels"]
Evidence = Literal["votes", "maps"]
Tables = Literal["detections", "rois"]


@dataclass(frozen=True)
class ClassifierOptions:
    """Architecture and training of the image classifier.

    Args:
        backbone, weights, stride_in_1x1: see `annocoin.backbones.build_backbone`.
        size: side length of the square training images, in pixels.
        epochs: passes over the training images.
        batch_size: images per step and process.
        head_lr, backbone_lr: maximum learning rates of the new layer and of the backbone.
        weight_decay: of AdamW.
        frozen_layers: number of leading backbone modules that are not trained: 5 are a ResNet up
            to layer1, 6 up to layer2.
        peak_fraction: in this last fraction of the steps the class score is the mean over the
            peaks of the class map (peak stimulation); before, over the whole map.
        peak_sharpness: weight of high peaks in that mean, see `peak_scores`.
        precision: "bf16" uses bfloat16 autocast.
    """

    backbone: str = "resnet50"
    weights: str = IMAGENET
    stride_in_1x1: bool = False
    size: int = 448
    epochs: int = 20
    batch_size: int = 16
    head_lr: float = 1e-3
    backbone_lr: float = 1e-4
    weight_decay: float = 1e-4
    frozen_layers: int = 0
    peak_fraction: float = 0.25
    peak_sharpness: float = 0.0
    precision: Precision = "32"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            check_positive(name, getattr(self, name))
        check_choice("precision", self.precision, get_args(Precision))
        check_range(self, above=("head_lr", "backbone_lr"), least=("weight_decay", "frozen_layers"))
        check_range(self, fraction=("peak_fraction",))


@dataclass(frozen=True)
class ConditionalTraining:
    """Training of the conditional network.

    Args:
        targets: of the initial training: "votes" of the seeds for regions; class "maps", diffused
            over the image; or the "pixels" with a strong peak response, as the paper has it. Images
            with other labels than tags have "votes" instead of "maps".
        initial_steps, steps: of the initial training, and of each round.
        batch_size: images per step and process.
        initial_lr, lr: maximum learning rates of the two.
        weight_decay: of AdamW.
        max_grad_norm: gradient clipping.
        samples: K.
        epsilon: of the direct loss. Negative values move towards a labelling with a lower loss,
            positive ones, as in the paper, away from one with a higher loss.
        diversity_weight: factor of the task loss between two samples.
        restrict_to_annotation: restrict the loss tables to the annotated classes, see
            `restricted_loss_table`; False is the paper's table.
        pointwise: PW_c, a single sample without noise and self diversity.
        foreground_bias: added after the initial training to the margin of every pixel over the
            background: votes go to object parts too, so object pixels get less than half of them.
        noise_strength: standard deviation of the noise after the initial training, relative to
            that of the features, see `init_noise_weights`; with 0 its weights are learned instead.
    """

    targets: Targets = "votes"
    initial_steps: int = 400
    steps: int = 200
    batch_size: int = 8
    initial_lr: float = 1e-3
    lr: float = 3e-4
    weight_decay: float = 1e-4
    max_grad_norm: float = 5.0
    samples: int = 10
    epsilon: float = -1.0
    diversity_weight: float = 2.0
    restrict_to_annotation: bool = True
    pointwise: bool = False
    foreground_bias: float = 0.4
    noise_strength: float = 1.0

    def __post_init__(self) -> None:
        check_choice("targets", self.targets, get_args(Targets))
        for name in ("initial_steps", "steps", "batch_size", "samples"):
            check_positive(name, getattr(self, name))
        check_range(
            self,
            above=("initial_lr", "lr", "max_grad_norm"),
            least=("weight_decay", "diversity_weight", "noise_strength"),
        )
        if self.epsilon == 0:
            raise InputError("epsilon 0; expected another number, such as 1 or -1")


@dataclass(frozen=True)
class ConditionalConfig:
    """The conditional network.

    Args:
        architecture: of the network.
        scoring: of regions, and inference.
        training: of the network.
        top_regions: number of regions with the highest objectness that are kept beside those that
            a seed touches.
        require_peak: whether tags are compatible only with regions that contain a peak of their
            class.
        box_overlap, best_fit_share: the regions compatible with a box, see `requirements_of`.
        task_loss: of regions under the prediction network.
        evidence: the prior of regions: "votes" of the seeds, see `seed_prior`, or class "maps", see
            `map_prior`. Images with other labels than tags have "votes" instead of "maps".
        tables: the loss of a region under the prediction network: by the network's "detections",
            see `detected_iou`, or by its "rois", the heads' outputs on the region's box.
        detection_scales: sizes of the image, relative to that of the network's training, over which
            `detected_iou` is averaged; larger images show smaller objects.
        average_tables: average the tables over the prediction networks of all rounds so far, for
            images that these rounds had in common.
        weights: of the trunk, see `annocoin.conditional.trunks.build_trunk`; or "classifier", the
            backbone of the run's classifier.
    """

    architecture: ConditionalArchitecture
    scoring: ScoringOptions = field(default_factory=ScoringOptions)
    training: ConditionalTraining = field(default_factory=ConditionalTraining)
    top_regions: int = TOP_REGIONS
    require_peak: bool = True
    box_overlap: float = BOX_OVERLAP
    best_fit_share: float = BEST_FIT_SHARE
    task_loss: TaskLossOptions = field(default_factory=TaskLossOptions)
    evidence: Evidence = "votes"
    tables: Tables = "rois"
    detection_scales: tuple[float, ...] = (1.0,)
    average_tables: bool = False
    weights: str = IMAGENET

    def __post_init__(self) -> None:
        check_choice("evidence", self.evidence, get_args(Evidence))
        check_choice("tables", self.tables, get_args(Tables))
        check_range(self, fraction=("box_overlap", "best_fit_share"))
        scales = self.detection_scales
        if not scales or not all(0.25 <= scale <= 4 for scale in scales):
            raise InputError(
                f"detection_scales {scales}; expected factors of .25 to 4, such as [1]"
            )

    @property
    def encoder(self) -> str | None:
        """The backbone in its trunk; None without one."""
        trunk = self.architecture.trunk
        return None if trunk == "unet" else trunk.removeprefix("unet-")


@dataclass(frozen=True)
class PredictionTraining:
    """Training of the prediction network.

    Args:
        steps, final_steps: of each round, and of the last training after all rounds; 0 for no last
            training, as in the paper: the network of the last round is the result.
        continued: whether the training of a round continues that of the round before, with one
            learning rate schedule for all; otherwise each starts anew.
        batch_size: images per step and process.
        lr: maximum learning rate.
        backbone_lr_factor: of the pretrained backbone, as a factor of it.
        optimizer: "adamw", or "sgd" with momentum .9, as Mask R-CNN's.
        weight_decay: of the optimizer.
        max_grad_norm: gradient clipping.
        frozen_layers: number of leading backbone modules that are not trained.
        scale_range: scale jitter of the image size.
        precision: "bf16" uses bfloat16 autocast.
    """

    steps: int = 2000
    final_steps: int = 4000
    continued: bool = True
    batch_size: int = 4
    lr: float = 2e-4
    backbone_lr_factor: float = 0.2
    optimizer: OptimizerName = "adamw"
    weight_decay: float = 0.01
    max_grad_norm: float = 10.0
    frozen_layers: int = 0
    scale_range: tuple[float, float] = (1.0, 1.0)
    precision: Precision = "32"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size"):
            check_positive(name, getattr(self, name))
        check_choice("precision", self.precision, get_args(Precision))
        check_choice("optimizer", self.optimizer, get_args(OptimizerName))
        check_range(
            self,
            above=("lr", "backbone_lr_factor", "max_grad_norm"),
            least=("final_steps", "weight_decay", "frozen_layers"),
        )
        if not 0.25 <= self.scale_range[0] <= self.scale_range[1] <= 4:
            raise InputError(f"scale_range {self.scale_range}; expected rising factors, .25 to 4")


@dataclass(frozen=True)
class PredictionConfig:
    """The prediction network.

    Args:
        architecture: of the network.
        losses: sampling and weights of the losses.
        training: of the network.
        weights: of the backbone, see `annocoin.backbones.build_backbone`; or "classifier", the
            backbone of the run's classifier.
    """

    architecture: PredictionArchitecture
    losses: LossOptions = field(default_factory=LossOptions)
    training: PredictionTraining = field(default_factory=PredictionTraining)
    weights: str = IMAGENET


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

    def in_bfloat16(self) -> Config:
        """The same with bfloat16 in every stage that has a precision of its own."""
        parts: dict[str, Any] = {
            name: replace(network, training=replace(network.training, precision="bf16"))
            for name, network in self.prediction_networks.items()
        }
        parts["classifier"] = replace(self.classifier, precision="bf16")
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
