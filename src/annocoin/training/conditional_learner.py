"""The conditional network as a learner, whatever it learns from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from annocoin.conditional.networks import ConditionalNetwork
from annocoin.distribution import Party
from annocoin.errors import InputError, brief
from annocoin.training.cases import Case, Cases
from annocoin.training.conditional_options import ConditionalOptions
from annocoin.training.learning import Batch, Figures, Support, learn, places_at

LossOf = Callable[[Case, Tensor, int], tuple[Tensor, Figures]]
"""The loss of one case, from its features [F, h, w] and the step's number."""


def train_conditional(
    net: ConditionalNetwork,
    cases: Sequence[Case],
    options: ConditionalOptions,
    steps: int,
    rate: float,
    loss_of: LossOf,
    doing: str,
    support: Support | None,
    *,
    augmented: Callable[[Case, int], Case] | None = None,
) -> None:
    """Steps on the mean loss of batches of cases."""
    _check_classes(net, cases)

    def batch_at(step: int, party: Party) -> Batch:
        places = places_at(step, options.batch, len(cases), party, options.seed, doing)
        batch = [cases[place] for place in places]
        if augmented is not None:
            batch = [augmented(case, step) for case in batch]
        return Batch(tuple(case.image_id for case in batch), (batch, step))

    weights = [own for own in net.parameters() if own.requires_grad]
    learn(
        _Learner(net, loss_of, doing),
        [{"params": weights, "lr": rate}],
        batch_at,
        steps=steps,
        weight_decay=options.weight_decay,
        clip=options.clip,
        doing=f"conditional network, {doing}",
        seed=options.seed,
        support=support,
    )


class _Learner(nn.Module):
    def __init__(self, net: ConditionalNetwork, loss_of: LossOf, doing: str) -> None:
        super().__init__()
        self.net = net
        self.loss_of, self.doing = loss_of, doing

    def forward(self, batch: Sequence[Case], step: int) -> tuple[dict[str, Tensor], Figures]:
        features = features_of(self.net, [case.pixels for case in batch])
        total = features[0].new_zeros(())
        figures: list[Figures] = []
        for case, own in zip(batch, features, strict=True):
            try:
                loss, numbers = self.loss_of(case, own, step)
            except InputError as error:
                raise InputError(
                    f"conditional network {self.doing}, step {step + 1}, "
                    f"image {case.image_id!r}: {error}"
                ) from None
            total = total + loss / len(batch)
            figures.append(numbers)
        means = {key: sum(own[key] for own in figures) / len(figures) for key in figures[0]}
        return {"surrogate": total}, means


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
