"""Soft targets: matching over samples is torchvision's matching of each of them, counted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.models.detection import _utils as det_utils
from torchvision.ops import box_iou, masks_to_boxes

from annocoin.prediction.soft_targets import MatchWeights, SoftTargets, match
from prediction.worlds import samples_of

THRESHOLDS = [(0.5, 0.5, False), (0.5, 0.25, False), (0.7, 0.3, True)]


def targets_at(
    boxes: list[list[float]], members: list[list[int]], shares: list[float]
) -> SoftTargets:
    """Instances of class 1 without masks."""
    return SoftTargets(
        torch.tensor(boxes).view(-1, 4),
        torch.ones(len(boxes), dtype=torch.int64),
        torch.zeros(len(boxes), 1, 1, dtype=torch.bool),
        torch.tensor(members, dtype=torch.bool).view(len(members), -1),
        torch.tensor(shares),
    )


@st.composite
def worlds(draw: st.DrawFn) -> tuple[torch.Tensor, SoftTargets]:
    """Boxes on a small grid, where many overlap alike; the first one overlaps every instance."""
    rng = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))

    def boxes(count: int) -> torch.Tensor:
        first = torch.randint(0, 6, (count, 2), generator=rng)
        return torch.cat([first, first + torch.randint(1, 4, (count, 2), generator=rng)], 1).float()

    instances, samples = draw(st.integers(0, 6)), draw(st.integers(1, 5))
    members = torch.rand(samples, instances, generator=rng) < draw(st.sampled_from([0.2, 0.5, 0.9]))
    counts = torch.randint(1, 4, (samples,), generator=rng).float()
    targets = SoftTargets(
        boxes(instances),
        torch.ones(instances, dtype=torch.int64),
        torch.zeros(instances, 1, 1, dtype=torch.bool),
        members,
        counts / counts.sum(),
    )
    everything = torch.tensor([[0.0, 0.0, 9.0, 9.0]])
    return torch.cat([everything, boxes(draw(st.integers(0, 12)))]), targets


def counted(
    boxes: torch.Tensor, targets: SoftTargets, high: float, low: float, best_too: bool
) -> MatchWeights:
    """Torchvision's matching of every sample by itself, box by box."""
    instances = torch.zeros(len(boxes), len(targets))
    background = torch.zeros(len(boxes))
    matcher = det_utils.Matcher(high, low, allow_low_quality_matches=best_too)
    for members, weight in zip(targets.members, targets.weights, strict=True):
        own = members.nonzero()[:, 0]
        if not len(own):
            background += weight
            continue
        found = matcher(box_iou(targets.boxes[own], boxes))
        for n, place in enumerate(found.tolist()):
            if place >= 0:
                instances[n, own[place]] += weight
            elif place == matcher.BELOW_LOW_THRESHOLD:
                background[n] += weight
    return MatchWeights(instances, background)


@settings(max_examples=200)
@given(worlds())
@pytest.mark.parametrize(("high", "low", "best_too"), THRESHOLDS)
def test_matching_is_torchvisions_in_every_sample(
    high: float, low: float, best_too: bool, world: tuple[torch.Tensor, SoftTargets]
) -> None:
    boxes, targets = world
    found = match(boxes, targets.boxes, targets, foreground=high, background=low, best_too=best_too)
    expected = counted(boxes, targets, high, low, best_too)
    torch.testing.assert_close(found.instances, expected.instances)
    torch.testing.assert_close(found.background, expected.background)


