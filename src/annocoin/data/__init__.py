"""Weak datasets, evaluation datasets, predictions: from files and to files."""

from annocoin.data.conversion import with_predictions, write_dataset
from annocoin.data.dataset import (
    EvaluationDataset,
    LabelledImage,
    LabelledImages,
    WeakDataset,
    WeakImage,
    weaken,
)
from annocoin.data.loading import load_evaluation, load_labelled, load_weak
from annocoin.data.predictions import read_predictions, write_predictions

__all__ = [
    "EvaluationDataset",
    "LabelledImage",
    "LabelledImages",
    "WeakDataset",
    "WeakImage",
    "load_evaluation",
    "load_labelled",
    "load_weak",
    "read_predictions",
    "weaken",
    "with_predictions",
    "write_dataset",
    "write_predictions",
]
