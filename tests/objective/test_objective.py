"""The terms of the objective by plain loops, the direct loss against the true gradient."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annocoin.errors import InputError
from annocoin.objective.direct_loss import conditional_surrogate, direct_loss
from annocoin.objective.diversity import (
    box_self_diversity,
    class_entropy,
    cross_diversity,
    dissimilarity,
    diversities,
    expected_box_losses,
    mask_entropy,
    sample_losses,
    self_diversity,
)
from annocoin.objective.task_loss import (
    LOSS_CLAMP,
    MASK_WEIGHT,
    MIN_BEST_LOG_ODDS,
    TRAINING_CLAMP,
    TaskLossOptions,
    clamp_log_odds,
    detection_loss_table,
    disagreement_table,
    label_columns,
    labelling_score,
    prediction_loss_table,
    restricted_loss_table,
    running_mean_table,
)

CLASSES = (2, 5)


def world(seed: int, samples: int = 4, regions: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Random samples [K, P] of labels 0, 2 and 5, and a random symmetric IoU [P, P]."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor([0, *CLASSES])[
        torch.randint(0, 3, (samples, regions), generator=generator)
    ]
    iou = torch.rand(regions, regions, generator=generator, dtype=torch.float64)
    iou = (iou + iou.T) / 2
    return labels, iou.fill_diagonal_(1)


def loss_between(first: list[int], second: list[int], iou: torch.Tensor) -> float:
    """Delta(y, y') by its definition."""

    def similarity(one: list[int], other: list[int]) -> float:
        pairs = itertools.product(range(len(one)), repeat=2)
        return sum(float(iou[u, v]) for u, v in pairs if one[u] > 0 and one[u] == other[v])

    return (similarity(first, first) + similarity(second, second)) / 2 - similarity(first, second)


@given(st.integers(0, 10_000))
def test_sample_losses_by_loops(seed: int) -> None:
    labels, iou = world(seed)
    losses = sample_losses(labels, iou, CLASSES)
    for k, other in itertools.product(range(4), repeat=2):
        expected = loss_between(labels[k].tolist(), labels[other].tolist(), iou)
        assert float(losses[k, other]) == pytest.approx(expected)
    torch.testing.assert_close(losses, losses.T)  # assumed by the factor 2 of the gradient
    assert losses.diagonal().abs().max() < 1e-9


def test_sample_loss_is_0_for_equal_samples_and_1_for_a_moved_instance() -> None:
    iou = torch.tensor([[1.0, 0.25, 0.0], [0.25, 1.0, 0.0], [0.0, 0.0, 1.0]])
    labels = torch.tensor([[2, 0, 0], [0, 2, 0], [0, 0, 2], [5, 0, 0], [0, 0, 0]])
    assert sample_losses(labels, iou, CLASSES)[0].tolist() == [0, 0.75, 1, 1, 0.5]


@given(st.integers(0, 10_000))
def test_self_diversity_by_loops(seed: int) -> None:
    labels, iou = world(seed)
    expected = 0.0
    for k, other in itertools.permutations(range(4), 2):
        expected += loss_between(labels[k].tolist(), labels[other].tolist(), iou)
    diversity = self_diversity(labels, iou, CLASSES)
    assert float(diversity) == pytest.approx(expected / (4 * 3))
    assert float(self_diversity(labels[:1], iou, CLASSES)) == 0


def smooth_l1(difference: float, beta: float) -> float:
    size = abs(difference)
    return size**2 / (2 * beta) if size < beta else size - beta / 2


@given(st.integers(0, 10_000))
def test_the_boxes_of_equation_11_by_loops(seed: int) -> None:
    """Sums over the classes of two samples y_p, y_p' of a RoI, each with the box of its class."""
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.rand(2, 4, generator=generator, dtype=torch.float64).softmax(dim=1)[:, 1:]
    boxes = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    targets = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    cross = expected_box_losses(probabilities, boxes, targets, beta=0.5)
    own = box_self_diversity(probabilities, boxes, beta=0.5)
    for n in range(2):
        expected = alike = 0.0
        for c in range(3):
            p = float(probabilities[n, c])
            for x in range(4):
                expected += p * smooth_l1(float(boxes[n, c, x] - targets[n, x]), 0.5)
                for other in range(3):
                    difference = float(boxes[n, c, x] - boxes[n, other, x])
                    alike += p * float(probabilities[n, other]) * smooth_l1(difference, 0.5)
        assert float(cross[n]) == pytest.approx(expected)
        assert float(own[n]) == pytest.approx(alike)


@given(st.integers(0, 10_000), st.integers(1, 3))
def test_diversities_by_enumeration(seed: int, count: int) -> None:
    """Equations 7 and 8 over all labellings of a factorised distribution."""
    generator = torch.Generator().manual_seed(seed)
    _, iou = world(seed, regions=4)
    classes = torch.tensor([1, 1, 2, 1])
    similarity = iou * (classes[:, None] == classes)
    samples = (torch.rand(count, 4, generator=generator) < 0.5).double()
    p = torch.rand(4, generator=generator, dtype=torch.float64)

    def delta(first: list[float], second: list[float]) -> float:
        def k(one: list[float], other: list[float]) -> float:
            pairs = itertools.product(range(4), repeat=2)
            return sum(one[u] * other[v] * float(similarity[u, v]) for u, v in pairs)

        return k(first, first) / 2 + k(second, second) / 2 - k(first, second)

    labellings = [
        (list(y), math.prod(float(q if on else 1 - q) for q, on in zip(p, y, strict=True)))
        for y in itertools.product((0.0, 1.0), repeat=4)
    ]
    assert sum(probability for _, probability in labellings) == pytest.approx(1)
    terms = diversities(similarity, samples, p)
    rows = samples.tolist()
    div_pc = sum(w * delta(y, row) for y, w in labellings for row in rows) / count
    div_pp = sum(w * x * delta(y, z) for y, w in labellings for z, x in labellings)
    pairs = list(itertools.permutations(rows, 2))
    div_cc = sum(delta(*pair) for pair in pairs) / len(pairs) if pairs else 0.0
    assert [float(term) for term in terms] == pytest.approx([div_pc, div_cc, div_pp])


def test_disc_of_equal_distributions_is_0() -> None:
    """Two certain ones, and two that have the instance in half of the samples."""
    similarity = torch.eye(2, dtype=torch.float64)
    certain = diversities(
        similarity, torch.tensor([[1.0, 0.0]] * 3).double(), torch.tensor([1.0, 0.0]).double()
    )
    assert [float(term) for term in certain] == [0, 0, 0]
    half = diversities(
        similarity,
        torch.tensor([[1.0, 0.0], [0.0, 0.0]] * 50).double(),
        torch.tensor([0.5, 0.0]).double(),
    )
    assert float(half.div_pc) == pytest.approx(0.25)
    assert float(dissimilarity(*half)) == pytest.approx(0, abs=3e-3)  # cc has no bias
    moved = diversities(
        similarity, torch.tensor([[1.0, 0.0]] * 3).double(), torch.tensor([0.0, 1.0]).double()
    )
    assert float(dissimilarity(*moved)) == 1


@given(st.integers(0, 10_000))
def test_cross_diversity_by_loops(seed: int) -> None:
    labels, _ = world(seed)
    table = torch.rand(6, 3, generator=torch.Generator().manual_seed(seed))
    column = {0: 0, 2: 1, 5: 2}
    expected = 0.0
    for y in labels.tolist():
        for u, label in enumerate(y):
            expected += float(table[u, column[label]]) / len(labels)
    assert float(cross_diversity(table, labels, CLASSES)) == pytest.approx(expected, rel=1e-5)


@given(st.integers(0, 10_000))
def test_disagreement_table_adds_up_to_the_loss(seed: int) -> None:
    """For a sample with one instance per class."""
    labels, iou = world(seed, samples=2)
    labels[0] = 0
    labels[0, :2] = torch.tensor(CLASSES)
    table = disagreement_table(labels[1], iou, CLASSES)
    total = loss_between([0] * 6, labels[1].tolist(), iou)  # k(y', y') / 2
    for u, label in enumerate(labels[0].tolist()):
        total += float(table[u, {0: 0, 2: 1, 5: 2}[label]])
    assert total == pytest.approx(loss_between(labels[0].tolist(), labels[1].tolist(), iou))


def test_sample_losses_of_nested_regions_are_not_negative() -> None:
    """Two boxes may require such regions."""
    iou = torch.tensor([[1.0, 0.5, 0.25], [0.5, 1.0, 0.5], [0.25, 0.5, 1.0]])
    labels = torch.tensor([[2, 2, 0], [2, 2, 0], [2, 0, 2], [0, 2, 0]])
    losses = sample_losses(labels, iou, (2,))
    assert float(losses.min()) >= 0
    assert losses[0, 1] == 0
    assert float(self_diversity(labels[:2], iou, (2,))) == 0


def test_no_classes() -> None:
    background = torch.zeros(3, 4, dtype=torch.int64)
    assert disagreement_table(background, torch.eye(4), ()).shape == (3, 4, 1)
    assert float(self_diversity(background, torch.eye(4), ())) == 0


def test_labelling_score_by_hand() -> None:
    values = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    assert label_columns(torch.tensor([0, 3, 7]), (3, 7)).tolist() == [0, 1, 2]
    assert float(labelling_score(values, torch.tensor([0, 7]), (3, 7))) == 31
    scores = labelling_score(values[None], torch.tensor([[3, 0], [7, 7]]), (3, 7))
    assert scores.tolist() == [12, 33]


def test_prediction_loss_table_by_hand() -> None:
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [1e-9, 0.9, 0.1]])
    masks = torch.tensor([[0.1, 9.0], [0.2, 0.3]])
    table = prediction_loss_table(probabilities.log(), masks)
    assert table[0].tolist() == pytest.approx(
        [-math.log(0.5), -math.log(0.25) + 0.1, -math.log(0.25) + 6]
    )
    assert table[1].tolist() == pytest.approx([6, -math.log(0.9) + 0.2, -math.log(0.1) + 0.3])


