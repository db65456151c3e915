"""Pr_c: a distribution over pseudo labels that always agree with the annotation."""

from annocoin.conditional.candidates import Candidates, ScoringOptions, draw_samples
from annocoin.conditional.clashes import Clashes, clashes
from annocoin.conditional.inference import Labelling, infer
from annocoin.conditional.networks import Architecture, ConditionalNetwork
from annocoin.conditional.requirements import Requirement, Requirements, requirements_of
from annocoin.conditional.samples import Samples
from annocoin.conditional.storage import read_conditional, write_conditional

__all__ = [
    "Architecture",
    "Candidates",
    "Clashes",
    "ConditionalNetwork",
    "Labelling",
    "Requirement",
    "Requirements",
    "Samples",
    "ScoringOptions",
    "clashes",
    "draw_samples",
    "infer",
    "read_conditional",
    "requirements_of",
    "write_conditional",
]
