"""Pairwise terms against loops over pairs, and what they promise."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annocoin.conditional.scoring import (
    agreement_of_neighbours,
    coupling,
    final_scores,
    votes_of_neighbours,
)
from annocoin.errors import InputError
from regions.worlds import World, worlds


def random_scores(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, count, 3, generator=generator, dtype=torch.float64)


@settings(deadline=None)
@given(worlds(), st.integers(0, 1000))
@pytest.mark.parametrize("form", ["literal", "normalised"])
def test_agreement_by_loops(form: str, world: World, seed: int) -> None:
    regions = world.regions
    near, mass = regions.neighbours(), regions.edge_strength_between(mean=form == "normalised")
    scores = random_scores(len(regions), seed)
    expected = scores.clone()
    for _ in range(3):
        before = expected.clone()
        for k in range(2):
            for c in range(3):
                for u in range(len(regions)):
                    for v in range(len(regions)):
                        if not near[u, v]:
                            continue
                        weight = math.exp(-mass[u, v] * (5 if form == "normalised" else 1))
                        if form == "normalised":
                            weight /= int(near[u].sum())
                        apart = float(before[k, u, c] - before[k, v, c])
                        expected[k, u, c] += weight / (apart**2 + 0.1)
    found = final_scores(scores, coupling(regions, form), form)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@settings(deadline=None)
@given(worlds(), st.integers(0, 1000), st.floats(0.2, 3))
def test_votes_by_loops(world: World, seed: int, sharpness: float) -> None:
    regions = world.regions
    iou = regions.iou()
    scores = random_scores(len(regions), seed)
    found = final_scores(scores, coupling(regions, "votes"), "votes", sharpness=sharpness)
    for k in range(2):
        for u in range(len(regions)):
            assert found[k, u, 0] == scores[k, u, 0]
            for c in (1, 2):
                margin = float(scores[k, u, c] - scores[k, u, 0])
                if margin > 0:
                    heard = 0.0
                    for v in range(len(regions)):
                        other = float(scores[k, v, c] - scores[k, v, 0])
                        heard += float(iou[u, v]) ** 4 * math.exp(sharpness * other)
                    margin = math.log(heard) / sharpness
                voted = float(found[k, u, c] - found[k, u, 0])
                assert voted == pytest.approx(margin, rel=1e-4, abs=1e-4)


@given(worlds(), st.integers(0, 1000))
def test_votes_lower_no_margin_and_cross_no_zero(world: World, seed: int) -> None:
    scores = random_scores(len(world.regions), seed)
    found = votes_of_neighbours(scores, coupling(world.regions, "votes"))
    before, after = (s[..., 1:] - s[..., :1] for s in (scores, found))
    assert bool((after >= before - 1e-9).all())
    assert torch.equal(after > 0, before > 0)


def test_a_family_outvotes_a_lone_high_score() -> None:
    """Region 3 has the highest score of its own; 0, 1 and 2 are nearly the same and good."""
    alike = torch.eye(4) + 0.9 * (1 - torch.eye(4))
    alike[3, :3] = alike[:3, 3] = 0
    scores = torch.tensor([[[0.0, 2.0], [0.0, 2.1], [0.0, 2.0], [0.0, 2.5]]])
    found = votes_of_neighbours(scores, alike, sharpness=1.0)
    assert int(scores[0, :, 1].argmax()) == 3
    assert int(found[0, :, 1].argmax()) == 1


@pytest.mark.parametrize("form", ["votes", "normalised", "literal", "none"])
def test_gradients_pass_through(form: str) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(5, 5, generator=generator, dtype=torch.float64)
    weights = (weights + weights.T) / 2
    weights.fill_diagonal_(1 if form == "votes" else 0)
    couplings = None if form == "none" else weights
    assert torch.autograd.gradcheck(
        lambda s: final_scores(s, couplings, form),  # type: ignore[arg-type]
        (scores,),
    )


def test_votes_stay_finite_for_any_scores() -> None:
    scores = torch.tensor([[[0.0, 1e4], [0.0, -1e4], [0.0, 1e-3]]], requires_grad=True)
    found = votes_of_neighbours(scores, torch.eye(3), sharpness=2.0)
    torch.testing.assert_close(found.detach(), scores.detach(), rtol=1e-3, atol=1e-3)
    found.sum().backward()
    assert scores.grad is not None
    assert bool(scores.grad.isfinite().all())


def test_bad_values() -> None:
    scores, couplings = torch.zeros(1, 2, 2), torch.eye(2)
    with pytest.raises(InputError, match="sharpness 0"):
        votes_of_neighbours(scores, couplings, sharpness=0)
    with pytest.raises(InputError, match="delta 0"):
        agreement_of_neighbours(scores, couplings, delta=0)
