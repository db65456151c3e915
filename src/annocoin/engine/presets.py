"""Presets of whole runs, by name: plain functions from the classes to a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from annocoin.conditional.networks import ConditionalArchitecture
from annocoin.conditional.scoring import ScoringOptions
from annocoin.engine.classifier_training import options_for
from annocoin.engine.config import (
    FROM_CLASSIFIER,
    ConditionalOptions,
    ConditionalPreset,
    Config,
    PredictionOptions,
    PredictionPreset,
    override,
    with_weights,
)
from annocoin.errors import check_choice
from annocoin.prediction.networks import PredictionArchitecture
from annocoin.prediction.soft_losses import LossOptions
from annocoin.regions.proposals import RegionOptions
from annocoin.seeds.seeder import SeedOptions

Classes = tuple[str, ...]


def synthetic(classes: Classes) -> Config:
    """Small images, small networks that bring their weights: minutes on two cores."""
    return Config(
        regions=RegionOptions(),
        classifier=options_for("tiny", epochs=9, batch=4, head_rate=2e-3, trunk_rate=2e-3),
        seeds=SeedOptions(),
        conditional=ConditionalPreset(
            ConditionalArchitecture(classes, "tiny", size=160),
            ConditionalOptions(
                scoring=ScoringOptions(
                    prior=0.0,
                    sharpness=0.5,
                    instance_penalty=3.0,
                    nms_threshold=0.15,
                    local_search=True,
                ),
                initial_steps=140,
                steps=30,
                samples=6,
            ),
        ),
        prediction=PredictionPreset(
            PredictionArchitecture(
                classes,
                "tiny",
                size=128,
                longest=256,
                channels=64,
                hidden=1024,
                mask_layers=2,
                smallest=20,
                proposals=200,
                detections=30,
                mask_sampling=1,
            ),
            PredictionOptions(
                losses=LossOptions(anchors=64, rois=32, entropy=0.0),
                steps=180,
                final_steps=380,
                batch=4,
                rate=1e-3,
                body_rate=1.0,
                frozen=4,
            ),
        ),
        rounds=1,
    )


def voc_cpu(classes: Classes) -> Config:
    """Photographs on two cores in an evening; the networks' features know the tags beforehand."""
    return Config(
        regions=RegionOptions(),
        classifier=options_for("mobilenet_v2", size=320, epochs=5, frozen=4),
        seeds=SeedOptions(),
        conditional=ConditionalPreset(
            ConditionalArchitecture(classes, "unet-mobilenet_v2", size=192),
            ConditionalOptions(
                scoring=ScoringOptions(prior=2.0),
                initial_steps=200,
                steps=40,
                samples=10,
                noise=0.5,
            ),
            weights=FROM_CLASSIFIER,
        ),
        prediction=PredictionPreset(
            PredictionArchitecture(
                classes,
                "mobilenet_v2",
                size=224,
                longest=352,
                channels=64,
                hidden=1024,
                mask_layers=2,
                smallest=24,
                proposals=300,
                detections=50,
                mask_sampling=1,
            ),
            PredictionOptions(
                losses=LossOptions(anchors=128, rois=64, entropy=0.0, shared_masks=True),
                steps=300,
                final_steps=900,
                batch=4,
                rate=1e-3,
                body_rate=0.1,
                frozen=7,
                scales=(0.8, 1.1),
            ),
            weights=FROM_CLASSIFIER,
        ),
        rounds=2,
    )


def voc_cpu_r50(classes: Classes) -> Config:
    """The same with a ResNet-50, for processors that compute in bfloat16 (AMX, AVX-512 BF16)."""
    small = voc_cpu(classes)
    architecture, learning = small.prediction.architecture, small.prediction.learning
    return replace(
        small,
        classifier=options_for("resnet50", size=320, epochs=4, frozen=6, precision="bf16"),
        conditional=ConditionalPreset(
            ConditionalArchitecture(classes, "unet-mobilenet_v2", size=256),
            ConditionalOptions(initial_steps=300, steps=60, samples=10, noise=0.5),
        ),
        prediction=PredictionPreset(
            replace(architecture, backbone="resnet50", size=256, longest=448, channels=96),
            replace(learning, rate=5e-4, frozen=6),
            weights=FROM_CLASSIFIER,
        ),
    )


def voc_r50(classes: Classes) -> Config:
    """The paper's setting for tags: ResNet-50, K = 10, gamma .5, |epsilon| 1, four rounds."""
    return _paper(classes, "resnet50")


def voc_r101(classes: Classes) -> Config:
    """The paper's setting for boxes: ResNet-101."""
    return _paper(classes, "resnet101")


