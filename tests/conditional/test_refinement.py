"""Refined masks of instances: by hand, against loops, and what an annotation guarantees."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from annocoin import masks as rle
from annocoin.conditional.networks import ConditionalArchitecture, ConditionalNetwork
from annocoin.conditional.refinement import refine_masks, refined_membership
from annocoin.conditional.requirements import requirements_of
from annocoin.conditional.samples import Samples
from annocoin.conditional.scoring import Candidates, ScoringOptions, draw_samples
from annocoin.engine.randomness import generator_at
from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet
from annocoin.types import Annotation, WeakLabel
from conditional.worlds import annotated, annotation, stripes

SURE = 9.0


def samples_of_scores(candidates: Candidates, scores: Tensor, shares: Tensor) -> Samples:
    samples, requirements = candidates.samples(scores), candidates.requirements
    return refine_masks(samples, requirements, scores, shares, threshold=0.5)


def test_pixels_add_and_remove_superpixels() -> None:
    """Regions of stripes 0-1 and 0-2, equally good: the pixels decide about 1 and 2."""
    regions = stripes([0, 1], [0, 1, 2], [3])
    candidates = Candidates(requirements_of(annotation(WeakLabel(1)), regions))
    scores = torch.tensor([[[0.0, 2.0], [0.0, 2.0], [0.0, -9.0]]])
    near = (2 / 3) ** 4
    expected = [1.0, 1.0, near / (1 + near), 0.0]  # of region 0, which is selected
    for shares in ([0.9, 0.9, 0.9, 0.9], [0.9, 0.9, 0.7, 0.9], [0.9, 0.0, 0.0, 0.0]):
        refined = samples_of_scores(candidates, scores, torch.tensor([shares]))
        probabilities = [(p + q) / 2 for p, q in zip(expected, shares, strict=True)]
        around = [1.0, 1.0, near / (1 + near), 0.0]
        mask = [p > 0.5 and a > 0.2 for p, a in zip(probabilities, around, strict=True)]
        assert refined.regions.membership.tolist() == [mask]
        assert refined.labels.tolist() == [[1]]
    # stripe 2 is in none of the three masks, with .14 of the votes around: see MIN_SHARE
    assert near / (1 + near) < 0.2


def naive_membership(
    regions: RegionSet, u: int, margins: Tensor, probabilities: list[Tensor], threshold: float
) -> list[bool]:
    members, areas = regions.membership.tolist(), regions.superpixel_areas.tolist()

    def iou(v: int) -> float:
        pairs = list(zip(members[u], members[v], areas, strict=True))
        union = sum(a for i, j, a in pairs if i or j)
        return sum(a for i, j, a in pairs if i and j) / union

    near = [iou(v) ** 4 for v in range(len(members))]
    votes = [w * math.exp(m) for w, m in zip(near, margins.tolist(), strict=True)]
    result = []
    for s in range(len(areas)):
        inside = [float(row[s]) for row in members]
        expected = sum(map(math.prod, zip(votes, inside, strict=True))) / sum(votes)
        around = sum(map(math.prod, zip(near, inside, strict=True))) / sum(near)
        values = [expected, *(float(p[s]) for p in probabilities)]
        result.append(sum(values) / len(values) > threshold and around > 0.2)
    return result


@pytest.mark.parametrize("networks", [1, 2])
def test_against_loops(networks: int) -> None:
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    ids = np.kron(np.arange(16).reshape(4, 4), np.ones((2, 3), dtype=int))
    members = rng.random((12, 16)) < 0.4
    members[np.arange(12), np.arange(12)] = True
    regions, selected = RegionSet.of(ids, members), torch.tensor([3, 0, 7])
    margins = 3 * torch.randn(3, 12, generator=generator)
    shares = torch.rand(networks, 3, 16, generator=generator)
    refined = refined_membership(regions, selected, margins, shares, 0.35)
    for i, u in enumerate(selected.tolist()):
        assert refined[i].tolist() == naive_membership(
            regions, u, margins[i], [*shares[:, i]], 0.35
        )
    assert not torch.equal(refined, regions.membership[selected])


@settings(max_examples=60, deadline=None)
@given(annotated(), st.integers(0, 2**31))
def test_samples_stay_consistent(world: tuple[RegionSet, Annotation], seed: int) -> None:
    """Every requirement is met by as many superpixels as its compatible regions allow."""
    regions, labels = world
    requirements = requirements_of(labels, regions)
    generator = torch.Generator().manual_seed(seed)
    candidates = Candidates(requirements, ScoringOptions())
    shape = (3, len(requirements.regions), len(candidates.columns))
    scores = 3 * torch.randn(*shape, generator=generator)
    shares = torch.rand(shape[2] - 1, regions_count(requirements.regions), generator=generator)
    before = candidates.samples(scores)
    after = samples_of_scores(candidates, scores, shares)
    for k in range(3):
        old, new = (s.labels[k][s.labels[k] > 0].sort().values for s in (before, after))
        assert torch.equal(old, new)
    assert bool(after.regions.membership.any(dim=1).all())
    assert after.annotation_index == before.annotation_index
    for r, requirement in enumerate(requirements.required):
        compatible = requirements.regions.membership[requirement.compatible]
        label = labels[requirement.annotation_index]
        for k in range(3):
            instance = int(after.required_regions[k, r])
            mask = after.regions.membership[instance]
            assert int(after.labels[k, instance]) == requirement.label
            assert not bool((mask & ~compatible.any(dim=0)).any())
            assert bool(mask[compatible.all(dim=0)].all())
            margin = before.margins[k, before.required_regions[k, r]]
            assert after.margins[k, instance] == margin
            if label.kind == "mask" and not label.crowd:
                assert label.mask is not None
                assert rle.iou(after.regions[instance].rles(), [label.mask])[0, 0] == 1
            if label.kind == "point":
                assert label.point is not None
                assert bool(after.regions[instance].contains([label.point])[0, 0])


def regions_count(regions: RegionSet) -> int:
    return int(regions.membership.shape[1])


def test_a_mask_without_superpixels_stays_the_region() -> None:
    regions = stripes([0, 1], [2, 3])
    candidates = Candidates(requirements_of(annotation(WeakLabel(1)), regions))
    scores = torch.tensor([[[0.0, SURE], [0.0, -SURE]]])
    samples = candidates.samples(scores)
    refined = refine_masks(
        samples, candidates.requirements, scores, torch.zeros(1, 4), threshold=0.9
    )
    assert refined.regions.membership.tolist() == [[True, True, False, False]]


def test_the_prediction_network_sees_the_boxes_and_its_masks_count() -> None:
    regions = stripes([0, 1], [1, 2, 3], [3])
    requirements = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), regions)
    candidates = Candidates(requirements)
    scores = torch.tensor([[[0.0, SURE, 0.0], [0.0, -SURE, -SURE], [0.0, 0.0, SURE]]])
    samples = candidates.samples(scores)
    asked = []

    def predicted(boxes: Tensor, labels: Tensor) -> Tensor:
        asked.append((boxes.tolist(), labels.tolist()))
        return torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]])

    shares = torch.tensor([[0.5, 0.4, 0.0, 0.0], [0.0, 0.0, 0.0, 0.5]])
    refined = refine_masks(samples, requirements, scores, shares, 0.5, predicted)
    assert asked == [([[0, 0, 4, 6], [6, 0, 8, 6]], [1, 2])]
    # stripe 1: (1 + .4 + 0) / 3 is below the threshold, without the network (1 + .4) / 2 is not
    assert refined.regions.membership.tolist() == [
        [True, False, False, False],
        [False, False, False, True],
    ]
    without = refine_masks(samples, requirements, scores, shares, 0.5)
    assert without.regions.membership[0].tolist() == [True, True, False, False]


def test_nothing_to_refine() -> None:
    regions = stripes([0], [1])
    requirements = requirements_of(Annotation((6, 8)), regions)
    candidates = Candidates(requirements)
    scores = torch.zeros(2, 2, 1)
    refined = samples_of_scores(candidates, scores, torch.zeros(0, 4))
    assert refined.labels.shape == (2, 0)
    assert len(refined.consensus()) == 0


def test_samples_of_a_network() -> None:
    """With classes that share regions too, and another threshold gives other masks."""
    torch.manual_seed(0)
    net = ConditionalNetwork(ConditionalArchitecture(("a", "b"), "tiny", size=64), "none").eval()
    stripes_of_ten = np.repeat([np.arange(10)], 6, axis=0)
    ends = [(0, 4), (0, 5), (0, 6), (5, 10), (4, 10), (6, 10)]
    members = [[first <= stripe < last for stripe in range(10)] for first, last in ends]
    regions = RegionSet.of(stripes_of_ten, members)
    labels = Annotation((6, 10), (WeakLabel(1), WeakLabel(2)))
    areas = {}
    for shared in (False, True):
        for threshold in (0.05, 0.6):
            options = ScoringOptions(mask_threshold=threshold, share_regions=shared)
            candidates = Candidates(requirements_of(labels, regions), options)
            pixels = torch.rand(3, 40, 64, generator=generator_at(1))
            result = draw_samples(net, pixels, candidates, 3, generator_at(0))
            assert set(result.consensus().labels.tolist()) == {1, 2}
            areas[threshold] = float(result.regions.areas.float().mean())
        assert areas[0.05] > areas[0.6]


@pytest.mark.parametrize("threshold", [0.0, 1.0, -0.5])
def test_bad_thresholds(threshold: float) -> None:
    with pytest.raises(InputError, match="mask_threshold"):
        ScoringOptions(mask_threshold=threshold)
    assert replace(ScoringOptions(), mask_threshold=0.4).mask_threshold == 0.4
