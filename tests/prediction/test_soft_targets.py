"""Soft targets: matching and sampling are those of torchvision in each sample, averaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.models.detection import _utils as det_utils
from torchvision.ops import box_iou, masks_to_boxes

from annocoin.engine.randomness import generator_at
from annocoin.prediction.soft_targets import (
    MatchWeights,
    SoftTargets,
    match_boxes,
    sample_anchors,
    sample_rois,
)
from prediction.worlds import random_targets

Sampler = Callable[[MatchWeights, int, int, torch.Generator], tuple[Tensor, MatchWeights]]
THRESHOLDS = [(0.5, 0.5, False), (0.5, 0.25, False), (0.7, 0.3, True)]


def targets_at(
    boxes: list[list[float]], members: list[list[int]], weights: list[float]
) -> SoftTargets:
    """Instances of class 1 without masks."""
    return SoftTargets(
        torch.tensor(boxes).view(-1, 4),
        torch.ones(len(boxes), dtype=torch.int64),
        torch.zeros(len(boxes), 1, 1, dtype=torch.bool),
        torch.tensor(members, dtype=torch.bool).view(len(members), -1),
        torch.tensor(weights),
    )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Tensor, SoftTargets]:
    """Boxes on a small grid, with many equal IoUs; the first one overlaps every instance."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))

    def boxes(n: int) -> Tensor:
        first = torch.randint(0, 6, (n, 2), generator=rng)
        return torch.cat([first, first + torch.randint(1, 4, (n, 2), generator=rng)], 1).float()

    count, samples = draw(st.integers(0, 6)), draw(st.integers(1, 5))
    members = torch.rand(samples, count, generator=rng) < draw(st.sampled_from([0.2, 0.5, 0.9]))
    counts = torch.randint(1, 4, (samples,), generator=rng).float()
    targets = SoftTargets(
        boxes(count),
        torch.ones(count, dtype=torch.int64),
        torch.zeros(count, 1, 1, dtype=torch.bool),
        members,
        counts / counts.sum(),
    )
    largest = torch.tensor([[0.0, 0.0, 9.0, 9.0]])
    return torch.cat([largest, boxes(draw(st.integers(0, 12)))]), targets


def naive_matches(
    boxes: Tensor, targets: SoftTargets, high: float, low: float, low_quality: bool
) -> MatchWeights:
    """Torchvision's matching of every sample by itself, box by box."""
    instances = torch.zeros(len(boxes), len(targets))
    background = torch.zeros(len(boxes))
    matcher = det_utils.Matcher(high, low, allow_low_quality_matches=low_quality)
    for members, weight in zip(targets.members, targets.weights, strict=True):
        indices = members.nonzero()[:, 0]
        if not len(indices):
            background += weight
            continue
        matches = matcher(box_iou(targets.boxes[indices], boxes))
        for n, match in enumerate(matches.tolist()):
            if match >= 0:
                instances[n, indices[match]] += weight
            elif match == matcher.BELOW_LOW_THRESHOLD:
                background[n] += weight
    return MatchWeights(instances, background)


@settings(max_examples=200)
@given(worlds())
@pytest.mark.parametrize(("high", "low", "low_quality"), THRESHOLDS)
def test_matching_is_torchvisions_in_every_sample(
    high: float, low: float, low_quality: bool, world: tuple[Tensor, SoftTargets]
) -> None:
    matches = match_boxes(*world, high, low, allow_low_quality_matches=low_quality)
    torch.testing.assert_close(matches, naive_matches(*world, high, low, low_quality))


@given(worlds())
@pytest.mark.parametrize(("high", "low", "low_quality"), THRESHOLDS)
def test_match_weights_are_fractions_of_the_samples(
    high: float, low: float, low_quality: bool, world: tuple[Tensor, SoftTargets]
) -> None:
    boxes, targets = world
    matches = match_boxes(*world, high, low, allow_low_quality_matches=low_quality)
    instances, background = matches
    total = instances.sum(dim=1) + background
    assert bool((instances >= 0).all())
    assert bool((background >= 0).all())
    assert float(total.max()) <= 1 + 1e-6
    if high == low:
        torch.testing.assert_close(total, torch.ones(len(boxes)))
    present = targets.weights @ targets.members.float()
    assert bool((instances <= present + 1e-6).all())
    reordered = replace(targets, members=targets.members.flip(0), weights=targets.weights.flip(0))
    again = match_boxes(boxes, reordered, high, low, allow_low_quality_matches=low_quality)
    torch.testing.assert_close(again, matches)


