"""Presets of whole runs, by name: plain functions from the classes to a configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from annocoin import conditional, prediction
from annocoin.conditional import ScoringOptions
from annocoin.errors import check_choice
from annocoin.prediction import LossOptions
from annocoin.regions.making import RegionOptions
from annocoin.seeds import SeedOptions
from annocoin.seeds.classifier_training import options_for
from annocoin.training.config import Config, PredictionPreset
from annocoin.training.options import ConditionalOptions
from annocoin.training.prediction_options import PredictionOptions
from annocoin.training.presets import ConditionalPreset

Classes = tuple[str, ...]


def synthetic(classes: Classes) -> Config:
    """Small images, small networks that bring their weights: minutes on two cores."""
    return Config(
        regions=RegionOptions(),
        classifier=options_for("tiny"),
        seeds=SeedOptions(),
        conditional=ConditionalPreset(
            conditional.Architecture(classes, "tiny", size=160),
            ConditionalOptions(
                scoring=ScoringOptions(prior=0.0, sharpness=0.5),
                initial_steps=250,
                steps=60,
                samples=6,
            ),
        ),
        prediction=PredictionPreset(
            prediction.Architecture(
                classes,
                "tiny",
                size=128,
                longest=256,
                channels=64,
                hidden=256,
                mask_layers=2,
                smallest=20,
                proposals=200,
                detections=30,
                sampling=1,
            ),
            PredictionOptions(
                losses=LossOptions(anchors=64, rois=32),
                steps=150,
                final_steps=300,
                batch=4,
                rate=2e-3,
                body_rate=0.2,
                frozen=4,
            ),
        ),
        rounds=2,
    )


PRESETS: dict[str, Callable[[Classes], Config]] = {"synthetic": synthetic}


def run_preset(name: str, classes: Classes, **changes: Any) -> Config:
    """A preset by name; `changes` replace fields of it."""
    check_choice("preset", name, PRESETS)
    return replace(PRESETS[name](classes), **changes)
