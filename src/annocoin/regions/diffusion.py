"""Diffusion of class evidence over the superpixels of an image, stopped by boundaries."""

from __future__ import annotations

import torch
from torch import Tensor

from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet

EDGE_WEIGHT = 8.0
"""A border with mean boundary probability e conducts exp(-EDGE_WEIGHT e) per pixel side."""

FIDELITY = 0.01
"""How strongly a superpixel keeps its own value, per pixel of its side."""


def diffuse(
    regions: RegionSet,
    values: Tensor,
    *,
    edge_weight: float = EDGE_WEIGHT,
    fidelity: float = FIDELITY,
) -> Tensor:
    """Spread values over adjacent superpixels, except across boundaries: [C, S] to [C, S].

    Gives the y that minimises, for superpixels s of area a_s with value x_s,

    fidelity sum_s sqrt(a_s) (y_s - x_s)^2 + sum_(s,t) l_st exp(-edge_weight e_st) (y_s - y_t)^2

    where l_st is the length of the border between s and t, and e_st the mean boundary probability
    on it. The result is a weighted mean of the values: it lies between their extremes, and where no
    boundary separates superpixels they get nearly the same value. It does not depend on the
    resolution of the image.
    """
    if not (edge_weight >= 0 and fidelity > 0):
        raise InputError(
            f"edge_weight {edge_weight}, fidelity {fidelity}; expected 0 or more, and above 0"
        )
    count = regions.membership.shape[1]
    if values.ndim != 2 or values.shape[1] != count:
        raise ValueError(f"values of shape {tuple(values.shape)}; expected [C, {count}]")
    # double precision: conductances differ by many orders of magnitude
    strength, lengths = regions.edge_strength.double(), regions.lengths.double()
    conductance = lengths * torch.exp(-edge_weight * strength / lengths.clamp(min=1))
    first, second = regions.elements.T
    weights = conductance.new_zeros(count, count)
    weights[first, second] = conductance
    weights[second, first] = conductance
    own = fidelity * regions.superpixel_areas.double().sqrt()
    system = torch.diag(weights.sum(dim=1) + own) - weights
    solution = torch.linalg.solve(system, own[:, None] * values.T.double())
    return solution.T.to(values.dtype)
