"""The conditional network learns: from seeds, and against tables of losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from annocoin.conditional.networks import ConditionalArchitecture, ConditionalNetwork
from annocoin.conditional.requirements import requirements_of
from annocoin.conditional.scoring import Candidates, ScoringOptions, draw_samples
from annocoin.engine.conditional_dataset import ConditionalExample
from annocoin.engine.conditional_training import (
    direct_step,
    features_of,
    train_direct_loss,
    train_from_seeds,
)
from annocoin.engine.config import ConditionalOptions
from annocoin.engine.metrics import MemoryLogger
from annocoin.engine.presets import conditional_preset
from annocoin.engine.randomness import generator_at
from annocoin.engine.trainer import Support
from annocoin.errors import InputError
from annocoin.objective.task_loss import disagreement_table, total
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation
from engine.worlds import OBJECT, PART, square_example

CASES = [square_example(number) for number in range(8)]
QUICK = ConditionalOptions(
    initial_steps=25, steps=15, batch=4, samples=4, initial_rate=3e-3, noise=0.3
)


def network(**changes: Any) -> ConditionalNetwork:
    torch.manual_seed(0)
    return ConditionalNetwork(
        ConditionalArchitecture(("red", "blue"), "tiny", size=64, **changes), "imagenet"
    )


@pytest.fixture(scope="module")
def trained() -> dict[str, Tensor]:
    net = network()
    train_from_seeds(net, CASES, QUICK)
    return net.state_dict()


def chosen(net: ConditionalNetwork, case: ConditionalExample, samples: int = 0) -> Tensor:
    candidates = Candidates(case.requirements)
    return draw_samples(net, case.pixels, candidates, samples, generator_at(0)).labels


def overlap_with_truth(net: ConditionalNetwork) -> float:
    """The mean best IoU with the squares, of the pointwise network's regions."""
    found = []
    for case in CASES:
        labels = chosen(net, case)[0]
        iou = case.requirements.regions.iou()[OBJECT]
        found.append(float((iou * (labels == case.requirements.labels[0])).max()))
    return sum(found) / len(found)


def test_it_finds_whole_squares_from_seeds_on_a_part(trained: dict[str, Tensor]) -> None:
    net = network()
    net.load_state_dict(trained)
    of_parts = [float(c.requirements.regions.iou()[OBJECT, PART]) for c in CASES]
    assert overlap_with_truth(net.eval()) > 0.7 > 2 * sum(of_parts) / len(of_parts)


def test_the_same_seed_the_same_weights(trained: dict[str, Tensor]) -> None:
    net = network()
    train_from_seeds(net, CASES, QUICK)
    for name, value in net.state_dict().items():
        assert torch.equal(value, trained[name]), name


def test_samples_differ_after_the_noise_has_weights(trained: dict[str, Tensor]) -> None:
    net = network()
    net.load_state_dict(trained)
    net.eval()

    def diversity(strength: float) -> float:
        features = net.features(torch.stack([case.pixels for case in CASES]))
        net.redraw_noise(features, strength, generator_at(1))
        found = [
            draw_samples(net, c.pixels, Candidates(c.requirements), 8, generator_at(0))
            for c in CASES
        ]
        return sum(samples.diversity for samples in found) / len(found)

    assert diversity(0.0) == 0
    assert diversity(3.0) > 0.02


def favouring(region: int) -> Any:
    """Tables of a prediction network that is sure of one region."""

    def table(case: ConditionalExample) -> Tensor:
        costs = torch.full((len(case.requirements.regions), 2), 3.0)
        costs[:, 0] = 0.1
        costs[region] = torch.tensor([3.0, 0.0])
        return costs

    return table


def test_it_follows_the_prediction_network(trained: dict[str, Tensor]) -> None:
    """A prediction network that insists on the part turns the choice to it."""
    net = network()
    net.load_state_dict(trained)
    noted = MemoryLogger()
    options = replace(QUICK, steps=40, rate=3e-3, scoring=ScoringOptions(pairwise="none"))
    before = sum(int(chosen(net.eval(), c)[0, PART] > 0) for c in CASES)
    train_direct_loss(net, CASES, favouring(PART), options, support=Support(log=noted))
    after = sum(int(chosen(net, c)[0, PART] > 0) for c in CASES)
    assert after > before
    first, last = noted.lines[:5], noted.lines[-5:]
    assert sum(f["cross_diversity"] for f in last) < sum(f["cross_diversity"] for f in first)
    assert {"step", "loss", "gradient", "self_diversity", "moved_by_loss"} <= set(noted.lines[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"pointwise": True},
        {"gamma": 0.0},
        {"epsilon": 1.0},
        {"scoring": ScoringOptions("U")},
        {"scoring": ScoringOptions("U+P", pairwise="literal", overlap="later", select_all=True)},
    ],
)
def test_every_switch_trains(changes: dict[str, Any]) -> None:
    net = network()
    before = net.classify.weight.detach().clone()
    options = replace(QUICK, steps=2, batch=2, **changes)
    noted = MemoryLogger()
    train_direct_loss(net, CASES, favouring(OBJECT), options, support=Support(log=noted))
    assert all(torch.tensor(list(f.values())).isfinite().all() for f in noted.lines)
    assert not torch.equal(net.classify.weight, before)
    if changes.get("pointwise"):
        assert all(f["self_diversity"] == 0 for f in noted.lines)


