"""annocoin: weakly supervised instance segmentation, from cheap labels to instance masks."""

from typing import TYPE_CHECKING, Any

from annocoin.data.conversion import with_predictions, write_dataset
from annocoin.data.loading import load_evaluation, load_labelled, load_weak
from annocoin.data.predictions import read_predictions, write_predictions
from annocoin.errors import InputError, Problems
from annocoin.evaluation.evaluator import Evaluator, evaluate
from annocoin.types import Annotation, Instances, WeakLabel

if TYPE_CHECKING:
    from annocoin.api import TrainedRun, label, predict, train


__all__ = [
    "Annotation",
    "Evaluator",
    "InputError",
    "Instances",
    "Problems",
    "TrainedRun",
    "WeakLabel",
    "evaluate",
    "label",
    "load_evaluation",
    "load_labelled",
    "load_weak",
    "predict",
    "read_predictions",
    "train",
    "with_predictions",
    "write_dataset",
    "write_predictions",
]


def __getattr__(name: str) -> Any:
    """What needs the networks is imported when it is asked for: that takes seconds."""
    if name in ("TrainedRun", "label", "predict", "train"):
        from annocoin import api

        return getattr(api, name)
    raise AttributeError(f"module 'annocoin' has no attribute {name!r}")


__version__ = "0.1.0"
