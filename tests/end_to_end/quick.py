"""A whole run in seconds: everything small."""

from __future__ import annotations

QUICK = {
    "regions.boundaries": "gradient",
    "regions.limit": "60",
    "classifier.size": "64",
    "classifier.epochs": "1",
    "classifier.batch": "4",
    "conditional.architecture.size": "64",
    "conditional.best": "20",
    "conditional.learning.initial_steps": "4",
    "conditional.learning.steps": "3",
    "conditional.learning.batch": "2",
    "conditional.learning.samples": "3",
    "prediction.architecture.size": "64",
    "prediction.architecture.channels": "16",
    "prediction.architecture.hidden": "32",
    "prediction.architecture.mask_layers": "1",
    "prediction.architecture.proposals": "50",
    "prediction.learning.losses.anchors": "16",
    "prediction.learning.losses.rois": "8",
    "prediction.learning.steps": "4",
    "prediction.learning.final_steps": "4",
    "prediction.learning.batch": "2",
    "rounds": "1",
}
WORDS = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
"""The same for the command line."""
