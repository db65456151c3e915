"""Average precision of tags, against a loop over ranks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annocoin.seeds.classifier import mean_over_classes, tag_average_precision


def by_loops(scores: list[float], tags: list[bool]) -> float:
    """The mean, over positives, of the best precision at their score or any lower one."""
    cuts = sorted(set(scores))
    precision = {
        cut: sum(t for s, t in zip(scores, tags, strict=True) if s >= cut)
        / sum(s >= cut for s in scores)
        for cut in cuts
    }
    best = [
        max(p for cut, p in precision.items() if cut <= s)
        for s, t in zip(scores, tags, strict=True)
        if t
    ]
    return sum(best) / len(best) if best else math.nan


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=12))
def test_is_that_of_a_plain_loop(rows: list[tuple[int, bool]]) -> None:
    scores, tags = [float(s) for s, _ in rows], [t for _, t in rows]
    found = tag_average_precision(torch.tensor(scores)[:, None], torch.tensor(tags)[:, None])
    assert float(found[0]) == pytest.approx(by_loops(scores, tags), nan_ok=True)


def test_known_values() -> None:
    tags = torch.tensor([[True, False], [False, False], [True, False]])
    found = tag_average_precision(torch.tensor([[3.0, 1], [2, 2], [1, 3]]), tags)
    assert float(found[0]) == pytest.approx((1 + 2 / 3) / 2)
    assert math.isnan(float(found[1]))
    assert mean_over_classes(found) == pytest.approx(5 / 6)
    same = tag_average_precision(torch.zeros(4, 1), torch.tensor([[True], [False]] * 2))
    assert float(same[0]) == 0.5


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"expected \[N, C\]"):
        tag_average_precision(torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.bool))