@pytest.mark.parametrize("epsilon", [3.0, -3.0])
def test_a_step_by_loops(epsilon: float) -> None:
    """S(y_a), S(y_b) and S(y_c) of every sample, found one by one; and their gradient."""
    case = CASES[0]
    candidates = Candidates(case.requirements)
    classes = case.requirements.labels
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(3, len(candidates.regions), 2, generator=generator, requires_grad=True)
    table = 3 * torch.rand(len(candidates.regions), 2, generator=generator)
    options = replace(QUICK, samples=3, epsilon=epsilon, gamma=0.3, diversity=4.0)
    found, _ = direct_step(unary, candidates, table, options)
    scores = candidates.scores(unary)

    def argmax(values: Tensor, otherwise: Tensor | None = None) -> Tensor:
        labels = candidates.infer(values[None].detach()).labels[0]
        if otherwise is not None and total(values, labels, classes) < total(
            values, otherwise, classes
        ):
            return otherwise
        return labels

    y = [argmax(scores[k]) for k in range(3)]
    expected = torch.zeros(())
    moved = 0
    for k in range(3):
        own = total(scores[k], y[k], classes)
        away = argmax(scores[k] + epsilon * table, y[k])
        moved += int(not torch.equal(away, y[k]))
        expected = expected + (total(scores[k], away, classes) - own) / epsilon / 3
        for other in range(3):
            if other != k:
                costs = 4.0 * disagreement_table(y[other], candidates.iou, classes)
                apart = argmax(scores[k] + epsilon * costs, y[k])
                moved += int(not torch.equal(apart, y[k]))
                gain = total(scores[k], apart, classes) - own
                expected = expected - 2 * 0.3 * gain / epsilon / 6
    assert moved > 3  # so that there is something to see
    assert found.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-4)
    (true,) = torch.autograd.grad(expected, unary)
    (gradient,) = torch.autograd.grad(found, unary)
    assert true.abs().max() > 0
    torch.testing.assert_close(gradient, true)


def test_rounds_see_other_images_in_another_order() -> None:
    seen: dict[str, list[object]] = {}
    for name in ("round 1", "round 2"):
        asked = seen.setdefault(name, [])

        def table(case: ConditionalExample, asked: list[object] = asked) -> Tensor:
            asked.append(case.image_id)
            return favouring(OBJECT)(case)

        train_direct_loss(network(), CASES, table, replace(QUICK, steps=1, batch=8), name=name)
    assert set(seen["round 1"]) == set(seen["round 2"]) == set(range(8))
    assert seen["round 1"] != seen["round 2"]


def test_an_image_without_a_mark() -> None:
    said = Annotation((64, 64))
    regions = CASES[0].requirements.regions
    none = Seeds(
        (64, 64), *(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2), torch.zeros(0)),
        torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2, 2), torch.zeros(0, 2, 2),
    )  # fmt: skip
    for left in (regions, regions[[]]):
        empty = ConditionalExample("none", CASES[0].pixels, requirements_of(said, left), none)
        samples = draw_samples(network().eval(), empty.pixels, empty.candidates(), 3)
        assert len(samples.consensus()) == 0
        assert samples.diversity == 0
        net = network()
        train_from_seeds(net, [empty], replace(QUICK, initial_steps=1, batch=1))
        table = torch.zeros(len(left), 1)
        train_direct_loss(net, [empty], lambda _, t=table: t, replace(QUICK, steps=1, batch=1))


def test_a_bad_table_is_named() -> None:
    with pytest.raises(InputError, match=r"step 1, image \d+: a loss table of shape \(2, 2\)"):
        train_direct_loss(network(), CASES, lambda _: torch.zeros(2, 2), QUICK)
    with pytest.raises(InputError, match="finite"):
        train_direct_loss(network(), CASES, lambda c: favouring(0)(c) * torch.nan, QUICK)


def test_mirrored_cases() -> None:
    case = CASES[1]
    mirrored = case.mirrored()
    assert torch.equal(mirrored.pixels, case.pixels.flip(2))
    assert torch.equal(mirrored.targets(), case.targets().flip(2))
    assert torch.equal(mirrored.mirrored().targets(), case.targets())
    with pytest.raises(ValueError, match="mirrored"):
        mirrored.candidates()


def test_scores_keep_their_digits_under_autocast() -> None:
    net, case = network().eval(), CASES[0]
    candidates = case.candidates()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        features = net.features(case.pixels[None])[0]
        unary = net.unary(features, net.noise(2, features), candidates.regions, candidates.columns)
        assert candidates.scores(unary).dtype == torch.float32


def test_features_of_images_of_several_sizes() -> None:
    net = network().eval()
    images = [torch.rand(3, 64, 48), torch.rand(3, 32, 64)]
    with torch.no_grad():
        together = features_of(net, images)
    assert [tuple(f.shape) for f in together] == [(32, 32, 24), (32, 16, 32)]


