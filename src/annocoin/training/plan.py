"""What a run is going to do, in a few lines, before it does it."""

from __future__ import annotations

from collections.abc import Collection

from annocoin.data.dataset import WeakDataset
from annocoin.training.config import Config


def plan(config: Config, dataset: WeakDataset, given: Collection[str] = ()) -> list[str]:
    """The stages and their sizes.

    Args:
        given: what need not be made of "regions", "classifier" and "seeds".
    """
    images, learning = len(dataset), config.prediction.learning
    size, backbone = config.prediction.architecture.size, config.prediction.architecture.backbone
    lines = [f"{images} images, {len(dataset.classes)} classes, supervision {dataset.supervision}"]

    def add(stage: str, work: str) -> None:
        lines.append(f"  {stage:12s} {work}")

    network = f"Mask R-CNN, {backbone} at {size} pixels"
    makes_seeds = "seeds" not in given and not dataset.fully_masked
    if (makes_seeds or config.from_classifier) and "classifier" not in given:
        classifier = config.classifier
        add("classifier", f"{classifier.backbone}: {classifier.epochs} epochs of {images} images")
    if dataset.fully_masked:
        add("prediction", f"{network}: {config.prediction_steps} steps of {learning.batch} images")
        return lines
    if "regions" not in given:
        add("regions", f"of {images} images")
    if makes_seeds:
        add("seeds", f"of {images} images")
    if config.rounds == 0:
        add("labels", f"regions retrieved for the seeds of {images} images")
        add("prediction", f"{network}: {config.prediction_steps} steps of {learning.batch} images")
        return lines
    own = config.conditional.learning
    trunk = config.conditional.architecture.trunk
    add("conditional", f"{trunk}: {own.initial_steps} steps of {own.batch} images, from the seeds")
    add(
        f"{config.rounds} rounds",
        f"{own.samples} samples of {images} images; {network}: {learning.steps} steps of "
        f"{learning.batch}; tables of {images} images; conditional: {own.steps} steps",
    )
    add("final", f"samples; prediction: {learning.final_steps} steps")
    return lines
