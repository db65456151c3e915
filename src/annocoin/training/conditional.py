"""Train the conditional network: from seeds at first, then against a fixed prediction network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from annocoin.conditional.candidates import Candidates, ScoringOptions
from annocoin.conditional.inference import total
from annocoin.conditional.networks import ConditionalNetwork
from annocoin.errors import InputError, brief, check_positive
from annocoin.objective.direct_loss import conditional_surrogate
from annocoin.objective.diversity import GAMMA, cross_diversity, self_diversity
from annocoin.objective.task_loss import disagreement_table
from annocoin.progress import track
from annocoin.randomness import generator_at, seed_of
from annocoin.training.cases import Case, Cases, Targets

Table = Callable[[Case], Tensor]
"""What the prediction network thinks of a case's regions: D [P, J+1], for 0 and its labels."""

Log = Callable[[dict[str, Any]], None]
Figures = dict[str, float]

WARM_UP = 0.05
"""The share of the steps in which the learning rate rises."""


@dataclass(frozen=True)
class ConditionalOptions:
    """How the conditional network learns.

    Args:
        scoring: how regions are scored and chosen.
        targets: what the initial training learns from, see `Case.targets`.
        initial_steps, steps: of the initial training, and of a later one.
        batch: images a step.
        initial_rate, rate: the greatest learning rates.
        weight_decay, clip: of AdamW, and the greatest norm of a gradient.
        samples: K.
        gamma: the share of the self diversity.
        epsilon: of the direct loss, of either sign.
        diversity: the factor of Delta between samples, which is 1 for an instance that moved away,
            beside the prediction network's log losses.
        pointwise: PW_c, a single sample without noise and without self diversity.
        boldness: added, after the initial training, to every pixel's margin over the background.
            Seeds vote for parts as well as for wholes, so that a pixel of an object often gets
            less than half of the votes.
        noise: how much, after the initial training, noise moves features, see `redraw_noise`; with
            0 its weights are learned in the initial training instead.
        seed: of everything random.
    """

    scoring: ScoringOptions = field(default_factory=ScoringOptions)
    targets: Targets = "votes"
    initial_steps: int = 400
    steps: int = 200
    batch: int = 8
    initial_rate: float = 1e-3
    rate: float = 3e-4
    weight_decay: float = 1e-4
    clip: float = 5.0
    samples: int = 10
    gamma: float = GAMMA
    epsilon: float = 1.0
    diversity: float = 10.0
    pointwise: bool = False
    boldness: float = 0.4
    noise: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("initial_steps", "steps", "batch", "samples"):
            check_positive(name, getattr(self, name))
        if min(self.initial_rate, self.rate, self.clip) <= 0:
            raise InputError("learning rates and clip are above 0")
        if min(self.weight_decay, self.diversity, self.noise) < 0:
            raise InputError("weight_decay, diversity and noise are 0 or more")
        if not 0 <= self.gamma <= 1 or self.epsilon == 0:
            raise InputError(
                f"gamma {self.gamma}, epsilon {self.epsilon}; expected 0 to 1, and other than 0"
            )


def train_from_seeds(
    net: ConditionalNetwork,
    cases: Sequence[Case],
    options: ConditionalOptions | None = None,
    *,
    log: Log | None = None,
) -> None:
    """The initial training: pixels learn what the seeds vote for.

    Cross entropy of the pixels' scores, among the background and the classes that the annotation
    names, with the soft labels of their superpixels. Averaged over a region, such scores say how
    much more likely it is the object than background. Then the noise gets weights, see
    `redraw_noise`.
    """
    options = options or ConditionalOptions()
    doing = "from seeds"

    def loss_of(case: Case, features: Tensor, step: int) -> tuple[Tensor, Figures]:
        targets = case.targets(options.targets).to(features)
        wanted = F.interpolate(targets[None], features.shape[-2:], mode="area")[0]
        noise = None
        if not options.noise and not options.pointwise:
            place = generator_at(options.seed, doing, "noise", step, str(case.image_id))
            noise = net.noise(1, features, place)
        scores = net.pixel_scores(features, noise, [0, *case.requirements.labels])[0]
        loss = -(wanted * scores.float().log_softmax(dim=0)).sum(dim=0).mean()
        return loss, {"cross_entropy": loss.item()}

    def augmented(case: Case, step: int) -> Case:
        flip = seed_of(options.seed, doing, "mirror", step, str(case.image_id)) % 2 == 1
        return case.mirrored() if flip else case

    _run(
        net, cases, options, options.initial_steps, options.initial_rate, loss_of, doing, log,
        augmented=augmented,
    )  # fmt: skip
    net.eval()
    with torch.no_grad():
        assert net.classify.bias is not None
        net.classify.bias[0] -= options.boldness
        if options.noise:
            _give_noise_weights(net, cases, options)


def _give_noise_weights(
    net: ConditionalNetwork, cases: Sequence[Case], options: ConditionalOptions
) -> None:
    few = _order(options.seed, "redraw noise", 0, len(cases))[: options.batch]
    features = features_of(net, [cases[place].pixels for place in few])
    together = torch.cat([own.flatten(1) for own in features], dim=1)[None, :, :, None]
    net.redraw_noise(together, options.noise, generator_at(options.seed, "redraw noise"))


