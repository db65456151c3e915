"""Train the image classifier from tags: multi-label, its score the mean over peaks, resumable."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import cv2
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from annocoin.backbones import (
    IMAGENET,
    IMAGENET_MEAN,
    SCRATCH,
    TINY,
    TINY_LAYERS,
    Image,
    resize_longest_side,
)
from annocoin.data.dataset import WeakDataset
from annocoin.engine.distribution import warn_of_slow_bfloat16
from annocoin.engine.parallel import cores
from annocoin.engine.randomness import seeded
from annocoin.engine.trainer import rate_share
from annocoin.errors import InputError, Problems, check_choice, check_positive, one_line
from annocoin.progress import track
from annocoin.seeds.classifier import (
    Checkpoint,
    Classifier,
    ClassifierArchitecture,
    mean_over_classes,
    peak_scores,
    read_checkpoint,
    tag_average_precision,
    write_checkpoint,
)

Precision = Literal["32", "bf16"]
Log = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class ClassifierOptions:
    """What the classifier is and how it learns.

    Args:
        backbone, backbone_weights, stride_in_1x1: its trunk, see `build_trunk`.
        stimulated: in this last share of the steps a class's score is the mean over its map's
            peaks, before that over the whole map, from which learning starts more easily.
        sharpness: how much more high peaks count in that mean, see `peak_scores`.
        size: the side of the square that images are put into, in pixels.
        epochs: how often every image is seen.
        batch: images a step.
        head_rate, trunk_rate: the greatest learning rates of the new layer and of the trunk.
        weight_decay: of AdamW.
        frozen: how many of the trunk's first parts stay as they are: of a ResNet 5 keep all up to
            layer1, 6 up to layer2.
        precision: "bf16" computes in bfloat16 where that is safe.
        seed: of everything random.
    """

    backbone: str = "resnet50"
    backbone_weights: str = IMAGENET
    stride_in_1x1: bool = False
    stimulated: float = 0.25
    sharpness: float = 0.0
    size: int = 448
    epochs: int = 20
    batch: int = 16
    head_rate: float = 1e-3
    trunk_rate: float = 1e-4
    weight_decay: float = 1e-4
    frozen: int = 0
    precision: Precision = "32"
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive("epochs", self.epochs)
        check_positive("batch", self.batch)
        if self.seed < 0 or self.frozen < 0:
            raise InputError(f"seed {self.seed}, frozen {self.frozen}; expected 0 or more")
        if min(self.head_rate, self.trunk_rate) <= 0:
            raise InputError("learning rates are above 0")
        check_choice("precision", self.precision, get_args(Precision))
        if not 0 <= self.stimulated <= 1:
            raise InputError(f"stimulated {self.stimulated}; expected 0 to 1")

    def architecture(self, classes: tuple[str, ...]) -> ClassifierArchitecture:
        return ClassifierArchitecture(classes, self.backbone, self.stride_in_1x1, self.size)


def options_for(backbone: str, **changes: Any) -> ClassifierOptions:
    """Good options for a backbone, with changes."""
    fitting: dict[str, Any] = {"backbone": backbone}
    if backbone == TINY:
        fitting |= {"size": 256, "epochs": 6, "head_rate": 3e-3, "trunk_rate": 3e-3}
        fitting |= {"stimulated": 1.0, "sharpness": 1.0}
        if changes.get("backbone_weights") != SCRATCH:
            fitting["frozen"] = TINY_LAYERS
    return ClassifierOptions(**{**fitting, **changes})


def train_classifier(
    dataset: WeakDataset,
    options: ClassifierOptions | None = None,
    *,
    checkpoint: str | Path | None = None,
    validation: WeakDataset | None = None,
    device: str | torch.device = "cpu",
    problems: Problems | None = None,
    log: Log | None = None,
) -> Classifier:
    """Learn to tell which classes an image has.

    Args:
        dataset: only the classes that its annotations name are looked at.
        checkpoint: a file that keeps the state after each epoch. Where it is there already, the
            training goes on from it, and ends as if it had never been interrupted.
        validation: images whose tag mAP is measured after each epoch.
        problems: `Problems(skip=True)` leaves bad images out instead of stopping.
        log: called after each epoch with its figures; again, if it was interrupted just then.
    """
    options = options or ClassifierOptions()
    device, problems = torch.device(device), problems or Problems()
    if options.precision == "bf16":
        warn_of_slow_bfloat16(device)
    made = how_trained(options, dataset)
    first = options.seed * 1_000_003  # of the new layer's weights; then one for each epoch
    with seeded(first, device):
        net = Classifier(options.architecture(dataset.classes), options.backbone_weights)
    net = net.to(device).to(memory_format=torch.channels_last)
    optimizer = _optimizer(net, options)
    state = Checkpoint(net, optimizer, made)
    done = 0 if checkpoint is None else read_checkpoint(checkpoint, state)
    for epoch in range(done, options.epochs):
        with seeded(first + epoch + 1, device):  # some backbones drop layers at random
            figures = _epoch(net, optimizer, dataset, options, epoch, problems)
        if validation is not None:
            figures["validation_tag_map"] = tag_map(predict_tags(net, validation), validation)
        if log is not None:
            log(figures)
        if checkpoint is not None:
            write_checkpoint(checkpoint, state, epoch + 1)
    return net.eval()


@torch.inference_mode()
def predict_tags(net: Classifier, dataset: WeakDataset) -> Tensor:
    """The class scores, logits [N, C], of every image."""
    net.eval()
    device = net.mean.device
    rows = []
    for image in track(dataset.images, "tags"):
        pixels = resize_longest_side(image.pixels(), net.architecture.size)[None].to(device)
        rows.append(net.scores(net(pixels.contiguous(memory_format=torch.channels_last)))[0].cpu())
    return torch.stack(rows) if rows else torch.zeros(0, len(dataset.classes))


def tag_map(scores: Tensor, dataset: WeakDataset) -> float:
    """Mean average precision of scores [N, C] for the dataset's tags."""
    return mean_over_classes(tag_average_precision(scores, tag_matrix(dataset).bool()))