@given(st.integers(0, 10_000))
def test_the_task_loss_of_equation_9_by_loops(seed: int) -> None:
    """Delta_cls + Delta_mask + Delta_box without a bound; the background has only the first."""
    generator = torch.Generator().manual_seed(seed)
    logs = (8 * torch.randn(4, 3, generator=generator, dtype=torch.float64)).log_softmax(dim=1)
    masks, boxes = 20 * torch.rand(2, 4, 2, generator=generator, dtype=torch.float64)
    table = prediction_loss_table(logs, masks, boxes, clamp=None)
    for u in range(4):
        assert float(table[u, 0]) == pytest.approx(-float(logs[u, 0]))
        for j in (1, 2):
            expected = -float(logs[u, j]) + float(masks[u, j - 1]) + float(boxes[u, j - 1])
            assert float(table[u, j]) == pytest.approx(expected)
    assert float(prediction_loss_table(logs, masks, boxes).max()) <= 3 * LOSS_CLAMP


def test_bounds_and_boxes_of_a_restricted_table() -> None:
    probability = torch.tensor([[1e-6, 1 - 1e-6], [0.9, 0.1]])
    masks, boxes = torch.zeros(2, 1), torch.tensor([[0.0], [2.0]])
    odds = [math.log((1 - 1e-6) / 1e-6), math.log(0.1 / 0.9)]
    gain = MASK_WEIGHT * math.log(2)
    table = restricted_loss_table(probability.log(), masks, boxes, clamp=None)
    log_odds = (table[:, 0] - table[:, 1]).tolist()
    assert log_odds == pytest.approx([odds[0] + gain, odds[1] + gain - 2], rel=1e-3)
    clamped = restricted_loss_table(probability.log(), masks)
    assert float(clamped[0, 0] - clamped[0, 1]) == pytest.approx(LOSS_CLAMP, rel=1e-5)
    assert float(detection_loss_table(torch.tensor([[9.0]]), clamp=None)[0, 0]) > 9