def train_against(
    net: ConditionalNetwork,
    cases: Sequence[Case],
    table: Table,
    options: ConditionalOptions | None = None,
    *,
    name: str = "",
    log: Log | None = None,
) -> None:
    """Bring the conditional distribution to a fixed prediction distribution, given as loss tables.

    Minimises DIV(Pr_p, Pr_c) - gamma DIV(Pr_c, Pr_c) by its direct loss gradient.

    Args:
        table: D of each case.
        name: of this training, such as the round; other names, other images and other noise.
    """
    options = options or ConditionalOptions()
    doing = f"against predictions {name}".strip()

    def loss_of(case: Case, features: Tensor, step: int) -> tuple[Tensor, Figures]:
        candidates = case.candidates(options.scoring).to(features.device)
        noise = None
        if not options.pointwise:
            place = generator_at(options.seed, doing, "noise", step, str(case.image_id))
            noise = net.noise(options.samples, features, place)
        unary = net.unary(features, noise, candidates.regions, candidates.columns)
        costs = table(case).to(unary)
        if costs.shape != unary.shape[1:] or not bool(costs.isfinite().all()):
            raise InputError(
                f"a loss table of shape {tuple(costs.shape)}; expected finite numbers "
                f"{tuple(unary.shape[1:])}"
            )
        return direct_step(unary, candidates, costs, options)

    _run(net, cases, options, options.steps, options.rate, loss_of, doing, log)
    net.eval()


def direct_step(
    unary: Tensor, candidates: Candidates, table: Tensor, options: ConditionalOptions
) -> tuple[Tensor, Figures]:
    """The surrogate of one image, whose gradient is the direct loss gradient, and figures.

    Greedy inference is no exact argmax: where the labelling without the loss is better with it than
    the one found with it, that is y_a (or y_b) instead.

    Args:
        unary: F [K, P, J+1].
        table: D [P, J+1].
    """
    scores = candidates.scores(unary)
    fixed = scores.detach()
    classes = candidates.requirements.labels
    plain = candidates.infer(fixed).labels

    def augmented(values: Tensor, unaugmented: Tensor) -> Tensor:
        found = candidates.infer(values).labels
        better = total(values, found, classes) >= total(values, unaugmented, classes)
        return torch.where(better[:, None], found, unaugmented)

    against = augmented(fixed + options.epsilon * table, plain)
    apart: Tensor | None = None
    count = len(scores)
    if count > 1 and not options.pointwise and options.gamma > 0:
        tables = options.diversity * disagreement_table(plain, candidates.iou, classes)
        own, other = (1 - torch.eye(count, device=scores.device)).nonzero(as_tuple=True)
        labels = augmented(fixed[own] + options.epsilon * tables[other], plain[own])
        apart = total(scores[own], labels, classes).view(count, count - 1)
    surrogate = conditional_surrogate(
        total(scores, plain, classes),
        total(scores, against, classes),
        apart,
        epsilon=options.epsilon,
        gamma=options.gamma,
    )
    figures = {
        "cross_diversity": float(cross_diversity(table, plain, classes)),
        "self_diversity": options.diversity * float(self_diversity(plain, candidates.iou, classes)),
        "moved_by_loss": float((against != plain).any(dim=1).float().mean()),
        "instances": float((plain > 0).sum(dim=1).float().mean()),
        "added_regions": float(candidates.requirements.added),
        **magnitudes(unary.detach(), fixed),
    }
    return surrogate, figures


def magnitudes(unary: Tensor, scores: Tensor) -> Figures:
    """How large the margins of F are, and how much of them is left in G: spread and correlation."""
    before, after = (values[..., 1:] - values[..., :1] for values in (unary, scores))
    if before.numel() < 2:
        return {"unary_spread": 0.0, "unary_correlation": 1.0}
    pair = torch.stack([before.flatten(), after.flatten()]).double()
    spread = pair.std(dim=1)
    moved = (pair - pair.mean(dim=1, keepdim=True)).prod(dim=0).sum() / (pair.shape[1] - 1)
    alike = moved / (spread[0] * spread[1]).clamp(min=1e-12)
    return {"unary_spread": float(spread[0]), "unary_correlation": float(alike)}


LossOf = Callable[[Case, Tensor, int], tuple[Tensor, Figures]]


def _run(
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
        progress = (step + 0.5) / steps
        share = min(1.0, progress / WARM_UP) * 0.5 * (1 + math.cos(math.pi * progress))
        for group in optimizer.param_groups:
            group["lr"] = rate * share
        batch = [cases[place] for place in _batch(options, doing, step, len(cases))]
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


def _batch(options: ConditionalOptions, doing: str, step: int, count: int) -> list[int]:
    """The images of a step: the dataset in another order each time round."""
    places = []
    for number in range(step * options.batch, (step + 1) * options.batch):
        places.append(_order(options.seed, doing, number // count, count)[number % count])
    return places


def _order(seed: int, doing: str, epoch: int, count: int) -> list[int]:
    generator = generator_at(seed, doing, "order", epoch)
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    return order
