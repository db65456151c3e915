"""Presets of whole runs: plain functions from the names of the classes to a configuration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from annocoin.backbones import IMAGENET, SCRATCH, TINY, TINY_LAYERS
from annocoin.conditional.networks import ConditionalArchitecture
from annocoin.conditional.scoring import ScoringOptions
from annocoin.engine.config import Config
from annocoin.engine.methods import ANNOCOIN, BaselineTraining
from annocoin.engine.network_config import (
    FROM_CLASSIFIER,
    ClassifierOptions,
    ConditionalConfig,
    ConditionalTraining,
    PredictionConfig,
    PredictionTraining,
)
from annocoin.engine.overrides import NETWORKS, override, weights_folder
from annocoin.errors import InputError, check_choice
from annocoin.objective.task_loss import TaskLossOptions
from annocoin.prediction.networks import PredictionArchitecture
from annocoin.prediction.soft_losses import LossOptions
from annocoin.regions.proposals import RegionOptions
from annocoin.seeds.seeder import SeedOptions

Classes = tuple[str, ...]


def synthetic(classes: Classes) -> Config:
    """Small images and small networks with weights of the package: minutes on two cores."""
    return Config(
        regions=RegionOptions(),
        classifier=classifier_options(TINY, epochs=9, batch_size=4, head_lr=2e-3, backbone_lr=2e-3),
        seeds=SeedOptions(),
        conditional=ConditionalConfig(
            ConditionalArchitecture(classes, "tiny", size=160),
            ScoringOptions(
                seed_prior_weight=0.0,
                vote_sharpness=0.5,
                instance_penalty=3.0,
                nms_threshold=0.15,
                local_search=True,
                mask_threshold=0.35,
            ),
            ConditionalTraining(initial_steps=140, steps=30, samples=6),
        ),
        prediction=PredictionConfig(
            PredictionArchitecture(
                classes,
                "tiny",
                min_size=128,
                max_size=256,
                fpn_channels=64,
                representation_size=1024,
                mask_layers=2,
                anchor_size=20,
                rpn_top_n=200,
                detections_per_image=30,
                mask_sampling_ratio=1,
            ),
            LossOptions(anchors_per_image=64, rois_per_image=32, pointwise=True),
            PredictionTraining(
                steps=180, final_steps=380, lr=1e-3, backbone_lr_factor=1.0, frozen_layers=4
            ),
        ),
        rounds=1,
        baseline=BaselineTraining(steps=300, batch_size=4),
    )


def voc_cpu(classes: Classes) -> Config:
    """Photographs on two cores: a ResNet-50 labels them, a MobileNetV2 learns from its labels."""
    prediction = PredictionConfig(
        PredictionArchitecture(
            classes,
            "mobilenet_v2",
            min_size=224,
            max_size=352,
            fpn_channels=64,
            representation_size=1024,
            mask_layers=2,
            anchor_size=24,
            rpn_top_n=300,
            detections_per_image=50,
            mask_sampling_ratio=1,
        ),
        LossOptions(
            anchors_per_image=128, rois_per_image=64, pointwise=True, class_agnostic_masks=True
        ),
        PredictionTraining(
            steps=900,
            final_steps=1500,
            continued=False,
            lr=1e-3,
            backbone_lr_factor=0.1,
            frozen_layers=7,
            scale_range=(0.8, 1.1),
        ),
    )
    return Config(
        regions=RegionOptions(),
        classifier=classifier_options(
            "resnet50", size=320, epochs=3, frozen_layers=6, peak_fraction=0.0
        ),
        seeds=SeedOptions(threshold=0.5, responses="maps", map_scales=(1.0, 1.5)),
        conditional=ConditionalConfig(
            # a small network, trained for minutes, counts less than the class maps
            ConditionalArchitecture(classes, "unet-mobilenet_v2", size=192, score_scale=2.0),
            ScoringOptions(
                seed_prior_weight=0.5,
                prediction_weight=3.0,
                extra_margin=1.0,
                instance_penalty=-1.4,
                mask_threshold=0.4,
            ),
            ConditionalTraining(
                targets="maps", initial_steps=200, steps=40, foreground_bias=1.0, noise_strength=0.5
            ),
            require_peak=False,
            evidence="maps",
            tables="detections",
            detection_scales=(1.0, 1.4),
            average_tables=True,
        ),
        prediction=prediction,
        teacher=_resnet50(prediction),
        rounds=2,
        # three passes over VOC's 1,464 images, as in IRN, whose constants are for about 500 pixels
        baseline=BaselineTraining(steps=550, size=480),
    )


def voc_cpu_r50(classes: Classes) -> Config:
    """The same with the ResNet-50 as the result, for processors with bfloat16 (AMX, AVX-512 BF16).

    Its rounds are those of `voc-cpu` with bfloat16: in the same folder, only the last training is
    new.
    """
    small = voc_cpu(classes)
    assert small.teacher is not None
    return replace(small, prediction=small.teacher, teacher=None).in_bfloat16()


def _resnet50(prediction: PredictionConfig) -> PredictionConfig:
    """A network of `voc_cpu` with the classifier's ResNet-50 as its backbone."""
    return replace(
        prediction,
        weights=FROM_CLASSIFIER,
        architecture=replace(
            prediction.architecture,
            backbone="resnet50",
            min_size=256,
            max_size=448,
            fpn_channels=96,
        ),
        training=replace(prediction.training, steps=600, lr=5e-4, frozen_layers=6),
    )


