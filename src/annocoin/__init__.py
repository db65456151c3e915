"""annocoin: weakly supervised instance segmentation, from cheap labels to instance masks."""

from annocoin.data import (
    load_evaluation,
    load_labelled,
    load_weak,
    read_predictions,
    with_predictions,
    write_dataset,
    write_predictions,
)
from annocoin.errors import InputError, Problems
from annocoin.evaluation import Evaluator, evaluate
from annocoin.types import Annotation, Instances, Mark

__all__ = [
    "Annotation",
    "Evaluator",
    "InputError",
    "Instances",
    "Mark",
    "Problems",
    "evaluate",
    "load_evaluation",
    "load_labelled",
    "load_weak",
    "read_predictions",
    "with_predictions",
    "write_dataset",
    "write_predictions",
]
__version__ = "0.1.0"
