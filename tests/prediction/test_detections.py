"""Detections given the annotation against the full network, and the IoU of regions by loops."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.models.detection import MaskRCNN

from annocoin.prediction.networks import ResizedImage, resize_shortest_side
from annocoin.prediction.predictor import Predictor
from annocoin.prediction.region_scoring import (
    IOU_EXPONENT,
    MIN_SCORE,
    Detections,
    detect_annotated,
    detected_iou,
    score_regions,
)
from annocoin.regions.region_set import RegionSet
from annocoin.types import Instances
from prediction.test_predictor import image
from prediction.worlds import network
from regions.worlds import World, worlds

SIZE = (64, 96)  # the network does not resize such images


def resized(seed: int = 0, size: tuple[int, int] = SIZE) -> ResizedImage:
    return resize_shortest_side(image(seed, size), 64, 128)


def assert_same(detections: Detections, instances: Instances) -> None:
    """Up to detections with an empty mask, which are no instances."""
    seen = detections.masks.flatten(1).any(dim=1)
    assert len(instances) > 3
    assert detections.labels[seen].tolist() == instances.labels.tolist()
    torch.testing.assert_close(detections.scores[seen], instances.scores.float())
    assert torch.equal(detections.masks[seen], instances.dense().bool())


@pytest.mark.parametrize("min_score", [0.05, 0.3])
def test_with_all_classes_they_are_those_of_the_full_network(min_score: float) -> None:
    net = network().eval()
    instances = Predictor(net, threshold=min_score)([image(0, SIZE)])[0]
    detections = detect_annotated(net, resized(), (1, 2, 3), min_score=min_score)
    assert float(detections.scores.min()) > min_score
    assert_same(detections, instances)


def without_classes(net: MaskRCNN, classes: list[int]) -> MaskRCNN:
    """The network with a posterior of 0 for some classes."""
    changed = copy.deepcopy(net)
    with torch.no_grad():
        changed.roi_heads.box_predictor.cls_score.bias[classes] = -1e5
    return changed


@pytest.mark.parametrize(
    ("labels", "absent"), [((2,), [1, 3]), ((1, 3), [2]), ((3, 1), [2]), ((3,), [1, 2])]
)
def test_other_classes_have_probability_0_and_the_rest_sums_to_1(
    labels: tuple[int, ...], absent: list[int]
) -> None:
    net = network().eval()
    detections = detect_annotated(net, resized(), labels, min_score=0.05)
    assert set(detections.labels.tolist()) == set(labels)
    instances = Predictor(without_classes(net, absent), threshold=0.05)([image(0, SIZE)])[0]
    assert_same(detections, instances)


@pytest.mark.parametrize("size", [(64, 96), (150, 100), (40, 90)])
def test_masks_of_the_original_size_by_falling_score(size: tuple[int, int]) -> None:
    detections = detect_annotated(network().eval(), resized(1, size), (1, 3))
    count = len(detections.labels)
    assert count > 3
    assert (detections.masks.shape, detections.masks.dtype) == ((count, *size), torch.bool)
    assert (detections.scores.shape, detections.scores.dtype) == ((count,), torch.float32)
    assert detections.scores.tolist() == sorted(detections.scores.tolist(), reverse=True)
    assert float(detections.scores.min()) > MIN_SCORE
    assert set(detections.labels.tolist()) <= {1, 3}
    assert not detections.scores.requires_grad


def test_masks_of_an_enlarged_image_are_those_of_the_full_network() -> None:
    """Every pixel is repeated, so that both ways to resize it give the same pixels."""
    net, enlarged = network().eval(), image(0, SIZE).repeat(2, axis=0).repeat(2, axis=1)
    instances = Predictor(net, threshold=0.05)([enlarged])[0]
    assert instances.size == (128, 192)
    resized = resize_shortest_side(enlarged, 64, 128)
    assert_same(detect_annotated(net, resized, (1, 2, 3), min_score=0.05), instances)


def test_bfloat16_features_change_scores_a_little_and_nothing_else() -> None:
    net, regions = network().eval(), RegionSet.of([[0] * 48 + [1] * 48] * 64, [[1, 0], [1, 1]])
    exact = detect_annotated(net, resized(), (1, 2, 3), min_score=0.05)
    rounded = detect_annotated(net, resized(), (1, 2, 3), min_score=0.05, bfloat16=True)
    assert rounded.scores.dtype == torch.float32
    assert 0 < float((rounded.scores[:4] - exact.scores[:4]).abs().max()) < 0.02
    exact_logs, *_ = score_regions(net, resized(), regions, (1,))
    logs, *_ = score_regions(net, resized(), regions, (1,), bfloat16=True)
    assert logs.dtype == torch.float32
    assert 0 < float((logs - exact_logs).abs().max()) < 0.05


@pytest.mark.parametrize(("labels", "min_score"), [((1, 2), 1.0), ((), MIN_SCORE)])
def test_an_image_without_detections(labels: tuple[int, ...], min_score: float) -> None:
    net = network().eval()
    detections = detect_annotated(net, resized(), labels, min_score=min_score)
    assert detections.masks.shape == (0, *SIZE)
    assert detections.labels.shape == detections.scores.shape == (0,)


def test_a_predictor_of_the_same_network_keeps_its_threshold() -> None:
    net = network()
    predictor = Predictor(net, threshold=0.3)
    before = predictor([image(0, SIZE)])[0]
    detect_annotated(net, resized(), (1, 2))
    assert predictor([image(0, SIZE)])[0].scores.tolist() == before.scores.tolist()


def random_detections(world: World, seed: int) -> Detections:
    """Of classes 1 and 2, some of them with the mask of a region."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    masks = rng.random((count, *world.ids.shape)) < 0.5
    for mask in masks[::2]:
        mask[:] = world.masks[rng.integers(len(world.masks))]
    scores = np.sort(rng.random(count))[::-1].astype(np.float32)
    labels = rng.integers(1, 3, count)
    return Detections(*(torch.from_numpy(a.copy()) for a in (masks, labels, scores)))