def tag_matrix(dataset: WeakDataset) -> Tensor:
    """Which classes each image has: float32 [N, C] of 0 and 1."""
    tags = torch.zeros(len(dataset), len(dataset.classes))
    for row, image in zip(tags, dataset, strict=True):
        row[[label - 1 for label in image.annotation.distinct_labels]] = 1
    return tags


def how_trained(options: ClassifierOptions, dataset: WeakDataset) -> dict[str, Any]:
    """All that the classifier depends on, for the files that keep it."""
    return {**asdict(options), "images": tags_fingerprint(dataset)}


def tags_fingerprint(dataset: WeakDataset) -> str:
    """A short name of the images and their tags: another one, another classifier."""
    said = [[image.image_id, image.annotation.distinct_labels] for image in dataset]
    content = json.dumps([dataset.classes, said])
    return hashlib.sha256(content.encode()).hexdigest()[:12]


Example = tuple[int, Tensor | str]
"""The place of an image and its pixels, or what is wrong with it."""


class _Examples(Dataset[Example]):
    """Augmented images of one epoch; what happens to each depends on seed, epoch and place only."""

    def __init__(self, dataset: WeakDataset, size: int, seed: int, epoch: int) -> None:
        self.dataset, self.size, self.seed, self.epoch = dataset, size, seed, epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Example:
        rng = np.random.default_rng([self.seed, self.epoch, index])
        try:
            return index, augmented(self.dataset[index].pixels(), self.size, rng)
        except (InputError, OSError) as error:
            return index, one_line(error)


def _epoch(
    net: Classifier,
    optimizer: torch.optim.Optimizer,
    dataset: WeakDataset,
    options: ClassifierOptions,
    epoch: int,
    problems: Problems,
) -> dict[str, Any]:
    """One pass over the images; gives its figures."""
    started = time.monotonic()
    device = net.mean.device
    order = np.random.default_rng([options.seed, epoch]).permutation(len(dataset))
    loader = DataLoader(
        _Examples(dataset, options.size, options.seed, epoch),
        options.batch,
        sampler=order.tolist(),
        collate_fn=list,
        num_workers=0 if device.type == "cpu" else min(8, cores()),
    )
    steps = len(loader)
    tags = tag_matrix(dataset).to(device)
    scores = torch.zeros(tags.shape)
    total = 0.0
    _set_training(net, options)
    doing = f"classifier, epoch {epoch + 1} of {options.epochs}"
    for step, batch in enumerate(track(loader, doing)):
        progress = (epoch * steps + step + 0.5) / (steps * options.epochs)
        _set_rates(optimizer, progress)
        places, images = _whole(batch, problems)
        if not len(places):
            continue
        pixels = images.to(device).contiguous(memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.bfloat16, enabled=options.precision == "bf16"):
            maps = net(pixels)
        found = _pooled(maps.float(), progress, options)
        loss = F.binary_cross_entropy_with_logits(found, tags[places])
        if not math.isfinite(loss.item()):
            names = [dataset[place].image_id for place in places.tolist()]
            raise InputError(
                f"the classifier's loss is {loss.item()} in epoch {epoch + 1} at images {names}; "
                "lower the learning rates"
            )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(places)
        scores[places] = found.detach().cpu()
    return {
        "epoch": epoch + 1,
        "loss": total / len(dataset),
        "training_tag_map": tag_map(scores, dataset),
        "seconds": time.monotonic() - started,
    }


