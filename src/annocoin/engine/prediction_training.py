"""Train the prediction network on pseudo labels, with the conditional network fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.image_list import ImageList

from annocoin.data.dataset import WeakImage
from annocoin.engine.config import PredictionOptions
from annocoin.engine.distribution import ProcessGroup
from annocoin.engine.pseudo_labels import PseudoLabels
from annocoin.engine.randomness import generator_at, seed_of
from annocoin.engine.trainer import Batch, Figures, Support, batch_indices, learn
from annocoin.errors import InputError
from annocoin.prediction.networks import (
    PredictionArchitecture,
    ResizedImage,
    batch_of,
    freeze,
    share_masks,
    view,
)
from annocoin.prediction.soft_losses import SoftLosses
from annocoin.prediction.soft_targets import SoftTargets
from annocoin.types import ImageId


def train_prediction(
    net: MaskRCNN,
    architecture: PredictionArchitecture,
    images: Sequence[WeakImage],
    labels: Mapping[ImageId, PseudoLabels],
    options: PredictionOptions,
    *,
    steps: int,
    part: tuple[float, float] = (0.0, 1.0),
    name: str = "",
    support: Support | None = None,
) -> None:
    """Bring the prediction distribution to the samples of the conditional one.

    Minimises DIV(Pr_p, Pr_c) - (1 - gamma) DIV(Pr_p, Pr_p).

    Args:
        labels: of the images, by image id.
        part: from which to which share of the training over all rounds these steps are; the
            learning rate falls over all of it.
        name: of this training, such as the round; other names, other orders of the images.
    """
    usable = [image for image in images if image.image_id in labels]
    if not usable:
        raise InputError("no image has pseudo labels; nothing to train the prediction network on")
    doing = f"prediction {name}".strip()

    def batch_at(step: int, group: ProcessGroup) -> Batch:
        where = (options.seed, doing)
        places = batch_indices(step, options.batch, len(usable), group, *where)
        items = [
            _item(usable[place], labels, architecture, options, *where, step) for place in places
        ]
        seen = [item.seen for item in items]
        content = (
            batch_of(seen, group.device),
            [item.targets.to(group.device) for item in items],
            [own.scale.to(group.device) for own in seen],
            [item.generator for item in items],
        )
        return Batch(tuple(usable[place].image_id for place in places), content)

    freeze(net, options.frozen)
    body = [w for w in net.backbone.body.parameters() if w.requires_grad]
    ours = {id(w) for w in body}
    rest = [w for w in net.parameters() if w.requires_grad and id(w) not in ours]
    learn(
        _Learner(SoftLosses(net, options.losses)),
        [
            {"params": rest, "lr": options.rate},
            {"params": body, "lr": options.rate * options.body_rate},
        ],
        batch_at,
        steps=steps,
        part=part,
        optimizer_name=options.optimizer,
        weight_decay=options.weight_decay,
        clip=options.clip,
        doing=f"prediction network {name}".strip(),
        seed=options.seed,
        support=support,
    )
    if options.losses.shared_masks:
        share_masks(net)
    net.eval()


class _Learner(nn.Module):
    def __init__(self, losses: SoftLosses) -> None:
        super().__init__()
        self.losses = losses

    def forward(
        self,
        images: ImageList,
        targets: list[SoftTargets],
        scales: list[Tensor],
        generators: list[torch.Generator],
    ) -> tuple[dict[str, Tensor], Figures]:
        return self.losses(images, targets, scales, generators), {}


@dataclass(frozen=True, eq=False)
class _Item:
    seen: ResizedImage
    targets: SoftTargets
    generator: torch.Generator


def _item(
    image: WeakImage,
    labels: Mapping[ImageId, PseudoLabels],
    architecture: PredictionArchitecture,
    options: PredictionOptions,
    *place: int | str,
) -> _Item:
    """One image of a step, perhaps mirrored, perhaps at another size."""
    own = (*place, str(image.image_id))
    low, high = options.scales
    scale = low + (high - low) * float(torch.rand((), generator=generator_at(*own, "scale")))
    seen = view(image.pixels(), round(architecture.size * scale), architecture.longest)
    smaller = seen.size[0] < seen.original[0]
    targets = labels[image.image_id].soft_targets(seen.size if smaller else None)
    if smaller:
        seen = ResizedImage(seen.pixels, seen.size)
    if seed_of(*own, "mirror") % 2:
        seen, targets = seen.mirrored(), targets.mirrored()
    return _Item(seen, targets, generator_at(*own, "sampling"))