@given(worlds())
@pytest.mark.parametrize(("high", "low", "best_too"), THRESHOLDS)
def test_shares_are_shares(
    high: float, low: float, best_too: bool, world: tuple[torch.Tensor, SoftTargets]
) -> None:
    boxes, targets = world
    options = {"foreground": high, "background": low, "best_too": best_too}
    instances, background = match(boxes, targets.boxes, targets, **options)  # type: ignore[arg-type]
    together = instances.sum(dim=1) + background
    assert bool((instances >= 0).all())
    assert bool((background >= 0).all())
    assert float(together.max()) <= 1 + 1e-6
    if high == low:
        torch.testing.assert_close(together, torch.ones(len(boxes)))
    present = targets.weights @ targets.members.float()  # the share of samples that have each
    assert bool((instances <= present + 1e-6).all())
    order = torch.arange(len(targets.weights)).flip(0)
    other = SoftTargets(
        targets.boxes,
        targets.labels,
        targets.masks,
        targets.members[order],
        targets.weights[order],
    )
    again = match(boxes, targets.boxes, other, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(again.instances, instances)
    torch.testing.assert_close(again.background, background)


def test_matching_by_hand() -> None:
    """Two forms of an object, 8 and 4 wide, the second one in a quarter of the samples."""
    targets = targets_at([[0, 0, 8, 4], [0, 0, 4, 4]], [[1, 0], [0, 1], [0, 0]], [0.5, 0.25, 0.25])
    boxes = torch.tensor([[0.0, 0.0, 8.0, 4.0], [0.0, 0.0, 4.0, 4.0], [9.0, 9.0, 12.0, 12.0]])
    found = match(boxes, targets.boxes, targets, foreground=0.7, background=0.3)
    assert found.instances.tolist() == [[0.5, 0], [0, 0.25], [0, 0]]
    assert found.background.tolist() == [0.25, 0.25, 1]  # an IoU of one half is nothing
    found = match(boxes, targets.boxes, targets, foreground=0.5, background=0.5)
    assert found.instances.tolist() == [[0.5, 0.25], [0.5, 0.25], [0, 0]]
    assert found.background.tolist() == [0.25, 0.25, 1]


def test_the_best_box_stands_for_an_instance_however_little_it_overlaps() -> None:
    targets = targets_at([[0, 0, 10, 10]], [[1], [0]], [0.75, 0.25])
    boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 3.0, 3.0], [6.0, 6.0, 10.0, 10.0]])
    found = match(boxes, targets.boxes, targets, foreground=0.7, background=0.3, best_too=True)
    assert found.instances[:, 0].tolist() == [0.75, 0, 0.75]  # both of the equal ones
    assert found.background.tolist() == [0.25, 1, 0.25]


def test_an_instance_that_no_box_overlaps_is_matched_with_none() -> None:
    """Torchvision would match every box with it, for all of them overlap it most, by nothing."""
    targets = targets_at([[20, 20, 30, 30]], [[1]], [1.0])
    boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [5.0, 5.0, 9.0, 9.0]])
    found = match(boxes, targets.boxes, targets, foreground=0.7, background=0.3, best_too=True)
    assert found.instances.tolist() == [[0], [0]]
    assert found.background.tolist() == [1, 1]


def test_places_are_in_the_boxes_own_coordinates() -> None:
    targets = targets_at([[0, 0, 8, 4]], [[1]], [1.0])
    boxes = torch.tensor([[0.0, 0.0, 16.0, 8.0]])
    for factor, expected in ((2, 1), (1, 0)):
        found = match(boxes, factor * targets.boxes, targets, foreground=0.7, background=0.3)
        assert found.instances.tolist() == [[expected]]


def test_one_certain_labelling() -> None:
    masks = torch.zeros(2, 4, 6, dtype=torch.bool)
    boxes = torch.tensor([[1, 2, 3, 4], [0, 0, 2, 2]])
    targets = SoftTargets.certain(boxes, torch.tensor([3, 1]), masks)
    assert len(targets) == 2
    assert targets.boxes.dtype == torch.float32
    assert targets.members.tolist() == [[True, True]]
    assert targets.weights.tolist() == [1]
    moved = targets.to("cpu")
    for name in ("boxes", "labels", "masks", "members", "weights"):
        assert torch.equal(getattr(moved, name), getattr(targets, name))


def test_mirrored_masks_lie_in_mirrored_boxes() -> None:
    targets = samples_of(3, (40, 50))
    targets.boxes.copy_(torch.stack([_tight(mask) for mask in targets.masks]))
    mirrored = targets.mirrored()
    assert torch.equal(mirrored.masks, targets.masks.flip(2))
    for mask, box in zip(mirrored.masks, mirrored.boxes, strict=True):
        assert box.tolist() == _tight(mask).tolist()
    assert not torch.equal(mirrored.boxes, targets.boxes)
    assert torch.equal(mirrored.members, targets.members)
    assert torch.equal(mirrored.mirrored().boxes, targets.boxes)


def _tight(mask: torch.Tensor) -> torch.Tensor:
    return masks_to_boxes(mask[None])[0] + torch.tensor([0, 0, 1, 1])  # its edges are inclusive