def _whole(batch: list[Example], problems: Problems) -> tuple[Tensor, Tensor]:
    """Places [B] and images [B, 3, s, s] of those that could be read."""
    for _, reason in batch:
        if isinstance(reason, str):
            with problems.caught():
                raise InputError(reason)
    pairs = [(place, image) for place, image in batch if isinstance(image, Tensor)]
    places = torch.tensor([place for place, _ in pairs], dtype=torch.int64)
    return places, torch.stack([image for _, image in pairs]) if pairs else torch.zeros(0)


def _pooled(maps: Tensor, progress: float, options: ClassifierOptions) -> Tensor:
    """Class scores [B, C] of class maps [B, C, h, w] at this share of the training."""
    if progress < 1 - options.stimulated:
        return maps.mean(dim=(-2, -1))
    return peak_scores(maps, sharpness=options.sharpness)


def _set_training(net: Classifier, options: ClassifierOptions) -> None:
    """Training mode; but statistics that came with the weights stay as they are."""
    net.train()
    if options.backbone_weights != SCRATCH:
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()


def _optimizer(net: Classifier, options: ClassifierOptions) -> torch.optim.Optimizer:
    for part in list(net.trunk)[: options.frozen]:
        part.requires_grad_(False)
    trunk = [weights for weights in net.trunk.parameters() if weights.requires_grad]
    groups = [{"params": list(net.head.parameters()), "peak": options.head_rate}]
    if trunk:
        groups.append({"params": trunk, "peak": options.trunk_rate})
    return torch.optim.AdamW(groups, lr=options.head_rate, weight_decay=options.weight_decay)


def _set_rates(optimizer: torch.optim.Optimizer, progress: float) -> None:
    """Learning rates at this share of the training."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * rate_share(progress)


SCALES = (0.7, 1.25)
"""The longer side of the image, as a share of the side of the square it is put into."""

COLOURS = 0.3
"""How much brightness, contrast and saturation may change, up or down."""


def augmented(image: Image, size: int, rng: np.random.Generator) -> Tensor:
    """An image uint8 [H, W, 3], override at random, in a square: [3, size, size] in 0..1.

    What does not fit is cut, at most a fifth of the longer side, so that tags mostly stay true;
    what is left of the square has ImageNet's mean colour.
    """
    longer = max(1, round(size * rng.uniform(*SCALES)))
    pixels = resize_longest_side(_recoloured(image, rng), longer)
    if rng.random() < 0.5:
        pixels = pixels.flip(2)
    square = torch.tensor(IMAGENET_MEAN).view(3, 1, 1).expand(3, size, size).clone()
    height, width = pixels.shape[1:]
    rows, from_rows = _span(height, size, rng)
    columns, from_columns = _span(width, size, rng)
    square[:, rows, columns] = pixels[:, from_rows, from_columns]
    return square


def _span(length: int, size: int, rng: np.random.Generator) -> tuple[slice, slice]:
    """Where a length goes within the square's side, and which part of it goes there."""
    room = int(rng.integers(0, abs(size - length) + 1))
    if length <= size:
        return slice(room, room + length), slice(0, length)
    return slice(0, size), slice(room, room + size)


def _recoloured(image: Image, rng: np.random.Generator) -> Image:
    brightness, contrast, saturation = rng.uniform(1 - COLOURS, 1 + COLOURS, 3)
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    mean = float(grey.mean())
    override = saturation * image + (1 - saturation) * grey[:, :, None].astype(np.float32)
    override = brightness * (contrast * override + (1 - contrast) * mean)
    return np.clip(override, 0, 255).astype(np.uint8)
