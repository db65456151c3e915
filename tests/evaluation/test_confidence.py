"""The ranking of labels by confidence, against loops over pixels and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from annocoin.evaluation.confidence import rank_by_confidence, rank_figures, true_ious
from annocoin.types import Instances
from evaluation.test_average_precision import instances_and_dataset, random_world


def rows(*spans: tuple[int, int], labels: list[int], confidence: list[float]) -> Instances:
    """Masks of the rows start..end of an image of 10 x 2 pixels."""
    pixels = torch.zeros(len(spans), 10, 2)
    for mask, (start, end) in zip(pixels, spans, strict=True):
        mask[start:end] = 1
    return Instances(size=(10, 2), masks=pixels, labels=labels, confidence=confidence)


def test_true_ious_by_hand() -> None:
    truth = rows((0, 4), (6, 10), labels=[1, 2], confidence=[1, 1])
    labels = rows((0, 2), (0, 4), (6, 10), (4, 6), labels=[1, 2, 2, 3], confidence=[0] * 4)
    assert true_ious(labels, truth).tolist() == [0.5, 0, 1, 0]


@pytest.mark.parametrize("seed", range(5))
def test_the_ranking_equals_a_naive_one(seed: int) -> None:
    predictions, dataset = instances_and_dataset(random_world(seed))
    generator = np.random.default_rng(seed)
    pairs = []
    for image_id, instances in predictions.items():
        instances.confidence = torch.from_numpy(generator.random(len(instances)).round(1))
        truth = dataset.truth(image_id)
        for i, mask in enumerate(instances.dense()):
            best = 0.0
            for j, other in enumerate(truth.dense()):
                if instances.labels[i] == truth.labels[j]:
                    union = int((mask | other).sum())
                    best = max(best, int((mask & other).sum()) / union if union else 0.0)
            pairs.append((float(instances.confidence[i]), best))
    confidence, ious = np.array(pairs).T
    figures = rank_by_confidence(predictions, dataset)
    expected = np.corrcoef(rankdata(confidence), rankdata(ious))[0, 1]
    assert figures["spearman"] == pytest.approx(expected)
    order = sorted(range(len(pairs)), key=lambda i: pairs[i][0])
    fifth = len(pairs) // 5
    wrong = [ious[i] < 0.5 for i in order]
    assert figures["wrong_least"] == pytest.approx(sum(wrong[:fifth]) / fifth)
    assert figures["wrong_most"] == pytest.approx(sum(wrong[-fifth:]) / fifth)


def test_labels_without_confidence_have_no_ranking() -> None:
    predictions, dataset = instances_and_dataset(random_world(0))
    assert rank_by_confidence({}, dataset) == {}
    assert rank_by_confidence(predictions, dataset) == {}  # NaN
    for instances in predictions.values():
        instances.confidence = torch.ones(len(instances), dtype=torch.float64)
    assert rank_by_confidence(predictions, dataset) == {}


def test_equal_ious_have_no_rank_correlation() -> None:
    assert rank_figures(np.array([0.1, 0.9]), np.array([0.0, 0.0])) == {}
    assert rank_figures(np.array([0.1, 0.9]), np.array([0.0, 1.0]))["spearman"] == pytest.approx(1)
