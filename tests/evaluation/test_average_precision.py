"""AP against naive loops for each protocol, and against pycocotools."""

from __future__ import annotations

import contextlib
import io
import math

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from annocoin import masks
from annocoin.data.dataset import EvaluationDataset, LabelledImage, LabelledImages
from annocoin.errors import InputError
from annocoin.evaluation.average_precision import mean_over_recalls, precision_at_recalls
from annocoin.evaluation.evaluator import Evaluator, evaluate
from annocoin.types import Annotation, Instances, WeakLabel

SIZE = (12, 12)
CLASSES = ("a", "b", "c")
THRESHOLDS = (0.25, 0.5, 0.7, 0.75)
World = list[tuple[list[tuple[int, np.ndarray, bool]], list[tuple[int, np.ndarray, float]]]]


def random_world(seed: int, *, crowds: bool = False, images: int = 6) -> World:
    """Images with (class, mask, crowd) as truth and (class, mask, score) as predictions."""
    rng = np.random.default_rng(seed)

    def box(near: np.ndarray | None = None) -> np.ndarray:
        if near is not None:
            return np.roll(near, rng.integers(-2, 3, 2), (0, 1))
        mask = np.zeros(SIZE, bool)
        y, x, h, w = rng.integers(0, 8, 2).tolist() + rng.integers(2, 6, 2).tolist()
        mask[y : y + h, x : x + w] = True
        return mask

    world: World = []
    for _ in range(images):
        truths = [
            (int(rng.integers(1, 3)), box(), bool(crowds and rng.random() < 0.25))
            for _ in range(rng.integers(0, 5))
        ]
        predicted = []
        for _ in range(rng.integers(0, 8)):
            near = truths[rng.integers(len(truths))] if truths and rng.random() < 0.8 else None
            label = near[0] if near and rng.random() < 0.8 else int(rng.integers(1, 4))
            mask = near[1] if near and rng.random() < 0.3 else box(near[1] if near else None)
            predicted.append((label, mask, float(rng.integers(1, 6)) / 5))
        world.append((truths, predicted))
    return world


def instances_and_dataset(world: World) -> tuple[dict[int | str, Instances], EvaluationDataset]:
    images, predictions = [], {}
    for number, (truths, predicted) in enumerate(world):
        weak_labels = tuple(
            WeakLabel(j, mask=masks.encode(m[None])[0], crowd=c) for j, m, c in truths
        )
        name = f"{number:03d}"
        images.append(LabelledImage(name, f"{name}.jpg", None, Annotation(SIZE, weak_labels)))
        if predicted:
            predictions[name] = Instances(
                size=SIZE,
                masks=np.stack([m for _, m, _ in predicted]),
                labels=[j for j, _, _ in predicted],
                scores=[s for _, _, s in predicted],
            )
    return predictions, EvaluationDataset(LabelledImages.of(CLASSES, images))


def overlap(first: np.ndarray, second: np.ndarray) -> float:
    return (first & second).sum() / (first | second).sum()


def naive_results(
    world: World, label: int, threshold: float, protocol: str
) -> tuple[list[tuple[float, bool]], int]:
    """The score of every prediction and whether it is a hit, and the number of true instances."""
    results: list[tuple[float, bool]] = []
    positives = 0
    for truths, predicted in world:
        true_masks = [mask for j, mask, _ in truths if j == label]
        positives += len(true_masks)
        matched: set[int] = set()
        ranked = [(score, i, mask) for i, (j, mask, score) in enumerate(predicted) if j == label]
        for score, _, mask in sorted(ranked, key=lambda r: (r[0], r[1]), reverse=True):
            overlaps = [overlap(mask, other) for other in true_masks]
            if protocol != "chainercv":
                overlaps = [-1 if g in matched else o for g, o in enumerate(overlaps)]
            best = max(range(len(true_masks)), key=lambda g: overlaps[g], default=None)
            hit = False
            if best is not None:
                enough = overlaps[best] > threshold
                if protocol == "chainercv":
                    enough = overlaps[best] >= threshold
                hit = enough and best not in matched
                if enough:
                    matched.add(best)
            results.append((score, hit))
    return results, positives


