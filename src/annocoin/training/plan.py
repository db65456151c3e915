"""What a run is going to do, in a few lines, before it does it."""

from __future__ import annotations

from annocoin.data.dataset import WeakDataset
from annocoin.training.config import Config


def plan(config: Config, dataset: WeakDataset, *, regions: bool, seeds: bool) -> list[str]:
    """The stages and their sizes.

    Args:
        regions, seeds: whether they have to be made.
    """
    images, learning = len(dataset), config.prediction.learning
    size, backbone = config.prediction.architecture.size, config.prediction.architecture.backbone
    lines = [f"{images} images, {len(dataset.classes)} classes, supervision {dataset.supervision}"]

    def add(stage: str, work: str) -> None:
        lines.append(f"  {stage:12s} {work}")

    network = f"Mask R-CNN, {backbone} at {size} pixels"
    if dataset.fully_masked:
        add("prediction", f"{network}: {config.prediction_steps} steps of {learning.batch} images")
        return lines
    if regions:
        add("regions", f"of {images} images")
    if seeds:
        classifier = config.classifier
        add("seeds", f"{classifier.backbone}: {classifier.epochs} epochs; {images} images")
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
    add("final", f"samples; prediction: {learning.final_steps} steps; tables; labels")
    return lines
