"""Figures: regions, seeds, samples and rounds as panels in a grid, and a run's for a paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from annocoin.conditional.samples import Samples
from annocoin.data.dataset import EvaluationDataset, WeakDataset
from annocoin.data.images import read_image
from annocoin.engine.pseudo_labels import PseudoLabelFolder, PseudoLabels
from annocoin.engine.run_directory import RESULT
from annocoin.engine.shared_stages import PREDICTION_FILE
from annocoin.errors import InputError
from annocoin.evaluation.confidence import true_ious
from annocoin.files import read_json
from annocoin.prediction.networks import read_prediction
from annocoin.prediction.predictor import Predictor
from annocoin.regions.algebra import resize_superpixels
from annocoin.regions.hierarchy import contours
from annocoin.regions.proposals import Analysis
from annocoin.regions.region_set import RegionSet
from annocoin.report import plots
from annocoin.report.by_round import (
    SHOWN_SCORE,
    choose_images,
    images_by_round,
    round_picture,
)
from annocoin.report.charts import Chart, import_matplotlib
from annocoin.report.overlay import Colour, Picture, colour, draw, draw_mask, draw_text, sheet
from annocoin.report.run_data import RunData, read_run, with_images_of
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation, ImageId, Instances

REGION_SIDE = 400
SEED_SIDE = 320
SAMPLE_SIDE = 224
"""Longer sides of the panels, in pixels."""

ROUND_SAMPLES = 3
"""Samples per image and round in `rounds_figure`."""

BEST_IMAGES = 5
"""Images per class in `write_figures`."""

CLASS_SIDE, RESOLUTION = 320, 300.0


def regions_figure(
    image: Picture, analysis: Analysis, regions: RegionSet, *, best: int = 12
) -> Picture:
    """Panels: the image, its boundaries, contours and superpixels, then the best regions."""
    blank = Annotation((image.shape[0], image.shape[1]))
    small = draw(image, blank, (), scale=REGION_SIDE / max(image.shape[:2]))
    size, graph = small.shape[:2], analysis.graph
    ids = resize_superpixels(regions.superpixels, size).numpy()
    contour_map = contours(analysis.trees[0], graph.ids, graph.elements)
    panels = {
        "image": small,
        "boundaries": _grey(analysis.edges, size),
        "hierarchy (contours)": _grey(contour_map, size),
        f"{regions.membership.shape[1]} superpixels": _mean_colours(small, ids),
    }
    dark = (small * 0.6).astype(np.uint8)
    for i, members in enumerate(regions.membership[:best].numpy()):
        panels[f"{i + 1}: {float(regions.scores[i]):.2f}"] = draw_mask(
            dark, members[ids], colour(i)
        )
    for text, panel in panels.items():
        draw_text(panel, text, 2, 2, 0.45)
    return sheet(list(panels.values()), columns=4)


def seeds_figure(
    image: Picture,
    annotation: Annotation,
    seeds: Seeds,
    labels: Mapping[Any, Instances],
    classes: Sequence[str],
    *,
    max_responses: int = 4,
) -> Picture:
    """Panels in a row: labels and peaks, the best seeds' responses, the retrieved instances.

    Args:
        image: uint8 [H, W, 3].
        labels: retrieved instances by the name of the retrieval rule.
        max_responses: number of responses; missing ones are blank.
    """
    scale = SEED_SIDE / max(image.shape[:2])
    peaks = draw(image, annotation, classes, scale=scale, by_class=True)
    order = seeds.scores.argsort(descending=True).tolist()
    for i in order:
        _draw_cross(peaks, seeds.points[i] * scale, colour(int(seeds.labels[i])))
    panels = [peaks]
    for i in order[:max_responses]:
        panel = _heat_map(image, seeds[i].responses_in_image()[0].numpy(), peaks.shape[:2])
        _draw_cross(panel, seeds.points[i] * scale, (255, 255, 255))
        name = classes[int(seeds.labels[i]) - 1]
        draw_text(panel, f"{name} {float(seeds.scores[i].sigmoid()):.2f}", 2, 2, 0.45)
        panels.append(panel)
    panels += [np.full_like(peaks, 255)] * (max_responses - len(order))
    for rule, instances in labels.items():
        annotation = instances.annotation()
        caption = f"by {rule}"
        panels.append(draw(image, annotation, classes, scale=scale, caption=caption, by_class=True))
    return sheet(panels, columns=len(panels))


def samples_figure(
    image: Picture,
    annotation: Annotation,
    samples: Samples,
    classes: Sequence[str],
    truth: Instances | None = None,
) -> Picture:
    """Panels in a row: labels, the K samples, their consensus with confidences, the truth.

    Args:
        image: uint8 [H, W, 3].
        truth: the true instances, if there are any to show.
    """
    panels = {"labels": annotation}
    for k in range(len(samples)):
        panels[f"{k + 1}"] = _with_scores(samples.instances(k)).annotation()
    best = samples.consensus()
    confidence = best.confidence if len(samples) > 1 else None
    panels["consensus"] = _with_scores(best, confidence).annotation()
    if truth is not None:
        panels["truth"] = truth.annotation()
    scale = SAMPLE_SIDE / max(image.shape[:2])
    pictures = [
        draw(image, each, classes, scale=scale, caption=text, by_class=True)
        for text, each in panels.items()
    ]
    return sheet(pictures, columns=len(pictures), gap=3)


def rounds_figure(
    run: Path, dataset: WeakDataset, count: int = 8, shown_score: float = SHOWN_SCORE
) -> Picture:
    """One row per image: labels, then samples and prediction of the first and the last round.

    Args:
        run: directory of a finished run with rounds.
        dataset: its training images.
        count: number of images.
        shown_score: minimum score of predictions; the paper's figure 3 has .7.
    """
    folders = {stage["stage"]: run / stage["folder"] for stage in read_json(run / RESULT)["stages"]}
    if "round 1, samples" not in folders:
        raise InputError(f"{run}: a run without rounds has no samples to show")
    labels = [PseudoLabelFolder(folders[name]) for name in ("round 1, samples", "final samples")]
    kinds = (", prediction", "final prediction")
    trained = [folder for name, folder in folders.items() if name.endswith(kinds)]
    networks = [trained[0], trained[-1]]
    predictors = [
        Predictor(read_prediction(folder / PREDICTION_FILE)[0], threshold=shown_score)
        for folder in networks
    ]
    pictures: list[Picture] = []
    for image in [image for image in dataset if image.image_id in labels[0]][:count]:
        pixels = image.pixels()
        panels = {"labels": image.annotation}
        for name, folder, predictor in zip(("first", "last"), labels, predictors, strict=True):
            for k, instances in enumerate(_distinct_samples(folder[image.image_id]), start=1):
                panels[f"{name}, sample {k}"] = _with_scores(instances).annotation()
            panels[f"{name}, prediction"] = predictor([pixels])[0].annotation()
        scale = SAMPLE_SIDE / max(pixels.shape[:2])
        pictures += [
            draw(pixels, annotation, dataset.classes, scale=scale, caption=text, by_class=True)
            for text, annotation in panels.items()
        ]
    return sheet(pictures, 1 + 2 * (ROUND_SAMPLES + 1), gap=3)


def write_figures(
    run: str | Path,
    folder: str | Path,
    *,
    truth: EvaluationDataset | None = None,
    shown: Sequence[str] = (),
    device: str = "cpu",
) -> list[Path]:
    """Write the figures of a finished run into a folder; gives the files.

    Args:
        truth: true masks of the training images, for the reliability diagram.
        shown: ids of images to show round by round.
    """
    import_matplotlib()  # or an error before any work
    data, folder = with_images_of(read_run(Path(run)), truth), Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: a file; give the name of a folder")
    folder.mkdir(parents=True, exist_ok=True)
    charts = [*plots.evaluation_charts(data), *plots.label_charts(data)]
    charts += [*plots.objective_charts(data), *plots.training_charts(data)]
    if truth is not None and data.labels:
        charts += _reliability(data, truth)
    written = [path for chart in charts for path in chart.save(folder)]
    if not data.labels:
        return written
    rows, ids = _rows(data)
    known = {str(image_id): image_id for image_id in ids}
    chosen = [known[name] for name in shown] or [ids[i] for i in choose_images(rows)]
    images = images_by_round(data, chosen, device)
    if images:
        last = len(images[0].rounds) - 1
        panels = [
            round_picture(image, number, data.classes)
            for image in images
            for number in dict.fromkeys((0, last))
        ]
        written += _save_both(sheet(panels, 1, gap=3), folder / "rounds")
    for label, name in enumerate(data.classes, start=1):
        best = sorted(
            ((value, i) for i, row in enumerate(rows)
             for each, value in zip(row["c"], row["v"], strict=True) if each == label),
            reverse=True,
        )  # fmt: skip
        positions = list(dict.fromkeys(i for _, i in best))[:BEST_IMAGES]
        pictures = _class_pictures(data, [ids[i] for i in positions])
        if pictures:
            slug = "".join(letter if letter.isalnum() else "-" for letter in name)
            written += _save_both(
                sheet(pictures, BEST_IMAGES, gap=3), folder / f"class-{label}-{slug}"
            )
    return written


def _distinct_samples(labels: PseudoLabels) -> list[Instances]:
    """The consensus and other distinct samples; missing ones are filled with the consensus."""
    _, distinct = np.unique(labels.members.numpy(), axis=0, return_index=True)
    order = [labels.consensus, *(k for k in distinct.tolist() if k != labels.consensus)]
    order += [labels.consensus] * ROUND_SAMPLES
    return [labels.instances[labels.members[k]] for k in order[:ROUND_SAMPLES]]


def _with_scores(instances: Instances, scores: Tensor | None = None) -> Instances:
    """The instances with other scores to be drawn, or without any."""
    return Instances(
        size=instances.size, masks=instances.masks, labels=instances.labels, scores=scores
    )


def _grey(values: npt.NDArray[np.floating], size: Sequence[int]) -> Picture:
    """Values in 0..1 as dark lines on white."""
    grey = (255 * (1 - np.clip(values, 0, 1))).astype(np.uint8)
    resized = cv2.resize(grey, (size[1], size[0]), interpolation=cv2.INTER_AREA)
    return np.repeat(resized[:, :, None], 3, axis=2)


def _mean_colours(image: Picture, ids: npt.NDArray[np.int32]) -> Picture:
    """Every superpixel in its mean colour."""
    areas = np.bincount(ids.ravel()).clip(1)
    channels = [np.bincount(ids.ravel(), image[:, :, c].ravel()) / areas for c in range(3)]
    return np.stack(channels, axis=1).astype(np.uint8)[ids]


def _draw_cross(picture: Picture, point: Tensor, shade: Colour) -> None:
    x, y = (round(value) for value in point.tolist())
    cv2.drawMarker(picture, (x, y), (0, 0, 0), cv2.MARKER_CROSS, 15, 4)
    cv2.drawMarker(picture, (x, y), shade, cv2.MARKER_CROSS, 13, 2)


def _heat_map(image: Picture, response: npt.NDArray[np.float32], size: Sequence[int]) -> Picture:
    """The grey image under the square root of a response, for the range is large."""
    height, width = size
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    grey = cv2.resize(grey, (width, height), interpolation=cv2.INTER_AREA)
    alpha = np.sqrt(response / max(float(response.max()), 1e-12)).astype(np.float32)
    alpha = cv2.resize(alpha, (width, height))[:, :, None]
    heat = cv2.applyColorMap((255 * alpha).astype(np.uint8), cv2.COLORMAP_INFERNO)[:, :, ::-1]
    mixed = (1 - alpha) * 0.6 * grey[:, :, None] + alpha * heat
    return np.asarray(np.clip(mixed, 0, 255), dtype=np.uint8)


def _rows(data: RunData) -> tuple[list[dict[str, list[float]]], list[ImageId]]:
    """Classes and confidences of the final labels of all images that can be drawn."""
    labels = list(data.labels.values())[-1]
    ids = [i for i in labels if i in data.images and data.images[i].path.is_file()]
    rows = []
    for image_id in ids:
        instances = labels[image_id].consensus_instances()
        values = instances.confidence.nan_to_num(0.0).tolist()
        rows.append({"c": instances.labels.tolist(), "v": values})
    return rows, ids


def _class_pictures(data: RunData, ids: Sequence[ImageId]) -> list[Picture]:
    labels, pictures = list(data.labels.values())[-1], []
    for image_id in ids:
        pixels = read_image(data.images[image_id].path)
        annotation = labels[image_id].consensus_instances().annotation()
        scale = CLASS_SIDE / max(pixels.shape[:2])
        pictures.append(draw(pixels, annotation, data.classes, scale=scale))
    return pictures


def _reliability(data: RunData, truth: EvaluationDataset) -> list[Chart]:
    if truth.classes != data.classes:
        raise InputError(f"{truth.labelled.source}: other classes than {data.path}")
    labels, confidence, ious = list(data.labels.values())[-1], [], []
    for image_id in truth:
        if image_id in labels:
            instances = labels[image_id].consensus_instances()
            values = instances.confidence.tolist()
            best = true_ious(instances, truth.truth(image_id)).tolist()
            known = [(v, iou) for v, iou in zip(values, best, strict=True) if v == v]
            confidence += [value for value, _ in known]
            ious += [iou for _, iou in known]
    return [plots.reliability_chart(confidence, ious)] if confidence else []


def _save_both(picture: Picture, path: Path) -> list[Path]:
    """Write a picture as PNG and PDF."""
    paths = [path.with_name(f"{path.name}{suffix}") for suffix in (".png", ".pdf")]
    for each in paths:
        Image.fromarray(picture).save(each, resolution=RESOLUTION)
    return paths