def test_matching_by_hand() -> None:
    """Two variants of an object, 8 and 4 wide, the second one in a quarter of the samples."""
    targets = targets_at([[0, 0, 8, 4], [0, 0, 4, 4]], [[1, 0], [0, 1], [0, 0]], [0.5, 0.25, 0.25])
    boxes = torch.tensor([[0.0, 0.0, 8.0, 4.0], [0.0, 0.0, 4.0, 4.0], [9.0, 9.0, 12.0, 12.0]])
    matches = match_boxes(boxes, targets, 0.7, 0.3)
    assert matches.instances.tolist() == [[0.5, 0], [0, 0.25], [0, 0]]
    assert matches.background.tolist() == [0.25, 0.25, 1]  # an IoU of one half is ignored
    matches = match_boxes(boxes, targets, 0.5, 0.5)
    assert matches.instances.tolist() == [[0.5, 0.25], [0.5, 0.25], [0, 0]]
    assert matches.background.tolist() == [0.25, 0.25, 1]


def test_low_quality_matches() -> None:
    targets = targets_at([[0, 0, 10, 10]], [[1], [0]], [0.75, 0.25])
    boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 3.0, 3.0], [6.0, 6.0, 10.0, 10.0]])
    matches = match_boxes(boxes, targets, 0.7, 0.3, allow_low_quality_matches=True)
    assert matches.instances[:, 0].tolist() == [0.75, 0, 0.75]  # both with the highest IoU
    assert matches.background.tolist() == [0.25, 1, 0.25]


def test_an_instance_without_overlapping_boxes_has_no_low_quality_match() -> None:
    """Torchvision would match all boxes to it, since all have the highest IoU of 0."""
    targets = targets_at([[20, 20, 30, 30]], [[1]], [1.0])
    boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [5.0, 5.0, 9.0, 9.0]])
    matches = match_boxes(boxes, targets, 0.7, 0.3, allow_low_quality_matches=True)
    assert matches.instances.tolist() == [[0], [0]]
    assert matches.background.tolist() == [1, 1]


def test_targets_move_to_a_device_with_all_their_fields() -> None:
    targets = random_targets(0)
    moved = targets.to("meta")
    for field in fields(targets):
        before, after = getattr(targets, field.name), getattr(moved, field.name)
        assert (after.device.type, after.shape) == ("meta", before.shape)
    assert len(targets) == len(targets.boxes)


def tight_box(mask: Tensor) -> Tensor:
    return masks_to_boxes(mask[None])[0] + torch.tensor([0, 0, 1, 1])  # its edges are inclusive


def test_mirrored_masks_are_inside_mirrored_boxes() -> None:
    targets = random_targets(3, (40, 50))
    targets.boxes.copy_(torch.stack([tight_box(mask) for mask in targets.masks]))
    mirrored = targets.mirrored()
    assert torch.equal(mirrored.masks, targets.masks.flip(2))
    for mask, box in zip(mirrored.masks, mirrored.boxes, strict=True):
        assert box.tolist() == tight_box(mask).tolist()
    assert not torch.equal(mirrored.boxes, targets.boxes)
    assert torch.equal(mirrored.members, targets.members)
    assert torch.equal(mirrored.mirrored().boxes, targets.boxes)


def matches_of(labellings: list[str]) -> MatchWeights:
    """Of boxes that each labelling matches (+), has as background (-), or ignores (?)."""
    positive, negative = (
        torch.tensor([[kind == sign for kind in labelling] for labelling in labellings])
        .float()
        .mean(dim=0)
        for sign in "+-"
    )
    return MatchWeights(positive[:, None], negative)


