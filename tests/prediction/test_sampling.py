"""Which boxes a step learns from, and how much they count."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from annocoin.engine.randomness import generator_at
from annocoin.prediction.soft_targets import MatchWeights, sample_anchors, sample_rois

Take = Callable[[MatchWeights, int, int, torch.Generator], tuple[Tensor, MatchWeights]]


def shares_of(labellings: list[str]) -> MatchWeights:
    """Of boxes that each labelling weak_labels with an instance (+), as background (-), or not (?)."""
    positive, negative = (
        torch.tensor([[kind == sign for kind in own] for own in labellings]).float().mean(dim=0)
        for sign in "+-"
    )
    return MatchWeights(positive[:, None], negative)


@pytest.mark.parametrize("take", [sample_anchors, sample_rois])
@given(
    st.text("+-?", max_size=30),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.integers(0, 100),
)
def test_one_labelling_has_the_draw_of_any_detector(
    take: Take, kinds: str, most: int, share: float, seed: int
) -> None:
    shares = shares_of([kinds])
    positive = int(most * share)
    chosen, drawn = take(shares, most, positive, generator_at(seed))
    first = min(kinds.count("+"), positive)
    assert len(chosen.unique()) == len(chosen) == first + min(kinds.count("-"), most - first)
    assert [kinds[place] for place in chosen[:first].tolist()] == ["+"] * first
    assert [kinds[place] for place in chosen[first:].tolist()] == ["-"] * (len(chosen) - first)
    torch.testing.assert_close(drawn.instances[:first, 0], torch.ones(first))
    torch.testing.assert_close(drawn.background[first:], torch.ones(len(chosen) - first))
    assert not drawn.instances[first:].any()
    assert not drawn.background[:first].any()
    again, _ = take(shares, most, positive, generator_at(seed))
    assert torch.equal(chosen, again)


def naive(labellings: list[str], most: int, positive: int) -> tuple[Tensor, Tensor]:
    """How often each box is drawn with an instance and without, in the mean over labellings."""
    found = torch.zeros(2, len(labellings[0]))
    for own in labellings:
        wanted = min(positive, own.count("+"))
        for place, kind in enumerate(own):
            if kind == "+":
                found[0, place] += wanted / own.count("+")
            elif kind == "-":
                found[1, place] += min(1.0, (most - wanted) / own.count("-"))
    with_instance, without = found / len(labellings)
    return with_instance, without


@pytest.mark.parametrize(("most", "positive"), [(6, 2), (8, 3), (8, 8), (20, 20)])
def test_samples_count_as_their_own_draws_do(most: int, positive: int) -> None:
    labellings = ["+++-?-----------", "+--++-?---------", "+---?-++--------", "+++-?-----------"]
    assert {own.count("+") for own in labellings} == {3}
    shares = shares_of(labellings)
    total = torch.zeros(2, len(labellings[0]))
    generator, draws = generator_at(1), 6000
    for _ in range(draws):
        chosen, drawn = sample_anchors(shares, most, positive, generator)
        assert len(chosen.unique()) == len(chosen) <= most + 1
        total[0, chosen] += drawn.instances[:, 0]
        total[1, chosen] += drawn.background
    expected = torch.stack(naive(labellings, most, positive))
    torch.testing.assert_close(total / draws, expected, rtol=0.1, atol=0.03)


def test_a_doubtful_box_is_hardly_background() -> None:
    """There are many others to be drawn in the samples that do not have its instance."""
    labellings = ["+" + "-" * 999, "-" * 1000]
    shares = shares_of(labellings)
    chosen, drawn = sample_anchors(shares, 100, 50, generator_at(0))
    assert chosen[0] == 0
    assert drawn.instances[0, 0].item() == pytest.approx(0.5)
    assert drawn.background[0].item() == pytest.approx(0.05, rel=0.02)


def test_where_classes_are_told_apart_a_box_counts_with_all_it_stands_for() -> None:
    shares = shares_of(["+" + "-" * 999, "-" * 1000])
    chosen, as_they_are = sample_rois(shares, 100, 50, generator_at(0))
    assert chosen[0] == 0
    assert len(chosen) == 100
    assert (as_they_are.instances[0, 0], as_they_are.background[0]) == (0.5, 0.5)
    seen = torch.zeros(6)
    generator = generator_at(0)
    for _ in range(200):
        seen[sample_rois(shares_of(["+-+-+-", "-+-+-+"]), 2, 2, generator)[0]] += 1
    assert seen.sum() == 400
    assert float(seen.min()) > 40


@pytest.mark.parametrize("take", [sample_anchors, sample_rois])
def test_no_boxes_and_no_instances(take: Take) -> None:
    chosen, drawn = take(MatchWeights(torch.zeros(0, 0), torch.zeros(0)), 8, 2, generator_at(0))
    assert not len(chosen)
    assert drawn.instances.shape == (0, 0)
    chosen, drawn = take(MatchWeights(torch.zeros(9, 0), torch.ones(9)), 4, 2, generator_at(0))
    assert len(chosen) == 4
    assert drawn.background.tolist() == [1, 1, 1, 1]
