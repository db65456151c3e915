"""The pairwise term: what the scores of regions gain from those of other regions (eq. 1, 2)."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from annocoin.errors import InputError, check_choice
from annocoin.regions import algebra
from annocoin.regions.region_set import RegionSet

PairwiseForm = Literal["none", "votes", "edge-votes", "normalised", "literal"]
Difference = Literal["pair", "neighbourhood"]

VOTES = ("votes", "edge-votes")
"""The forms whose weights are for `iou_voting_scores`, the others for `boundary_aware_scores`."""

ITERATIONS = 3
DELTA = 0.1
"""The paper's number of iterations, and its constant in the denominator of eq. 1."""

EDGE_SCALE = 5.0
"""Weight of the mean edge strength in the normalised pairwise term."""

CONTOUR_SCALE = 2.0
"""Weight of the contrast between the two contours in votes that are aware of edges."""

VOTE_SHARPNESS = 1.0

IOU_EXPONENT = 4
"""Exponent of the IoU in voting: only regions that overlap strongly contribute."""


def pairwise_weights(regions: RegionSet, form: PairwiseForm) -> Tensor | None:
    """The weights W [P, P] of a form of the pairwise term; None without one.

    - "literal": exp(-I_uv) of neighbours, where I_uv is the sum of the edge between them.
    - "normalised": exp(-5 x the mean edge between them), divided by the number of neighbours.
    - "votes": the fourth power of the IoU.
    - "edge-votes": that times exp(2 x `contour_contrast`): region v votes for a region u whose
      outline differs from its own where there is an edge, not where there is none.
    """
    check_choice("pairwise", form, get_args(PairwiseForm))
    if form == "none":
        return None
    if form == "votes":
        return regions.iou() ** IOU_EXPONENT
    if form == "edge-votes":
        return regions.iou() ** IOU_EXPONENT * (CONTOUR_SCALE * contour_contrast(regions)).exp()
    near = regions.neighbours().float()
    if form == "literal":
        weights = torch.exp(-regions.edge_strength_between())
        return near * weights.clamp(min=torch.finfo(weights.dtype).tiny)  # 0 is for others
    weights = near * torch.exp(-EDGE_SCALE * regions.edge_strength_between(mean=True))
    return weights / near.sum(dim=1, keepdim=True).clamp(min=1)


def contour_contrast(regions: RegionSet) -> Tensor:
    """How much stronger the edge is along the part of u's outline that v lacks than the reverse.

    The mean edge strength along the outline of u where v has none, minus that along the outline of
    v where u has none: antisymmetric, [P, P] in -1..1. A part of length 0 has a mean of 0.
    """
    outlines = algebra.outlines(regions.membership, regions.elements).to(regions.lengths.dtype)

    def only_first(values: Tensor) -> Tensor:
        """The sum of values [E] over the outline of u without that of v, [P, P]."""
        weighted = values[:, None] * outlines
        return weighted.sum(dim=0)[:, None] - weighted.T @ outlines

    length = only_first(regions.lengths)
    mean = torch.where(length > 0.5, only_first(regions.edge_strength) / length.clamp(min=1), 0)
    return mean - mean.T


def boundary_aware_scores(
    unary: Tensor,
    weights: Tensor,
    *,
    iterations: int = ITERATIONS,
    delta: float = DELTA,
    difference: Difference = "pair",
) -> Tensor:
    """The paper's boundary aware pairwise term (eq. 1, 2), G [..., P, J+1] from F [..., P, J+1]:

    G^n_{u,c} = G^{n-1}_{u,c} + sum_v W_uv / (H_{u,v,c} + delta)

    It rewards agreement, of low scores too. Only pairs with W_uv > 0 are computed.

    Args:
        difference: H_{u,v,c}: the squared difference (G^{n-1}_{u,c} - G^{n-1}_{v,c})^2 of the
            "pair", or its sum over all v of the "neighbourhood" N_u, as eq. 2 prints it.
    """
    if delta <= 0:
        raise InputError(f"delta {delta}; expected above 0")
    check_choice("difference", difference, get_args(Difference))
    u, v = weights.nonzero(as_tuple=True)
    pair_weights = weights[u, v][:, None]
    scores = unary
    for _ in range(iterations):
        squared = (scores[..., u, :] - scores[..., v, :]).square()
        if difference == "neighbourhood":
            squared = torch.zeros_like(scores).index_add(-2, u, squared)[..., u, :]
        gain = pair_weights / (squared + delta)
        scores = scores.index_add(-2, u, gain.to(scores.dtype))
    return scores


def iou_voting_scores(
    unary: Tensor, weights: Tensor, *, sharpness: float = VOTE_SHARPNESS
) -> Tensor:
    """IoU-weighted voting among overlapping regions, G [..., P, J+1] from F [..., P, J+1].

    With the margin m_u = F_{u,c} - F_{u,0} and the sharpness b, a region with m_u > 0 gets

    m'_u = 1/b log sum_v W_uv exp(b m_v)

    Up to a constant per class, this is the logarithm of the expected W_uv with the object, if
    region v is the object with a probability proportional to exp(b m_v): a group of similar regions
    with good scores outweighs a single high score. As W_uu = 1, no margin decreases; those that are
    not positive stay.
    """
    if sharpness <= 0:
        raise InputError(f"sharpness {sharpness}; expected above 0")
    if not unary[..., 1:].numel():
        return unary
    background = unary[..., :1]
    margins = unary[..., 1:] - background
    highest = margins.detach().amax(dim=-2, keepdim=True)
    relative = sharpness * (margins - highest)
    weighted_sum = weights.to(relative.dtype) @ relative.exp()
    tiny = torch.finfo(relative.dtype).tiny
    log_sum = torch.where(weighted_sum > tiny, weighted_sum.clamp(min=tiny).log(), relative)
    voted = torch.maximum(log_sum, relative) / sharpness + highest
    return torch.cat([background, background + torch.where(margins > 0, voted, margins)], dim=-1)