def naive_ap(world: World, label: int, threshold: float, protocol: str) -> float:
    """AP step by step: a list of hits by falling score, then the area, recall by recall."""
    results, positives = naive_results(world, label, threshold, protocol)
    if not positives:
        return math.nan
    # later in the concatenation goes first among equals
    order = sorted(range(len(results)), key=lambda i: (results[i][0], i), reverse=True)
    hits = [results[i][1] for i in order]
    area, recall = 0.0, 0.0
    for rank in range(len(hits)):
        now = sum(hits[: rank + 1]) / positives
        best = max(sum(hits[: r + 1]) / (r + 1) for r in range(rank, len(hits)))
        area += (now - recall) * best
        recall = now
    return area


@pytest.mark.parametrize("protocol", ["chainercv", "sds", "bbtp"])
@pytest.mark.parametrize("seed", range(25))
def test_equals_a_naive_loop(protocol: str, seed: int) -> None:
    world = random_world(seed)
    if not any(truths for truths, _ in world):
        pytest.skip("no ground truth")
    predictions, dataset = instances_and_dataset(world)
    result = evaluate(predictions, dataset, protocol=protocol, thresholds=THRESHOLDS)
    expected = [[naive_ap(world, j, t, protocol) for j in (1, 2, 3)] for t in THRESHOLDS]
    np.testing.assert_allclose(result.ap, expected, atol=1e-12)


def coco_run(world: World) -> COCOeval:
    """The evaluation by pycocotools."""
    images = [{"id": i, "height": SIZE[0], "width": SIZE[1]} for i in range(len(world))]
    truths = [
        {
            "image_id": i,
            "category_id": j,
            "segmentation": masks.encode(m[None])[0],
            "area": float(m.sum()),
            "iscrowd": int(c),
        }
        for i, (truth, _) in enumerate(world)
        for j, m, c in truth
    ]
    results = [
        {"image_id": i, "category_id": j, "segmentation": masks.encode(m[None])[0], "score": s}
        for i, (_, predicted) in enumerate(world)
        for j, m, s in predicted
    ]
    for number, entry in enumerate(truths, start=1):
        entry["id"] = number
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        categories = [{"id": j} for j in (1, 2, 3)]
        truth.dataset = {"images": images, "annotations": truths, "categories": categories}
        truth.createIndex()
        run = COCOeval(truth, truth.loadRes(results), "segm")
        run.params.iouThrs = np.asarray(THRESHOLDS)
        run.params.areaRng, run.params.areaRngLbl = [[0, 1e10]], ["all"]
        run.params.maxDets = [100]
        run.evaluate()
        run.accumulate()
    return run


def coco_ap(world: World) -> np.ndarray:
    """AP [T, C] by pycocotools."""
    run = coco_run(world)
    precision = run.eval["precision"][:, :, :, 0, 0]  # [T, R, C], -1 without truth
    return np.where(precision.min(axis=1) < 0, np.nan, precision.mean(axis=1))


@pytest.mark.parametrize("seed", range(40))
def test_coco_equals_pycocotools(seed: int) -> None:
    world = random_world(100 + seed, crowds=True)
    if not any(predicted for _, predicted in world):
        pytest.skip("pycocotools needs a prediction")
    predictions, dataset = instances_and_dataset(world)
    result = evaluate(predictions, dataset, protocol="coco", thresholds=THRESHOLDS)
    np.testing.assert_allclose(result.ap, coco_ap(world), atol=1e-12)