def voc_r50_literal(classes: Classes) -> Config:
    """The same as `voc_r50`, with the paper's words at face value where ours measured better.

    PRM's own rule for seeds, `paper_literal`'s conditional network, Mask R-CNN's own SGD.
    """
    ours = voc_r50(classes)
    literal, steps = paper_literal(classes), ours.conditional.learning
    return replace(
        ours,
        seeds=SeedOptions(rule="published"),
        conditional=replace(
            literal,
            architecture=replace(literal.architecture, size=ours.conditional.architecture.size),
            learning=replace(
                literal.learning, initial_steps=steps.initial_steps, steps=steps.steps
            ),
        ),
        prediction=replace(
            ours.prediction,
            learning=replace(
                ours.prediction.learning,
                optimizer="sgd",
                rate=0.005,  # .02 for 16 images
                body_rate=1.0,
                weight_decay=1e-4,
                scales=(1.0, 1.0),
            ),
        ),
    )


def _paper(classes: Classes, backbone: str) -> Config:
    """Full resolution and usual schedules of Mask R-CNN; wants a GPU."""
    return Config(
        regions=RegionOptions(),
        classifier=options_for("resnet50"),
        seeds=SeedOptions(),
        conditional=ConditionalPreset(
            ConditionalArchitecture(classes, "unet-resnet50", size=512),
            ConditionalOptions(initial_steps=4000, steps=2000, samples=10, noise=0.5),
        ),
        prediction=PredictionPreset(
            PredictionArchitecture(classes, backbone),
            PredictionOptions(
                losses=LossOptions(shared_masks=False),
                steps=4000,
                final_steps=8000,
                batch=4,
                rate=2e-4,
                body_rate=0.1,
                frozen=5,
                scales=(0.8, 1.0),
            ),
        ),
        rounds=4,
    )


PRESETS: dict[str, Callable[[Classes], Config]] = {
    "synthetic": synthetic,
    "voc-cpu": voc_cpu,
    "voc-cpu-r50": voc_cpu_r50,
    "voc-r50": voc_r50,
    "voc-r101": voc_r101,
    "voc-r50-literal": voc_r50_literal,
}


def preset(name: str, classes: Classes, **changes: Any) -> Config:
    """A preset by name; `changes` replace fields of it."""
    check_choice("preset", name, PRESETS)
    return replace(PRESETS[name](classes), **changes)


def configured(
    name: str, classes: Classes, changes: Mapping[str, str], weights: Path | None = None
) -> Config:
    """A preset with changes, see `override`, and with weights from a folder, see `with_weights`.

    Files are looked for by the backbones that the changes say; a change of weights wins over them.
    """
    config = override(preset(name, classes), changes)
    return config if weights is None else override(with_weights(config, weights), changes)


def measured_best(classes: tuple[str, ...], trunk: str = "unet-resnet50") -> ConditionalPreset:
    """What measured best; docs/decisions.md says how."""
    return ConditionalPreset(ConditionalArchitecture(classes, trunk), ConditionalOptions())


def paper_literal(classes: tuple[str, ...], trunk: str = "unet") -> ConditionalPreset:
    """The paper's words at face value, where they leave a choice.

    A channel of noise for every pixel, one linear 1x1 convolution, averages over the image without
    a factor, sums of edges and of neighbours, the printed test of overlap and the printed algorithm
    that goes on until no region is left, pixels of the seeds as first labels, regions that a seed
    touches, rates of the probabilistic U-Net.
    """
    architecture = ConditionalArchitecture(
        classes, trunk, noise="pixel", noise_channels=1, relu=False, over="image", scale=1.0
    )
    scoring = ScoringOptions(
        prior=0.0,
        prediction_weight=0.0,
        prediction_weight_spread=0.0,
        pairwise="literal",
        overlap="later",
        cross_class_nms_threshold=1.0,
        select_all=True,
    )
    learning = ConditionalOptions(
        scoring=scoring,
        targets="pixels",
        foreground_bias=0.0,
        noise=0.0,
        epsilon=1.0,
        diversity=1.0,
        conditioned=False,
        initial_rate=1e-4,
        rate=1e-4,
        weight_decay=1e-5,
    )
    return ConditionalPreset(architecture, learning, best=0, seeded=False)


CONDITIONAL_PRESETS: dict[str, Callable[..., ConditionalPreset]] = {
    "default": measured_best,
    "paper-literal": paper_literal,
}


def conditional_preset(name: str, classes: tuple[str, ...], **changes: Any) -> ConditionalPreset:
    """A conditional_preset by name; `changes` are its function's arguments."""
    check_choice("conditional_preset", name, CONDITIONAL_PRESETS)
    return CONDITIONAL_PRESETS[name](classes, **changes)