def test_a_loss_that_is_no_number_names_the_images() -> None:
    broken = [replace(CASES[0], pixels=torch.full((3, 64, 64), torch.nan), image_id="bad.jpg")]
    with pytest.raises(InputError, match=r"step 1, images \['bad.jpg'"):
        train_from_seeds(network(), broken, replace(QUICK, batch=1))


def test_targets() -> None:
    case = CASES[0]
    votes, pixels = case.targets("votes"), case.targets("pixels")
    assert votes.shape == pixels.shape == (2, 64, 64)
    torch.testing.assert_close(votes.sum(dim=0), torch.ones(64, 64))
    torch.testing.assert_close(pixels.sum(dim=0), torch.ones(64, 64))
    x, y = case.seeds.points[0].long().tolist()
    assert pixels[1, y, x] == 1
    assert votes[1, y, x] == pytest.approx(1, abs=1e-5)  # every candidate contains the peak
    with pytest.raises(InputError, match="targets"):
        case.targets("nothing")  # type: ignore[arg-type]


def test_presets() -> None:
    literal = conditional_preset("paper-literal", ("red", "blue"))
    assert literal.architecture.trunk == "unet"
    assert literal.architecture.noise == "pixel"
    assert literal.learning.scoring.pairwise == "literal"
    assert conditional_preset("default", ("red",), trunk="tiny").architecture.trunk == "tiny"
    with pytest.raises(InputError, match="conditional_preset 'x'"):
        conditional_preset("x", ("red",))
    options = replace(literal.learning, initial_steps=1, steps=1, batch=1, samples=2)
    net = ConditionalNetwork(replace(literal.architecture, trunk="tiny"))
    train_from_seeds(net, CASES, options)
    train_direct_loss(net, CASES, favouring(OBJECT), options)


@pytest.mark.parametrize(
    "change",
    [{"steps": 0}, {"batch": 0}, {"rate": 0.0}, {"gamma": 2.0}, {"epsilon": 0.0}, {"samples": 0}],
)
def test_bad_options(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ConditionalOptions(**change)


def test_what_the_prediction_network_thinks_counts_as_far_as_it_is_trusted() -> None:
    case = CASES[0]
    table = favouring(PART)(case)
    unary = torch.zeros(1, len(case.requirements.regions), 2)
    for prediction_weight in (0.0, 0.5, 2.0):
        options = ScoringOptions("U", prior=0.0, prediction_weight=prediction_weight)
        asked = Candidates(case.requirements, options, seeds=case.seeds, table=table)
        scores = asked.scores(unary)
        thought = prediction_weight * (table[:, 0] - table[:, 1])
        assert torch.allclose(scores[0, :, 1] - scores[0, :, 0], thought)
    both = Candidates(case.requirements, ScoringOptions("U"), seeds=case.seeds, table=table)
    seeds = Candidates(case.requirements, ScoringOptions("U"), seeds=case.seeds)
    gained = both.scores(unary) - seeds.scores(unary)
    assert torch.allclose(gained[0, :, 1:], table[:, :1] - table[:, 1:])
    with pytest.raises(InputError, match="loss table of shape"):
        Candidates(case.requirements, table=table[1:])
    with pytest.raises(InputError, match="prediction_weight"):
        ScoringOptions(prediction_weight=-1)
    with pytest.raises(InputError, match="prediction_weight_spread"):
        ScoringOptions(prediction_weight_spread=1.5)


@pytest.mark.parametrize(
    ("prediction_weight_spread", "shares"),
    [(0.0, [1, 1, 1, 1, 1]), (1.0, [1, 0.25, 0.75, 1.25, 1.75]), (0.4, [1, 0.7, 0.9, 1.1, 1.3])],
)
def test_samples_differ_in_how_far_they_trust(
    prediction_weight_spread: float, shares: list[float]
) -> None:
    case = CASES[0]
    table = favouring(PART)(case)
    options = ScoringOptions(
        "U", prior=0.0, prediction_weight=2.0, prediction_weight_spread=prediction_weight_spread
    )
    asked = Candidates(case.requirements, options, table=table)
    scores = asked.scores(torch.zeros(5, len(case.requirements.regions), 2))
    thought = 2 * (table[:, 0] - table[:, 1])
    assert torch.allclose(scores[..., 1] - scores[..., 0], torch.tensor(shares)[:, None] * thought)


def test_the_first_sample_has_no_noise_where_there_is_doubt() -> None:
    net, case = network().eval(), CASES[0]
    torch.nn.init.normal_(net.join_noise.weight, std=3.0)
    plain = draw_samples(net, case.pixels, Candidates(case.requirements), 0)
    drawn = draw_samples(net, case.pixels, Candidates(case.requirements), 4, generator_at(0))
    assert torch.allclose(drawn.margins[0], plain.margins[0], atol=1e-5)
    assert not torch.equal(drawn.margins[1], plain.margins[0])
    options = ScoringOptions(prediction_weight_spread=0.0)
    noisy = draw_samples(
        net, case.pixels, Candidates(case.requirements, options), 4, generator_at(0)
    )
    assert not torch.equal(noisy.margins[0], plain.margins[0])
