"""annocoin: weakly supervised instance segmentation, from tags, points and boxes to masks.

Public names are imported on first use, so that `import annocoin` does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from annocoin.errors import InputError, Problems

if TYPE_CHECKING:
    from annocoin.api import label, train
    from annocoin.data.conversion import with_predictions, write_dataset
    from annocoin.data.images import read_image
    from annocoin.data.loading import load_evaluation, load_labelled, load_weak
    from annocoin.data.predictions import read_predictions, write_predictions
    from annocoin.engine.verification import verify_run
    from annocoin.evaluation.evaluator import Evaluator, evaluate
    from annocoin.report.comparison import write_comparison
    from annocoin.report.page import write_report
    from annocoin.trained import TrainedNetwork, TrainedRun, export, load, predict
    from annocoin.types import Annotation, Instances, WeakLabel

__version__ = "0.1.0"

__all__ = [
    "Annotation",
    "Evaluator",
    "InputError",
    "Instances",
    "Problems",
    "TrainedNetwork",
    "TrainedRun",
    "WeakLabel",
    "__version__",
    "evaluate",
    "export",
    "label",
    "load",
    "load_evaluation",
    "load_labelled",
    "load_weak",
    "predict",
    "read_image",
    "read_predictions",
    "train",
    "verify_run",
    "with_predictions",
    "write_comparison",
    "write_dataset",
    "write_predictions",
    "write_report",
]

_LAZY = {
    "api": ("label", "train"),
    "data.conversion": ("with_predictions", "write_dataset"),
    "data.images": ("read_image",),
    "data.loading": ("load_evaluation", "load_labelled", "load_weak"),
    "data.predictions": ("read_predictions", "write_predictions"),
    "engine.verification": ("verify_run",),
    "evaluation.evaluator": ("Evaluator", "evaluate"),
    "report.comparison": ("write_comparison",),
    "report.page": ("write_report",),
    "trained": ("TrainedNetwork", "TrainedRun", "export", "load", "predict"),
    "types": ("Annotation", "Instances", "WeakLabel"),
}
_MODULE_OF = {name: module for module, names in _LAZY.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'annocoin' has no attribute {name!r}")
    return getattr(import_module(f"annocoin.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
