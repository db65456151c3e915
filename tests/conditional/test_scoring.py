"""Pairwise terms against loops over pairs, the seed prior, and options of scoring."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from annocoin import masks
from annocoin.conditional.pairwise import (
    boundary_aware_scores,
    contour_contrast,
    iou_voting_scores,
    pairwise_weights,
)
from annocoin.conditional.requirements import Requirements, requirements_of
from annocoin.conditional.scoring import (
    MIN_IOU,
    NEUTRAL_EVIDENCE,
    NEUTRAL_IOU,
    Candidates,
    ScoringOptions,
    log_expected_iou,
    map_prior,
    seed_prior,
    seed_votes,
)
from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.evidence import class_shares, region_evidence
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation, WeakLabel
from conditional.worlds import annotated, annotation, random_seeds, seeds_at, stripes
from regions.worlds import World, worlds

REGIONS = stripes([0], [0, 1], [2, 3], [3])


def random_scores(count: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, count, 3, generator=generator, dtype=torch.float64)


@settings(deadline=None)
@given(worlds(), st.integers(0, 1000))
@pytest.mark.parametrize("form", ["literal", "normalised"])
def test_boundary_aware_scores_by_loops(form: str, world: World, seed: int) -> None:
    regions = world.regions
    near = regions.neighbours()
    edges = regions.edge_strength_between(mean=form == "normalised")
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
                        weight = math.exp(-edges[u, v] * (5 if form == "normalised" else 1))
                        if form == "normalised":
                            weight /= int(near[u].sum())
                        difference = float(before[k, u, c] - before[k, v, c])
                        expected[k, u, c] += weight / (difference**2 + 0.1)
    weights = pairwise_weights(regions, form)  # type: ignore[arg-type]
    assert weights is not None
    result = boundary_aware_scores(scores, weights)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@settings(deadline=None)
@given(worlds(), st.integers(0, 1000))
def test_equations_1_and_2_as_printed(world: World, seed: int) -> None:
    """H_u sums over all of N_u, then every v of N_u adds exp(-I_uv) / (H_u + delta); 3 times."""
    regions = world.regions
    edges = regions.edge_strength_between()
    neighbourhood = {
        u: [v for v in range(len(regions)) if bool(regions.neighbours()[u, v])]
        for u in range(len(regions))
    }
    unary = random_scores(len(regions), seed)
    expected = unary.clone()
    for _ in range(3):
        before = expected.clone()
        for k in range(2):
            for c in range(3):
                for u, others in neighbourhood.items():
                    h = sum(float(before[k, u, c] - before[k, v, c]) ** 2 for v in others)
                    for v in others:
                        expected[k, u, c] += 1 / (h + 0.1) * math.exp(-float(edges[u, v]))
    tags = Annotation(regions.size, (WeakLabel(1), WeakLabel(2)))
    requirements = requirements_of(tags, regions)
    assume(not requirements.num_fallbacks)
    options = ScoringOptions(pairwise="literal", difference="neighbourhood")
    result = Candidates(requirements, options).scores(unary)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def test_the_two_readings_of_the_difference() -> None:
    """Scores 1, 2 and 4 in a full neighbourhood with unit weights, after one iteration."""
    scores, weights = torch.tensor([[[1.0], [2.0], [4.0]]]), 1 - torch.eye(3)
    pair = boundary_aware_scores(scores, weights, iterations=1) - scores
    assert pair.flatten().tolist() == pytest.approx([1.02, 1.15, 0.35], abs=5e-3)
    whole = boundary_aware_scores(scores, weights, iterations=1, difference="neighbourhood")
    assert (whole - scores).flatten().tolist() == pytest.approx([0.20, 0.39, 0.15], abs=5e-3)


def test_a_neighbour_behind_a_strong_edge_counts_in_the_sum_of_differences() -> None:
    """exp(-I) of the long border underflows; the difference to that neighbour does not."""
    ids = np.repeat([[0, 1, 2]], 400, axis=0)
    edges = np.repeat([[0.0, 0.0, 1.0]], 400, axis=0)
    regions = RegionSet.of(ids, np.eye(3, dtype=bool), edges=edges)
    weights = pairwise_weights(regions, "literal")
    assert weights is not None
    assert math.exp(-float(regions.edge_strength_between()[1, 2])) < 1e-45
    scores = torch.tensor([[[0.0], [0.0], [3.0]]])
    result = boundary_aware_scores(scores, weights, iterations=1, difference="neighbourhood")
    assert float(result[0, 1]) == pytest.approx(1 / (9 + 0.1))


def contour_elements(regions: RegionSet, region: int) -> set[int]:
    members = regions.membership[region].tolist()
    pairs = regions.elements.tolist()
    return {e for e, (a, b) in enumerate(pairs) if members[a] != members[b]}


@settings(deadline=None)
@given(worlds())
def test_contour_contrast_by_loops(world: World) -> None:
    regions = world.regions
    contours = [contour_elements(regions, u) for u in range(len(regions))]

    def mean(elements: set[int]) -> float:
        length = sum(float(regions.lengths[e]) for e in elements)
        return sum(float(regions.edge_strength[e]) for e in elements) / length if length else 0.0

    contrast = contour_contrast(regions)
    weights, iou = pairwise_weights(regions, "edge-votes"), regions.iou()
    assert weights is not None
    for u, first in enumerate(contours):
        for v, second in enumerate(contours):
            expected = mean(first - second) - mean(second - first)
            assert float(contrast[u, v]) == pytest.approx(expected, abs=1e-4)
            assert float(weights[u, v]) == pytest.approx(
                float(iou[u, v]) ** 4 * math.exp(2 * expected), rel=1e-3, abs=1e-5
            )


def test_edges_decide_between_two_outlines() -> None:
    """Two regions with equal scores, one of which ends at the only edge."""
    ids = np.repeat([np.arange(8)], 4, axis=0)
    members = [[s < 5 for s in range(8)], [s < 6 for s in range(8)]]
    edges = np.zeros((4, 8))
    edges[:, 6] = 1.0  # the first column outside of the larger region
    regions = RegionSet.of(ids, members, edges=edges)
    requirements = requirements_of(Annotation(regions.size, (WeakLabel(1),)), regions)
    scores = torch.tensor([[[0.0, 1.0], [0.0, 1.0]]])
    plain = Candidates(requirements, ScoringOptions(pairwise="votes")).scores(scores)
    aware = Candidates(requirements, ScoringOptions(pairwise="edge-votes")).scores(scores)
    assert float(plain[0, 0, 1]) == pytest.approx(float(plain[0, 1, 1]))
    assert aware[0, 1, 1] > aware[0, 0, 1] + 0.1


@settings(deadline=None)
@given(worlds(), st.integers(0, 1000), st.floats(0.2, 3))
def test_iou_voting_by_loops(world: World, seed: int, sharpness: float) -> None:
    regions = world.regions
    iou = regions.iou()
    scores = random_scores(len(regions), seed)
    weights = pairwise_weights(regions, "votes")
    assert weights is not None
    result = iou_voting_scores(scores, weights, sharpness=sharpness)
    for k in range(2):
        for u in range(len(regions)):
            assert result[k, u, 0] == scores[k, u, 0]
            for c in (1, 2):
                margin = float(scores[k, u, c] - scores[k, u, 0])
                if margin > 0:
                    weighted_sum = 0.0
                    for v in range(len(regions)):
                        other = float(scores[k, v, c] - scores[k, v, 0])
                        weighted_sum += float(iou[u, v]) ** 4 * math.exp(sharpness * other)
                    margin = math.log(weighted_sum) / sharpness
                voted = float(result[k, u, c] - result[k, u, 0])
                assert voted == pytest.approx(margin, rel=1e-4, abs=1e-4)


@given(worlds(), st.integers(0, 1000))
def test_iou_voting_lowers_no_margin_and_changes_no_sign(world: World, seed: int) -> None:
    scores = random_scores(len(world.regions), seed)
    weights = pairwise_weights(world.regions, "votes")
    assert weights is not None
    result = iou_voting_scores(scores, weights)
    before, after = (s[..., 1:] - s[..., :1] for s in (scores, result))
    assert bool((after >= before - 1e-9).all())
    assert torch.equal(after > 0, before > 0)


def test_similar_regions_outvote_a_single_high_score() -> None:
    """Region 3 has the highest score; 0, 1 and 2 are nearly equal and have good ones."""
    weights = torch.eye(4) + 0.9 * (1 - torch.eye(4))
    weights[3, :3] = weights[:3, 3] = 0
    scores = torch.tensor([[[0.0, 2.0], [0.0, 2.1], [0.0, 2.0], [0.0, 2.5]]])
    result = iou_voting_scores(scores, weights, sharpness=1.0)
    assert int(scores[0, :, 1].argmax()) == 3
    assert int(result[0, :, 1].argmax()) == 1


@pytest.mark.parametrize("pairwise", [iou_voting_scores, boundary_aware_scores])
def test_gradients(pairwise: object) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 5, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(5, 5, generator=generator, dtype=torch.float64)
    weights = (weights + weights.T) / 2
    weights.fill_diagonal_(1 if pairwise is iou_voting_scores else 0)
    assert callable(pairwise)
    assert torch.autograd.gradcheck(lambda s: pairwise(s, weights), (scores,))


def test_iou_voting_is_finite_for_extreme_scores() -> None:
    scores = torch.tensor([[[0.0, 1e4], [0.0, -1e4], [0.0, 1e-3]]], requires_grad=True)
    result = iou_voting_scores(scores, torch.eye(3), sharpness=2.0)
    torch.testing.assert_close(result.detach(), scores.detach(), rtol=1e-3, atol=1e-3)
    result.sum().backward()
    assert scores.grad is not None
    assert bool(scores.grad.isfinite().all())


def test_bad_values() -> None:
    scores, weights = torch.zeros(1, 2, 2), torch.eye(2)
    with pytest.raises(InputError, match="sharpness 0"):
        iou_voting_scores(scores, weights, sharpness=0)
    with pytest.raises(InputError, match="delta 0"):
        boundary_aware_scores(scores, weights, delta=0)


@pytest.mark.parametrize(
    "option",
    [
        {"terms": "P"},
        {"pairwise": "x"},
        {"difference": "x"},
        {"overlap_denominator": "x"},
        {"iterations": 0},
        {"delta": 0.0},
        {"vote_sharpness": math.nan},
        {"seed_prior_weight": -1.0},
        {"instance_penalty": math.nan},
        {"prediction_weight_spread": 1.5},
        {"nms_threshold": 2.0},
        {"extra_margin": -1.0},
        {"extra_margin": math.nan},
    ],
)
def test_bad_options(option: dict[str, object]) -> None:
    with pytest.raises(InputError, match=next(iter(option))):
        ScoringOptions(**option)  # type: ignore[arg-type]


def prior_of(requirements: Requirements, seeds: Seeds) -> torch.Tensor:
    return seed_prior(requirements, seeds, seed_votes(requirements, seeds))


def test_seed_prior_is_the_expected_iou_with_the_object_of_a_seed() -> None:
    seeds = seeds_at([(0.5, 3), (7.5, 3)], [1, 2])
    requirements = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), REGIONS, seeds=seeds)
    votes = seed_votes(requirements, seeds)
    prior = seed_prior(requirements, seeds, votes)
    assert prior.shape == (4, 2)
    iou = REGIONS.iou()
    for u in range(4):
        for column in range(2):
            expected = sum(float(votes[column, v] * iou[u, v]) for v in range(4))
            assert float(prior[u, column]) == pytest.approx(
                math.log((expected + MIN_IOU) / NEUTRAL_IOU)
            )
    assert prior[0, 0] > 0 > prior[2, 0]


def test_seed_prior_is_the_greatest_over_the_seeds_of_a_class() -> None:
    seeds = seeds_at([(0.5, 3), (7.5, 3)], [1, 1])
    requirements = requirements_of(annotation(WeakLabel(1)), REGIONS)
    single = [prior_of(requirements, seeds[i]) for i in range(2)]
    both = seed_prior(requirements, seeds, torch.cat([seed_votes(requirements, s) for s in seeds]))
    torch.testing.assert_close(both, torch.maximum(*single))


def test_seeds_vote_for_regions_compatible_with_their_label() -> None:
    boxes = annotation(WeakLabel(1, box=(0, 0, 4, 6)), WeakLabel(1, box=(4, 0, 8, 6)))
    requirements = requirements_of(boxes, REGIONS, box_overlap=0.8)
    seeds = seeds_at([(0.5, 3), (7.5, 3)], [1, 1], [0, 1])
    assert seed_votes(requirements, seeds).tolist() == [[0, 1, 0, 0], [0, 0, 1, 0]]


def test_seed_of_a_tag_in_an_annotated_mask() -> None:
    """It may have no region to vote for, which is not an error."""
    dense = np.zeros((1, 6, 8), dtype=bool)
    dense[0, :, 6:] = True
    mask_and_tag = annotation(WeakLabel(1, mask=masks.encode(dense)[0]), WeakLabel(1))
    seeds = seeds_at([(7.0, 3), (7.0, 3)], [1, 1], [0, 1])
    requirements = requirements_of(mask_and_tag, stripes([0], [1]), seeds=seeds)
    votes = seed_votes(requirements, seeds)
    assert votes[0].tolist() == [0, 0, 1]
    assert votes[1].sum() in (0, 1)


@settings(deadline=None)
@given(annotated(), st.integers(0, 1000))
def test_votes_sum_to_one_and_priors_are_finite(
    image: tuple[RegionSet, Annotation], seed: int
) -> None:
    regions, weak_labels = image
    seeds = random_seeds(weak_labels, seed)
    requirements = requirements_of(weak_labels, regions, seeds=seeds)
    votes = seed_votes(requirements, seeds)
    total = votes.sum(dim=1)
    assert bool((((total - 1).abs() < 1e-4) | (total == 0)).all())
    assert bool(seed_prior(requirements, seeds, votes).isfinite().all())


def test_class_without_a_seed_has_a_prior_of_zero() -> None:
    requirements = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), REGIONS)
    prior = prior_of(requirements, seeds_at([(0.5, 3)], [1]))
    assert prior[:, 1].tolist() == pytest.approx([0] * 4, abs=1e-5)


def test_seed_prior_of_an_empty_annotation() -> None:
    requirements = requirements_of(annotation(), REGIONS)
    assert prior_of(requirements, seeds_at([(0.5, 3)], [1])[[]]).shape == (4, 0)


def test_seed_prior_is_added_to_the_unary_term_of_classes() -> None:
    seeds = seeds_at([(0.5, 3)], [1])
    requirements = requirements_of(annotation(WeakLabel(1)), REGIONS, seeds=seeds)
    prior = prior_of(requirements, seeds)
    options = ScoringOptions("U", seed_prior_weight=2.0)
    scores = Candidates(requirements, options, seed_prior=prior).scores(torch.zeros(3, 4, 2))
    assert torch.equal(scores[..., 0], torch.zeros(3, 4))
    torch.testing.assert_close(scores[1, :, 1], 2 * prior[:, 0])
    options = ScoringOptions("U", seed_prior_weight=0.0)
    assert Candidates(requirements, options, seed_prior=prior).seed_prior is None
    with pytest.raises(InputError, match=r"seed prior of shape \(3, 1\); expected \(4, 1\)"):
        Candidates(requirements, seed_prior=prior[1:])


SHARES = torch.tensor([[1.0, 0.8, 0.2, 0.0], [0.0, 0.1, 0.2, 1.0]])
"""Of two classes in four stripes."""


def test_map_prior_is_the_evidence_relative_to_the_neutral_one() -> None:
    evidence, prior = region_evidence(REGIONS, SHARES), map_prior(REGIONS, SHARES)
    assert prior.shape == (4, 2)
    for u in range(4):
        for column in range(2):
            expected = float(evidence[u, column]) - NEUTRAL_EVIDENCE
            assert float(prior[u, column]) == pytest.approx(expected)
    assert prior.argmax(dim=0).tolist() == [1, 3]


def test_map_prior_is_added_to_the_unary_term_of_classes() -> None:
    requirements = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), REGIONS)
    prior = map_prior(REGIONS, SHARES)
    options = ScoringOptions("U", seed_prior_weight=0.5)
    scores = Candidates(requirements, options, seed_prior=prior).scores(torch.zeros(1, 4, 3))
    torch.testing.assert_close(scores[0, :, 1:], 0.5 * prior)


@settings(deadline=None)
@given(annotated(), st.integers(0, 1000))
def test_map_priors_are_finite(image: tuple[RegionSet, Annotation], seed: int) -> None:
    regions, weak_labels = image
    seeds = random_seeds(weak_labels, seed)
    requirements = requirements_of(weak_labels, regions, seeds=seeds)
    shares = class_shares(requirements.regions, seeds, requirements.labels)
    prior = map_prior(requirements.regions, shares)
    assert prior.shape == (len(requirements.regions), len(requirements.labels))
    assert bool(prior.isfinite().all())


def test_map_prior_of_no_classes_and_no_regions() -> None:
    assert map_prior(REGIONS, torch.zeros(0, 4)).shape == (4, 0)
    assert map_prior(REGIONS[[]], SHARES).shape == (0, 2)
    assert map_prior(REGIONS[[]], torch.zeros(0, 4)).shape == (0, 0)


def test_log_expected_iou_is_0_at_the_neutral_one_and_bounded() -> None:
    values = [0.0, 0.05, NEUTRAL_IOU - MIN_IOU, 0.5, 1.0]
    result = log_expected_iou(torch.tensor(values)).tolist()
    expected = [math.log((value + MIN_IOU) / NEUTRAL_IOU) for value in values]
    assert result == pytest.approx(expected, abs=1e-6)
    assert result[2] == pytest.approx(0, abs=1e-6)
    assert result == sorted(result)
    assert math.isfinite(result[0])


def test_an_extra_margin_limits_the_instances_of_samples() -> None:
    requirements = requirements_of(annotation(WeakLabel(1)), stripes([0], [1], [2], [3]))
    scores = torch.tensor([[[0.0, 4.0], [0.0, 3.0], [0.0, 1.0], [0.0, -1.0]]])

    def labels(**options: float) -> list[list[int]]:
        return (
            Candidates(requirements, ScoringOptions("U+P+H", **options)).infer(scores)[0].tolist()
        )  # type: ignore[arg-type]

    assert labels() == [[1, 1, 1, 0]]
    assert labels(extra_margin=2.0) == [[1, 1, 0, 0]]
    assert labels(extra_margin=0.0) == [[1, 0, 0, 0]]


def test_a_network_that_finds_one_instance_does_not_drop_another() -> None:
    """The extra margin is larger by what the network can add, in each sample by its weight."""
    requirements = requirements_of(annotation(WeakLabel(1)), stripes([0], [1], [2], [3]))
    scores = torch.tensor([[0.0, 9.0], [0.0, 5.2], [0.0, 1.0], [0.0, -1.0]]).expand(3, -1, -1)
    options = ScoringOptions(prediction_weight=2.0, prediction_weight_spread=0.5, extra_margin=1.0)
    without = Candidates(requirements, options).infer(scores)
    assert without.labels.tolist() == [[1, 0, 0, 0]] * 3
    labels = Candidates(requirements, options, table=torch.ones(4, 2)).infer(scores).labels
    # 1 + 2 x log(1.02 / .05) x (1, .75, 1.25) = 7.0, 5.5, 8.5 below the best gain of 9
    assert labels.tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]


def test_prediction_log_odds_are_added_with_weights_that_vary_over_samples() -> None:
    requirements = requirements_of(annotation(WeakLabel(1)), REGIONS)
    table = torch.tensor([[3.0, 1.0], [0.0, 2.0], [1.0, 1.0], [0.0, 0.5]])
    log_odds = torch.tensor([2.0, -2.0, 0.0, -0.5])
    options = ScoringOptions("U", prediction_weight=0.5, prediction_weight_spread=0.6)
    scores = Candidates(requirements, options, table=table).scores(torch.zeros(4, 4, 2))
    for k, factor in enumerate((1, 0.6, 1, 1.4)):
        torch.testing.assert_close(scores[k, :, 1], 0.5 * factor * log_odds)
    with pytest.raises(InputError, match=r"loss table of shape \(3, 2\); expected \(4, 2\)"):
        Candidates(requirements, table=table[1:])


@pytest.mark.parametrize("penalty", [0.5, -0.5])
def test_instance_penalty_lowers_all_classes(penalty: float) -> None:
    requirements = requirements_of(annotation(WeakLabel(1)), REGIONS)
    unary = torch.rand(2, 4, 2)
    scores = Candidates(requirements, ScoringOptions("U", instance_penalty=penalty)).scores(unary)
    torch.testing.assert_close(scores, unary - torch.tensor([0.0, penalty]))


def test_everything_moves_to_another_device() -> None:
    labels = annotation(WeakLabel(1), WeakLabel(2, box=(0, 0, 2, 6)))
    seeds = seeds_at([(0.5, 3), (7.0, 3)], [1, 2])
    requirements = requirements_of(labels, stripes([0], [1, 2], [3]), seeds=seeds)
    table = torch.zeros(len(requirements.regions), 1 + len(requirements.labels))
    candidates = Candidates(requirements, seed_prior=prior_of(requirements, seeds), table=table)
    moved = candidates.to("meta")
    tensors = [*moved.suppression, moved.weights, moved.seed_prior, moved.prediction_log_odds]
    tensors += [moved.requirements.extra_allowed, *moved.requirements.peaks]
    tensors += [r.compatible for r in moved.requirements.required]
    tensors += [moved.regions.membership, moved.regions.superpixels]
    assert all(tensor is not None and tensor.device.type == "meta" for tensor in tensors)
