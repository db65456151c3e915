"""Greedy inference: exact about requirements, near the true argmax, equal to a plain loop."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annocoin.conditional.inference import Suppression, build_suppression, infer
from annocoin.conditional.requirements import Requirements, requirements_of
from annocoin.errors import InputError
from annocoin.objective.task_loss import columns_of, total
from annocoin.regions.region_set import RegionSet
from annocoin.types import Annotation, WeakLabel
from conditional.test_requirements import seeds_at, stripes
from conditional.worlds import annotated, random_seeds


def random_scores(requirements: Requirements, seed: int, samples: int = 3) -> torch.Tensor:
    shape = (samples, len(requirements.regions), len(requirements.labels) + 1)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=200)
@given(annotated(), st.integers(0, 1000), st.sampled_from(["smaller", "later"]), st.booleans())
def test_requirements_are_met_and_nothing_else_overlaps(
    world: tuple[RegionSet, Annotation], seed: int, of: str, seeded: bool
) -> None:
    regions, said = world
    seeds = random_seeds(said, seed) if seeded else None
    requirements = requirements_of(said, regions, seeds=seeds)
    shares = requirements.regions.containment()
    overlap = torch.maximum(shares, shares.T) if of == "smaller" else shares.T
    scores = random_scores(requirements, seed)
    found = infer(
        scores,
        requirements,
        build_suppression(requirements, 0.3, of),  # type: ignore[arg-type]
        local_search=bool(seed % 2),
    )
    for labels, met, own in zip(found.labels, found.met, scores, strict=True):
        assert requirements.met_by(labels)
        assert len(met.unique()) == len(met)
        for requirement, region in zip(requirements.required, met.tolist(), strict=True):
            assert requirement.compatible[region]
            assert labels[region] == requirement.label
        assert set(labels.tolist()) <= {0, *requirements.labels}
        needed = set(met.tolist())
        chosen = labels.nonzero()[:, 0].tolist()
        for u in set(chosen) - needed:
            column = requirements.labels.index(int(labels[u]))
            assert requirements.further[column, u]
            assert own[u, column + 1] > own[u, 0]
            for v in chosen:
                if v != u and labels[v] == labels[u]:
                    assert min(overlap[u, v], overlap[v, u]) <= 0.3 + 1e-6
                    if of == "smaller" or v in needed:
                        assert overlap[v, u] <= 0.3 + 1e-6
                elif v != u:
                    assert max(shares[u, v], shares[v, u]) <= 0.5 + 1e-6


def plain_greedy(
    scores: torch.Tensor, requirements: Requirements, suppression: Suppression
) -> list[int]:
    """For tags alone: best regions first, as the paper's algorithm does for each class."""
    labels = [0] * len(requirements.regions)
    margins = scores[:, 1:] - scores[:, :1]
    for column, label in enumerate(requirements.labels):
        chosen: list[int] = []
        for u in margins[:, column].argsort(descending=True, stable=True).tolist():
            if chosen and margins[u, column] <= 0:
                break
            if not any(suppression.within[column, v, u] for v in chosen):
                chosen.append(u)
                labels[u] = label
    return labels


@settings(deadline=None)
@given(annotated(weak_labels=0), st.integers(0, 1000), st.sampled_from([0.1, 0.3, 0.7]))
def test_for_one_tag_it_is_the_plain_greedy_algorithm(
    world: tuple[RegionSet, Annotation], seed: int, most: float
) -> None:
    said = Annotation(world[1].size, (WeakLabel(2),))
    requirements = requirements_of(said, world[0])
    suppression = build_suppression(requirements, most)
    scores = random_scores(requirements, seed)
    found = infer(scores, requirements, suppression)
    for labels, own in zip(found.labels, scores, strict=True):
        assert labels.tolist() == plain_greedy(own, requirements, suppression)


def brute_force(
    scores: torch.Tensor, requirements: Requirements, suppression: Suppression
) -> float:
    """The greatest S(y) of all labellings that meet every requirement."""
    count, classes = len(requirements.regions), requirements.labels
    best = -float("inf")
    for choice in itertools.product((0, *classes), repeat=count):
        labels = torch.tensor(choice)
        if not requirements.met_by(labels):
            continue
        chosen = [u for u in range(count) if choice[u]]
        if any(
            choice[u] == choice[v] and suppression.within[classes.index(choice[u]), u, v]
            for u, v in itertools.combinations(chosen, 2)
        ):
            continue
        best = max(best, float(total(scores, labels, classes)))
    return best


