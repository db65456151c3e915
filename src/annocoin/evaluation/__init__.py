"""Average precision of instances, by four named protocols."""

from annocoin.evaluation.evaluator import THRESHOLDS, Evaluation, Evaluator, evaluate
from annocoin.evaluation.protocols import PROTOCOLS, Protocol

__all__ = ["PROTOCOLS", "THRESHOLDS", "Evaluation", "Evaluator", "Protocol", "evaluate"]
