"""IRN: instances from tags by inter-pixel relations (Ahn, Cho and Kwak, CVPR 2019).

Class maps of the run's classifier give confident pixels of classes and background
(`confident_labels`). Pairs of them train two branches on a frozen backbone (`train_irn`): a field
of displacements to the centroid of the instance, and class boundaries. Then (`irn_instances`) the
pixels are clustered by their centroids, and the class map of each cluster is spread by a random
walk up to the boundaries. A prediction network is trained on these instances.

Simplified: class maps that are diffused over superpixels, see `annocoin.baselines.irn_peer`, stand
for those that a fully connected CRF refines; the backbone is the classifier's instead of one
trained on ImageNet only; AdamW with a cosine decay instead of SGD with a polynomial one; fragments
below `min_area` are dropped, where the authors give them a score of 0. Thresholds, radii and the
random walk are those of the authors' code, for images of about 500 pixels: distances are in cells
of 4 pixels, so enlarge small images by `size`.

    net = IrnNetwork.from_classifier(classifier)
    labels[image_id] = confident_labels(maps, annotation, options)  # per image
    train_irn(net, images, labels, options, seed=seed, trainer=trainer)
    instances = irn_instances(net, pixels, maps, annotation, options)  # per image
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from annocoin.backbones import Image, Precision
from annocoin.baselines.irn_network import STRIDE, IrnNetwork
from annocoin.baselines.irn_relations import (
    IGNORED,
    cluster_centroids,
    find_centroids,
    random_walk,
    relation_losses,
)
from annocoin.data.dataset import WeakImage
from annocoin.engine.randomness import generator_at
from annocoin.engine.trainer import Batch, Figures, ImageExamples, Schedule, Trainer
from annocoin.errors import InputError, check_choice, check_positive
from annocoin.masks import Size
from annocoin.types import Annotation, ImageId, Instances

NAME = "inter-pixel relations"

MIN_CELLS = 8
"""The shortest side of the output: backbones have a stride of up to 32 pixels."""


@dataclass(frozen=True)
class IrnOptions:
    """Options of IRN.

    Args:
        size: longer side of the network's input; also the side of the square training crops.
        foreground, background: a pixel is confidently of the class with the greatest value, as a
            share of the maximum of its class map, if that exceeds `foreground`; it is confidently
            background if none exceeds `background`.
        radius: of the pairs in training, in cells of 4 pixels.
        scale_range: of the images in training, relative to `size`.
        epochs, batch_size, lr, weight_decay: of the training.
        max_displacement: of the cells at a centroid, see `cluster_centroids`.
        refinements: iterations of `find_centroids`.
        walk_radius, beta, walk_steps: of `random_walk`.
        instance_background: background of the spread class maps, as a share of their maximum.
        min_area: least area of an instance, as a share of the image.
        precision: of the network; "bf16" uses bfloat16 autocast.
    """

    size: int = 512
    foreground: float = 0.3
    background: float = 0.05
    radius: int = 10
    scale_range: tuple[float, float] = (0.5, 1.5)
    epochs: int = 3
    batch_size: int = 16
    lr: float = 1e-3
    weight_decay: float = 1e-4
    max_displacement: float = 2.5
    refinements: int = 300
    walk_radius: int = 5
    beta: float = 10.0
    walk_steps: int = 256
    instance_background: float = 0.25
    min_area: float = 0.01
    precision: Precision = "32"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "refinements", "walk_steps"):
            check_positive(name, getattr(self, name))
        if not STRIDE * MIN_CELLS <= self.size <= 4096:
            raise InputError(f"size {self.size}; expected {STRIDE * MIN_CELLS} to 4096 pixels")
        if not 0 <= self.background <= self.foreground < 1:
            raise InputError(
                f"foreground {self.foreground}, background {self.background}; "
                "expected 0 <= background <= foreground < 1"
            )
        for name in ("radius", "walk_radius"):
            if getattr(self, name) < 2:
                raise InputError(f"{name} {getattr(self, name)}; expected at least 2 cells")
        if not 0 < self.scale_range[0] <= self.scale_range[1]:
            raise InputError(f"scale_range {self.scale_range}; expected two positive factors")
        check_choice("precision", self.precision, get_args(Precision))


def relative_maps(maps: Tensor, size: Size) -> Tensor:
    """Class maps, logits [J, h, w]: the positive part, at `size`, relative to each map's maximum.

    A map without positive values is 0.
    """
    resized = F.interpolate(maps.float()[:, None], size, mode="bilinear")[:, 0].clamp(min=0)
    return resized / resized.amax(dim=(1, 2), keepdim=True).clamp(min=1e-5)


def confident_labels(maps: Tensor, annotation: Annotation, options: IrnOptions) -> Tensor:
    """Classes of confident pixels, 0 for the background, `IGNORED` for others: int64 [h, w].

    Args:
        maps: class maps of the J annotated classes, [J, *, *], as `annotation.distinct_labels`;
            their positive part counts.
    """
    size = _grid(annotation.size, options.size / STRIDE)
    relative = relative_maps(_checked(maps, annotation), size)
    thresholds = torch.tensor([options.foreground, options.background])[:, None, None, None]
    background = thresholds.expand(2, 1, *size)
    numbers = torch.cat([background, relative.expand(2, *relative.shape)], dim=1).argmax(dim=1)
    foreground, rest = torch.tensor([0, *annotation.distinct_labels])[numbers]
    return torch.where(foreground > 0, foreground, torch.where(rest > 0, IGNORED, 0))


def train_irn(
    net: IrnNetwork,
    images: Sequence[WeakImage],
    labels: Mapping[ImageId, Tensor],
    options: IrnOptions | None = None,
    *,
    seed: int = 0,
    trainer: Trainer | None = None,
) -> None:
    """Train the two branches on pairs of confident pixels.

    Args:
        labels: from `confident_labels`, by image id; images without any are left out.
        trainer: with its process group, checkpoint and metrics.
    """
    options, trainer = options or IrnOptions(), trainer or Trainer()
    usable = [image for image in images if image.image_id in labels]
    if not usable:
        raise InputError(f"{NAME}: no image has labels of confident pixels")
    world_size = 1 if trainer.group is None else trainer.group.world_size
    steps = math.ceil(options.epochs * len(usable) / (options.batch_size * world_size))
    trainer.fit(
        _IrnStep(net, options),
        _IrnExamples(usable, labels, options, seed),
        [{"params": [w for w in net.parameters() if w.requires_grad], "lr": options.lr}],
        Schedule(steps, options.batch_size, weight_decay=options.weight_decay),
        name=NAME,
        seed=seed,
    )
    net.eval()


@torch.inference_mode()
def irn_instances(
    net: IrnNetwork,
    image: Image,
    maps: Tensor,
    annotation: Annotation,
    options: IrnOptions | None = None,
) -> Instances:
    """The instances of an image; the score is the highest value of the spread class map in it.

    Args:
        net: in evaluation mode.
        image: uint8 [H, W, 3].
        maps: class maps of the J annotated classes, [J, *, *], as `annotation.distinct_labels`;
            their positive part counts.
    """
    options = options or IrnOptions()
    boundary, displacement = predict_relations(net, image, options)
    relative = relative_maps(_checked(maps, annotation), (boundary.shape[0], boundary.shape[1]))
    centroids = find_centroids(displacement, options.refinements)
    clusters = cluster_centroids(centroids, displacement, options.max_displacement)
    values, labels = _cluster_maps(relative, clusters, annotation, options.background)
    spread = random_walk(
        values * (1 - boundary),
        boundary,
        radius=options.walk_radius,
        beta=options.beta,
        steps=options.walk_steps,
    )
    return _separate(spread, labels, annotation.size, options)


@torch.inference_mode()
def predict_relations(net: IrnNetwork, image: Image, options: IrnOptions) -> tuple[Tensor, Tensor]:
    """Boundary probabilities [h, w] and displacements [2, h, w] of an image, on the CPU.

    The logits of boundaries are means over the image and its mirror image.
    """
    cells = _grid((image.shape[0], image.shape[1]), options.size / STRIDE)
    pixels = _resize_to_cells(image, cells).to(net.mean.device)
    views = torch.stack([pixels, pixels.flip(2)])
    boundary, displacement = net(views, bfloat16=options.precision == "bf16")
    logits = (boundary[0] + boundary[1].flip(1)) / 2
    return logits.sigmoid().cpu(), displacement[0].cpu()


def _cluster_maps(
    relative: Tensor, clusters: Tensor, annotation: Annotation, background: float
) -> tuple[Tensor, list[int]]:
    """The class maps [J, h, w] in each cluster, and their classes: [N, h, w] and N.

    Clusters without a value above `background` are left out: they are no instances of the class.
    """
    parts, labels = [], []
    for class_map, label in zip(relative, annotation.distinct_labels, strict=True):
        for cluster in clusters[class_map > background].unique().tolist():
            parts.append(class_map * (clusters == cluster))
            labels.append(label)
    return torch.stack(parts) if parts else relative[:0], labels


def _separate(spread: Tensor, labels: Sequence[int], size: Size, options: IrnOptions) -> Instances:
    """Instances of spread maps [N, h, w]: connected areas in which one map is the greatest."""
    highest = float(spread.max()) if len(spread) else 0.0
    if highest <= 0:
        return Instances(size=size, masks=[], labels=[])
    values = F.interpolate(spread[None], size, mode="bilinear")[0]
    highest = float(values.max())
    values = values / highest
    best, owner = values.max(dim=0)
    owner = torch.where(best > options.instance_background, owner, -1)
    masks, classes, scores = [], [], []
    for number in owner.unique().tolist():
        if number < 0:
            continue
        mask = (owner == number).numpy().astype(np.uint8)
        count, areas = cv2.connectedComponents(mask, connectivity=4)
        for area in range(1, count):
            part = areas == area
            if part.sum() >= options.min_area * part.size:
                masks.append(part)
                classes.append(labels[number])
                scores.append(float(values[number][torch.from_numpy(part)].max()))
    dense = np.stack(masks) if masks else np.zeros((0, *size), dtype=bool)
    return Instances(size=size, masks=dense, labels=classes, scores=scores)


def _checked(maps: Tensor, annotation: Annotation) -> Tensor:
    if maps.ndim != 3 or len(maps) != len(annotation.distinct_labels):
        raise ValueError(
            f"maps of shape {tuple(maps.shape)}; expected one for each of the classes "
            f"{annotation.distinct_labels}"
        )
    return maps


def _grid(size: Size, side: float) -> Size:
    """Rows and columns of cells of an image of `size` with a longer side of `side` cells."""
    height, width = size
    scale = side / max(height, width)
    return max(MIN_CELLS, round(height * scale)), max(MIN_CELLS, round(width * scale))


def _resize_to_cells(image: Image, cells: Size) -> Tensor:
    """An image, uint8 [H, W, 3], as h x w cells of 4 pixels: float32 [3, 4h, 4w] in 0..1."""
    height, width = (STRIDE * side for side in cells)
    method = cv2.INTER_AREA if height < image.shape[0] else cv2.INTER_LINEAR
    resized = cv2.resize(image, (width, height), interpolation=method)
    return torch.from_numpy(resized).permute(2, 0, 1).float() / 255


class _IrnExamples(ImageExamples):
    """Images and confident labels, scaled, mirrored and cropped to squares at random.

    Pixels are float32 [3, size, size] in 0..1, labels int64 [size / 4, size / 4].
    """

    def __init__(
        self,
        images: Sequence[WeakImage],
        labels: Mapping[ImageId, Tensor],
        options: IrnOptions,
        seed: int,
    ) -> None:
        super().__init__(images)
        self.labels, self.options, self.seed = labels, options, seed

    def load(self, index: int, step: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        generator = generator_at(self.seed, NAME, "augmentation", step, str(image.image_id))
        scale, mirror, down, across = torch.rand(4, generator=generator).tolist()
        low, high = self.options.scale_range
        side = self.options.size // STRIDE
        pixels = image.pixels()
        cells = _grid(image.annotation.size, side * (low + (high - low) * scale))
        resized = _resize_to_cells(pixels, cells)
        labels = self.labels[image.image_id]
        labels = F.interpolate(labels[None, None].float(), cells, mode="nearest-exact")[0, 0].long()
        if mirror < 0.5:
            resized, labels = resized.flip(2), labels.flip(1)
        rows, columns = (
            round(share * (length - side))
            for share, length in zip((down, across), cells, strict=True)
        )
        return (
            _window(resized, STRIDE * rows, STRIDE * columns, STRIDE * side, 0.5),
            _window(labels, rows, columns, side, IGNORED),
        )


def _window(x: Tensor, row: int, column: int, side: int, fill: float) -> Tensor:
    """The square [..., side, side] at (row, column), which may be negative, of x [..., h, w]."""
    out = x.new_full((*x.shape[:-2], side, side), fill)
    top, left = max(0, row), max(0, column)
    part = x[..., top : row + side, left : column + side]
    out[
        ..., top - row : top - row + part.shape[-2], left - column : left - column + part.shape[-1]
    ] = part
    return out


class _IrnStep(nn.Module):
    def __init__(self, net: IrnNetwork, options: IrnOptions) -> None:
        super().__init__()
        self.net, self.options = net, options

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], Figures]:
        device = self.net.mean.device
        pixels = torch.stack([pixels for pixels, _ in batch.examples]).to(device)
        labels = torch.stack([labels for _, labels in batch.examples]).to(device)
        boundary, displacement = self.net(pixels, bfloat16=self.options.precision == "bf16")
        losses = relation_losses(boundary.sigmoid(), displacement, labels, self.options.radius)
        return losses, {}
