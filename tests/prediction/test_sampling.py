"""Which boxes a step learns from."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from annocoin.prediction.sampling import choose
from annocoin.randomness import generator_at


@given(
    st.lists(st.sampled_from("+-?"), max_size=30),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.integers(0, 100),
)
def test_as_many_as_asked_for_and_none_that_is_neither(
    kinds: list[str], most: int, share: float, seed: int
) -> None:
    positive = torch.tensor([kind == "+" for kind in kinds], dtype=torch.bool)
    negative = torch.tensor([kind == "-" for kind in kinds], dtype=torch.bool)
    chosen = choose(positive, negative, most, int(most * share), generator_at(seed))
    assert len(chosen.unique()) == len(chosen)
    first = min(int(positive.sum()), int(most * share))
    assert len(chosen) == first + min(int(negative.sum()), most - first)
    assert bool(positive[chosen[:first]].all())
    assert bool(negative[chosen[first:]].all())
    again = choose(positive, negative, most, int(most * share), generator_at(seed))
    assert torch.equal(chosen, again)


def test_every_box_has_its_chance() -> None:
    everything = torch.ones(6, dtype=torch.bool)
    seen = torch.zeros(6)
    generator = generator_at(0)
    for _ in range(200):
        seen[choose(everything, ~everything, 2, 2, generator)] += 1
    assert seen.sum() == 400
    assert float(seen.min()) > 40