@given(worlds(), st.integers(0, 1000))
def test_detected_iou_by_loops(world: World, seed: int) -> None:
    detections, labels = random_detections(world, seed), (1, 2, 5)
    result = detected_iou(world.regions, detections, labels)
    assert result.shape == (len(world.masks), 3)
    assert bool(((result >= 0) & (result <= 1)).all())
    for u, region in enumerate(world.masks):
        for column, label in enumerate(labels):
            best = 0.0
            for mask, of_class, score in zip(*(part.numpy() for part in detections), strict=True):
                if of_class == label:
                    iou = (region & mask).sum() / (region | mask).sum()
                    best = max(best, float(score) * iou**IOU_EXPONENT)
            assert float(result[u, column]) == pytest.approx(best, abs=1e-5)


def halves() -> tuple[RegionSet, Detections]:
    """The two halves of an image as regions and as detections of class 2."""
    ids = np.repeat([[0, 0, 1, 1]], 3, axis=0)
    regions = RegionSet.of(ids, np.eye(2))
    return regions, Detections(regions.masks(), torch.tensor([2, 2]), torch.tensor([0.75, 0.5]))


def test_a_region_that_equals_a_detection_has_its_score() -> None:
    regions, detections = halves()
    assert detected_iou(regions, detections, (2, 1)).tolist() == [[0.75, 0], [0.5, 0]]


def test_no_detections_no_classes_and_no_regions() -> None:
    regions, detections = halves()
    none = Detections(*(part[:0] for part in detections))
    assert detected_iou(regions, none, (1, 2)).tolist() == [[0, 0], [0, 0]]
    assert detected_iou(regions, detections, ()).shape == (2, 0)
    assert detected_iou(regions[[]], detections, (2,)).shape == (0, 1)
    masks, labels, scores = detections
    empty_masks = Detections(masks & ~masks, labels, scores)
    assert detected_iou(regions, empty_masks, (2,)).tolist() == [[0], [0]]
    with pytest.raises(ValueError, match="masks of shape"):
        detected_iou(regions, Detections(masks[:, 1:], labels, scores), (2,))
