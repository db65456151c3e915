"""From unary scores to G, the final scores of regions: the boundary aware pairwise terms.

Pure functions on tensors. Scores are [..., P, J]: of P regions for J classes, where column 0 is the
background. A pairwise term is told how much every two regions have to do with each other by a
coupling W [P, P].
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from annocoin.errors import InputError, check_choice
from annocoin.regions import RegionSet

PairwiseForm = Literal["none", "votes", "normalised", "literal"]

ITERATIONS = 3
DELTA = 0.1
"""The paper's number of iterations, and what it adds to squared differences."""

EDGE_SCALE = 5.0
"""How much the mean edge per pixel side counts in the normalised form."""

SHARPNESS = 1.0
"""How much more high scores count among votes."""

KINSHIP = 4
"""The power of the IoU by which regions hear one another's votes: few but near relatives."""


def coupling(regions: RegionSet, form: PairwiseForm) -> Tensor | None:
    """W [P, P] for a form of the pairwise term, or None without one.

    - "literal": exp(-I_uv) for neighbours, where I_uv is the sum of the edge between them.
    - "normalised": exp(-5 x the mean edge between them), divided by the number of neighbours.
    - "votes": the fourth power of the intersection over union, 1 with itself.
    """
    check_choice("pairwise", form, get_args(PairwiseForm))
    if form == "none":
        return None
    if form == "votes":
        return regions.iou() ** KINSHIP
    near = regions.neighbours().float()
    if form == "literal":
        return near * torch.exp(-regions.edge_mass())
    weights = near * torch.exp(-EDGE_SCALE * regions.edge_mass(mean=True))
    return weights / near.sum(dim=1, keepdim=True).clamp(min=1)


def final_scores(
    unary: Tensor,
    couplings: Tensor | None,
    form: PairwiseForm,
    *,
    iterations: int = ITERATIONS,
    delta: float = DELTA,
    sharpness: float = SHARPNESS,
) -> Tensor:
    """G [..., P, J] from F [..., P, J]; differentiable, the iterations are unrolled."""
    if couplings is None:
        return unary
    if form == "votes":
        return votes_of_neighbours(unary, couplings, sharpness=sharpness)
    return agreement_of_neighbours(unary, couplings, iterations=iterations, delta=delta)


def agreement_of_neighbours(
    unary: Tensor, couplings: Tensor, *, iterations: int = ITERATIONS, delta: float = DELTA
) -> Tensor:
    """The paper's pairwise term (its equation of the iterative scores), for all classes:

    G^n_{u,c} = G^{n-1}_{u,c} + sum_v W_uv / ((G^{n-1}_{u,c} - G^{n-1}_{v,c})^2 + delta)

    It rewards agreement, of low scores too. Only pairs with W_uv > 0 are computed.
    """
    if delta <= 0:
        raise InputError(f"delta {delta}; expected above 0")
    first, second = couplings.nonzero(as_tuple=True)
    weights = couplings[first, second][:, None]
    scores = unary
    for _ in range(iterations):
        apart = scores[..., first, :] - scores[..., second, :]
        gain = weights / (apart.square() + delta)
        scores = scores.index_add(-2, first, gain.to(scores.dtype))
    return scores


def votes_of_neighbours(
    unary: Tensor, couplings: Tensor, *, sharpness: float = SHARPNESS
) -> Tensor:
    """Regions that overlap vote for one another, the better ones more loudly.

    With m_u = F_{u,c} - F_{u,0} and sharpness b, a region that stands out from the background, so
    that m_u > 0, has the new margin

    m'_u = 1/b log sum_v W_uv exp(b m_v)

    Up to a constant of the class it is the logarithm of the agreement that u is expected to have
    with the object, if region v is that object with a probability in proportion to exp(b m_v). A
    lone high score counts for less than a family of regions that agree on a place, and contours
    that many regions share are those that are really there. As W_uu = 1, no margin falls; those of
    regions that look like background stay as they are.
    """
    if sharpness <= 0:
        raise InputError(f"sharpness {sharpness}; expected above 0")
    if not unary[..., 1:].numel():
        return unary
    background = unary[..., :1]
    margins = unary[..., 1:] - background
    highest = margins.detach().amax(dim=-2, keepdim=True)
    relative = sharpness * (margins - highest)
    heard = couplings.to(relative.dtype) @ relative.exp()
    least = torch.finfo(relative.dtype).tiny  # below it, nobody but the region itself is heard
    logarithm = torch.where(heard > least, heard.clamp(min=least).log(), relative)
    voted = torch.maximum(logarithm, relative) / sharpness + highest
    return torch.cat([background, background + torch.where(margins > 0, voted, margins)], dim=-1)
