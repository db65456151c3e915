"""Draw how an image falls into regions: boundaries, hierarchy, superpixels, the best regions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from torch import Tensor

from annocoin.conditional.samples import Samples
from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.engine.pseudo_labels import PseudoLabelFolder, PseudoLabels
from annocoin.engine.rounds import PREDICTION
from annocoin.engine.run_directory import RUN
from annocoin.errors import InputError
from annocoin.files import read_json
from annocoin.prediction.networks import read_prediction
from annocoin.prediction.predictor import Predictor
from annocoin.regions.algebra import resize_superpixels
from annocoin.regions.hierarchy import contours
from annocoin.regions.proposals import Analysis
from annocoin.regions.region_set import RegionSet
from annocoin.report.overlay import Picture, caption, colour, draw, sheet, tinted
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation, Instances

SIDE = 400
"""The length of a panel's longer side."""


def draw_regions(
    image: Picture, analysis: Analysis, regions: RegionSet, *, best: int = 12
) -> Picture:
    """Panels: the image, its boundaries, contours and superpixels, then the best regions."""
    fit = SIDE / max(image.shape[:2])
    size = (max(1, round(image.shape[0] * fit)), max(1, round(image.shape[1] * fit)))
    small = _resized_panel(image, size)
    ids = resize_superpixels(regions.superpixels, size).numpy()
    graph = analysis.graph
    heights = contours(analysis.trees[0], graph.ids, graph.elements)
    panels = [
        (small, "image"),
        (_resized_panel(_grey(analysis.edges), size), "boundaries"),
        (_resized_panel(_grey(heights), size), "hierarchy (contours)"),
        (_mean_colours(small, ids), f"{regions.membership.shape[1]} superpixels"),
    ]
    for i, members in enumerate(regions.membership[:best].numpy()):
        drawn = tinted((small * 0.6).astype(np.uint8), members[ids], colour(i))
        panels.append((drawn, f"{i + 1}: {float(regions.scores[i]):.2f}"))
    for picture, text in panels:
        caption(picture, text, 2, 2, 0.45)
    return sheet([picture for picture, _ in panels], columns=4)


def _resized_panel(picture: Picture, size: tuple[int, int]) -> Picture:
    method = cv2.INTER_AREA if size[0] < picture.shape[0] else cv2.INTER_NEAREST
    return np.array(cv2.resize(picture, size[::-1], interpolation=method), dtype=np.uint8)


def _grey(values: npt.NDArray[np.floating]) -> Picture:
    """Values in 0..1 as dark lines on white."""
    grey = (255 * (1 - np.clip(values, 0, 1))).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _mean_colours(image: Picture, ids: npt.NDArray[np.int32]) -> Picture:
    """Every superpixel in its mean colour."""
    areas = np.bincount(ids.ravel()).clip(1)
    channels = [np.bincount(ids.ravel(), image[:, :, c].ravel()) / areas for c in range(3)]
    return np.stack(channels, axis=1).astype(np.uint8)[ids]


SEED_SIDE = 320
"""The length of a panel's longer side."""


def draw_seeds(
    image: Picture,
    annotation: Annotation,
    seeds: Seeds,
    labels: Mapping[Any, Instances],
    classes: Sequence[str],
    *,
    most: int = 4,
) -> Picture:
    """Panels in a row: weak_labels and peaks, the best seeds' responses, then each way's labels.

    Args:
        image: uint8 [H, W, 3].
        labels: what was retrieved, by the name of the way.
        most: how many responses are shown; the rest of the row stays empty.
    """
    scale = SEED_SIDE / max(image.shape[:2])
    peaks = draw(image, annotation, classes, scale=scale)
    order = seeds.scores.argsort(descending=True).tolist()
    for i in order:
        _cross(peaks, seeds.points[i].tolist(), scale, colour(int(seeds.labels[i])))
    panels = [peaks]
    for i in order[:most]:
        response = _heat(image, seeds[i].responses_in_image()[0].numpy(), scale)
        _cross(response, seeds.points[i].tolist(), scale, (255, 255, 255))
        name = classes[int(seeds.labels[i]) - 1]
        caption(response, f"{name} {float(seeds.scores[i].sigmoid()):.2f}", 2, 2, 0.45)
        panels.append(response)
    panels += [np.full_like(peaks, 255)] * (most - min(most, len(order)))
    for way, found in labels.items():
        panel = draw(image, found.annotation(), classes, scale=scale)
        caption(panel, f"by {way}", 2, panel.shape[0], 0.45)
        panels.append(panel)
    return sheet(panels, columns=len(panels))


