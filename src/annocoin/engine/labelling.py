"""Pseudo labels and loss tables of a whole dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from annocoin import masks as rle
from annocoin.backbones import Image, Precision
from annocoin.conditional.networks import ConditionalNetwork, read_conditional
from annocoin.conditional.refinement import PredictedShares
from annocoin.conditional.samples import Samples
from annocoin.conditional.scoring import (
    NEUTRAL_DETECTION,
    Candidates,
    draw_samples,
    log_expected_iou,
)
from annocoin.data.artefacts import ArrayFormat
from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.engine.conditional_dataset import (
    ConditionalDataset,
    ConditionalExample,
    PreparedFolder,
    prepare_image,
    with_artefacts,
)
from annocoin.engine.image_stages import Execution, ImageWorker, run_image_stage
from annocoin.engine.network_config import ConditionalConfig
from annocoin.engine.pseudo_labels import (
    LABELS,
    TABLES,
    PseudoLabelFolder,
    PseudoLabels,
    TableFolder,
    write_pseudo_labels,
    write_table,
)
from annocoin.engine.randomness import generator_at
from annocoin.objective.task_loss import (
    detection_loss_table,
    prediction_loss_table,
    restricted_loss_table,
    running_mean_table,
)
from annocoin.prediction.networks import (
    PredictionArchitecture,
    ResizedImage,
    read_prediction,
    resize_shortest_side,
)
from annocoin.prediction.region_scoring import (
    RegionScores,
    detect_annotated,
    detected_iou,
    mask_probabilities,
    score_regions,
)
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.retrieval import retrieve
from annocoin.seeds.seed_set import SeedFolder
from annocoin.types import Instances, WeakLabel

SERIAL_BELOW = 400
"""Up to so many images are faster processed here than in new processes."""


def draw_labels(
    dataset: WeakDataset,
    prepared: PreparedFolder,
    network: Path,
    config: ConditionalConfig,
    out: Path,
    execution: Execution,
    *,
    seed: int,
    tables: TableFolder | None = None,
    prediction: Path | None = None,
    precision: Precision = "32",
) -> PseudoLabelFolder:
    """K samples of a conditional network for every prepared image.

    Args:
        network: its file.
        tables: loss tables of a prediction network, which enter the scores.
        prediction: the file of a prediction network, whose masks refine those of instances.
        precision: of its backbone.
    """
    examples = ConditionalDataset(dataset, prepared, size=config.architecture.size, tables=tables)
    masks = None
    if prediction is not None and config.scoring.mask_threshold is not None:
        masks = partial(MaskPredictor, prediction, execution.device, precision)
    start = partial(_Sampler, examples, network, config, seed, execution.device, masks)
    return _run(PseudoLabelFolder, LABELS, examples, start, out, "samples", execution)


def make_loss_tables(
    dataset: WeakDataset,
    prepared: PreparedFolder,
    network: Path,
    config: ConditionalConfig,
    out: Path,
    execution: Execution,
    precision: Precision = "32",
    previous: TableFolder | None = None,
    number: int = 1,
) -> TableFolder:
    """The loss table D of every prepared image under a prediction network.

    Args:
        network: its file.
        precision: of its backbone.
        previous: mean tables of `number` - 1 other networks; those of all of them are made then.
    """
    examples = ConditionalDataset(dataset, prepared, size=config.architecture.size)
    start = partial(
        _RegionScorer, examples, network, config, execution.device, precision, previous, number
    )
    return _run(TableFolder, TABLES, examples, start, out, "loss tables", execution)


def retrieve_labels(
    dataset: WeakDataset,
    regions: RegionFolder,
    seeds: SeedFolder,
    out: Path,
    config: ConditionalConfig,
    execution: Execution,
) -> PseudoLabelFolder:
    """The regions retrieved for the seeds, without any network.

    With `evidence` "votes", the best region of every seed; annotated masks and boxes are kept. With
    "maps", the labelling that the prior of the regions gives.
    """
    images = with_artefacts(dataset, regions, seeds, execution.problems)
    worker = _Retriever if config.evidence == "votes" else _PriorLabeller
    return run_image_stage(
        PseudoLabelFolder,
        out,
        {},
        [(image.image_id, regions.name(image.image_id), image) for image in images],
        partial(worker, regions, seeds, config),
        lambda path, _: LABELS.is_current(path),
        "retrieved labels",
        execution,
        serial_below=SERIAL_BELOW,
    )


def samples_of(
    net: ConditionalNetwork,
    example: ConditionalExample,
    config: ConditionalConfig,
    count: int | None = None,
    generator: torch.Generator | None = None,
    predicted: PredictedShares | None = None,
) -> Samples:
    """Samples of an example, default K; PW_c gives one without noise.

    Args:
        predicted: masks of a prediction network, see `refine_masks`.
    """
    if count is None:
        count = 0 if config.training.pointwise else config.training.samples
    candidates = example.candidates(config.scoring)
    return draw_samples(net, example.pixels, candidates, count, generator, predicted)


def loss_table(scores: RegionScores, config: ConditionalConfig) -> Tensor:
    """D [P, J+1] of the outputs of `score_regions`."""
    restricted, options = config.training.restrict_to_annotation, config.task_loss
    table = restricted_loss_table if restricted else prediction_loss_table
    boxes = scores.box_losses if options.box else None
    return table(scores.log_probabilities, scores.mask_losses, boxes, clamp=options.clamp)


def _run(
    folder_type: Any,
    file_format: ArrayFormat,
    examples: ConditionalDataset,
    start: Callable[[], ImageWorker[Any]],
    out: Path,
    description: str,
    execution: Execution,
) -> Any:
    prepared = examples.prepared
    items = [
        (image.image_id, prepared.name(image.image_id), index)
        for index, image in enumerate(examples.images)
    ]
    return run_image_stage(
        folder_type,
        out,
        {},
        items,
        start,
        lambda path, _: file_format.is_current(path),
        description,
        execution,
        serial_below=SERIAL_BELOW,
    )


class _Sampler:
    def __init__(
        self,
        examples: ConditionalDataset,
        network: Path,
        config: ConditionalConfig,
        seed: int,
        device: str,
        masks: Callable[[], MaskPredictor] | None,
    ) -> None:
        self.net = read_conditional(network).to(device)
        self.examples, self.config, self.seed = examples, config, seed
        self.masks = None if masks is None else masks()

    def compute(self, item: int) -> PseudoLabels:
        example, image = self.examples[item], self.examples.images[item]
        generator = generator_at(self.seed, "samples", str(example.image_id))
        predicted: PredictedShares | None = None
        if self.masks is not None:
            predicted = partial(self.masks.shares, image.pixels(), example.requirements.regions)
        samples = samples_of(
            self.net, example, self.config, generator=generator, predicted=predicted
        )
        return PseudoLabels.from_samples(
            samples, image.annotation, annotated_boxes=self.config.annotated_boxes
        )

    def write(self, path: Path, result: PseudoLabels) -> None:
        write_pseudo_labels(path, result)


class MaskPredictor:
    """The masks of a prediction network, for the refinement of instances."""

    def __init__(self, network: Path, device: str = "cpu", precision: Precision = "32") -> None:
        net, self.architecture = read_prediction(network)
        self.net = net.to(device, memory_format=torch.channels_last)
        self.bfloat16 = precision == "bf16"

    def shares(self, pixels: Image, regions: RegionSet, boxes: Tensor, labels: Tensor) -> Tensor:
        """The mean probability of superpixels to be of the instance in each of U boxes, [U, S]."""
        resized = resize_image(pixels, self.architecture)
        masks = mask_probabilities(self.net, resized, boxes, labels, bfloat16=self.bfloat16)
        return regions.superpixel_means(masks)


class _RegionScorer:
    def __init__(
        self,
        examples: ConditionalDataset,
        network: Path,
        config: ConditionalConfig,
        device: str,
        precision: Precision,
        previous: TableFolder | None,
        number: int,
    ) -> None:
        net, self.architecture = read_prediction(network)
        self.previous, self.number = previous, number
        self.bfloat16 = precision == "bf16"
        self.net = net.to(device, memory_format=torch.channels_last)
        self.examples, self.config = examples, config

    def compute(self, item: int) -> Tensor:
        image = self.examples.images[item]
        table = self._table(image)
        if self.previous is None or image.image_id not in self.previous:
            return table
        return running_mean_table(self.previous[image.image_id], table, self.number)

    def _table(self, image: WeakImage) -> Tensor:
        requirements = self.examples.prepared[image.image_id].requirements
        regions, labels, pixels = requirements.regions, requirements.labels, image.pixels()
        if self.config.tables == "rois":
            scores = score_regions(
                self.net,
                resize_image(pixels, self.architecture),
                regions,
                labels,
                mask_scored_regions=self.config.task_loss.mask_scored_regions,
                bfloat16=self.bfloat16,
            )
            return loss_table(scores, self.config)
        detected = torch.zeros(len(regions), len(labels))
        for scale in self.config.detection_scales:
            resized = resize_image(pixels, self.architecture, scale)
            detections = detect_annotated(self.net, resized, labels, bfloat16=self.bfloat16)
            detected += detected_iou(regions, detections, labels)
        detected /= len(self.config.detection_scales)
        log_odds = log_expected_iou(detected, NEUTRAL_DETECTION)
        return detection_loss_table(log_odds, clamp=self.config.task_loss.clamp)

    def write(self, path: Path, result: Tensor) -> None:
        write_table(path, result, exact=self.config.task_loss.clamp is None)


class _Retriever:
    def __init__(self, regions: RegionFolder, seeds: SeedFolder, config: ConditionalConfig) -> None:
        self.regions, self.seeds, self.config = regions, seeds, config

    def compute(self, item: WeakImage) -> PseudoLabels:
        regions, seeds = self.regions[item.image_id], self.seeds[item.image_id]
        retrieved = retrieve(regions, seeds, item.annotation)
        indices = seeds.annotation_index[retrieved.seeds].tolist()
        labels = [item.annotation[index] for index in indices]
        instances = retrieved.instances(regions, seeds)
        return PseudoLabels.single(
            _with_annotated(instances, labels, boxes=self.config.annotated_boxes)
        )

    def write(self, path: Path, result: PseudoLabels) -> None:
        write_pseudo_labels(path, result)


class _PriorLabeller(_Retriever):
    def compute(self, item: WeakImage) -> PseudoLabels:
        regions, seeds = self.regions[item.image_id], self.seeds[item.image_id]
        prepared = prepare_image(item, regions, seeds, self.config)
        requirements = prepared.requirements
        candidates = Candidates(requirements, self.config.scoring, seed_prior=prepared.seed_prior)
        unary = torch.zeros(1, len(requirements.regions), 1 + len(requirements.labels))
        samples = candidates.samples(candidates.scores(unary))
        return PseudoLabels.from_samples(
            samples, item.annotation, annotated_boxes=self.config.annotated_boxes
        )


def _with_annotated(
    instances: Instances, labels: Sequence[WeakLabel], *, boxes: bool = True
) -> Instances:
    """Retrieved instances with the masks and boxes of their weak labels that are not crowds.

    Args:
        boxes: whether with their boxes, or the tight ones of their masks.
    """
    masks = [
        mask if label.mask is None or label.crowd else label.mask
        for mask, label in zip(instances.masks, labels, strict=True)
    ]
    found = torch.from_numpy(rle.boxes(masks))
    for i, label in enumerate(labels):
        if boxes and label.box is not None and not label.crowd:
            found[i] = torch.tensor(label.box, dtype=torch.float64)
    return Instances(
        size=instances.size,
        masks=masks,
        labels=instances.labels,
        scores=instances.scores,
        boxes=found,
    )


def resize_image(
    pixels: Image, architecture: PredictionArchitecture, scale: float = 1.0
) -> ResizedImage:
    """An image at `scale` times the size of a network's training."""
    sides = (architecture.min_size, architecture.max_size)
    return resize_shortest_side(pixels, *(round(scale * side) for side in sides))
