"""Greedy inference: meets requirements, is close to the argmax, equals a plain loop."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from annocoin.conditional.inference import Suppression, build_suppression, infer
from annocoin.conditional.requirements import Requirements, requirements_of
from annocoin.conditional.scoring import Candidates, ScoringOptions
from annocoin.errors import InputError
from annocoin.objective.task_loss import labelling_score
from annocoin.regions.region_set import RegionSet
from annocoin.types import Annotation, WeakLabel
from conditional.worlds import annotated, annotation, random_seeds, seeds_at, stripes
from regions.worlds import World, worlds

Image = tuple[RegionSet, Annotation]


def random_scores(requirements: Requirements, seed: int, samples: int = 3) -> torch.Tensor:
    shape = (samples, len(requirements.regions), len(requirements.labels) + 1)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def labels_of(
    scores: torch.Tensor, requirements: Requirements, local_search: bool = False
) -> list[list[int]]:
    """The inferred labels with default suppression."""
    suppression = build_suppression(requirements)
    return infer(scores, requirements, suppression, local_search=local_search).labels.tolist()


@settings(deadline=None, max_examples=200)
@given(annotated(), st.integers(0, 1000), st.sampled_from(["smaller", "later"]), st.booleans())
def test_requirements_are_met_and_extra_regions_are_not_suppressed(
    image: Image, seed: int, denominator: str, seeded: bool
) -> None:
    regions, weak_labels = image
    seeds = random_seeds(weak_labels, seed) if seeded else None
    requirements = requirements_of(weak_labels, regions, seeds=seeds)
    containment = requirements.regions.containment()
    overlap = containment.T
    if denominator == "smaller":
        overlap = torch.maximum(containment, containment.T)
    scores = random_scores(requirements, seed)
    suppression = build_suppression(requirements, 0.3, denominator)  # type: ignore[arg-type]
    result = infer(scores, requirements, suppression, local_search=bool(seed % 2))
    for labels, met, g in zip(result.labels, result.required_regions, scores, strict=True):
        assert requirements.met_by(labels)
        assert len(met.unique()) == len(met)
        for requirement, region in zip(requirements.required, met.tolist(), strict=True):
            assert requirement.compatible[region]
            assert labels[region] == requirement.label
        assert set(labels.tolist()) <= {0, *requirements.labels}
        required = set(met.tolist())
        selected = labels.nonzero()[:, 0].tolist()
        for u in set(selected) - required:
            column = requirements.labels.index(int(labels[u]))
            assert requirements.extra_allowed[column, u]
            assert g[u, column + 1] > g[u, 0]
            for v in selected:
                if v != u and labels[v] == labels[u]:
                    assert min(overlap[u, v], overlap[v, u]) <= 0.3 + 1e-6
                    if denominator == "smaller" or v in required:
                        assert overlap[v, u] <= 0.3 + 1e-6
                elif v != u:
                    assert max(containment[u, v], containment[v, u]) <= 0.5 + 1e-6


def plain_greedy(
    scores: torch.Tensor,
    requirements: Requirements,
    suppression: Suppression,
    extra_margin: float = float("inf"),
) -> list[int]:
    """For tags only: regions by descending margin, one class after the other, as in the paper."""
    labels = [0] * len(requirements.regions)
    margins = scores[:, 1:] - scores[:, :1]
    for column, label in enumerate(requirements.labels):
        selected: list[int] = []
        least = max(0.0, float(margins[:, column].max()) - extra_margin)
        for u in margins[:, column].argsort(descending=True, stable=True).tolist():
            if selected and margins[u, column] <= least:
                break
            if not any(suppression.same_class[column, v, u] for v in selected):
                selected.append(u)
                labels[u] = label
    return labels


@settings(deadline=None)
@given(annotated(max_labels=0), st.integers(0, 1000), st.sampled_from([0.1, 0.3, 0.7]))
def test_one_tag_by_a_plain_loop(image: Image, seed: int, threshold: float) -> None:
    tag = Annotation(image[1].size, (WeakLabel(2),))
    requirements = requirements_of(tag, image[0])
    suppression = build_suppression(requirements, threshold)
    scores = random_scores(requirements, seed)
    result = infer(scores, requirements, suppression)
    for labels, g in zip(result.labels, scores, strict=True):
        assert labels.tolist() == plain_greedy(g, requirements, suppression)


@settings(deadline=None)
@given(annotated(max_labels=0), st.integers(0, 1000), st.floats(0, 3), st.floats(0.1, 0.9))
def test_extra_regions_of_one_tag_near_the_best_by_a_plain_loop(
    image: Image, seed: int, extra_margin: float, threshold: float
) -> None:
    requirements = requirements_of(Annotation(image[1].size, (WeakLabel(2),)), image[0])
    suppression = build_suppression(requirements, threshold)
    scores = random_scores(requirements, seed)
    result = infer(scores, requirements, suppression, extra_margin=extra_margin)
    for labels, g in zip(result.labels, scores, strict=True):
        assert labels.tolist() == plain_greedy(g, requirements, suppression, extra_margin)


@settings(deadline=None, max_examples=200)
@given(annotated(), st.integers(0, 1000), st.floats(0, 3))
def test_extra_regions_are_near_the_best_one_of_their_class(
    image: Image, seed: int, extra_margin: float
) -> None:
    """Required ones are there whatever their gain, and are those without a margin."""
    regions, weak_labels = image
    seeds = random_seeds(weak_labels, seed) if seed % 2 else None
    requirements = requirements_of(weak_labels, regions, seeds=seeds)
    suppression = build_suppression(requirements)
    scores = random_scores(requirements, seed)
    gains = scores[..., 1:] - scores[..., :1]
    result = infer(scores, requirements, suppression, extra_margin=extra_margin)
    unlimited = infer(scores, requirements, suppression)
    assert torch.equal(result.required_regions, unlimited.required_regions)
    for k, labels in enumerate(result.labels):
        assert requirements.met_by(labels)
        required = set(result.required_regions[k].tolist())
        for u in set(labels.nonzero()[:, 0].tolist()) - required:
            column = requirements.labels.index(int(labels[u]))
            compatible = requirements.extra_allowed[column].nonzero()[:, 0].tolist()
            best = max(float(gains[k, v, column]) for v in compatible)
            assert float(gains[k, u, column]) >= best - extra_margin - 1e-5
            assert float(gains[k, u, column]) > 0
    far = infer(scores, requirements, suppression, extra_margin=1e6)
    none = infer(scores, requirements, suppression, extra_margin=None)
    assert torch.equal(far.labels, unlimited.labels)
    assert torch.equal(none.labels, unlimited.labels)


@pytest.mark.parametrize(
    ("extra_margin", "expected"),
    [
        (None, [1, 1, 1, 2]),
        (3.5, [1, 1, 1, 2]),
        (2.5, [1, 1, 0, 2]),
        (0.5, [1, 0, 0, 2]),
        (0.0, [1, 0, 0, 2]),
    ],
)
def test_an_extra_margin_by_hand(extra_margin: float | None, expected: list[int]) -> None:
    """Gains of 5, 3, 2 for the first class; the second class has a gain below 0 only."""
    requirements = requirements_of(
        annotation(WeakLabel(1), WeakLabel(2)), stripes([0], [1], [2], [3])
    )
    scores = torch.tensor([[[0.0, 5, -9], [0.0, 3, -9], [0.0, 2, -9], [0.0, -9, -1]]])
    suppression = build_suppression(requirements)
    result = infer(scores, requirements, suppression, extra_margin=extra_margin)
    assert result.labels.tolist() == [expected]
    assert result.required_regions.tolist() == [[0, 3]]


def test_a_better_region_without_a_peak_does_not_count_for_the_margin() -> None:
    """Tags are compatible with regions that contain a peak, here those with gains 5 and 4."""
    seeds = seeds_at([(2.5, 3.0), (4.5, 3.0)], [1, 1])
    regions = stripes([0], [1], [2], [3])
    requirements = requirements_of(annotation(WeakLabel(1)), regions, seeds=seeds)
    scores = torch.tensor([[[0.0, 9.0], [0.0, 5.0], [0.0, 4.0], [0.0, 8.0]]])
    result = infer(scores, requirements, build_suppression(requirements), extra_margin=2.0)
    assert result.labels.tolist() == [[0, 1, 1, 0]]


def test_an_extra_margin_also_holds_for_select_all() -> None:
    requirements = requirements_of(annotation(WeakLabel(1)), stripes([0], [1], [2], [3]))
    scores = torch.tensor([[[9.0, -1.0], [9.0, -1.5], [9.0, -3.0], [9.0, -8.0]]])
    options = {"extra_margin": 1.0, "select_all": True}
    result = infer(scores, requirements, build_suppression(requirements), **options)  # type: ignore[arg-type]
    assert result.labels.tolist() == [[1, 1, 0, 0]]


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
        selected = [u for u in range(count) if choice[u]]
        if any(
            choice[u] == choice[v] and suppression.same_class[classes.index(choice[u]), u, v]
            for u, v in itertools.combinations(selected, 2)
        ):
            continue
        best = max(best, float(labelling_score(scores, labels, classes)))
    return best


def test_share_of_problems_with_the_true_argmax() -> None:
    """Tags in tiny images; benchmarks/conditional.py counts more of them."""
    equal = 0
    for seed in range(40):
        generator = torch.Generator().manual_seed(seed)
        members = torch.rand(5, 4, generator=generator) < 0.4
        members[torch.arange(5), torch.arange(5) % 4] = True
        regions = RegionSet.of(stripes([0]).superpixels, members)
        requirements = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), regions)
        suppression = build_suppression(requirements, 0.3, cross_class_nms_threshold=1.0)
        scores = random_scores(requirements, seed, 1)
        searched = infer(scores, requirements, suppression, local_search=True).labels
        greedy = infer(scores, requirements, suppression).labels
        score = float(labelling_score(scores, searched, requirements.labels)[0])
        best = brute_force(scores[0], requirements, suppression)
        assert score <= best + 1e-5
        assert score >= float(labelling_score(scores, greedy, requirements.labels)[0])
        equal += score > best - 1e-5
    assert equal / 40 >= 0.7


def test_requirements_with_the_same_best_region_get_the_best_assignment() -> None:
    """Region 0 is the best of both boxes; the sum is greatest if the second one has it."""
    box = (0.0, 0.0, 2.0, 6.0)
    boxes = annotation(WeakLabel(1, box=box), WeakLabel(2, box=box))
    requirements = requirements_of(boxes, stripes([0], [0], [3]))
    scores = torch.zeros(1, 3, 3)
    scores[0, 0] = torch.tensor([0.0, 5.0, 4.0])
    scores[0, 1] = torch.tensor([0.0, 4.5, 1.0])
    result = infer(scores, requirements, build_suppression(requirements))
    assert result.required_regions.tolist() == [[1, 0]]
    assert result.labels.tolist() == [[2, 1, 0]]


def test_a_region_has_one_label() -> None:
    requirements = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), stripes([0], [1]))
    scores = torch.tensor([[[0.0, 3.0, 2.0], [0.0, 0.5, -1.0]]])
    assert labels_of(scores, requirements) == [[2, 1]]  # 2 + 0.5 is more than 3 - 1


def test_a_requirement_is_met_even_if_background_has_a_higher_score() -> None:
    requirements = requirements_of(annotation(WeakLabel(1)), stripes([0], [1]))
    scores = torch.tensor([[[0.0, -3.0], [0.0, -2.0]]])
    assert labels_of(scores, requirements) == [[0, 1]]
    assert labels_of(scores, requirements.unconstrained()) == [[0, 0]]


def test_select_all_tiles_the_image() -> None:
    requirements = requirements_of(annotation(WeakLabel(1)), stripes([0], [1], [2], [3], [0, 1]))
    scores = torch.full((1, 5, 2), -1.0)
    scores[0, :, 0] = 5
    result = infer(scores, requirements, build_suppression(requirements), select_all=True)
    assert (result.labels[0] > 0).sum() == 4


def test_the_papers_overlap_keeps_a_region_that_contains_a_selected_part() -> None:
    requirements = requirements_of(annotation(WeakLabel(1)), stripes([0], [0, 1, 2, 3]))
    scores = torch.tensor([[[0.0, 2.0], [0.0, 1.0]]])
    later = build_suppression(requirements, overlap_denominator="later")
    assert infer(scores, requirements, later).labels.tolist() == [[1, 1]]
    assert labels_of(scores, requirements) == [[1, 0]]


def algorithm_1(scores: torch.Tensor, regions: RegionSet, threshold: float) -> dict[int, set[int]]:
    """The second part of the paper's algorithm 1, line by line: Y_j of every class j.

    Args:
        scores: G [P, J+1] after the pairwise term.
    """
    masks = regions.masks().flatten(1)
    selected: dict[int, set[int]] = {}
    for j in range(1, scores.shape[1]):
        y_j: set[int] = set()
        r_j = sorted(range(len(regions)), key=lambda u: -float(scores[u, j]))
        while r_j:
            i = r_j.pop(0)
            y_j.add(i)
            for other in list(r_j):
                if int((masks[i] & masks[other]).sum()) / int(masks[other].sum()) > threshold:
                    r_j.remove(other)
        selected[j] = y_j
    return selected


PRINTED = ScoringOptions(
    pairwise="literal",
    difference="neighbourhood",
    overlap_denominator="later",
    cross_class_nms_threshold=1.0,
    share_regions=True,
    select_all=True,
)


@settings(deadline=None)
@given(worlds(), st.integers(0, 1000), st.sampled_from([0.1, 0.3, 0.6]), st.integers(1, 3))
def test_algorithm_1_as_printed(world: World, seed: int, threshold: float, classes: int) -> None:
    """Class by class: a region may be an instance of two classes."""
    regions = world.regions
    tags = Annotation(regions.size, tuple(WeakLabel(j) for j in range(1, classes + 1)))
    requirements = requirements_of(tags, regions)
    assume(not requirements.num_fallbacks)
    candidates = Candidates(requirements, replace(PRINTED, nms_threshold=threshold))
    unary = random_scores(requirements, seed, 2)
    scores = candidates.scores(unary)
    samples = candidates.samples(scores)
    count = len(regions)
    for k in range(2):
        expected = algorithm_1(scores[k, :count], regions, threshold)
        labels = samples.labels[k]
        found = {
            j: {int(u) % count for u in (labels == j).nonzero()[:, 0]}
            for j in range(1, classes + 1)
        }
        assert found == expected
        assert candidates.requirements.met_by(labels)
        rows = samples.regions.membership[labels > 0]
        copies = regions.membership.repeat(classes, 1) if classes > 1 else regions.membership
        assert torch.equal(rows, copies[labels > 0])


@settings(deadline=None)
@given(worlds(), st.integers(0, 1000))
def test_as_printed_the_higher_order_term_changes_nothing_from_tags(
    world: World, seed: int
) -> None:
    """Every region that overlaps no selected one is selected, so that every tag has one."""
    tags = Annotation(world.regions.size, (WeakLabel(1), WeakLabel(2)))
    requirements = requirements_of(tags, world.regions)
    assume(not requirements.num_fallbacks)
    labels = []
    for terms in ("U+P", "U+P+H"):
        candidates = Candidates(requirements, replace(PRINTED, terms=terms))  # type: ignore[arg-type]
        scores = candidates.scores(random_scores(requirements, seed, 2))
        labels.append(candidates.infer(scores).labels)
    assert torch.equal(*labels)


@settings(deadline=None)
@given(worlds(), st.integers(0, 1000), st.sampled_from([0.1, 0.3, 0.6]))
def test_algorithm_1_as_printed_from_a_box(world: World, seed: int, threshold: float) -> None:
    """On the proposals with a high overlap with the box, and until none of them is left."""
    regions = world.regions
    height, width = regions.size
    box = Annotation(regions.size, (WeakLabel(2, box=(0, 0, width, height)),))
    fits = regions.box_iou([(0.0, 0.0, float(width), float(height))])[:, 0] >= 0.3
    assume(bool(fits.any()))
    kept = regions[fits]
    requirements = requirements_of(
        box, kept, box_overlap=0.3, best_fit_share=0.0, box_allows_extra=True
    )
    candidates = Candidates(requirements, replace(PRINTED, nms_threshold=threshold))
    scores = candidates.scores(random_scores(requirements, seed, 2))
    for k, labels in enumerate(candidates.samples(scores).labels):
        (expected,) = algorithm_1(scores[k], kept, threshold).values()
        assert set(labels.nonzero()[:, 0].tolist()) == expected


def test_one_region_of_two_classes() -> None:
    requirements = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), stripes([0], [1]))
    scores = torch.tensor([[[0.0, 3.0, 2.0], [0.0, 0.5, 1.0]]])
    options = ScoringOptions(pairwise="none", cross_class_nms_threshold=1.0)
    alone = Candidates(requirements, options)
    assert alone.samples(alone.scores(scores)).labels.tolist() == [[1, 2]]
    shared = Candidates(requirements, replace(options, share_regions=True))
    values = shared.scores(scores)
    samples = shared.samples(values)
    assert samples.labels.tolist() == [[1, 1, 2, 2]]
    assert samples.margins[samples.labels > 0].tolist() == [3.0, 0.5, 2.0, 1.0]
    assert labelling_score(values, samples.labels, (1, 2)).tolist() == [6.5]
    instances = samples.instances(0)
    assert instances.labels.tolist() == [1, 1, 2, 2]
    assert instances.masks[0] == instances.masks[2]
    # with a limit on the overlap of classes, as in our default, they select different regions
    apart = Candidates(
        requirements, replace(options, share_regions=True, cross_class_nms_threshold=0.5)
    )
    assert apart.samples(apart.scores(scores)).labels.tolist() == [[1, 0, 0, 2]]


@settings(deadline=None, max_examples=50)
@given(annotated(), st.integers(0, 1000))
def test_shared_regions_meet_all_requirements(image: Image, seed: int) -> None:
    regions, weak_labels = image
    requirements = requirements_of(weak_labels, regions)
    candidates = Candidates(requirements, ScoringOptions(share_regions=True))
    table = random_scores(requirements, seed + 1, 1)[0]
    scores = candidates.scores(random_scores(requirements, seed))
    labels = candidates.infer(scores).labels
    assert candidates.repeat(table).shape == scores.shape[1:]
    assert candidates.iou.shape == (labels.shape[1], labels.shape[1])
    for y in labels:
        assert candidates.requirements.met_by(y)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_scores(value: float) -> None:
    requirements = requirements_of(annotation(WeakLabel(1)), stripes([0], [1]))
    with pytest.raises(InputError, match="finite"):
        labels_of(torch.full((1, 2, 2), value), requirements)
    with pytest.raises(InputError, match=r"expected \[K, 2, 2\]"):
        labels_of(torch.zeros(1, 2, 3), requirements)


def test_empty_annotation() -> None:
    regions = stripes([0], [1])
    requirements = requirements_of(annotation(), regions)
    result = infer(torch.zeros(3, 2, 1), requirements, build_suppression(requirements))
    assert result.labels.tolist() == [[0, 0]] * 3
    assert result.labels.dtype == torch.int64
    assert result.required_regions.shape == (3, 0)
    empty = requirements_of(annotation(), regions[[]])
    for margin in (None, 1.0):
        suppression = build_suppression(empty)
        result = infer(torch.zeros(3, 0, 1), empty, suppression, extra_margin=margin)
        assert result.labels.shape == (3, 0)
    result = infer(
        torch.zeros(3, 2, 1), requirements, build_suppression(requirements), extra_margin=1.0
    )
    assert result.labels.tolist() == [[0, 0]] * 3


def test_peaks_count_for_their_class_only() -> None:
    """Region 1 contains one more peak than region 0, but of the other class."""
    tags = annotation(WeakLabel(1), WeakLabel(2))
    seeds = seeds_at([(0.5, 3), (2.5, 3)], [1, 2])
    requirements = requirements_of(tags, stripes([0], [0, 1]), seeds=seeds)
    first, second = build_suppression(requirements, 1.0).same_class
    assert first[0, 1]
    assert not second[0, 1]
    assert not build_suppression(requirements.unconstrained(), 1.0).same_class.any()


def test_every_instance_needs_a_further_peak() -> None:
    """Regions 0 and 1 contain the same peak, region 2 another one."""
    tag = annotation(WeakLabel(1))
    seeds = seeds_at([(0.5, 3), (7.5, 3)], [1, 1])
    scores = torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, 1.0]]])
    requirements = requirements_of(tag, stripes([0, 1], [0], [3]), seeds=seeds)
    suppression = build_suppression(requirements, 1.0)
    assert suppression.same_class.tolist() == [
        [[True, True, False], [True, True, False], [False, False, True]]
    ]
    assert infer(scores, requirements, suppression).labels.tolist() == [[1, 0, 1]]
    unseeded = requirements_of(tag, stripes([0, 1], [0, 2, 3], [3]))
    suppression = build_suppression(unseeded, 1.0)
    assert infer(scores, unseeded, suppression).labels.tolist() == [[1, 1, 1]]


def test_tags_do_not_share_an_object() -> None:
    """The best regions of both classes overlap; the one with less gain takes its next best."""
    regions = stripes([0, 1], [0], [2], [3])
    requirements = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), regions)
    scores = torch.tensor([[[0.0, 5, 1], [0.0, 1, 4], [0.0, -9, 3], [0.0, -9, -9]]])
    assert labels_of(scores, requirements) == [[1, 0, 2, 0]]
    paper = build_suppression(requirements, cross_class_nms_threshold=1.0)
    assert infer(scores, requirements, paper).labels.tolist() == [[1, 2, 2, 0]]


def test_tags_avoid_the_objects_of_boxes() -> None:
    labels = annotation(WeakLabel(1), WeakLabel(2, box=(0.0, 0.0, 4.0, 6.0)))
    requirements = requirements_of(labels, stripes([0, 1], [0], [2], [3]))
    scores = torch.tensor([[[0.0, 1, 0], [0.0, 9, 0], [0.0, 2, 0], [0.0, -9, 0]]])
    result = infer(scores, requirements, build_suppression(requirements))
    assert result.labels.tolist() == [[2, 0, 1, 0]]
    assert result.required_regions.tolist() == [[2, 0]]


def test_tags_share_an_object_if_no_other_region_is_left() -> None:
    regions = stripes([0, 1, 2, 3], [0])
    requirements = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), regions)
    assert labels_of(torch.tensor([[[0.0, 5, 1], [0.0, 1, 4]]]), requirements) == [[1, 2]]


UNION_AND_PARTS = stripes([0, 1, 2], [0], [2])
UNION_BEST = torch.tensor([[[0.0, 4.0], [0.0, 3.0], [0.0, 2.0]]])


def test_local_search_replaces_a_union_by_its_parts() -> None:
    requirements = requirements_of(annotation(WeakLabel(1)), UNION_AND_PARTS)
    scores = torch.cat([UNION_BEST, torch.tensor([[[0.0, 6.0], [0.0, 3.0], [0.0, 2.0]]])])
    assert labels_of(scores, requirements) == [[1, 0, 0], [1, 0, 0]]
    result = infer(scores, requirements, build_suppression(requirements), local_search=True)
    assert result.labels.tolist() == [[0, 1, 1], [1, 0, 0]]  # 3 + 2 is more than 4, less than 6
    assert result.required_regions.tolist() == [[1], [0]]


@pytest.mark.parametrize(
    ("peaks", "expected"), [([(1, 3), (5, 3)], [[0, 1, 1]]), ([(1, 3)], [[1, 0, 0]])]
)
def test_local_search_needs_a_peak_for_each_part(
    peaks: list[tuple[float, float]], expected: list[list[int]]
) -> None:
    seeds = seeds_at(peaks, [1] * len(peaks))
    requirements = requirements_of(annotation(WeakLabel(1)), UNION_AND_PARTS, seeds=seeds)
    assert labels_of(UNION_BEST, requirements, local_search=True) == expected


def test_local_search_selects_no_extra_region_below_the_margin() -> None:
    """The parts have gains of 3 and 2; the union, with 4, is more than 1.5 better than one."""
    requirements = requirements_of(annotation(WeakLabel(1)), UNION_AND_PARTS)
    suppression = build_suppression(requirements)

    def labels(extra_margin: float) -> list[list[int]]:
        return infer(
            UNION_BEST, requirements, suppression, extra_margin=extra_margin, local_search=True
        ).labels.tolist()

    assert labels(2.5) == [[0, 1, 1]]
    assert labels(1.5) == [[1, 0, 0]]


def test_local_search_keeps_the_region_of_a_box() -> None:
    box = annotation(WeakLabel(1, box=(0.0, 0.0, 6.0, 6.0)))
    requirements = requirements_of(box, UNION_AND_PARTS)
    assert labels_of(UNION_BEST, requirements, local_search=True) == [[1, 0, 0]]


@settings(deadline=None, max_examples=100)
@given(annotated(), st.integers(0, 1000), st.sampled_from([0.1, 0.5]))
def test_local_search_leaves_no_better_pair_and_lowers_no_score(
    image: Image, seed: int, threshold: float
) -> None:
    """By trying all pairs of regions in place of each one."""
    regions, weak_labels = image
    requirements = requirements_of(weak_labels, regions)
    classes = requirements.labels
    suppression = build_suppression(requirements, threshold)
    same_class, cross_class = suppression
    scores = random_scores(requirements, seed)
    greedy = infer(scores, requirements, suppression).labels
    result = infer(scores, requirements, suppression, local_search=True)
    after, before = (labelling_score(scores, y, classes) for y in (result.labels, greedy))
    assert (after >= before - 1e-5).all()
    for g, labels, met in zip(scores, result.labels, result.required_regions, strict=True):
        assert requirements.met_by(labels)
        pairs = list(zip(requirements.required, met.tolist(), strict=True))
        fixed = {region for r, region in pairs if not r.allows_extra}
        selected = set(labels.nonzero()[:, 0].tolist())
        for u in selected - fixed:
            column = classes.index(int(labels[u]))
            margins = g[:, column + 1] - g[:, 0]
            rest = selected - {u}
            for a, b in itertools.combinations(set(range(len(regions))) - selected, 2):
                if min(margins[a], margins[b]) <= 0:
                    continue
                if not requirements.extra_allowed[column][[a, b]].all():
                    continue
                if same_class[column, a, b] or same_class[column, b, a]:
                    continue
                if any(
                    same_class[column, v, w] or same_class[column, w, v]
                    if labels[v] == labels[u]
                    else cross_class[v, w]
                    for v in rest
                    for w in (a, b)
                ):
                    continue
                if all(r.compatible[[a, b]].any() for r, region in pairs if region == u):
                    assert margins[a] + margins[b] <= margins[u] + 1e-5