@pytest.mark.parametrize("sampler", [sample_anchors, sample_rois])
@given(
    st.text("+-?", max_size=30),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    st.integers(0, 100),
)
def test_one_labelling_is_sampled_as_in_torchvision(
    sampler: Sampler, kinds: str, count: int, fraction: float, seed: int
) -> None:
    matches = matches_of([kinds])
    positive = int(count * fraction)
    chosen, weights = sampler(matches, count, positive, generator_at(seed))
    first = min(kinds.count("+"), positive)
    assert len(chosen.unique()) == len(chosen) == first + min(kinds.count("-"), count - first)
    assert [kinds[i] for i in chosen[:first].tolist()] == ["+"] * first
    assert [kinds[i] for i in chosen[first:].tolist()] == ["-"] * (len(chosen) - first)
    torch.testing.assert_close(weights.instances[:first, 0], torch.ones(first))
    torch.testing.assert_close(weights.background[first:], torch.ones(len(chosen) - first))
    assert not weights.instances[first:].any()
    assert not weights.background[:first].any()
    again, _ = sampler(matches, count, positive, generator_at(seed))
    assert torch.equal(chosen, again)


def naive_weights(labellings: list[str], count: int, positive: int) -> Tensor:
    """Mean over labellings of how often a box is sampled as matched, and as background: [2, N]."""
    weights = torch.zeros(2, len(labellings[0]))
    for kinds in labellings:
        sampled = min(positive, kinds.count("+"))
        for box, kind in enumerate(kinds):
            if kind == "+":
                weights[0, box] += sampled / kinds.count("+")
            elif kind == "-":
                weights[1, box] += min(1.0, (count - sampled) / kinds.count("-"))
    return weights / len(labellings)


@pytest.mark.parametrize(("count", "positive"), [(6, 2), (8, 3), (8, 8), (20, 20)])
def test_expected_anchor_weights_are_the_mean_over_samples(count: int, positive: int) -> None:
    labellings = ["+++-?-----------", "+--++-?---------", "+---?-++--------", "+++-?-----------"]
    assert {kinds.count("+") for kinds in labellings} == {3}
    matches = matches_of(labellings)
    total = torch.zeros(2, len(labellings[0]))
    generator, draws = generator_at(1), 6000
    for _ in range(draws):
        chosen, weights = sample_anchors(matches, count, positive, generator)
        assert len(chosen.unique()) == len(chosen) <= count + 1
        total[0, chosen] += weights.instances[:, 0]
        total[1, chosen] += weights.background
    expected = naive_weights(labellings, count, positive)
    torch.testing.assert_close(total / draws, expected, rtol=0.1, atol=0.03)


def test_an_uncertain_anchor_has_a_small_weight_as_background() -> None:
    """In the sample without its instance, many others are sampled instead."""
    matches = matches_of(["+" + "-" * 999, "-" * 1000])
    chosen, weights = sample_anchors(matches, 100, 50, generator_at(0))
    assert chosen[0] == 0
    assert weights.instances[0, 0].item() == pytest.approx(0.5)
    assert weights.background[0].item() == pytest.approx(0.05, rel=0.02)


def test_an_uncertain_roi_keeps_its_weights() -> None:
    matches = matches_of(["+" + "-" * 999, "-" * 1000])
    chosen, weights = sample_rois(matches, 100, 50, generator_at(0))
    assert chosen[0] == 0
    assert len(chosen) == 100
    assert (weights.instances[0, 0], weights.background[0]) == (0.5, 0.5)


def test_positive_rois_are_sampled_uniformly() -> None:
    counts, generator = torch.zeros(6), generator_at(0)
    for _ in range(200):
        counts[sample_rois(matches_of(["+-+-+-", "-+-+-+"]), 2, 2, generator)[0]] += 1
    assert counts.sum() == 400
    assert float(counts.min()) > 40


@pytest.mark.parametrize("sampler", [sample_anchors, sample_rois])
def test_no_boxes_and_no_instances(sampler: Sampler) -> None:
    chosen, weights = sampler(
        MatchWeights(torch.zeros(0, 0), torch.zeros(0)), 8, 2, generator_at(0)
    )
    assert not len(chosen)
    assert weights.instances.shape == (0, 0)
    chosen, weights = sampler(MatchWeights(torch.zeros(9, 0), torch.ones(9)), 4, 2, generator_at(0))
    assert len(chosen) == 4
    assert weights.background.tolist() == [1, 1, 1, 1]
