"""What seeds say about regions."""

from __future__ import annotations

import math

import pytest
import torch

from annocoin.conditional.requirements import requirements_of
from annocoin.conditional.scoring import (
    EVEN,
    LEAST_OVERLAP,
    Candidates,
    ScoringOptions,
    seed_prior,
    seed_votes,
)
from annocoin.types import Annotation, WeakLabel
from conditional.test_requirements import annotation, seeds_at, stripes

REGIONS = stripes([0], [0, 1], [2, 3], [3])


def test_the_prior_is_the_expected_overlap_with_a_seeds_object() -> None:
    seeds = seeds_at([(0.5, 3), (7.5, 3)], [1, 2])
    requirements = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), REGIONS, seeds=seeds)
    votes = seed_votes(requirements, seeds)
    found = seed_prior(requirements, seeds)
    assert found.shape == (4, 2)
    iou = REGIONS.iou()
    for u in range(4):
        for column in range(2):
            expected = sum(float(votes[column, v] * iou[u, v]) for v in range(4))
            assert float(found[u, column]) == pytest.approx(
                math.log((expected + LEAST_OVERLAP) / EVEN)
            )
    assert found[0, 0] > 0 > found[2, 0]


def test_seeds_vote_only_for_what_their_mark_admits() -> None:
    said = annotation(WeakLabel(1, box=(0, 0, 4, 6)), WeakLabel(1, box=(4, 0, 8, 6)))
    requirements = requirements_of(said, REGIONS, box_overlap=0.8)
    seeds = seeds_at([(0.5, 3), (7.5, 3)], [1, 1], [0, 1])
    votes = seed_votes(requirements, seeds)
    assert votes.tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]


def test_a_class_without_a_seed_is_even() -> None:
    requirements = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), REGIONS)
    found = seed_prior(requirements, seeds_at([(0.5, 3)], [1]))
    assert found[:, 1].tolist() == pytest.approx([0] * 4, abs=1e-5)


def test_nothing_said() -> None:
    requirements = requirements_of(Annotation((6, 8)), REGIONS)
    seeds = seeds_at([(0.5, 3)], [1])[[]]
    assert seed_prior(requirements, seeds).shape == (4, 0)


def test_the_prior_joins_the_unary_term_of_classes() -> None:
    seeds = seeds_at([(0.5, 3)], [1])
    requirements = requirements_of(annotation(WeakLabel(1)), REGIONS, seeds=seeds)
    options = ScoringOptions("U", prior=2.0)
    found = Candidates(requirements, options, seeds=seeds).scores(torch.zeros(3, 4, 2))
    assert torch.equal(found[..., 0], torch.zeros(3, 4))
    torch.testing.assert_close(found[1, :, 1], 2 * seed_prior(requirements, seeds)[:, 0])
    without = Candidates(requirements, ScoringOptions("U", prior=0.0), seeds=seeds)
    assert without.prior is None
