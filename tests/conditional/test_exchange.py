"""Second thoughts of inference, against all exchanges that there are."""

from __future__ import annotations

import itertools

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annocoin.conditional.inference import build_suppression, infer
from annocoin.conditional.requirements import requirements_of
from annocoin.objective.task_loss import total
from annocoin.regions.region_set import RegionSet
from annocoin.types import Annotation, WeakLabel
from conditional.test_inference import random_scores
from conditional.test_requirements import seeds_at, stripes
from conditional.worlds import annotated


def test_one_that_unites_two_makes_room_for_both() -> None:
    regions = stripes([0, 1, 2], [0], [2])
    requirements = requirements_of(Annotation((6, 8), (WeakLabel(1),)), regions)
    suppression = build_suppression(requirements)
    scores = torch.tensor([[[0.0, 4.0], [0.0, 3.0], [0.0, 2.0]], [[0.0, 6.0], [0.0, 3], [0.0, 2]]])
    assert infer(scores, requirements, suppression).labels.tolist() == [
        [1, 0, 0],
        [1, 0, 0],
    ]
    found = infer(scores, requirements, suppression, local_search=True)
    assert found.labels.tolist() == [[0, 1, 1], [1, 0, 0]]  # 3 + 2 is more than 4, not than 6
    assert found.met.tolist() == [[1], [0]]


def test_both_need_a_peak_of_their_own() -> None:
    regions = stripes([0, 1, 2], [0], [2])
    said = Annotation((6, 8), (WeakLabel(1),))
    scores = torch.tensor([[[0.0, 4.0], [0.0, 3.0], [0.0, 2.0]]])
    for peaks, wanted in (([(1, 3), (5, 3)], [0, 1, 1]), ([(1, 3)], [1, 0, 0])):
        seeds = seeds_at(peaks, [1] * len(peaks))
        requirements = requirements_of(said, regions, seeds=seeds)
        assert infer(
            scores, requirements, build_suppression(requirements), local_search=True
        ).labels.tolist() == [wanted]


def test_what_stands_for_a_box_stays() -> None:
    regions = stripes([0, 1, 2], [0], [2])
    said = Annotation((6, 8), (WeakLabel(1, box=(0.0, 0.0, 6.0, 6.0)),))
    requirements = requirements_of(said, regions)
    scores = torch.tensor([[[0.0, 4.0], [0.0, 3.0], [0.0, 2.0]]])
    assert infer(
        scores, requirements, build_suppression(requirements), local_search=True
    ).labels.tolist() == [[1, 0, 0]]


@settings(deadline=None, max_examples=100)
@given(annotated(), st.integers(0, 1000), st.sampled_from([0.1, 0.5]))
def test_no_exchange_is_left_and_the_score_never_falls(
    world: tuple[RegionSet, Annotation], seed: int, most: float
) -> None:
    regions, said = world
    requirements = requirements_of(said, regions)
    classes = requirements.labels
    suppression = build_suppression(requirements, most)
    scores = random_scores(requirements, seed)
    greedy = infer(scores, requirements, suppression).labels
    found = infer(scores, requirements, suppression, local_search=True)
    assert (total(scores, found.labels, classes) >= total(scores, greedy, classes) - 1e-5).all()
    for own, labels, met in zip(scores, found.labels, found.met, strict=True):
        assert requirements.met_by(labels)
        placed = {
            region
            for r, region in zip(requirements.required, met.tolist(), strict=True)
            if not r.more
        }
        for u in set(labels.nonzero()[:, 0].tolist()) - placed:
            column = classes.index(int(labels[u]))
            margins = own[:, column + 1] - own[:, 0]
            rest = [v for v in labels.nonzero()[:, 0].tolist() if v != u]
            for a, b in itertools.combinations(range(len(regions)), 2):
                if u in (a, b) or {a, b} & set(rest) or min(margins[a], margins[b]) <= 0:
                    continue
                if not requirements.further[column][[a, b]].all():
                    continue
                if suppression.within[column, a, b] or suppression.within[column, b, a]:
                    continue
                if any(
                    suppression.within[column, v, w] or suppression.within[column, w, v]
                    if labels[v] == labels[u]
                    else suppression.between[v, w]
                    for v in rest
                    for w in (a, b)
                ):
                    continue
                standing = [
                    r
                    for r, region in zip(requirements.required, met.tolist(), strict=True)
                    if region == u
                ]
                if all(r.compatible[[a, b]].any() for r in standing):
                    assert margins[a] + margins[b] <= margins[u] + 1e-5
