"""The conditional network as a learner, whatever it learns from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from annocoin.conditional.networks import ConditionalNetwork
from annocoin.conditional.scoring import Candidates
from annocoin.engine.conditional_dataset import ConditionalDataset, ConditionalExample
from annocoin.engine.config import ConditionalOptions
from annocoin.engine.distribution import ProcessGroup
from annocoin.engine.randomness import generator_at, seed_of
from annocoin.engine.trainer import Batch, Figures, Support, batch_indices, learn, order
from annocoin.errors import InputError, brief
from annocoin.objective.direct_loss import conditional_surrogate
from annocoin.objective.diversity import cross_diversity, self_diversity
from annocoin.objective.task_loss import disagreement_table, total

LossOf = Callable[[ConditionalExample, Tensor, int], tuple[Tensor, Figures]]
"""The loss of one case, from its features [F, h, w] and the step's number."""


def train_conditional(
    net: ConditionalNetwork,
    cases: Sequence[ConditionalExample],
    options: ConditionalOptions,
    steps: int,
    rate: float,
    loss_of: LossOf,
    doing: str,
    support: Support | None,
    *,
    augmented: Callable[[ConditionalExample, int], ConditionalExample] | None = None,
) -> None:
    """Steps on the mean loss of batches of cases."""
    _check_classes(net, cases)

    def batch_at(step: int, group: ProcessGroup) -> Batch:
        places = batch_indices(step, options.batch, len(cases), group, options.seed, doing)
        batch = [cases[place] for place in places]
        if augmented is not None:
            batch = [augmented(case, step) for case in batch]
        return Batch(tuple(case.image_id for case in batch), (batch, step))

    weights = [own for own in net.parameters() if own.requires_grad]
    learn(
        _ConditionalStep(net, loss_of, doing),
        [{"params": weights, "lr": rate}],
        batch_at,
        steps=steps,
        weight_decay=options.weight_decay,
        clip=options.clip,
        doing=f"conditional network, {doing}",
        seed=options.seed,
        support=support,
    )


class _ConditionalStep(nn.Module):
    def __init__(self, net: ConditionalNetwork, loss_of: LossOf, doing: str) -> None:
        super().__init__()
        self.net = net
        self.loss_of, self.doing = loss_of, doing

    def forward(
        self, batch: Sequence[ConditionalExample], step: int
    ) -> tuple[dict[str, Tensor], Figures]:
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


def _check_classes(net: ConditionalNetwork, cases: Sequence[ConditionalExample]) -> None:
    if isinstance(cases, ConditionalDataset) and cases.classes != net.architecture.classes:
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


def train_from_seeds(
    net: ConditionalNetwork,
    cases: Sequence[ConditionalExample],
    options: ConditionalOptions | None = None,
    *,
    support: Support | None = None,
) -> None:
    """The initial training: pixels learn what the seeds vote for.

    Cross entropy of the pixels' scores, among the background and the classes that the annotation
    names, with the soft labels of their superpixels. Averaged over a region, such scores say how
    much more likely it is the object than background. Then the noise gets weights, see
    `redraw_noise`.
    """
    options = options or ConditionalOptions()
    doing = "from seeds"

    def loss_of(case: ConditionalExample, features: Tensor, step: int) -> tuple[Tensor, Figures]:
        targets = case.targets(options.targets).to(features)
        wanted = F.interpolate(targets[None], features.shape[-2:], mode="area")[0]
        noise = None
        if not options.noise and not options.pointwise:
            place = generator_at(options.seed, doing, "noise", step, str(case.image_id))
            noise = net.noise(1, features, place)
        scores = net.pixel_scores(features, noise, [0, *case.requirements.labels])[0]
        loss = -(wanted * scores.float().log_softmax(dim=0)).sum(dim=0).mean()
        return loss, {"cross_entropy": loss.item()}

    def augmented(case: ConditionalExample, step: int) -> ConditionalExample:
        flip = seed_of(options.seed, doing, "mirror", step, str(case.image_id)) % 2 == 1
        return case.mirrored() if flip else case

    train_conditional(
        net, cases, options, options.initial_steps, options.initial_rate, loss_of, doing, support,
        augmented=augmented,
    )  # fmt: skip
    net.eval()
    with torch.no_grad():
        assert net.classify.bias is not None
        net.classify.bias[0] -= options.foreground_bias
        if options.noise:
            _give_noise_weights(net, cases, options)


def _give_noise_weights(
    net: ConditionalNetwork, cases: Sequence[ConditionalExample], options: ConditionalOptions
) -> None:
    few = order(0, len(cases), options.seed, "redraw noise")[: options.batch]
    features = features_of(net, [cases[place].pixels for place in few])
    together = torch.cat([own.flatten(1) for own in features], dim=1)[None, :, :, None]
    net.redraw_noise(together, options.noise, generator_at(options.seed, "redraw noise"))


Table = Callable[[ConditionalExample], Tensor]
"""What the prediction network thinks of a case's regions: D [P, J+1], for 0 and its labels."""


def train_direct_loss(
    net: ConditionalNetwork,
    cases: Sequence[ConditionalExample],
    table: Table,
    options: ConditionalOptions | None = None,
    *,
    name: str = "",
    support: Support | None = None,
) -> None:
    """Bring the conditional distribution to a fixed prediction distribution, given as loss tables.

    Minimises DIV(Pr_p, Pr_c) - gamma DIV(Pr_c, Pr_c) by its direct loss gradient.

    Args:
        table: D of each case.
        name: of this training, such as the round; other names, other images and other noise.
    """
    options = options or ConditionalOptions()
    doing = f"against predictions {name}".strip()

    def loss_of(case: ConditionalExample, features: Tensor, step: int) -> tuple[Tensor, Figures]:
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

    train_conditional(net, cases, options, options.steps, options.rate, loss_of, doing, support)
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
    pair = torch.stack([before.flatten(), after.flatten()]).cpu().double()
    spread = pair.std(dim=1)
    moved = (pair - pair.mean(dim=1, keepdim=True)).prod(dim=0).sum() / (pair.shape[1] - 1)
    alike = moved / (spread[0] * spread[1]).clamp(min=1e-12)
    return {"unary_spread": float(spread[0]), "unary_correlation": float(alike)}
