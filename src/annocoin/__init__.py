"""annocoin: weakly supervised instance segmentation, from tags, points and boxes to masks.

Public names are imported on first use, so that `import annocoin` does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from annocoin.errors import InputError, Problems

if TYPE_CHECKING:
    from annocoin.api import TrainedRun, label, predict, train
    from annocoin.data.conversion import with_predictions, write_dataset
    from annocoin.data.images import read_image
    from annocoin.data.loading import load_evaluation, load_labelled, load_weak
    from annocoin.data.predictions import read_predictions, write_predictions
    from annocoin.evaluation.evaluator import Evaluator, evaluate
    from annocoin.types import Annotation, Instances, WeakLabel

__version__ = "0.1.0"

__all__ = [
    "Annotation",
    "Evaluator",
    "InputError",
    "Instances",
    "Problems",
    "TrainedRun",
    "WeakLabel",
    "__version__",
    "evaluate",
    "label",
    "load_evaluation",
    "load_labelled",
    "load_weak",
    "predict",
    "read_image",
    "read_predictions",
    "train",
    "with_predictions",
    "write_dataset",
    "write_predictions",
]

_LAZY = {
    "api": ("TrainedRun", "label", "predict", "train"),
    "data.conversion": ("with_predictions", "write_dataset"),
    "data.images": ("read_image",),
    "data.loading": ("load_evaluation", "load_labelled", "load_weak"),
    "data.predictions": ("read_predictions", "write_predictions"),
    "evaluation.evaluator": ("Evaluator", "evaluate"),
    "types": ("Annotation", "Instances", "WeakLabel"),
}
_MODULE_OF = {name: module for module, names in _LAZY.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'annocoin' has no attribute {name!r}")
    return getattr(import_module(f"annocoin.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
