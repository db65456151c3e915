"""Pr_p: a torchvision Mask R-CNN that does not see the annotation, trained with soft targets."""

from annocoin.prediction.judging import judge
from annocoin.prediction.networks import Architecture, build_network
from annocoin.prediction.predicting import Predictor
from annocoin.prediction.soft_losses import LossOptions, SoftLosses
from annocoin.prediction.soft_targets import SoftTargets
from annocoin.prediction.storage import read_prediction, write_prediction

__all__ = [
    "Architecture",
    "LossOptions",
    "Predictor",
    "SoftLosses",
    "SoftTargets",
    "build_network",
    "judge",
    "read_prediction",
    "write_prediction",
]
