"""Training of the conditional network: first from seeds, then with a fixed prediction network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from annocoin.conditional.networks import ConditionalNetwork
from annocoin.conditional.scoring import Candidates
from annocoin.engine.conditional_dataset import (
    ConditionalDataset,
    ConditionalExample,
    ExampleSequence,
)
from annocoin.engine.network_config import ConditionalConfig, ConditionalTraining
from annocoin.engine.randomness import generator_at, seed_of
from annocoin.engine.trainer import Batch, Figures, Schedule, Trainer, epoch_order
from annocoin.errors import InputError, brief
from annocoin.objective.direct_loss import conditional_surrogate
from annocoin.objective.diversity import GAMMA, cross_diversity, self_diversity
from annocoin.objective.task_loss import clamp_log_odds, disagreement_table, labelling_score
from annocoin.types import ImageId

FROM_SEEDS = "conditional network, from seeds"


def train_from_seeds(
    net: ConditionalNetwork,
    dataset: ExampleSequence,
    config: ConditionalConfig,
    *,
    seed: int = 0,
    trainer: Trainer | None = None,
) -> None:
    """The initial training, on the targets that the seeds give (paper, 6.2).

    Cross entropy of the pixels' scores, over the background and the annotated classes. Averaged
    over a region, such scores are log odds of object against background. Afterwards the weights
    of the noise are drawn, see `init_noise_weights`.
    """
    training = config.training
    examples = _ConditionalExamples(dataset, mirror=(seed, FROM_SEEDS))
    step = _ConditionalStep(net, partial(_seed_loss, training=training, seed=seed))
    _fit(net, step, examples, training, trainer, FROM_SEEDS, seed)
    with torch.no_grad():
        assert net.classify.bias is not None
        net.classify.bias[0] -= training.foreground_bias
        if training.noise_strength:
            _redraw_noise(net, dataset, training, seed)


def train_direct_loss(
    net: ConditionalNetwork,
    dataset: ExampleSequence,
    config: ConditionalConfig,
    *,
    gamma: float = GAMMA,
    name: str = "",
    seed: int = 0,
    trainer: Trainer | None = None,
) -> None:
    """Training with a fixed prediction network (paper, 5 and appendix B).

    Minimises DIV(Pr_p, Pr_c) - gamma DIV(Pr_c, Pr_c) by its direct loss gradient.

    Args:
        dataset: with the loss tables D of the prediction network.
        name: such as the round; another name draws other images and noise.
    """
    name = f"conditional network {name}".strip()
    loss = partial(_direct_loss, config=config, gamma=gamma, seed=seed, name=name)
    step = _ConditionalStep(net, loss)
    _fit(net, step, _ConditionalExamples(dataset), config.training, trainer, name, seed)


def direct_step(
    unary: Tensor,
    candidates: Candidates,
    table: Tensor,
    training: ConditionalTraining,
    gamma: float = GAMMA,
) -> tuple[Tensor, Figures]:
    """The surrogate of one image, whose gradient is the direct loss gradient, and figures.

    Greedy inference is not an exact argmax, see `ConditionalTraining.keep_better`.

    Args:
        unary: F [K, P, J+1].
        table: D [P, J+1].
    """
    scores, table = candidates.scores(unary), candidates.repeat(table)
    fixed, classes = scores.detach(), candidates.requirements.labels
    predicted = candidates.infer(fixed).labels

    def augmented(values: Tensor, plain: Tensor) -> Tensor:
        labels = candidates.infer(values).labels
        if not training.keep_better:
            return labels
        better = labelling_score(values, labels, classes) >= labelling_score(values, plain, classes)
        return torch.where(better[:, None], labels, plain)

    towards = augmented(fixed + training.epsilon * table, predicted)
    apart: Tensor | None = None
    count = len(scores)
    if count > 1 and not training.pointwise and gamma > 0:
        tables = training.diversity_weight * disagreement_table(predicted, candidates.iou, classes)
        first, second = (1 - torch.eye(count, device=scores.device)).nonzero(as_tuple=True)
        labels = augmented(fixed[first] + training.epsilon * tables[second], predicted[first])
        apart = labelling_score(scores[first], labels, classes).view(count, count - 1)
    surrogate = conditional_surrogate(
        labelling_score(scores, predicted, classes),
        labelling_score(scores, towards, classes),
        apart,
        epsilon=training.epsilon,
        gamma=gamma,
    )
    diversity = float(self_diversity(predicted, candidates.iou, classes))
    figures = {
        "cross_diversity": float(_cross_diversity(table, predicted, candidates)),
        "self_diversity": training.diversity_weight * diversity,
        "changed_by_loss": float((towards != predicted).any(dim=1).float().mean()),
        "instances": float((predicted > 0).sum(dim=1).float().mean()),
        "fallback_regions": float(candidates.requirements.num_fallbacks),
        **margin_figures(candidates.repeat(unary.detach()), fixed),
    }
    return surrogate, figures


def margin_figures(unary: Tensor, scores: Tensor) -> Figures:
    """Standard deviation of the margins of F, and their correlation with those of G."""
    before, after = (values[..., 1:] - values[..., :1] for values in (unary, scores))
    if before.numel() < 2:
        return {"unary_std": 0.0, "unary_correlation": 1.0}
    margins = torch.stack([before.flatten(), after.flatten()]).cpu().double()
    correlation = torch.corrcoef(margins)[0, 1].nan_to_num(0.0)
    return {"unary_std": float(margins[0].std()), "unary_correlation": float(correlation)}


def batch_features(net: ConditionalNetwork, images: Sequence[Tensor]) -> list[Tensor]:
    """Features [F, h, w] of images [3, H, W] of any sizes, in one pass of the trunk.

    Smaller images are padded with the mean colour; the features of the padding are cut off.
    """
    height = max(image.shape[1] for image in images)
    width = max(image.shape[2] for image in images)
    batch = net.mean.expand(len(images), 3, height, width).clone()
    for padded, image in zip(batch, images, strict=True):
        padded[:, : image.shape[1], : image.shape[2]] = image
    features = net.features(batch)
    down, across = features.shape[2] / height, features.shape[3] / width
    return [
        maps[:, : math.ceil(image.shape[1] * down), : math.ceil(image.shape[2] * across)]
        for maps, image in zip(features, images, strict=True)
    ]


def _cross_diversity(table: Tensor, labels: Tensor, candidates: Candidates) -> Tensor:
    """DIV(Pr_p, Pr_c), where a region that classes share is background once, or not at all.

    Args:
        table: D of the copies of the regions, [P, J+1]; see `Requirements.per_class`.
        labels: y^k of the copies, int64 [K, P].
    """
    count = len(candidates.regions)
    copies = len(table) // max(1, count)
    selected = (labels > 0).view(len(labels), copies, count).any(dim=1)
    background = (~selected).to(table.dtype) @ table[:count, 0]
    foreground = torch.cat([torch.zeros_like(table[:, :1]), table[:, 1:]], dim=1)
    return cross_diversity(foreground, labels, candidates.requirements.labels) + background.mean()


def _seed_loss(
    net: ConditionalNetwork,
    example: ConditionalExample,
    features: Tensor,
    step: int,
    *,
    training: ConditionalTraining,
    seed: int,
) -> tuple[Tensor, Figures]:
    targets = example.targets().to(features)
    targets = F.interpolate(targets[None], features.shape[-2:], mode="area")[0]
    noise = None
    if not training.noise_strength and not training.pointwise:
        generator = generator_at(seed, FROM_SEEDS, "noise", step, str(example.image_id))
        noise = net.noise(1, features, generator)
    scores = net.pixel_scores(features, noise, [0, *example.requirements.labels])[0]
    loss = -(targets * scores.float().log_softmax(dim=0)).sum(dim=0).mean()
    return loss, {"cross_entropy": loss.item()}


def _direct_loss(
    net: ConditionalNetwork,
    example: ConditionalExample,
    features: Tensor,
    step: int,
    *,
    config: ConditionalConfig,
    gamma: float,
    seed: int,
    name: str,
) -> tuple[Tensor, Figures]:
    training, table = config.training, example.table
    # the scores do not contain the table, which the network has to learn from
    candidates = example.without_table().candidates(config.scoring).to(features.device)
    noise = None
    if not training.pointwise:
        generator = generator_at(seed, name, "noise", step, str(example.image_id))
        noise = net.noise(training.samples, features, generator)
    unary = net.unary(features, noise, candidates.regions, candidates.columns)
    if table is None or table.shape != unary.shape[1:] or not bool(table.isfinite().all()):
        shape = None if table is None else tuple(table.shape)
        raise InputError(
            f"a loss table of shape {shape}; expected finite numbers {tuple(unary.shape[1:])}"
        )
    if training.restrict_to_annotation and config.task_loss.clamp is not None:
        table = clamp_log_odds(table)
    return direct_step(unary, candidates, table.to(unary), training, gamma)


def _fit(
    net: ConditionalNetwork,
    step: nn.Module,
    examples: _ConditionalExamples,
    training: ConditionalTraining,
    trainer: Trainer | None,
    name: str,
    seed: int,
) -> None:
    dataset, initial = examples.dataset, name == FROM_SEEDS
    if isinstance(dataset, ConditionalDataset) and dataset.classes != net.architecture.classes:
        raise InputError(
            f"a conditional network of {brief(net.architecture.classes)}; "
            f"the dataset has {brief(dataset.classes)}"
        )
    schedule = Schedule(
        steps=training.initial_steps if initial else training.steps,
        batch_size=training.batch_size,
        optimizer=training.optimizer,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        lr_milestones=training.lr_milestones,
        lr_factors=training.lr_factors,
    )
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    parameters = [{"params": weights, "lr": training.initial_lr if initial else training.lr}]
    trainer = trainer or Trainer()
    trainer.fit(step, examples, parameters, schedule, name=name, seed=seed)
    net.eval()


class _ConditionalExamples:
    """Examples for a step; mirrored at random for the initial training."""

    def __init__(
        self, dataset: ExampleSequence, mirror: tuple[int | str, ...] | None = None
    ) -> None:
        self.dataset, self.mirror = dataset, mirror

    def __len__(self) -> int:
        return len(self.dataset)

    def image_id(self, index: int) -> ImageId:
        if isinstance(self.dataset, ConditionalDataset):
            return self.dataset.image_id(index)
        return self.dataset[index].image_id

    def load(self, index: int, step: int) -> ConditionalExample:
        example = self.dataset[index]
        if self.mirror is None:
            return example
        flip = seed_of(*self.mirror, "mirror", step, str(example.image_id)) % 2 == 1
        return example.mirrored() if flip else example


class _ConditionalStep(nn.Module):
    """The mean loss of a batch, `loss(net, example, features, step)` of each image."""

    def __init__(self, net: ConditionalNetwork, loss: Any) -> None:
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], Figures]:
        images = [example.pixels for example in batch.examples]
        losses, figures = [], []
        for example, maps in zip(batch.examples, batch_features(self.net, images), strict=True):
            try:
                loss, numbers = self.loss(self.net, example, maps, batch.step)
            except InputError as error:
                where = f"step {batch.step + 1}, image {example.image_id!r}"
                raise InputError(f"conditional network, {where}: {error}") from None
            losses.append(loss)
            figures.append(numbers)
        means = {key: sum(row[key] for row in figures) / len(figures) for key in figures[0]}
        return {"surrogate": torch.stack(losses).mean()}, means


def _redraw_noise(
    net: ConditionalNetwork,
    dataset: ExampleSequence,
    training: ConditionalTraining,
    seed: int,
) -> None:
    few = epoch_order(0, len(dataset), seed, "redraw noise")[: training.batch_size]
    features = batch_features(net, [dataset[index].pixels for index in few])
    pixels = torch.cat([maps.flatten(1) for maps in features], dim=1)[None, :, :, None]
    net.init_noise_weights(pixels, training.noise_strength, generator_at(seed, "redraw noise"))