def test_coco_counts_at_most_100_predictions_per_class_and_image() -> None:
    rng = np.random.default_rng(0)
    target = np.zeros(SIZE, bool)
    target[:5, :5] = True
    elsewhere = ~target
    predicted = [(1, elsewhere, 0.5 + 0.4 * rng.random()) for _ in range(100)]
    world: World = [([(1, target, False)], [*predicted, (1, target, 0.1)])]
    predictions, dataset = instances_and_dataset(world)
    assert evaluate(predictions, dataset, protocol="coco").ap[0, 0] == 0 == coco_ap(world)[0, 0]
    assert evaluate(predictions, dataset, protocol="chainercv").ap[0, 0] == pytest.approx(1 / 101)


def small_world(first_score: float, second_score: float) -> World:
    """Two objects side by side; two predictions, both with the left one as best match."""
    left, right = np.zeros(SIZE, bool), np.zeros(SIZE, bool)
    left[2:6, 0:4] = True
    right[2:6, 4:8] = True
    both = left | right
    both[2:6, 7] = False  # 16 of 28 on the left, 12 of 28 on the right
    return [
        ([(1, left, False), (1, right, False)], [(1, left, first_score), (1, both, second_score)])
    ]


def test_only_chainercv_matches_no_second_best() -> None:
    predictions, dataset = instances_and_dataset(small_world(0.9, 0.8))
    assert evaluate(predictions, dataset, protocol="chainercv", thresholds=[0.3]).ap[0, 0] == 0.5
    assert evaluate(predictions, dataset, protocol="sds", thresholds=[0.3]).ap[0, 0] == 1.0


def test_only_sds_and_bbtp_need_more_than_the_threshold() -> None:
    whole, half = np.zeros(SIZE, bool), np.zeros(SIZE, bool)
    whole[0:4, 0:4] = True
    half[0:4, 0:2] = True
    predictions, dataset = instances_and_dataset([([(1, whole, False)], [(1, half, 1.0)])])
    ap = {
        p: evaluate(predictions, dataset, protocol=p, thresholds=[0.5]).ap[0, 0]
        for p in ("chainercv", "coco", "sds", "bbtp")
    }
    assert ap == {"chainercv": 1.0, "coco": 1.0, "sds": 0.0, "bbtp": 0.0}


def test_bbtp_takes_classes_from_the_object_list() -> None:
    mask = masks.encode(np.ones((1, *SIZE)))[0]
    image = LabelledImage("i", "i.jpg", None, Annotation(SIZE, (WeakLabel(1, mask=mask),)), (2,))
    dataset = EvaluationDataset(LabelledImages.of(CLASSES, [image]))
    predictions: dict[int | str, Instances] = {"i": Instances(size=SIZE, masks=[mask], labels=[2])}
    assert evaluate(predictions, dataset, protocol="bbtp").mean[0.5] == 1.0
    assert evaluate(predictions, dataset, protocol="sds").mean[0.5] == 0.0


def test_classes_without_ground_truth_are_nan_and_without_predictions_zero() -> None:
    mask = np.ones(SIZE, bool)
    predictions, dataset = instances_and_dataset(
        [([(1, mask, False), (2, mask, False)], [(1, mask, 1.0)])]
    )
    for protocol in ("chainercv", "sds", "coco"):
        result = evaluate(predictions, dataset, protocol=protocol, thresholds=[0.5])
        np.testing.assert_array_equal(result.ap, [[1.0, 0.0, np.nan]])
        assert result.mean == {0.5: 0.5}
        table = result.to_json()
        assert table["iou"]["0.5"] == {"mean": 0.5, "per_class": {"a": 1.0, "b": 0.0, "c": None}}
        assert (table["protocol"], table["images"]) == (protocol, 1)