def test_how_often_it_is_the_true_argmax() -> None:
    """Tags on tiny worlds; the same is counted at length in benchmarks/conditional.py."""
    equal = tried = 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        members = torch.rand(5, 4, generator=generator) < 0.4
        members[torch.arange(5), torch.arange(5) % 4] = True
        regions = RegionSet.of(stripes([0]).superpixels, members)
        requirements = requirements_of(Annotation((6, 8), (WeakLabel(1), WeakLabel(2))), regions)
        suppression = build_suppression(requirements, 0.3, cross_class_nms_threshold=1.0)
        scores = random_scores(requirements, seed, 1)
        found = infer(scores, requirements, suppression, local_search=True).labels
        own = float(total(scores, found, requirements.labels)[0])
        greedy = infer(scores, requirements, suppression).labels
        best = brute_force(scores[0], requirements, suppression)
        assert own <= best + 1e-5
        assert own >= float(total(scores, greedy, requirements.labels)[0])
        equal += own > best - 1e-5
        tried += 1
    assert equal / tried >= 0.7


def test_requirements_that_want_the_same_region_share_out_the_best() -> None:
    """Both boxes like region 0 most; the sum is best if the second one has it."""
    regions = stripes([0], [0], [3])
    box = (0.0, 0.0, 2.0, 6.0)
    said = Annotation((6, 8), (WeakLabel(1, box=box), WeakLabel(2, box=box)))
    requirements = requirements_of(said, regions)
    scores = torch.zeros(1, 3, 3)
    scores[0, 0] = torch.tensor([0.0, 5.0, 4.0])
    scores[0, 1] = torch.tensor([0.0, 4.5, 1.0])
    found = infer(scores, requirements, build_suppression(requirements))
    assert found.met.tolist() == [[1, 0]]
    assert found.labels.tolist() == [[2, 1, 0]]


def test_a_region_has_one_label() -> None:
    regions = stripes([0], [1])
    requirements = requirements_of(Annotation((6, 8), (WeakLabel(1), WeakLabel(2))), regions)
    scores = torch.tensor([[[0.0, 3.0, 2.0], [0.0, 0.5, -1.0]]])
    found = infer(scores, requirements, build_suppression(requirements))
    assert found.labels.tolist() == [[2, 1]]  # 2 + 0.5 is more than 3 - 1


def test_the_best_region_is_taken_even_if_background_is_likelier() -> None:
    regions = stripes([0], [1])
    requirements = requirements_of(Annotation((6, 8), (WeakLabel(1),)), regions)
    scores = torch.tensor([[[0.0, -3.0], [0.0, -2.0]]])
    assert infer(scores, requirements, build_suppression(requirements)).labels.tolist() == [[0, 1]]
    free = requirements.without_obligation()
    assert infer(scores, free, build_suppression(free)).labels.tolist() == [[0, 0]]


def test_as_printed_it_tiles_the_image() -> None:
    regions = stripes([0], [1], [2], [3], [0, 1])
    requirements = requirements_of(Annotation((6, 8), (WeakLabel(1),)), regions)
    scores = torch.full((1, 5, 2), -1.0)
    scores[0, :, 0] = 5
    found = infer(scores, requirements, build_suppression(requirements), select_all=True)
    assert (found.labels[0] > 0).sum() == 4


def test_overlap_as_printed_keeps_a_region_that_contains_a_chosen_part() -> None:
    regions = stripes([0], [0, 1, 2, 3])
    requirements = requirements_of(Annotation((6, 8), (WeakLabel(1),)), regions)
    scores = torch.tensor([[[0.0, 2.0], [0.0, 1.0]]])
    printed = infer(scores, requirements, build_suppression(requirements, of="later"))
    assert printed.labels.tolist() == [[1, 1]]
    assert infer(scores, requirements, build_suppression(requirements)).labels.tolist() == [[1, 0]]


def test_total_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    assert columns_of(torch.tensor([0, 3, 7]), (3, 7)).tolist() == [0, 1, 2]
    assert float(total(values, torch.tensor([0, 7]), (3, 7))) == 31
    assert total(values[None], torch.tensor([[3, 0], [7, 7]]), (3, 7)).tolist() == [12, 33]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_scores(value: float) -> None:
    regions = stripes([0], [1])
    requirements = requirements_of(Annotation((6, 8), (WeakLabel(1),)), regions)
    with pytest.raises(InputError, match="finite"):
        infer(torch.full((1, 2, 2), value), requirements, build_suppression(requirements))
    with pytest.raises(InputError, match=r"expected \[K, 2, 2\]"):
        infer(torch.zeros(1, 2, 3), requirements, build_suppression(requirements))


