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
    "prediction.architecture.min_size": "64",
    "prediction.architecture.fpn_channels": "16",
    "prediction.architecture.representation_size": "32",
    "prediction.architecture.mask_layers": "1",
    "prediction.architecture.rpn_top_n": "50",
    "prediction.losses.anchors_per_image": "16",
    "prediction.losses.rois_per_image": "8",
    "prediction.learning.steps": "4",
    "prediction.learning.final_steps": "4",
    "prediction.learning.batch": "2",
    "rounds": "1",
}
WORDS = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
"""The same for the command line."""
