"""Draw how a run's pseudo labels and predictions changed: the paper's Figure 3."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from annocoin.data.checks import read_json
from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.errors import InputError
from annocoin.prediction import Predictor, read_prediction
from annocoin.report.overlay import Picture, caption, draw, sheet
from annocoin.training.pseudo_labels import PseudoLabelFolder, PseudoLabels
from annocoin.training.rounds import PREDICTION
from annocoin.training.run_directory import RUN
from annocoin.types import Annotation, Instances

SIDE = 224
"""The length of a panel's longer side."""

SAMPLES = 3
SHOWN = 0.5
"""The least score of a prediction that is drawn."""


def picture_of_rounds(run: Path, dataset: WeakDataset, count: int = 8) -> Picture:
    """An image a row: what was said, samples and prediction of the first round, and of the last.

    Args:
        run: the directory of a finished run with rounds.
        dataset: that it was trained on.
        count: how many images.
    """
    folders = {own["stage"]: run / own["folder"] for own in read_json(run / RUN)["stages"]}
    wanted = ("round 1, samples", "round 1, prediction", "final samples", "final prediction")
    if any(name not in folders for name in wanted):
        raise InputError(f"{run}: a run without rounds has no samples to show")
    samples = [PseudoLabelFolder(folders[name]) for name in (wanted[0], wanted[2])]
    networks = [folders[name] / PREDICTION for name in (wanted[1], wanted[3])]
    predictors = [Predictor(read_prediction(path)[0], threshold=SHOWN) for path in networks]
    rows: list[Picture] = []
    for image in [own for own in dataset if own.image_id in samples[0]][:count]:
        pixels = image.pixels()
        rows.append(_panel(pixels, image.annotation, dataset, "said"))
        for name, drawn, predictor in zip(("first", "last"), samples, predictors, strict=True):
            rows += _of_round(image, pixels, drawn[image.image_id], predictor, dataset, name)
    return sheet(rows, 1 + 2 * (SAMPLES + 1), gap=3)


def _of_round(
    image: WeakImage,
    pixels: Picture,
    labels: PseudoLabels,
    predictor: Predictor,
    dataset: WeakDataset,
    name: str,
) -> list[Picture]:
    """Samples that differ, as far as there are any, and what the prediction network says."""
    _, first = np.unique(labels.members.numpy(), axis=0, return_index=True)
    order = [labels.consensus, *(k for k in first.tolist() if k != labels.consensus)]
    order += [labels.consensus] * SAMPLES
    panels = []
    for number, k in enumerate(order[:SAMPLES], start=1):
        found = labels.instances[labels.members[k]]
        plain = Instances(size=found.size, masks=found.masks, labels=found.labels)
        panels.append(_panel(pixels, plain.annotation(), dataset, f"{name}, sample {number}"))
    said = predictor([pixels])[0].annotation()
    return [*panels, _panel(pixels, said, dataset, f"{name}, prediction")]


def _panel(pixels: Picture, marks: Annotation, dataset: WeakDataset, name: str) -> Picture:
    scale = SIDE / max(pixels.shape[:2])
    panel = draw(pixels, marks, dataset.classes, scale=scale)
    caption(panel, name, 2, panel.shape[0], 0.4)
    return panel
