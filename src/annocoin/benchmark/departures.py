"""Our departures from the paper's text: each turned back into the printed form, and all at once.

docs/method.md has the equation and the reason of each. Runs have the same data, steps and random
seeds. Seeds are shared by all runs: the rule of their back-propagation is not a row.
"""

from __future__ import annotations

from collections.abc import Mapping

from annocoin.data.dataset import Supervision
from annocoin.engine.config import Config
from annocoin.engine.overrides import override

Changes = dict[str, str]
"""Values at the dotted names of a configuration."""

OURS, ALL, BOXES = "ours", "all printed", "boxes:"

SCORING, TRAINING = "conditional.scoring.", "conditional.training."
ARCHITECTURE = "conditional.architecture."

ALL_REGIONS: Changes = {
    f"{SCORING}select_all": "true",
    f"{SCORING}extra_margin": "null",
    f"{SCORING}instance_penalty": "0",
    f"{SCORING}local_search": "false",
}
"""Algorithm 1 until no region is left."""

PRINTED: dict[str, Changes] = {
    "noise per pixel": {f"{ARCHITECTURE}noise": "pixel", f"{ARCHITECTURE}noise_channels": "1"},
    "linear noise": {f"{ARCHITECTURE}relu": "false"},
    "scores without a factor": {
        f"{ARCHITECTURE}score_scale": "1",
        f"{ARCHITECTURE}bias_outside": "true",
    },
    "unary: no seed prior": {f"{SCORING}seed_prior_weight": "0"},
    "unary: no tables": {
        f"{SCORING}prediction_weight": "0",
        f"{SCORING}prediction_weight_spread": "0",
    },
    "pairwise": {f"{SCORING}pairwise": "literal", f"{SCORING}difference": "neighbourhood"},
    "any region for a tag": {"conditional.require_peak": "false"},
    "until no region is left": ALL_REGIONS,
    "class by class": {
        f"{SCORING}share_regions": "true",
        f"{SCORING}cross_class_nms_threshold": "1",
    },
    "overlap of the later": {f"{SCORING}overlap_denominator": "later"},
    "masks are regions": {f"{SCORING}mask_threshold": "null"},
    "one network": {"teacher": "null"},
    "tables of RoIs": {"conditional.tables": "rois", "conditional.average_tables": "false"},
    "tables of all classes": {f"{TRAINING}restrict_to_annotation": "false"},
    "losses without a bound": {
        "conditional.task_loss.clamp": "null",
        "conditional.task_loss.mask_scored_regions": "null",
    },
    "entropy of Pr_p": {"prediction.losses.pointwise": "false"},
    "boxes in expectation": {
        "prediction.losses.expected_boxes": "true",
        "prediction.losses.pointwise": "false",
    },
    "loss of samples once": {f"{TRAINING}diversity_weight": "1"},
    "epsilon +1": {f"{TRAINING}epsilon": "1"},
    "augmented labellings as found": {f"{TRAINING}keep_better": "false"},
    "K = 10": {f"{TRAINING}samples": "10"},
    "no last training": {"prediction.training.final_steps": "0"},
    "SGD and rates of Mask R-CNN": {
        "prediction.training.optimizer": "sgd",
        "prediction.training.lr": "0.005",
        "prediction.training.lr_milestones": "[0.75]",
        "prediction.training.lr_factors": "[0.1]",
        "prediction.training.backbone_lr_factor": "1",
        "prediction.training.weight_decay": "1e-4",
        "prediction.training.max_grad_norm": "null",
        "prediction.training.scale_range": "[1,1]",
    },
    "seed pixels as targets": {f"{TRAINING}targets": "pixels"},
    "evidence of votes": {"conditional.evidence": "votes"},
    "only regions on seeds": {"conditional.top_regions": "0"},
    "boxes: high overlap": {"conditional.best_fit_share": "0"},
    "boxes: until no region is left": {**ALL_REGIONS, "conditional.box_allows_extra": "true"},
    "boxes: tight around regions": {"conditional.annotated_boxes": "false"},
    "one network from the seeds on": {
        f"{TRAINING}foreground_bias": "0",
        f"{TRAINING}noise_strength": "0",
    },
    "Adam and rates of the U-Net": {
        f"{TRAINING}optimizer": "adam",
        f"{TRAINING}initial_lr": "1e-4",
        f"{TRAINING}lr": "1e-4",
        f"{TRAINING}lr_milestones": "[0.3333333333333333,0.6666666666666666]",
        f"{TRAINING}lr_factors": "[0.5,0.1]",
        f"{TRAINING}weight_decay": "1e-5",
        f"{TRAINING}max_grad_norm": "null",
    },
}
"""The printed forms, one departure each. The plain U-Net and its batches are left out: they would
change the cost of a run."""

READINGS: dict[str, Changes] = {
    "pairwise, difference of pairs": {f"{SCORING}pairwise": "literal"},
    "pairwise, normalised": {f"{SCORING}pairwise": "normalised"},
    "pairwise, edge-votes": {f"{SCORING}pairwise": "edge-votes"},
}
"""Other readings of the pairwise term."""


def departures(ours: Config, supervision: Supervision) -> dict[str, Changes]:
    """The changes of each row that differs from our configuration, and of ours: none."""
    rows: dict[str, Changes] = {OURS: {}}
    together: Changes = {}
    for name, printed in {**PRINTED, **READINGS}.items():
        if name.startswith(BOXES) and supervision != "box":
            continue
        changes = _same_steps(ours, printed)
        if ours.teacher is None:
            changes.pop("teacher", None)
        elif "prediction.training.final_steps" in changes:
            changes["teacher"] = "null"  # whose network cannot be the result
        if override(ours, changes) != ours:
            rows[name] = changes
            together |= changes if name in PRINTED else {}
    return {**rows, ALL: together}


def _same_steps(ours: Config, changes: Mapping[str, str]) -> Changes:
    """Without a last training, its steps belong to the rounds."""
    changes = dict(changes)
    if "prediction.training.final_steps" in changes:
        training = ours.prediction.training
        total = ours.rounds * training.steps + training.final_steps
        per_round = total // ours.rounds if training.continued else training.final_steps
        changes["prediction.training.steps"] = str(per_round)
    return changes