def voc_r50(classes: Classes) -> Config:
    """The paper's setting for tags: ResNet-50, K = 10, gamma .5, |epsilon| 1, four rounds."""
    return _paper(classes, "resnet50")


def voc_r101(classes: Classes) -> Config:
    """The paper's setting for boxes: ResNet-101."""
    return _paper(classes, "resnet101")


def voc_r50_literal(classes: Classes) -> Config:
    """`voc_r50` with the paper's text at face value where our default departs from it.

    PRM's back-propagation for the seeds; a channel of noise per pixel and one linear 1x1
    convolution; averages over the image without a factor; sums of edges, of neighbours and of
    squared differences; the printed overlap test and the printed algorithm, which runs for each
    class until no region is left, boxes included; seed pixels as first labels; regions that a seed
    touches or that overlap a box; losses of all regions without a bound, loss augmented labellings
    as they are found; boxes in expectation, tight around regions; optimizer, learning rates and
    batches of the probabilistic U-Net; those of Mask R-CNN; no training after the rounds, which
    have its steps instead. docs/method.md lists all options.
    """
    ours = voc_r50(classes)
    return replace(
        ours,
        classifier=replace(ours.classifier, peak_fraction=1.0),
        seeds=SeedOptions(rule="published"),
        conditional=ConditionalConfig(
            ConditionalArchitecture(
                classes,
                "unet",
                size=ours.conditional.architecture.size,
                upsample=False,
                noise="pixel",
                noise_channels=1,
                relu=False,
                pool_over="image",
                score_scale=1.0,
                bias_outside=True,
            ),
            ScoringOptions(
                seed_prior_weight=0.0,
                prediction_weight=0.0,
                prediction_weight_spread=0.0,
                pairwise="literal",
                difference="neighbourhood",
                overlap_denominator="later",
                cross_class_nms_threshold=1.0,
                share_regions=True,
                select_all=True,
            ),
            replace(
                ours.conditional.training,
                targets="pixels",
                foreground_bias=0.0,
                noise_strength=0.0,
                epsilon=1.0,
                keep_better=False,
                diversity_weight=1.0,
                restrict_to_annotation=False,
                batch_size=10,
                optimizer="adam",
                initial_lr=1e-4,
                lr=1e-4,
                lr_milestones=(1 / 3, 2 / 3),
                lr_factors=(0.5, 0.1),
                weight_decay=1e-5,
                max_grad_norm=None,
            ),
            top_regions=0,
            require_peak=False,
            best_fit_share=0.0,
            box_allows_extra=True,
            annotated_boxes=False,
            task_loss=TaskLossOptions(clamp=None, mask_scored_regions=None),
        ),
        prediction=replace(
            ours.prediction,
            losses=LossOptions(expected_boxes=True),
            training=replace(
                ours.prediction.training,
                steps=ours.prediction_steps // ours.rounds,
                final_steps=0,
                optimizer="sgd",
                lr=0.005,  # .02 for 16 images
                lr_milestones=(0.75,),  # 120k of 160k
                lr_factors=(0.1,),
                backbone_lr_factor=1.0,
                weight_decay=1e-4,
                max_grad_norm=None,
                scale_range=(1.0, 1.0),
            ),
        ),
    )