@pytest.mark.parametrize("protocol", ["chainercv", "sds", "bbtp", "coco"])
@pytest.mark.parametrize("seed", range(5))
def test_perfect_predictions_have_ap_one_and_no_predictions_zero(protocol: str, seed: int) -> None:
    world = [(truths, []) for truths, _ in random_world(seed, images=30)]
    world = [  # without overlaps
        ([t for k, t in enumerate(ts) if not any((t[1] & o[1]).any() for o in ts[:k])], f)
        for ts, f in world
    ]
    _, dataset = instances_and_dataset(world)
    perfect = {i: dataset.truth(i) for i in dataset}
    assert set(evaluate(perfect, dataset, protocol=protocol).mean.values()) == {1.0}
    assert set(evaluate({}, dataset, protocol=protocol).mean.values()) == {0.0}


def test_ap_is_between_zero_and_one_and_falls_with_the_threshold() -> None:
    for seed in range(10):
        predictions, dataset = instances_and_dataset(random_world(seed, images=10))
        for protocol in ("sds", "coco"):
            result = evaluate(predictions, dataset, protocol=protocol)
            known = result.ap[~np.isnan(result.ap)]
            assert ((known >= 0) & (known <= 1)).all()
            means = list(result.mean.values())
            assert means == sorted(means, reverse=True)


def test_crowds_do_not_count() -> None:
    mask = np.ones(SIZE, bool)
    small = np.zeros(SIZE, bool)
    small[:3, :3] = True
    world: World = [([(1, mask, True), (1, small, False)], [(1, small, 0.9)])]
    predictions, dataset = instances_and_dataset(world)
    for protocol in ("chainercv", "sds", "coco"):
        assert evaluate(predictions, dataset, protocol=protocol).mean[0.5] == 1.0


def test_bad_arguments_are_input_errors() -> None:
    predictions, dataset = instances_and_dataset(small_world(0.9, 0.8))
    with pytest.raises(InputError, match="protocol 'voc07'"):
        evaluate(predictions, dataset, protocol="voc07")
    with pytest.raises(InputError, match="thresholds"):
        evaluate(predictions, dataset, thresholds=[50])
    with pytest.raises(InputError, match="not in the dataset"):
        evaluate({"unknown": predictions["000"]}, dataset)


def test_the_evaluator_refuses_other_sizes_and_classes() -> None:
    mask = np.ones((1, *SIZE))
    truth = Instances(size=SIZE, masks=mask, labels=[1])
    evaluator = Evaluator(CLASSES)
    with pytest.raises(InputError, match="an image of"):
        evaluator.add(Instances(size=(4, 4), masks=np.ones((1, 4, 4)), labels=[1]), truth)
    with pytest.raises(InputError, match="an image of"):
        evaluator.add(Instances(size=(4, 4), masks=[], labels=[]), truth)
    with pytest.raises(InputError, match="class 4; there are 3"):
        evaluator.add(Instances(size=SIZE, masks=mask, labels=[4]), truth)


def test_the_evaluator_equals_evaluate() -> None:
    predictions, dataset = instances_and_dataset(random_world(7))
    evaluator = Evaluator(CLASSES, protocol="sds")
    for image_id in dataset:
        evaluator.add(predictions.get(image_id), dataset.truth(image_id))
    expected = evaluate(predictions, dataset, protocol="sds")
    result = evaluator.result()
    np.testing.assert_array_equal(result.ap, expected.ap)
    assert (result.protocol, result.images, result.thresholds) == ("sds", 6, THRESHOLDS)
    assert result.matched.tolist() == expected.matched.tolist()
    assert (result.predictions, result.truths) == (expected.predictions, expected.truths)


def test_precision_at_recalls_by_hand() -> None:
    """Two of three objects found, by the first and the third prediction."""
    curve = precision_at_recalls(np.array([True, False, True]), 3)
    assert curve.shape == (101,)
    assert (curve[:34] == 1).all(), "recall up to 1/3"
    assert curve[34:67] == pytest.approx(2 / 3), "recall up to 2/3"
    assert (curve[67:] == 0).all()
    assert curve.mean() == pytest.approx(mean_over_recalls(np.array([True, False, True]), 3))