@pytest.mark.parametrize(
    "change", [{"clamp": 0.0}, {"clamp": math.nan}, {"mask_scored_regions": 0}]
)
def test_bad_options_of_the_task_loss(change: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(change))):
        TaskLossOptions(**change)  # type: ignore[arg-type]


@given(st.integers(0, 10_000))
def test_entropies_by_loops(seed: int) -> None:
    """The expected log loss between two independent samples of every RoI and every pixel."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    masks = torch.randn(2, 2, 2, generator=generator, dtype=torch.float64)
    expected = 0.0
    for row in logits.softmax(dim=1).tolist():
        for p in row:
            expected += p * -math.log(p) / 3
    for foreground in masks.sigmoid().flatten().tolist():
        for p in (foreground, 1 - foreground):
            expected += p * -math.log(p) / 8
    classes = class_entropy(logits.log_softmax(dim=1)).mean()
    assert float(classes + mask_entropy(masks).mean()) == pytest.approx(expected)


def test_entropies_are_finite_for_large_logits() -> None:
    logits = torch.tensor([[100.0, -100.0]], requires_grad=True)
    masks = torch.full((1, 2, 2), 200.0, requires_grad=True)
    diversity = class_entropy(logits.log_softmax(dim=1)).mean() + mask_entropy(masks).mean()
    diversity.backward()
    assert diversity.item() == pytest.approx(0, abs=1e-6)
    assert masks.grad is not None
    assert bool(masks.grad.isfinite().all())


def test_dissimilarity() -> None:
    terms = [torch.tensor(float(x)) for x in (10, 4, 2)]
    assert float(dissimilarity(*terms, gamma=0.5)) == 7
    assert float(dissimilarity(*terms, gamma=1.0)) == 6
    assert float(dissimilarity(terms[0], None, terms[2], gamma=0.5)) == 9  # PW_c
    assert float(dissimilarity(terms[0], terms[1], None, gamma=0.5)) == 8  # PW_p
    assert float(dissimilarity(terms[0], None, None)) == 10
    with pytest.raises(InputError, match="gamma"):
        dissimilarity(*terms, gamma=1.5)


LOSSES = torch.tensor([0.3, 1.7, 0.9])
"""The loss of each of three labellings under a fixed prediction."""

PAIR_LOSSES = torch.tensor([[0.0, 1.0, 0.4], [1.0, 0.0, 0.7], [0.4, 0.7, 0.0]])
"""The loss between each two of them; symmetric."""


def probabilities(theta: torch.Tensor) -> torch.Tensor:
    """The probability that each labelling is the argmax, by a fine grid of noise."""
    steps = torch.linspace(-1, 1, 161, dtype=torch.float64)
    grid = torch.stack(torch.meshgrid(steps, steps, steps, indexing="ij"), dim=-1).view(-1, 3)
    winners = (theta + grid).argmax(dim=1)
    return torch.bincount(winners, minlength=3).double() / len(grid)


@pytest.mark.parametrize("epsilon", [0.1, -0.1])
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_surrogate_estimates_the_gradient_of_the_expected_loss(
    epsilon: float, gamma: float
) -> None:
    """Of E[loss] - gamma E[loss between two samples] of an argmax.

    The true gradient by differences of exact expectations, the estimate with many noise samples.
    """
    start = torch.tensor([0.2, 0.0, -0.1], dtype=torch.float64)

    def objective(theta: torch.Tensor) -> float:
        p = probabilities(theta)
        return float(p @ LOSSES.double() - gamma * p @ PAIR_LOSSES.double() @ p)

    true = []
    for i in range(3):
        step = torch.zeros(3, dtype=torch.float64)
        step[i] = 0.05
        true.append((objective(start + step) - objective(start - step)) / 0.1)

    theta = start.float().requires_grad_()
    gradients = []
    generator = torch.Generator().manual_seed(0)
    for _ in range(600):
        noise = torch.rand(60, 3, generator=generator) * 2 - 1
        scores = theta + noise  # S^k(y), [K, 3]
        fixed = scores.detach()
        plain = fixed.argmax(dim=1)
        augmented = (fixed + epsilon * LOSSES).argmax(dim=1)
        first, second = (1 - torch.eye(60)).nonzero(as_tuple=True)
        diverse = (fixed[first] + epsilon * PAIR_LOSSES[plain[second]]).argmax(dim=1)
        surrogate = conditional_surrogate(
            scores.gather(1, plain[:, None])[:, 0],
            scores.gather(1, augmented[:, None])[:, 0],
            scores[first].gather(1, diverse[:, None])[:, 0].view(60, 59) if gamma else None,
            epsilon=epsilon,
            gamma=gamma,
        )
        gradients.append(torch.autograd.grad(surrogate, theta)[0])
    estimate = torch.stack(gradients).mean(dim=0)
    assert estimate.tolist() == pytest.approx(true, abs=0.03)
    assert max(abs(g) for g in true) > 0.2  # otherwise 0 would pass


def test_equal_labellings_have_no_gradient() -> None:
    scores = torch.tensor([1.0, 2.0], requires_grad=True)
    direct_loss(scores, scores, 1.0).backward()
    assert scores.grad is not None
    assert scores.grad.tolist() == [0, 0]
    with pytest.raises(InputError, match="epsilon 0"):
        direct_loss(scores, scores, 0)


def test_restricted_table_by_hand() -> None:
    """Two regions; two of three classes are annotated and get the probability of the third."""
    probability = torch.tensor([[0.5, 0.3, 0.1], [0.9, 0.01, 0.04]])  # without the third class
    masks = torch.tensor([[0.2, 0.7], [0.5, 0.5]])
    table = restricted_loss_table(probability.log(), masks, clamp=100.0, min_best_log_odds=-100.0)
    for u in range(2):
        of_class = probability[u, 1:] / probability[u, 1:].sum()
        of_mask = (2 * torch.exp(-masks[u])) ** MASK_WEIGHT
        odds = (1 - probability[u, 0]) / probability[u, 0] * of_class * of_mask
        expected = torch.cat([torch.ones(1), odds]) / (1 + odds.sum())
        assert torch.allclose(table[u], -expected.log())


def test_annotated_classes_have_a_probable_region() -> None:
    probability = torch.tensor([[0.99, 0.008], [0.98, 0.015], [0.999, 0.0005]])
    masks = torch.full((3, 1), 0.4)
    table = restricted_loss_table(probability.log(), masks)
    margins = table[:, 0] - table[:, 1]
    assert float(margins.max()) == pytest.approx(MIN_BEST_LOG_ODDS, abs=1e-5)
    assert margins.argmax() == 1
    plain = restricted_loss_table(probability.log(), masks, min_best_log_odds=-100.0, clamp=100.0)
    shift = margins[1] - (plain[1, 0] - plain[1, 1])
    assert float(margins[0] - (plain[0, 0] - plain[0, 1])) == pytest.approx(float(shift), abs=1e-5)
    sure = torch.tensor([[0.001, 0.999], [0.999, 0.001]])
    spread = restricted_loss_table(sure.log(), torch.full((2, 1), 0.4))
    assert float((spread[:, 0] - spread[:, 1]).abs().max()) <= LOSS_CLAMP + 1e-5
    clamped = clamp_log_odds(spread)
    assert (clamped[:, 0] - clamped[:, 1]).tolist() == pytest.approx(
        [TRAINING_CLAMP, -TRAINING_CLAMP], abs=1e-4
    )
    assert torch.allclose(clamped.neg().exp().sum(dim=1), torch.ones(2))
    assert torch.allclose(clamp_log_odds(table), table, atol=1e-5)  # within the bound


def test_restricted_table_of_no_regions_no_classes_and_extreme_values() -> None:
    assert restricted_loss_table(torch.zeros(0, 3), torch.zeros(0, 2)).shape == (0, 3)
    assert restricted_loss_table(torch.zeros(4, 1), torch.zeros(4, 0)).shape == (4, 1)
    extreme = torch.tensor([[0.0, -200.0], [-200.0, 0.0]])
    assert bool(restricted_loss_table(extreme, torch.zeros(2, 1)).isfinite().all())


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 3))
def test_log_odds_of_a_detection_table(seed: int, regions: int, classes: int) -> None:
    """Those within the bound are recovered, others clamped; probabilities sum to 1."""
    generator = torch.Generator().manual_seed(seed)
    log_odds = 8 * torch.randn(regions, classes, generator=generator)
    table = detection_loss_table(log_odds)
    assert table.shape == (regions, classes + 1)
    for u in range(regions):
        odds = [math.exp(min(max(x, -LOSS_CLAMP), LOSS_CLAMP)) for x in log_odds[u].tolist()]
        expected = [math.log(1 + sum(odds)), *(math.log((1 + sum(odds)) / o) for o in odds)]
        assert table[u].tolist() == pytest.approx(expected, abs=1e-4)
        for j in range(classes):
            recovered = float(table[u, 0] - table[u, j + 1])
            assert recovered == pytest.approx(math.log(odds[j]), abs=1e-4)
    torch.testing.assert_close(table.neg().exp().sum(dim=1), torch.ones(regions))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_running_mean_of_tables_has_the_mean_log_odds(count: int) -> None:
    tables = [
        detection_loss_table(torch.randn(4, 2, generator=torch.Generator().manual_seed(n)))
        for n in range(count)
    ]
    mean = torch.zeros(4, 3)
    for number, table in enumerate(tables, start=1):
        mean = running_mean_table(mean, table, number)
    for u, j in itertools.product(range(4), (1, 2)):
        expected = sum(float(table[u, 0] - table[u, j]) for table in tables) / count
        assert float(mean[u, 0] - mean[u, j]) == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close((-mean).exp().sum(dim=1), torch.ones(4))


def test_detection_tables_with_another_bound_and_of_nothing() -> None:
    table = detection_loss_table(torch.tensor([[3.0, -3.0, 0.5]]), clamp=1.0)
    assert (table[0, 0] - table[0, 1:]).tolist() == pytest.approx([1, -1, 0.5], abs=1e-5)
    assert detection_loss_table(torch.zeros(0, 2)).shape == (0, 3)
    assert detection_loss_table(torch.zeros(4, 0)).tolist() == [[0.0]] * 4
    extreme = detection_loss_table(torch.tensor([[-1e9, 1e9], [-math.inf, 0.0]]))
    assert bool(extreme.isfinite().all())