def _cross(picture: Picture, point: list[float], scale: float, shade: tuple[int, int, int]) -> None:
    x, y = (round(value * scale) for value in point)
    cv2.drawMarker(picture, (x, y), (0, 0, 0), cv2.MARKER_CROSS, 15, 4)
    cv2.drawMarker(picture, (x, y), shade, cv2.MARKER_CROSS, 13, 2)


def _heat(image: Picture, response: npt.NDArray[np.float32], scale: float) -> Picture:
    """The image in grey under the square root of a response, whose spread is great."""
    height, width = (max(1, round(side * scale)) for side in image.shape[:2])
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    ground = cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)
    share = np.sqrt(response / max(float(response.max()), 1e-12))
    share = cv2.resize(share.astype(np.float32), (width, height))[:, :, None]
    heat = cv2.applyColorMap((255 * share).astype(np.uint8), cv2.COLORMAP_INFERNO)[:, :, ::-1]
    mixed = (1 - share) * 0.6 * ground[:, :, None] + share * heat
    return np.asarray(np.clip(mixed, 0, 255), dtype=np.uint8)


SAMPLE_SIDE = 224
"""The length of a panel's longer side."""


def picture_of_samples(
    image: Picture,
    annotation: Annotation,
    samples: Samples,
    classes: Sequence[str],
    truth: Instances | None = None,
) -> Picture:
    """Panels in a row: what was said, the K samples, their consensus with confidences, the truth.

    Args:
        image: uint8 [H, W, 3].
        truth: the true instances, if they are to be shown.
    """
    scale = SAMPLE_SIDE / max(image.shape[:2])
    panels = [draw(image, annotation, classes, scale=scale)]
    for k in range(len(samples)):
        panels.append(
            _sample_panel(image, _scored(samples.instances(k)), classes, scale, f"{k + 1}")
        )
    best = samples.consensus()
    sure = _scored(best, best.confidence) if len(samples) > 1 else _scored(best)
    panels.append(_sample_panel(image, sure, classes, scale, "consensus"))
    if truth is not None:
        panels.append(_sample_panel(image, truth, classes, scale, "truth"))
    return sheet(panels, columns=len(panels), gap=3)


def _sample_panel(
    image: Picture, found: Instances, classes: Sequence[str], scale: float, name: str
) -> Picture:
    panel = draw(image, found.annotation(), classes, scale=scale)
    caption(panel, name, 2, panel.shape[0], 0.4)
    return np.asarray(panel, dtype=np.uint8)


def _scored(found: Instances, scores: Tensor | None = None) -> Instances:
    """With these numbers to be shown, or without any."""
    return Instances(size=found.size, masks=found.masks, labels=found.labels, scores=scores)


ROUND_SIDE = 224
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
        rows.append(_round_panel(pixels, image.annotation, dataset, "said"))
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
        panels.append(_round_panel(pixels, plain.annotation(), dataset, f"{name}, sample {number}"))
    said = predictor([pixels])[0].annotation()
    return [*panels, _round_panel(pixels, said, dataset, f"{name}, prediction")]


def _round_panel(
    pixels: Picture, weak_labels: Annotation, dataset: WeakDataset, name: str
) -> Picture:
    scale = ROUND_SIDE / max(pixels.shape[:2])
    panel = draw(pixels, weak_labels, dataset.classes, scale=scale)
    caption(panel, name, 2, panel.shape[0], 0.4)
    return panel
