"""The loop in which the conditional network learns, whatever from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from annocoin.conditional.networks import ConditionalNetwork
from annocoin.errors import InputError, brief
from annocoin.progress import track
from annocoin.randomness import generator_at
from annocoin.schedule import rate_share
from annocoin.training.cases import Case, Cases
from annocoin.training.options import ConditionalOptions

Log = Callable[[dict[str, Any]], None]
Figures = dict[str, float]

LossOf = Callable[[Case, Tensor, int], tuple[Tensor, Figures]]


def run(
    net: ConditionalNetwork,
    cases: Sequence[Case],
    options: ConditionalOptions,
    steps: int,
    rate: float,
    loss_of: LossOf,
    doing: str,
    log: Log | None,
    *,
    augmented: Callable[[Case, int], Case] | None = None,
) -> None:
    """Steps of AdamW on the mean loss of batches; all depends on the seed and the step only."""
    _check_classes(net, cases)
    learning = [weights for weights in net.parameters() if weights.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=rate, weight_decay=options.weight_decay)
    net.train()
    for step in track(range(steps), f"conditional network, {doing}"):
        for group in optimizer.param_groups:
            group["lr"] = rate * rate_share((step + 0.5) / steps)
        batch = [cases[place] for place in _places(options, doing, step, len(cases))]
        if augmented is not None:
            batch = [augmented(case, step) for case in batch]
        features = features_of(net, [case.pixels for case in batch])
        losses, figures = [], []
        for case, own in zip(batch, features, strict=True):
            try:
                loss, numbers = loss_of(case, own, step)
            except InputError as error:
                raise InputError(
                    f"conditional network {doing}, step {step + 1}, image {case.image_id!r}: "
                    f"{error}"
                ) from None
            losses.append(loss)
            figures.append(numbers)
        loss = torch.stack(losses).mean()
        means = {key: sum(f[key] for f in figures) / len(figures) for key in figures[0]}
        if not math.isfinite(loss.item()):
            raise InputError(
                f"the conditional network's loss is {loss.item()} at step {step + 1}, images "
                f"{[case.image_id for case in batch]}, {means}; lower the learning rate"
            )
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(learning, options.clip)
        optimizer.step()
        if log is not None:
            log({"step": step + 1, "loss": loss.item(), "gradient": float(norm), **means})


def _check_classes(net: ConditionalNetwork, cases: Sequence[Case]) -> None:
    if isinstance(cases, Cases) and cases.classes != net.architecture.classes:
        raise InputError(
            f"a conditional network of {brief(net.architecture.classes)}; "
            f"the dataset has {brief(cases.classes)}"
        )


def features_of(net: ConditionalNetwork, images: Sequence[Tensor]) -> list[Tensor]:
    """Features [F, h, w] of images [3, H, W] of any sizes, in one pass of the trunk.

    Smaller ones are filled up with the mean colour; what belongs to that is cut off again.
    """
    height = max(image.shape[1] for image in images)
    width = max(image.shape[2] for image in images)
    batch = net.mean.expand(len(images), 3, height, width).clone()
    for place, image in zip(batch, images, strict=True):
        place[:, : image.shape[1], : image.shape[2]] = image
    features = net.features(batch)
    down, across = features.shape[2] / height, features.shape[3] / width
    return [
        own[:, : math.ceil(image.shape[1] * down), : math.ceil(image.shape[2] * across)]
        for own, image in zip(features, images, strict=True)
    ]


def _places(options: ConditionalOptions, doing: str, step: int, count: int) -> list[int]:
    """The images of a step: the dataset in another order each time round."""
    numbers = range(step * options.batch, (step + 1) * options.batch)
    epochs = {number // count for number in numbers}
    orders = {epoch: order(options.seed, doing, epoch, count) for epoch in epochs}
    return [orders[number // count][number % count] for number in numbers]


def order(seed: int, doing: str, epoch: int, count: int) -> list[int]:
    """The places of `count` images in the order of an epoch."""
    generator = generator_at(seed, doing, "order", epoch)
    found: list[int] = torch.randperm(count, generator=generator).tolist()
    return found
