"""Confidence and agreement of samples, by hand; samples of a network."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from annocoin.conditional.networks import ConditionalArchitecture, ConditionalNetwork
from annocoin.conditional.requirements import requirements_of
from annocoin.conditional.samples import Samples
from annocoin.conditional.scoring import Candidates, ScoringOptions, draw_samples
from annocoin.engine.randomness import generator_at
from annocoin.types import WeakLabel
from conditional.worlds import annotation, stripes

REGIONS = stripes([0], [0, 1], [2, 3], [3])


def samples(*labels: list[int]) -> Samples:
    y = torch.tensor(labels)
    return Samples(
        regions=REGIONS,
        labels=y,
        margins=(y > 0).float() * torch.tensor([4.0, 3.0, 2.0, 1.0]),
        required_regions=torch.zeros(len(y), 0, dtype=torch.int64),
        annotation_index=(),
    )


def test_confidence_is_the_mean_best_iou_in_the_other_samples() -> None:
    result = samples([1, 0, 2, 0], [0, 1, 2, 0], [1, 0, 0, 1])
    # region 0 is half of region 1; region 3 is half of region 2, but of another class there
    assert result.confidence[0, 0] == pytest.approx((0.5 + 1) / 2)
    assert result.confidence[1, 1] == pytest.approx((0.5 + 0.5) / 2)
    assert result.confidence[0, 2] == pytest.approx((1 + 0) / 2)
    assert result.confidence[2, 3] == 0
    assert math.isnan(result.confidence[0, 1])


def test_confidence_needs_the_prediction_network_too() -> None:
    agreement = samples([1, 0, 2, 0], [0, 1, 2, 0], [1, 0, 0, 1])
    prediction = torch.tensor([[0.5, 1.0, 0.25, 1.0]] * 3)
    both = replace(agreement, prediction=prediction)
    expected = agreement.confidence * prediction
    torch.testing.assert_close(both.confidence, expected, equal_nan=True, check_dtype=False)
    assert both.confidence[0, 0] == pytest.approx(0.75 * 0.5)


def test_the_prediction_of_samples_is_that_of_the_loss_table() -> None:
    """The odds of an instance's label against the background."""
    requirements = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), REGIONS)
    table = -torch.tensor(
        [[0.2, 0.3, 0.5], [0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.7, 0.2, 0.1]]
    ).log()
    candidates = Candidates(requirements, ScoringOptions(nms_threshold=0.3), table=table)
    result = candidates.samples(candidates.scores(torch.zeros(3, 4, 3)))
    assert result.prediction is not None
    probability = table.neg().exp()
    for labels, prediction in zip(result.labels, result.prediction, strict=True):
        for u in labels.nonzero()[:, 0].tolist():
            p = float(probability[u, labels[u]])
            assert float(prediction[u]) == pytest.approx(p / (p + float(probability[u, 0])))
    assert (result.labels > 0).any()
    without = Candidates(requirements, ScoringOptions(nms_threshold=0.3))
    assert without.samples(without.scores(torch.zeros(3, 4, 3))).prediction is None


def test_consensus_is_the_sample_of_greatest_agreement() -> None:
    result = samples([1, 0, 2, 0], [1, 0, 2, 0], [0, 1, 0, 1])
    best = result.consensus()
    assert best.labels.tolist() == [1, 2]
    assert best.confidence.tolist() == pytest.approx([(1 + 0.5) / 2, 0.5])
    assert best.scores[0] > best.scores[1]
    assert result.agreement[0] == result.agreement[1] > result.agreement[2]


def test_diversity() -> None:
    assert samples([1, 0, 2, 0], [1, 0, 2, 0]).diversity == 0
    assert samples([1, 0, 0, 0], [0, 0, 0, 1]).diversity == 1
    assert samples([1, 0, 0, 0], [0, 1, 0, 0]).diversity == pytest.approx(0.5)
    assert samples([0, 0, 0, 0], [0, 0, 0, 0]).diversity == 0


def test_one_sample_has_no_confidence() -> None:
    single = samples([1, 0, 0, 2])
    assert single.diversity == 0
    one = single.consensus()
    assert one.confidence.isnan().all()
    assert one.labels.tolist() == [1, 2]


@pytest.mark.parametrize("terms", ["U", "U+P", "U+P+H"])
@pytest.mark.parametrize("pairwise", ["votes", "normalised", "literal", "none"])
def test_samples_of_a_network(terms: str, pairwise: str) -> None:
    torch.manual_seed(0)
    net = ConditionalNetwork(ConditionalArchitecture(("cat", "dog"), "tiny", size=64)).eval()
    torch.nn.init.normal_(net.join_noise.weight)
    torch.nn.init.normal_(net.classify.weight)
    options = ScoringOptions(terms=terms, pairwise=pairwise)  # type: ignore[arg-type]
    labels = annotation(WeakLabel(1), WeakLabel(2, box=(4, 0, 8, 6)))
    requirements = requirements_of(labels, REGIONS)
    candidates = Candidates(requirements, options)
    image = torch.rand(3, 48, 64)
    result = draw_samples(net, image, candidates, 6, generator_at(0))
    again = draw_samples(net, image, candidates, 6, generator_at(0))
    assert len(result) == 6
    assert torch.equal(result.labels, again.labels)
    if terms == "U+P+H":
        assert all(requirements.met_by(y) for y in result.labels)
        assert result.annotation_index == (0, 1)
    assert bool((result.margins[result.labels == 0] == 0).all())
    pointwise = draw_samples(net, image, candidates, 0)
    assert len(pointwise) == 1
