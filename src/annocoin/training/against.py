"""Train the conditional network against a fixed prediction network (the paper's appendix B)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from annocoin.conditional.candidates import Candidates
from annocoin.conditional.inference import total
from annocoin.conditional.networks import ConditionalNetwork
from annocoin.errors import InputError
from annocoin.objective.direct_loss import conditional_surrogate
from annocoin.objective.diversity import cross_diversity, self_diversity
from annocoin.objective.task_loss import disagreement_table
from annocoin.randomness import generator_at
from annocoin.training.cases import Case
from annocoin.training.conditional_learner import train_conditional
from annocoin.training.conditional_options import ConditionalOptions
from annocoin.training.learning import Figures, Support

Table = Callable[[Case], Tensor]
"""What the prediction network thinks of a case's regions: D [P, J+1], for 0 and its labels."""


def train_against(
    net: ConditionalNetwork,
    cases: Sequence[Case],
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
