"""The options of each network of a run: its architecture, losses and training."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, get_args

from annocoin.backbones import IMAGENET, Precision
from annocoin.conditional.networks import ConditionalArchitecture
from annocoin.conditional.requirements import BEST_FIT_SHARE, BOX_OVERLAP
from annocoin.conditional.scoring import ScoringOptions
from annocoin.errors import InputError, check_choice, check_positive, check_range
from annocoin.objective.task_loss import TaskLossOptions
from annocoin.prediction.networks import PredictionArchitecture
from annocoin.prediction.soft_losses import LossOptions
from annocoin.seeds.region_filter import TOP_REGIONS

FROM_CLASSIFIER = "classifier"
"""Weights of a network whose backbone starts from the backbone of the run's classifier."""

OptimizerName = Literal["adam", "adamw", "sgd"]
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
        lr_milestones, lr_factors: of each training, see `PredictionTraining`.
        optimizer: "adamw"; "adam" or "sgd", in which weight decay is an L2 term of the loss.
        weight_decay: of the optimizer.
        max_grad_norm: gradient clipping; None for none.
        samples: K.
        epsilon: of the direct loss. Negative values move towards a labelling with a lower loss,
            positive ones, as in the paper, away from one with a higher loss.
        keep_better: use y_c as y_a (or y_b) where y_c has the greater loss augmented score, which
            happens because inference is greedy; the gradient is then 0. False, as in the paper,
            takes what inference finds.
        diversity_weight: factor of the task loss between two samples.
        restrict_to_annotation: restrict the loss tables to the annotated classes, see
            `restricted_loss_table`, and their log odds in training, see `clamp_log_odds` (unless
            `TaskLossOptions.clamp` is None); False is the paper's table.
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
    lr_milestones: tuple[float, ...] = ()
    lr_factors: tuple[float, ...] = ()
    optimizer: OptimizerName = "adamw"
    weight_decay: float = 1e-4
    max_grad_norm: float | None = 5.0
    samples: int = 10
    epsilon: float = -1.0
    keep_better: bool = True
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
            above=("initial_lr", "lr"),
            least=("weight_decay", "diversity_weight", "noise_strength"),
        )
        _check_optimizer(self)
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
        box_overlap, best_fit_share, box_allows_extra: the regions compatible with a box, and
            whether it may have several, see `requirements_of`.
        annotated_boxes: an instance of a box label has that box, as a target of the prediction
            network and in the labels; False, as in the paper, the tight box of its region.
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
    box_allows_extra: bool = False
    annotated_boxes: bool = True
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
        lr_milestones, lr_factors: after a warm-up, the learning rate is constant up to the first
            of these fractions of the training (of all rounds together if `continued`), and from
            each on, that factor of the maximum; without them it decays as a cosine.
        backbone_lr_factor: of the pretrained backbone, as a factor of it.
        optimizer: "adamw", "adam", or "sgd" with momentum .9, as Mask R-CNN's.
        weight_decay: of the optimizer.
        max_grad_norm: gradient clipping; None for none.
        frozen_layers: number of leading backbone modules that are not trained.
        scale_range: scale jitter of the image size.
        precision: "bf16" uses bfloat16 autocast.
    """

    steps: int = 2000
    final_steps: int = 4000
    continued: bool = True
    batch_size: int = 4
    lr: float = 2e-4
    lr_milestones: tuple[float, ...] = ()
    lr_factors: tuple[float, ...] = ()
    backbone_lr_factor: float = 0.2
    optimizer: OptimizerName = "adamw"
    weight_decay: float = 0.01
    max_grad_norm: float | None = 10.0
    frozen_layers: int = 0
    scale_range: tuple[float, float] = (1.0, 1.0)
    precision: Precision = "32"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size"):
            check_positive(name, getattr(self, name))
        check_choice("precision", self.precision, get_args(Precision))
        check_range(
            self,
            above=("lr", "backbone_lr_factor"),
            least=("final_steps", "weight_decay", "frozen_layers"),
        )
        _check_optimizer(self)
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


def _check_optimizer(training: ConditionalTraining | PredictionTraining) -> None:
    check_choice("optimizer", training.optimizer, get_args(OptimizerName))
    if training.max_grad_norm is not None:
        check_range(training, above=("max_grad_norm",))
    milestones, factors = training.lr_milestones, training.lr_factors
    rising = all(0 < first < second for first, second in pairwise((*milestones, 1.0)))
    if len(milestones) != len(factors) or not rising or not all(f >= 0 for f in factors):
        raise InputError(
            f"lr_milestones {milestones}, lr_factors {factors}; expected rising fractions of the "
            "training below 1, and as many factors of at least 0"
        )
