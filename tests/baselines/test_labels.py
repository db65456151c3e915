"""The labels of the peers without a network of their own, on images whose objects are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from annocoin.baselines.runs import PEERS, label_images
from annocoin.baselines.sdi import PERTURBATIONS, best_region, grabcut_votes, resolve
from annocoin.engine.image_stages import Execution
from annocoin.engine.methods import ANNOCOIN, FULL, METHODS
from annocoin.seeds.retrieval import retrieve
from baselines.worlds import SIDE, World, labels_of, mean_best_iou, quality, random_quality

BOX = (10.0, 12.0, 40.0, 44.0)


def test_every_method_but_ours_and_full_supervision_is_a_peer() -> None:
    assert set(PEERS) == set(METHODS) - {ANNOCOIN, FULL}
    for name, peer in PEERS.items():
        assert (peer.train is not None) == METHODS[name].network, name
        assert METHODS[name].labels, name


@pytest.mark.parametrize("method", ["prm", "wise", "sdi"])
def test_labels_are_better_than_random_regions(world: World, method: str) -> None:
    found = quality(world, labels_of(world, method))
    assert found > 0.75
    assert found > random_quality(world) + 0.4


def test_wise_takes_the_region_of_highest_score_on_each_peak(world: World) -> None:
    for image in world.weak():
        (label, truth) = (labels_of(world, "wise")[image.image_id], world.truth(image.image_id))
        assert sorted(map(str, label.masks)) == sorted(map(str, truth.masks))


def test_prm_takes_the_part_of_an_object_that_the_response_covers(world: World) -> None:
    """Which is why its masks are small where the classifier looks at a part."""
    regions, seeds = world.inputs("prm").of(world.weak()[0])
    annotation = world.weak()[0].annotation
    columns = torch.arange(seeds.responses.shape[2])
    upper = replace(seeds, responses=seeds.responses * (columns[:, None] * 4 >= seeds.points[0, 1]))
    whole = retrieve(regions, seeds, annotation, "response").instances(regions, seeds)
    part = retrieve(regions, upper, annotation, "response").instances(regions, seeds)
    assert mean_best_iou(whole, world.truth("0")) > 0.9
    assert float(part.areas.min()) < 0.7 * float(whole.areas.min())


def test_sdi_keeps_boxes_and_one_mask_a_box(world: World) -> None:
    for image in world.weak("box"):
        labels = labels_of(world, "sdi")[image.image_id]
        assert labels.boxes.tolist() == image.annotation.boxes.tolist()
        assert labels.labels.tolist() == image.annotation.labels.tolist()
        assert bool(((labels.confidence >= 0) & (labels.confidence <= 1)).all())


def test_votes_of_grabcut_are_shares_inside_the_box() -> None:
    pixels = np.full((SIDE, SIDE, 3), 90, dtype=np.uint8)
    pixels[16:40, 14:36] = (220, 40, 40)
    votes = grabcut_votes(pixels, BOX, np.random.default_rng(0))
    assert np.allclose(votes * PERTURBATIONS, np.round(votes * PERTURBATIONS), atol=1e-3)
    assert votes[:12].max() == votes[:, 41:].max() == 0
    assert votes[20:36, 18:32].min() > 0.9
    again = grabcut_votes(pixels, BOX, np.random.default_rng(0))
    assert np.array_equal(votes, again)


@pytest.mark.parametrize(
    "box", [(0.0, 0.0, 64.0, 64.0), (3.2, 5.1, 3.9, 5.6), (63.0, 0.0, 64.0, 64.0)]
)
def test_grabcut_of_boxes_that_fill_the_image_or_are_tiny(box: tuple[float, ...]) -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (SIDE, SIDE, 3), dtype=np.uint8)
    votes = grabcut_votes(pixels, box, np.random.default_rng(0))  # type: ignore[arg-type]
    mask, confidence = resolve(votes, None, box)  # type: ignore[arg-type]
    assert mask.any()
    assert 0 <= confidence <= 1


def test_two_opinions_are_resolved_by_their_mean() -> None:
    votes = np.zeros((SIDE, SIDE), dtype=np.float32)
    region = np.zeros((SIDE, SIDE), dtype=bool)
    votes[12:44, 10:20], votes[12:44, 20:30] = 1.0, 0.6  # sure, and likely
    region[12:44, 10:20] = region[12:44, 35:60] = True  # agrees, and beyond the box
    mask, confidence = resolve(votes, region, BOX)
    assert mask[:, 10:20].sum() == 32 * 10, "both"
    assert not mask[:, 20:30].any(), "60 % of one of two"
    assert mask[12:44, 35:40].all(), "one of two, at the threshold"
    assert not mask[:, 40:].any(), "outside the box"
    agreement = (10 * 1.0 + 10 * 0.7 + 5 * 1.0 + 5 * 0.5) / 30
    assert confidence == pytest.approx(2 * agreement - 1)


def test_a_box_that_nothing_fills_is_itself_the_mask() -> None:
    mask, confidence = resolve(np.zeros((SIDE, SIDE), dtype=np.float32), None, BOX)
    assert (mask.sum(), confidence) == (30 * 32, 0.0)


def test_the_best_region_of_a_box(world: World) -> None:
    regions, truth = world.regions["0"], world.truth("0")
    box = tuple(truth.boxes[0].tolist())
    found = best_region(regions, box)  # type: ignore[arg-type]
    assert found is not None
    assert regions.box_iou([box]).max() == 1
    assert np.array_equal(found, truth.dense()[0].numpy())


def test_labelled_images_are_not_labelled_again(world: World, tmp_path: Path) -> None:
    inputs, execution = world.inputs("wise"), Execution(jobs=1)
    first = label_images(world.weak(), inputs, tmp_path, execution)
    times = {image_id: path.stat().st_mtime_ns for image_id, path in first.files.items()}
    second = label_images(world.weak(), inputs, tmp_path, execution)
    assert {i: path.stat().st_mtime_ns for i, path in second.files.items()} == times
    assert second["0"].instances == first["0"].instances