def _paper(classes: Classes, backbone: str) -> Config:
    """Full resolution and the usual schedule of Mask R-CNN; needs a GPU."""
    return Config(
        regions=RegionOptions(),
        classifier=classifier_options("resnet50"),
        seeds=SeedOptions(),
        conditional=ConditionalConfig(
            ConditionalArchitecture(classes, "unet-resnet50", size=512),
            training=ConditionalTraining(initial_steps=4000, steps=2000, noise_strength=0.5),
        ),
        prediction=PredictionConfig(
            PredictionArchitecture(classes, backbone),
            training=PredictionTraining(
                steps=4000,
                final_steps=8000,
                backbone_lr_factor=0.1,
                frozen_layers=5,
                scale_range=(0.8, 1.0),
            ),
        ),
    )


def classifier_options(backbone: str, **changes: Any) -> ClassifierOptions:
    """Default options of the classifier for a backbone, with changes."""
    options: dict[str, Any] = {"backbone": backbone}
    if backbone == TINY:
        options |= {"size": 256, "epochs": 6, "head_lr": 3e-3, "backbone_lr": 3e-3}
        options |= {"peak_fraction": 1.0, "peak_sharpness": 1.0}
        if changes.get("weights") != SCRATCH:
            options["frozen_layers"] = TINY_LAYERS
    return ClassifierOptions(**{**options, **changes})


PRESETS: dict[str, Callable[[Classes], Config]] = {
    "synthetic": synthetic,
    "voc-cpu": voc_cpu,
    "voc-cpu-r50": voc_cpu_r50,
    "voc-r50": voc_r50,
    "voc-r101": voc_r101,
    "voc-r50-literal": voc_r50_literal,
}


def preset(name: str, classes: Classes) -> Config:
    """A preset by name."""
    check_choice("preset", name, PRESETS)
    return PRESETS[name](classes)


def configure(
    name: str,
    classes: Classes,
    changes: Mapping[str, str] | None = None,
    *,
    rounds: int | None = None,
    seed: int | None = None,
    weights: Path | None = None,
    networks: Collection[str] = NETWORKS,
    method: str = ANNOCOIN,
) -> Config:
    """A preset with changes at dotted names, see `override`, and weights from a folder.

    A network whose preset starts from the classifier, but whose backbone the changes make another
    than the classifier's, starts from ImageNet weights.

    Args:
        rounds: 0 trains the steps of all rounds at once, on the retrieved seeds.
        weights, networks: see `weights_folder`.
        method: of `annocoin.engine.methods`; a peer has no rounds, but as many steps.
    """
    config, changes = preset(name, classes), dict(changes or {})
    if changes.get("rounds") == "0":
        raise InputError("rounds=0: use --rounds 0, which keeps the number of steps")
    backbone = changes.get("classifier.backbone", config.classifier.backbone)
    for part in config.trained_networks:
        key, default = f"{part}.weights", getattr(config, part)
        option = "trunk" if part == "conditional" else "backbone"
        encoder = changes.get(f"{part}.architecture.{option}", _backbone_of(default))
        encoder = encoder.removeprefix("unet-")
        if part in changes:  # --set teacher=null
            continue
        if default.weights == FROM_CLASSIFIER and encoder != backbone:
            changes.setdefault(key, IMAGENET)
    config = override(config, changes)
    if weights is not None:
        config = weights_folder(config, weights, networks)
    if rounds is not None:
        if method != ANNOCOIN:
            raise InputError(f"--rounds: method {method} has none; leave --rounds out")
        config = config.without_rounds() if rounds == 0 else replace(config, rounds=rounds)
    config = config.with_method(method)
    return config if seed is None else replace(config, seed=seed)


def _backbone_of(part: ConditionalConfig | PredictionConfig) -> str:
    architecture = part.architecture
    if isinstance(architecture, ConditionalArchitecture):
        return architecture.trunk
    return architecture.backbone
