"""The peers with a network of their own: it learns, and its labels are better than chance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from annocoin.baselines.iam import cues_of, extents_of, overlap_scores
from annocoin.baselines.label_penet import log_shares, refinement_targets, select_instances
from annocoin.baselines.ocis import UNKNOWN, counts_of, density_losses, highest_peaks
from annocoin.baselines.peer import FrozenFeatures, PeerInputs
from annocoin.baselines.runs import PEERS
from annocoin.data.dataset import MAX_COUNT, weaken
from annocoin.engine.methods import METHODS
from annocoin.engine.metrics import FileLogger, read_metrics
from annocoin.engine.trainer import Trainer
from annocoin.types import Annotation, WeakLabel
from baselines.worlds import World, labels_of, quality, random_quality

NETWORKS = [name for name, method in METHODS.items() if method.network]


@pytest.mark.parametrize("method", NETWORKS)
def test_a_network_learns_and_labels_better_than_random_regions(
    larger_world: World, classifier: Path, tmp_path: Path, method: str
) -> None:
    inputs = larger_world.inputs(method, classifier=classifier)
    weak = larger_world.weak(METHODS[method].supervision[0])
    train, file = PEERS[method].train, tmp_path / f"{method}.safetensors"
    assert train is not None
    trainer = Trainer(logger=FileLogger(tmp_path / "metrics.jsonl", None), workers=0)
    train(weak, inputs, file, seed=0, trainer=trainer)
    losses = [line["loss"] for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    labels = labels_of(larger_world, method, 4, classifier=classifier, network=file)
    assert quality(larger_world, labels) > random_quality(larger_world) + 0.25


def in_bfloat16(inputs: PeerInputs) -> PeerInputs:
    options = replace(inputs.config.classifier, precision="bf16")
    return replace(inputs, config=replace(inputs.config, classifier=options))


def test_features_have_the_precision_of_the_classifier(world: World, classifier: Path) -> None:
    full, image = world.inputs("iam", classifier=classifier), world.weak()[0]
    expected, features = (
        computed(computed.resized(image))
        for computed in map(FrozenFeatures, (full, in_bfloat16(full)))
    )
    assert features.dtype == torch.float32
    assert 0 < float((features - expected).abs().max()) < 0.05 * float(expected.abs().max())


@pytest.mark.parametrize("method", NETWORKS)
def test_a_network_trains_in_bfloat16(
    world: World, classifier: Path, tmp_path: Path, method: str
) -> None:
    full = world.inputs(method, classifier=classifier)
    config = replace(full.config, baseline=replace(full.config.baseline, steps=2))
    full = replace(full, config=config)
    train, losses = PEERS[method].train, []
    assert train is not None
    for number, inputs in enumerate((full, in_bfloat16(full))):
        metrics = tmp_path / f"{number}.jsonl"
        trainer = Trainer(logger=FileLogger(metrics, None), workers=0)
        weak = world.weak(METHODS[method].supervision[0])
        train(weak, inputs, tmp_path / f"{number}.safetensors", seed=0, trainer=trainer)
        losses.append(read_metrics(metrics)[0]["loss"])
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_counts_are_tags_with_numbers_and_nothing_else(world: World) -> None:
    annotation = world.labelled[0].annotation
    many = Annotation(annotation.size, annotation.weak_labels * 4)
    for each, factor in ((annotation, 1), (many, 4)):
        for label in weaken(each, "count"):
            objects = sum(other.label == label.label for other in each)
            assert label.count == min(objects, MAX_COUNT + 1)
            assert label == WeakLabel(label.label, count=label.count)
            assert objects % factor == 0
    tags = Annotation((8, 8), (WeakLabel(1), WeakLabel(2, box=(0, 0, 4, 4), crowd=True)))
    assert [label.count for label in weaken(tags, "count")] == [None, MAX_COUNT + 1]
    assert counts_of(weaken(tags, "count"), 3).tolist() == [UNKNOWN, MAX_COUNT + 1, 0]


def test_as_many_peaks_as_objects() -> None:
    maps = torch.zeros(1, 3, 7, 7)
    maps[0, :, 1, 1], maps[0, :, 5, 5], maps[0, :, 1, 5] = 3.0, 2.0, 1.0
    peaks = highest_peaks(maps, torch.tensor([[2, 0, UNKNOWN]]))[0]
    assert peaks.nonzero().tolist() == [[0, 1, 1], [0, 5, 5], [2, 1, 1]]


def test_losses_of_densities_by_hand() -> None:
    high, low = 20.0, -20.0
    density = torch.full((1, 2, 5, 5), low)
    maps = torch.zeros(1, 2, 5, 5)
    maps[0, 0, 0, 0], maps[0, 0, 4, 4] = 2.0, 1.0
    density[0, 0, 0, 0] = density[0, 0, 4, 4] = high
    right = density_losses(density, maps, torch.tensor([[2, 0]]))
    assert all(float(loss) == pytest.approx(0, abs=1e-5) for loss in right.values())
    one_missing = density_losses(density, maps, torch.tensor([[3, 0]]))
    assert float(one_missing["loss_count"]) == pytest.approx(1 / MAX_COUNT, abs=1e-4)
    many = density_losses(density, maps, torch.tensor([[MAX_COUNT + 1, 0]]))
    assert float(many["loss_count"]) == pytest.approx((MAX_COUNT + 1 - 2) / MAX_COUNT, abs=1e-4)
    unknown = density_losses(density, maps, torch.tensor([[UNKNOWN, 0]]))
    assert float(unknown["loss_count"]) == pytest.approx(0, abs=1e-4)
    absent = density_losses(density, maps, torch.tensor([[0, 0]]))
    assert float(absent["loss_absent"]) == pytest.approx(2 * high / 50, abs=1e-3)


def test_the_extent_that_iam_learns_is_the_mean_of_retrieved_regions(world: World) -> None:
    regions, seeds = world.inputs("iam").of(world.weak()[0])
    cues, extents = cues_of(seeds), extents_of(regions, seeds)
    assert cues.shape[:2] == (len(seeds), 2)
    assert extents.shape == (len(seeds), *cues.shape[2:])
    assert float(cues.min()) >= 0
    assert cues.amax(dim=(2, 3)).tolist() == [[1.0, 1.0]] * len(seeds)
    assert 0 <= float(extents.min()) <= float(extents.max()) <= 1.0001
    truth = world.truth("0").dense().float()
    best = overlap_scores(regions, truth).argmax(dim=1)
    assert torch.equal(regions[best].masks().float(), truth)


def test_refinement_takes_regions_that_overlap_the_best_one() -> None:
    iou = torch.tensor(
        [[1.0, 0.6, 0.2, 0.0], [0.6, 1.0, 0.1, 0.0], [0.2, 0.1, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    )
    scores = torch.tensor([[0.9, 0.1], [0.3, 0.1], [0.1, 0.4], [0.0, 0.2]])
    targets, weights = refinement_targets(scores, iou, [1, 2])
    assert targets.tolist() == [1, 1, 2, 0]
    objects = 0.5 / (0.9 + 0.9 + 0.4)
    assert weights.tolist() == pytest.approx([0.9 * objects, 0.9 * objects, 0.4 * objects, 0.5])


def test_selected_instances_do_not_overlap_and_are_near_the_best() -> None:
    scores = torch.tensor([[0.9, 0.0], [0.8, 0.0], [0.5, 0.0], [0.3, 0.2]])
    overlap = torch.eye(4)
    overlap[0, 1] = overlap[1, 0] = 0.9
    assert select_instances(scores, overlap, (1, 2)) == [[0, 2], [3]]


def test_the_prior_of_a_region_is_its_class_share(world: World) -> None:
    image = world.weak()[0]
    regions, seeds = world.inputs("label-penet").of(image)
    prior = log_shares(regions, seeds, image.annotation, 2)
    present = [label - 1 for label in image.annotation.distinct_labels]
    truth = world.truth("0").dense().float()
    best = [int(regions.iou_with(mask[None])[:, 0].argmax()) for mask in truth]
    for region, label in zip(best, world.truth("0").labels.tolist(), strict=True):
        assert float(prior[region, label - 1]) > float(prior[:, present].mean())
