"""Samples and predictions of a few images, round by round (the paper's figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from annocoin.data.images import read_image
from annocoin.engine.pseudo_labels import PseudoLabels
from annocoin.engine.run_directory import TENSORBOARD
from annocoin.engine.shared_stages import PREDICTION_FILE
from annocoin.errors import InputError
from annocoin.prediction.networks import read_prediction
from annocoin.prediction.predictor import Predictor
from annocoin.report.gallery import outline
from annocoin.report.overlay import Picture, draw, sheet
from annocoin.report.run_data import RunData, TrainingImage
from annocoin.types import Annotation, ImageId, Instances

IMAGES = 6
MAX_SAMPLES = 10
SHOWN_SCORE = 0.5
"""Minimum score of predictions."""

PANEL_SIDE = 224


@dataclass(frozen=True)
class RoundOfImage:
    """What a round made of an image.

    Args:
        name: of the round.
        labels: its samples; None if the round did not use the image.
        prediction: of the network that was trained in this round; None if it is not there.
    """

    name: str
    labels: PseudoLabels | None
    prediction: Instances | None


@dataclass(frozen=True)
class ImageByRound:
    """An image in all rounds."""

    image: TrainingImage
    rounds: tuple[RoundOfImage, ...]

    def to_page(self) -> dict[str, Any]:
        """As the page reads it: the distinct instances of each round, and those of each sample."""
        return {"id": str(self.image.image_id), "rounds": [_round_to_page(r) for r in self.rounds]}


def choose_images(rows: Sequence[dict[str, Any]], count: int = IMAGES) -> list[int]:
    """Positions of images with confident labels, of one class after the other.

    Args:
        rows: of the gallery; those with several instances come first.
    """
    best: dict[int, list[tuple[bool, float, int]]] = {}
    for position, row in enumerate(rows):
        for label, value in zip(row["c"], row["v"], strict=True):
            best.setdefault(label, []).append((len(row["c"]) > 1, value, position))
    queues = [sorted(best[label], reverse=True) for label in sorted(best)]
    chosen: list[int] = []
    while len(chosen) < count and any(queues):
        for queue in queues:
            while queue and queue[0][2] in chosen:
                queue.pop(0)
            if queue and len(chosen) < count:
                chosen.append(queue.pop(0)[2])
    return chosen


def images_by_round(
    data: RunData, image_ids: Sequence[ImageId], device: str = "cpu"
) -> list[ImageByRound]:
    """Samples and predictions of some images of a run in all its rounds."""
    images = {i: data.images[i] for i in image_ids if i in data.images}
    pixels = {}
    for image_id, image in images.items():
        try:
            pixels[image_id] = read_image(image.path)
        except InputError:
            continue
    rounds: dict[ImageId, list[RoundOfImage]] = {image_id: [] for image_id in pixels}
    for name, folder in data.labels.items():
        stage = {"seeds": "prediction", "final": "final prediction"}.get(
            name, f"{name}, prediction"
        )
        network = data.folder(stage) or data.folder("prediction")
        predict = None
        if network is not None and (network / PREDICTION_FILE).is_file():
            net, _ = read_prediction(network / PREDICTION_FILE)
            predict = Predictor(net, threshold=SHOWN_SCORE, device=device)
        for image_id, array in pixels.items():
            labels = folder.get(image_id)
            prediction = None if predict is None else predict([array])[0]
            rounds[image_id].append(RoundOfImage(name, labels, prediction))
    return [ImageByRound(images[image_id], tuple(each)) for image_id, each in rounds.items()]


def round_picture(image: ImageByRound, number: int, classes: Sequence[str]) -> Picture:
    """Panels in a row: the samples of a round, and the prediction."""
    of_round = image.rounds[number]
    pixels = read_image(image.image.path)
    blank = Annotation((pixels.shape[0], pixels.shape[1]))
    panels: list[tuple[str, Annotation]] = []
    if of_round.labels is not None:
        for k, members in enumerate(of_round.labels.members[:MAX_SAMPLES], start=1):
            chosen = of_round.labels.instances[members]
            plain = Instances(size=chosen.size, masks=chosen.masks, labels=chosen.labels)
            panels.append((f"sample {k}", plain.annotation()))
    prediction = of_round.prediction
    panels.append(("prediction", blank if prediction is None else prediction.annotation()))
    scale = PANEL_SIDE / max(pixels.shape[:2])
    pictures = [draw(pixels, a, classes, scale=scale, caption=text) for text, a in panels]
    return sheet(pictures, len(pictures), gap=3)


def write_tensorboard_pictures(data: RunData, images: Sequence[ImageByRound]) -> None:
    """Samples and predictions as TensorBoard images, a step per round."""
    from torch.utils.tensorboard import SummaryWriter  # takes seconds

    with SummaryWriter(str(data.path / TENSORBOARD / "report"), purge_step=0) as writer:
        for image in images:
            for number in range(len(image.rounds)):
                picture = np.array(round_picture(image, number, data.classes))
                tag = f"samples and prediction/{image.image.image_id}"
                writer.add_image(tag, picture, number + 1, dataformats="HWC")


def _round_to_page(of_round: RoundOfImage) -> dict[str, Any]:
    content: dict[str, Any] = {"name": of_round.name}
    if (labels := of_round.labels) is not None:
        instances = labels.instances
        content["c"] = instances.labels.tolist()
        content["m"] = [outline(mask) for mask in instances.masks]
        rows = labels.members[:MAX_SAMPLES].int().tolist()
        content["k"] = [[i for i, member in enumerate(row) if member] for row in rows]
        content["consensus"] = labels.consensus
    if (prediction := of_round.prediction) is not None:
        content["prediction"] = {
            "c": prediction.labels.tolist(),
            "v": [round(score, 2) for score in prediction.scores.tolist()],
            "m": [outline(mask) for mask in prediction.masks],
        }
    return content
