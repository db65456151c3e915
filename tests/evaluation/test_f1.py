"""Counts of predictions and F1 against naive loops and pycocotools, and by hand."""

from __future__ import annotations

import numpy as np
import pytest

from annocoin.evaluation.evaluator import Evaluator, evaluate
from annocoin.types import Instances
from evaluation.test_average_precision import (
    CLASSES,
    SIZE,
    THRESHOLDS,
    World,
    coco_run,
    instances_and_dataset,
    naive_results,
    random_world,
    small_world,
)


@pytest.mark.parametrize("protocol", ["chainercv", "sds", "bbtp"])
@pytest.mark.parametrize("seed", range(10))
def test_f1_equals_a_naive_count(protocol: str, seed: int) -> None:
    world = random_world(seed)
    predictions, dataset = instances_and_dataset(world)
    result = evaluate(predictions, dataset, protocol=protocol, thresholds=THRESHOLDS)
    for threshold, matched in zip(THRESHOLDS, result.matched, strict=True):
        hits = predicted = truths = 0
        for label in (1, 2, 3):
            results, positives = naive_results(world, label, threshold, protocol)
            hits += sum(hit for _, hit in results)
            predicted, truths = predicted + len(results), truths + positives
        assert (matched, result.predictions, result.truths) == (hits, predicted, truths)
        assert result.f1[threshold] == pytest.approx(2 * hits / max(1, predicted + truths))


def coco_counts(world: World) -> list[tuple[int, int, int]]:
    """Of every threshold: matched, predictions that are not ignored, and true instances."""
    counts, of_images = [], coco_run(world).evalImgs
    for t in range(len(THRESHOLDS)):
        matched = predicted = truths = 0
        for entry in of_images:
            if entry is not None:
                counted = ~entry["dtIgnore"][t].astype(bool)
                matched += int((entry["dtMatches"][t].astype(bool) & counted).sum())
                predicted += int(counted.sum())
                truths += int((~np.asarray(entry["gtIgnore"], dtype=bool)).sum())
        counts.append((matched, predicted, truths))
    return counts


@pytest.mark.parametrize("seed", range(10))
def test_counts_of_coco_are_those_of_pycocotools(seed: int) -> None:
    world = random_world(200 + seed, crowds=True)
    predictions, dataset = instances_and_dataset(world)
    for threshold, expected in zip(THRESHOLDS, coco_counts(world), strict=True):
        result = evaluate(predictions, dataset, protocol="coco", thresholds=[threshold])
        assert (int(result.matched[0]), result.predictions, result.truths) == expected


def test_f1_by_hand() -> None:
    """The second prediction has IoUs of 4/7 and 3/8, another class has only a prediction."""
    (truths, predicted), *_ = small_world(0.9, 0.8)
    world: World = [
        (truths, [*predicted, (2, np.ones(SIZE, bool), 0.1)]),
        ([(3, np.ones(SIZE, bool), False)], []),
    ]
    predictions, dataset = instances_and_dataset(world)
    thresholds = [0.3, 0.5]
    free = evaluate(predictions, dataset, protocol="sds", thresholds=thresholds)
    assert free.matched.tolist() == [2, 1]
    assert (free.predictions, free.truths) == (3, 3)
    assert free.f1 == pytest.approx({0.3: 4 / 6, 0.5: 2 / 6})
    best = evaluate(predictions, dataset, protocol="chainercv", thresholds=thresholds)
    assert best.f1 == pytest.approx({0.3: 2 / 6, 0.5: 2 / 6})


def crowd_world() -> World:
    """An object with its prediction, a crowd of two cells with a prediction of each, and a miss."""
    target, crowd, miss = (np.zeros(SIZE, bool) for _ in range(3))
    target[:4, :4] = True
    crowd[8:, :6] = True
    miss[5:7, 5:] = True
    first, second = crowd.copy(), crowd.copy()
    first[:, 3:], second[:, :3] = False, False
    predicted = [(1, target, 0.9), (1, first, 0.8), (1, second, 0.7), (1, miss, 0.6)]
    return [([(1, target, False), (1, crowd, True)], predicted)]


def test_predictions_on_crowds_do_not_count_in_coco() -> None:
    predictions, dataset = instances_and_dataset(crowd_world())
    coco = evaluate(predictions, dataset, protocol="coco")
    assert (coco.matched.tolist(), coco.predictions, coco.truths) == ([1] * 4, 2, 1)
    assert set(coco.f1.values()) == {2 / 3}
    others = evaluate(predictions, dataset, protocol="chainercv")
    assert (others.matched.tolist(), others.predictions, others.truths) == ([1] * 4, 4, 1)
    assert set(others.f1.values()) == {2 / 5}


@pytest.mark.parametrize("protocol", ["chainercv", "coco"])
def test_f1_of_one_threshold_does_not_depend_on_the_others(protocol: str) -> None:
    """A prediction that lies partly on a crowd is ignored at the lower threshold only."""
    world = crowd_world()
    partly = np.zeros(SIZE, bool)
    partly[6:10, :6] = True  # half of it on the crowd
    world[0][1].append((1, partly, 0.5))
    predictions, dataset = instances_and_dataset(world)
    both = evaluate(predictions, dataset, protocol=protocol, thresholds=[0.25, 0.75])
    for threshold in (0.25, 0.75):
        single = evaluate(predictions, dataset, protocol=protocol, thresholds=[threshold])
        assert both.f1[threshold] == pytest.approx(single.f1[threshold])


@pytest.mark.parametrize(("truths", "predictions"), [(1, 0), (0, 1), (0, 0)])
def test_f1_without_predictions_or_ground_truth(truths: int, predictions: int) -> None:
    mask = np.ones((1, *SIZE))
    predicted = Instances(size=SIZE, masks=mask[:predictions], labels=[1] * predictions)
    evaluator = Evaluator(CLASSES, thresholds=[0.5])
    assert evaluator.result().f1 == {0.5: 0.0}
    evaluator.add(predicted, Instances(size=SIZE, masks=mask[:truths], labels=[1] * truths))
    result = evaluator.result()
    assert (result.predictions, result.truths) == (predictions, truths)
    assert (result.matched.tolist(), result.f1) == ([0], {0.5: 0.0})