def test_an_image_without_a_mark() -> None:
    regions = stripes([0], [1])
    requirements = requirements_of(Annotation((6, 8)), regions)
    found = infer(torch.zeros(3, 2, 1), requirements, build_suppression(requirements))
    assert found.labels.tolist() == [[0, 0]] * 3
    assert found.labels.dtype == torch.int64
    assert found.met.shape == (3, 0)
    empty = requirements_of(Annotation((6, 8)), regions[[]])
    assert infer(torch.zeros(3, 0, 1), empty, build_suppression(empty)).labels.shape == (3, 0)


def test_peaks_of_other_classes_are_no_peaks_of_its_own() -> None:
    """Region 1 holds one more peak than region 0, but of another class."""
    regions = stripes([0], [0, 1])
    said = Annotation((6, 8), (WeakLabel(1), WeakLabel(2)))
    seeds = seeds_at([(0.5, 3), (2.5, 3)], [1, 2])
    requirements = requirements_of(said, regions, seeds=seeds)
    first, second = build_suppression(requirements, 1.0).within
    assert first[0, 1]
    assert not second[0, 1]
    assert not build_suppression(requirements.without_obligation(), 1.0).within.any()


def test_every_instance_needs_a_peak_of_its_own() -> None:
    """Regions 0 and 1 hold the same peak and overlap little; region 2 holds another one."""
    regions = stripes([0, 1], [0, 2, 3], [3])
    said = Annotation((6, 8), (WeakLabel(1),))
    seeds = seeds_at([(0.5, 3), (7.5, 3)], [1, 1])
    scores = torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, 1.0]]])
    small = stripes([0, 1], [0], [3])
    requirements = requirements_of(said, small, seeds=seeds)
    assert build_suppression(requirements, 1.0).within.tolist() == [
        [
            [True, True, False],
            [True, True, False],
            [False, False, True],
        ]
    ]
    assert infer(scores, requirements, build_suppression(requirements, 1.0)).labels.tolist() == [
        [1, 0, 1]
    ]
    free = requirements_of(said, regions)
    assert infer(scores, free, build_suppression(free, 1.0)).labels.tolist() == [[1, 1, 1]]


def test_tags_do_not_share_an_object() -> None:
    """Both classes like region 0 most; the one that likes it less takes the next best."""
    regions = stripes([0, 1], [0], [2], [3])
    requirements = requirements_of(Annotation((6, 8), (WeakLabel(1), WeakLabel(2))), regions)
    scores = torch.tensor([[[0.0, 5, 1], [0.0, 1, 4], [0.0, -9, 3], [0.0, -9, -9]]])
    assert infer(scores, requirements, build_suppression(requirements)).labels.tolist() == [
        [1, 0, 2, 0]
    ]
    paper = build_suppression(requirements, cross_class_nms_threshold=1.0)
    assert infer(scores, requirements, paper).labels.tolist() == [[1, 2, 2, 0]]


def test_a_place_that_a_person_marked_is_left_to_it() -> None:
    regions = stripes([0, 1], [0], [2], [3])
    said = Annotation((6, 8), (WeakLabel(1), WeakLabel(2, box=(0.0, 0.0, 4.0, 6.0))))
    requirements = requirements_of(said, regions)
    scores = torch.tensor([[[0.0, 1, 0], [0.0, 9, 0], [0.0, 2, 0], [0.0, -9, 0]]])
    found = infer(scores, requirements, build_suppression(requirements))
    assert found.labels.tolist() == [[2, 0, 1, 0]]
    assert found.met.tolist() == [[2, 0]]


def test_tags_share_an_object_if_nothing_else_is_left() -> None:
    regions = stripes([0, 1, 2, 3], [0])
    requirements = requirements_of(Annotation((6, 8), (WeakLabel(1), WeakLabel(2))), regions)
    scores = torch.tensor([[[0.0, 5, 1], [0.0, 1, 4]]])
    assert infer(scores, requirements, build_suppression(requirements)).labels.tolist() == [[1, 2]]
