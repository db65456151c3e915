"""Training of the conditional network, from seeds and with loss tables, on coloured squares."""

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
    batch_features,
    direct_step,
    margin_figures,
    train_direct_loss,
    train_from_seeds,
)
from annocoin.engine.labelling import samples_of
from annocoin.engine.metrics import MemoryLogger
from annocoin.engine.network_config import ConditionalConfig, ConditionalTraining
from annocoin.engine.presets import preset
from annocoin.engine.randomness import generator_at
from annocoin.engine.trainer import Trainer
from annocoin.errors import InputError
from annocoin.objective.task_loss import (
    TaskLossOptions,
    disagreement_table,
    labelling_score,
)
from annocoin.types import Annotation, WeakLabel
from engine.worlds import OBJECT, PART, no_seeds, prepared, square_example

EXAMPLES = [square_example(number) for number in range(8)]
ARCHITECTURE = ConditionalArchitecture(("red", "blue"), "tiny", size=64)
TRAINING = ConditionalTraining(
    initial_steps=25, steps=15, batch_size=4, samples=4, initial_lr=3e-3, noise_strength=0.3
)
CONFIG = ConditionalConfig(ARCHITECTURE, training=TRAINING)


def config_with(scoring: ScoringOptions | None = None, **changes: Any) -> ConditionalConfig:
    training = replace(TRAINING, **changes)
    return replace(CONFIG, training=training, scoring=scoring or CONFIG.scoring)


def network(state: dict[str, Tensor] | None = None) -> ConditionalNetwork:
    torch.manual_seed(0)
    net = ConditionalNetwork(ARCHITECTURE, "imagenet")
    if state is not None:
        net.load_state_dict(state)
    return net.eval()


def trainer(**options: Any) -> Trainer:
    return Trainer(workers=0, **options)


@pytest.fixture(scope="module")
def trained() -> dict[str, Tensor]:
    """The weights after the initial training."""
    net = network()
    train_from_seeds(net, EXAMPLES, CONFIG, trainer=trainer())
    return net.state_dict()


def favouring(region: int, examples: Any = EXAMPLES) -> list[ConditionalExample]:
    """The examples with loss tables of a prediction network that is sure of one region."""
    with_tables = []
    for example in examples:
        table = torch.full((len(example.requirements.regions), 2), 3.0)
        table[:, 0] = 0.1
        table[region] = torch.tensor([3.0, 0.0])
        with_tables.append(replace(example, table=table))
    return with_tables


def pointwise_labels(net: ConditionalNetwork, example: ConditionalExample) -> Tensor:
    """The labelling without noise, seed prior and loss table, [P]."""
    return draw_samples(net, example.pixels, Candidates(example.requirements), 0).labels[0]


def test_whole_squares_are_labelled_after_training_from_seeds_on_parts(
    trained: dict[str, Tensor],
) -> None:
    net, overlaps, of_parts = network(trained), [], []
    for example in EXAMPLES:
        iou = example.requirements.regions.iou()[OBJECT]
        labels = pointwise_labels(net, example)
        overlaps.append(float((iou * (labels == example.requirements.labels[0])).max()))
        of_parts.append(float(iou[PART]))
    assert sum(overlaps) / 8 > 0.7 > 2 * sum(of_parts) / 8


def test_equal_seeds_give_equal_weights(trained: dict[str, Tensor]) -> None:
    net = network()
    train_from_seeds(net, EXAMPLES, CONFIG, trainer=trainer())
    for name, value in net.state_dict().items():
        assert torch.equal(value, trained[name]), name
    other = network()
    short = config_with(initial_steps=1)
    train_from_seeds(other, EXAMPLES, short, seed=1, trainer=trainer())
    again = network()
    train_from_seeds(again, EXAMPLES, short, seed=2, trainer=trainer())
    assert not torch.equal(other.classify.weight, again.classify.weight)


def test_the_foreground_bias_is_added_after_the_initial_training() -> None:
    nets = [network(), network()]
    for net, bias in zip(nets, (0.0, 0.4), strict=True):
        config = config_with(initial_steps=1, batch_size=1, foreground_bias=bias)
        train_from_seeds(net, EXAMPLES, config, trainer=trainer())
    without, with_bias = (net.classify.bias.detach() for net in nets)  # type: ignore[union-attr]
    torch.testing.assert_close(without - with_bias, torch.tensor([0.4, 0.0, 0.0]))


def test_samples_differ_if_the_noise_has_weights(trained: dict[str, Tensor]) -> None:
    net = network(trained)

    def diversity(strength: float) -> float:
        features = net.features(torch.stack([example.pixels for example in EXAMPLES]))
        net.init_noise_weights(features, strength, generator_at(1))
        samples = [
            draw_samples(net, e.pixels, Candidates(e.requirements), 8, generator_at(0))
            for e in EXAMPLES
        ]
        return sum(drawn.diversity for drawn in samples) / len(samples)

    assert diversity(0.0) == 0
    assert diversity(10.0) > 0.1


@pytest.mark.parametrize("noise_strength", [0.0, 0.5])
def test_noise_has_weights_after_the_initial_training(noise_strength: float) -> None:
    """Drawn, or learned if their strength is 0."""
    net = network()
    before = net.join_noise.weight.detach().clone()
    config = config_with(initial_steps=1, batch_size=1, noise_strength=noise_strength)
    train_from_seeds(net, EXAMPLES, config, trainer=trainer())
    assert not torch.equal(net.join_noise.weight, before)


def test_it_follows_the_prediction_network(trained: dict[str, Tensor]) -> None:
    """Loss tables in favour of the part change the labelling to it."""
    net, logger = network(trained), MemoryLogger()
    config = config_with(ScoringOptions(pairwise="none"), steps=40, lr=3e-3)
    before = sum(int(pointwise_labels(net, e)[PART] > 0) for e in EXAMPLES)
    train_direct_loss(net, favouring(PART), config, trainer=trainer(logger=logger))
    assert sum(int(pointwise_labels(net, e)[PART] > 0) for e in EXAMPLES) > before
    first, last = logger.lines[:5], logger.lines[-5:]
    assert sum(f["cross_diversity"] for f in last) < sum(f["cross_diversity"] for f in first)
    assert {"step", "loss", "grad_norm", "self_diversity", "changed_by_loss"} <= set(first[0])


@pytest.mark.parametrize(
    ("gamma", "changes"),
    [
        (0.5, {"pointwise": True}),
        (0.0, {}),
        (0.5, {"epsilon": 1.0}),
        (0.5, {"restrict_to_annotation": False}),
        (0.5, {"scoring": ScoringOptions("U")}),
        (
            0.5,
            {
                "scoring": ScoringOptions(
                    "U+P", pairwise="literal", overlap_denominator="later", select_all=True
                )
            },
        ),
    ],
)
def test_every_option_trains(gamma: float, changes: dict[str, Any]) -> None:
    net, logger = network(), MemoryLogger()
    before = net.classify.weight.detach().clone()
    config = config_with(steps=2, batch_size=2, **changes)
    options: Any = {"gamma": gamma, "trainer": trainer(logger=logger)}
    train_direct_loss(net, favouring(OBJECT), config, **options)
    assert all(torch.tensor(list(f.values())).isfinite().all() for f in logger.lines)
    assert not torch.equal(net.classify.weight, before)
    if changes.get("pointwise"):
        assert all(f["self_diversity"] == 0 for f in logger.lines)


@pytest.mark.parametrize("keep_better", [False, True])
@pytest.mark.parametrize("epsilon", [3.0, -3.0, 1.0])
def test_a_step_by_loops(epsilon: float, keep_better: bool) -> None:
    """Algorithm 2, one sample and one pair of samples after the other; and its gradient.

    With the literal scoring and without `keep_better`, as printed.
    """
    scoring = None if keep_better else preset("voc-r50-literal", ("a", "b")).conditional.scoring
    candidates = Candidates(EXAMPLES[0].requirements, scoring)
    classes = EXAMPLES[0].requirements.labels
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(3, len(candidates.regions), 2, generator=generator, requires_grad=True)
    table = 3 * torch.rand(len(candidates.regions), 2, generator=generator)
    training = replace(
        TRAINING, samples=3, epsilon=epsilon, diversity_weight=4.0, keep_better=keep_better
    )
    surrogate, _ = direct_step(unary, candidates, table, training, gamma=0.3)
    scores = candidates.scores(unary)

    def argmax(values: Tensor, otherwise: Tensor | None = None) -> Tensor:
        labels = candidates.infer(values[None].detach()).labels[0]
        if not keep_better or otherwise is None:
            return labels
        found, plain = (labelling_score(values, y, classes) for y in (labels, otherwise))
        return labels if found >= plain else otherwise

    y = [argmax(scores[k]) for k in range(3)]
    expected = torch.zeros(())
    changed = 0
    for k in range(3):
        score = labelling_score(scores[k], y[k], classes)
        towards = argmax(scores[k] + epsilon * table, y[k])
        changed += int(not torch.equal(towards, y[k]))
        expected = expected + (labelling_score(scores[k], towards, classes) - score) / epsilon / 3
        for other in range(3):
            if other != k:
                costs = 4.0 * disagreement_table(y[other], candidates.iou, classes)
                apart = argmax(scores[k] + epsilon * costs, y[k])
                changed += int(not torch.equal(apart, y[k]))
                other_score = labelling_score(scores[other], y[other], classes)
                gain = labelling_score(scores[k], apart, classes) - other_score
                expected = expected - 2 * 0.3 * gain / epsilon / 6
    assert changed > 0, "otherwise nothing is compared"
    assert surrogate.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-4)
    (expected_gradient,) = torch.autograd.grad(expected, unary)
    (gradient,) = torch.autograd.grad(surrogate, unary)
    assert expected_gradient.abs().max() > 0
    torch.testing.assert_close(gradient, expected_gradient)


def test_copies_of_a_region_count_as_background_once() -> None:
    """Two classes that share regions: the logged DIV(Pr_p, Pr_c) is that of P regions (eq. 11)."""
    regions = EXAMPLES[0].requirements.regions[:4]
    tags = Annotation(regions.size, (WeakLabel(1), WeakLabel(2)))
    candidates = Candidates(requirements_of(tags, regions), ScoringOptions(share_regions=True))
    generator = torch.Generator().manual_seed(0)
    unary = torch.randn(3, 4, 3, generator=generator)
    table = torch.rand(4, 3, generator=generator)
    _, figures = direct_step(unary, candidates, table, replace(TRAINING, samples=3))
    labels = candidates.infer(candidates.scores(unary)).labels.view(3, 2, 4)
    expected = 0.0
    for k in range(3):
        for u in range(4):
            classes = [j for j in (1, 2) if j in labels[k, :, u]]
            expected += sum(float(table[u, j]) for j in classes or [0]) / 3
    assert figures["cross_diversity"] == pytest.approx(expected, rel=1e-5)


def test_tables_are_clamped_in_training_unless_losses_have_no_bound() -> None:
    """With the default, log odds count up to 3; with the paper's unbounded losses as they are."""
    generator = torch.Generator().manual_seed(0)
    far, clamped = [], []
    for example in EXAMPLES:
        odds = 30 * torch.randn(len(example.requirements.regions), 1, generator=generator)
        rows = (torch.cat([torch.zeros_like(o), -o], dim=1) for o in (odds, odds.clamp(-3, 3)))
        far.append(replace(example, table=next(rows)))
        clamped.append(replace(example, table=next(rows)))

    def trained_on(examples: list[ConditionalExample], clamp: float | None) -> Tensor:
        net = network()
        config = replace(config_with(steps=2, batch_size=2), task_loss=TaskLossOptions(clamp=clamp))
        train_direct_loss(net, examples, config, trainer=trainer())
        return net.classify.weight.detach()

    assert torch.equal(trained_on(far, 6.0), trained_on(clamped, 6.0))
    assert not torch.equal(trained_on(far, None), trained_on(far, 6.0))


def test_figures_of_margins() -> None:
    unary, scores = torch.zeros(1, 3, 2), torch.zeros(1, 3, 2)
    unary[0, :, 1] = torch.tensor([1.0, 2.0, 3.0])
    scores[0, :, 1] = torch.tensor([5.0, 7.0, 9.0])
    assert margin_figures(unary, scores) == {
        "unary_std": pytest.approx(1.0),
        "unary_correlation": pytest.approx(1.0),
    }
    assert margin_figures(unary, -scores)["unary_correlation"] == pytest.approx(-1.0)
    assert margin_figures(unary[:, :0], scores[:, :0])["unary_std"] == 0


class Recorded(list[ConditionalExample]):
    """Examples that record the ids of those that are read."""

    def __getitem__(self, index: Any) -> Any:
        example = super().__getitem__(index)
        self.ids = [*getattr(self, "ids", []), example.image_id]
        return example


def test_rounds_have_their_images_in_another_order() -> None:
    first, second = Recorded(favouring(OBJECT)), Recorded(favouring(OBJECT))
    config = config_with(steps=1, batch_size=8)
    for name, examples in (("round 1", first), ("round 2", second)):
        train_direct_loss(network(), examples, config, name=name, trainer=trainer())
    assert set(first.ids) == set(second.ids) == set(range(8))
    assert first.ids != second.ids


@pytest.mark.parametrize("without_regions", [False, True])
def test_an_image_without_labels(without_regions: bool) -> None:
    regions = EXAMPLES[0].requirements.regions
    regions = regions[[]] if without_regions else regions
    requirements = requirements_of(Annotation((64, 64)), regions)
    example = ConditionalExample(
        "none", EXAMPLES[0].pixels, prepared(requirements, no_seeds((64, 64)))
    )
    samples = draw_samples(network(), example.pixels, example.candidates(), 3)
    assert len(samples.consensus()) == 0
    assert samples.diversity == 0
    net, config = network(), config_with(initial_steps=1, steps=1, batch_size=1)
    train_from_seeds(net, [example], config, trainer=trainer())
    with_table = replace(example, table=torch.zeros(len(regions), 1))
    train_direct_loss(net, [with_table], config, trainer=trainer())


@pytest.mark.parametrize("table", [None, torch.zeros(2, 2), torch.full((14, 2), torch.nan)])
def test_a_bad_table_is_reported_with_its_image(table: Tensor | None) -> None:
    examples = [replace(EXAMPLES[0], image_id="a.jpg", table=table)]
    with pytest.raises(InputError, match=r"step 1, image 'a\.jpg': a loss table of shape .*finite"):
        train_direct_loss(network(), examples, config_with(batch_size=1), trainer=trainer())


def test_all_votes_are_for_regions_that_contain_the_peak() -> None:
    targets, regions = EXAMPLES[0].targets(), EXAMPLES[0].requirements.regions
    assert targets.shape == (2, 64, 64)
    torch.testing.assert_close(targets.sum(dim=0), torch.ones(64, 64))
    torch.testing.assert_close(targets[1][regions.masks()[PART]], torch.ones(64))
    assert targets[0].max() > 0.9


def test_mirrored_examples() -> None:
    example = EXAMPLES[1]
    mirrored = example.mirrored()
    assert torch.equal(mirrored.pixels, example.pixels.flip(2))
    assert torch.equal(mirrored.targets(), example.targets().flip(2))
    assert torch.equal(mirrored.mirrored().targets(), example.targets())
    with pytest.raises(ValueError, match="mirrored"):
        mirrored.candidates()


def test_scores_are_in_full_precision_under_autocast() -> None:
    net, example = network(), EXAMPLES[0]
    candidates = example.candidates()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        features = net.features(example.pixels[None])[0]
        unary = net.unary(features, net.noise(2, features), candidates.regions, candidates.columns)
        assert candidates.scores(unary).dtype == torch.float32


def test_features_of_images_of_several_sizes() -> None:
    """Smaller images are padded with the mean colour, and the padding is cut off."""
    net = network()
    images = [torch.rand(3, 64, 48), torch.rand(3, 32, 64)]
    with torch.no_grad():
        features = batch_features(net, images)
        padded = net.mean[0].expand(3, 64, 64).clone()
        padded[:, :32] = images[1]
        expected = net.features(padded[None])[0, :, :16]
    assert [tuple(maps.shape) for maps in features] == [(32, 32, 24), (32, 16, 32)]
    torch.testing.assert_close(features[1], expected, rtol=1e-4, atol=1e-4)


def test_a_loss_that_is_not_finite_names_the_images() -> None:
    broken = [replace(EXAMPLES[0], pixels=torch.full((3, 64, 64), torch.nan), image_id="bad.jpg")]
    with pytest.raises(InputError, match=r"step 1, images \['bad.jpg'"):
        train_from_seeds(network(), broken, config_with(batch_size=1), trainer=trainer())


def test_the_literal_preset_trains() -> None:
    literal = preset("voc-r50-literal", ("red", "blue")).conditional
    config = replace(
        literal,
        architecture=replace(literal.architecture, trunk="tiny"),
        training=replace(literal.training, initial_steps=1, steps=1, batch_size=1, samples=2),
    )
    net = ConditionalNetwork(config.architecture)
    train_from_seeds(net, EXAMPLES, config, trainer=trainer())
    train_direct_loss(net, favouring(OBJECT), config, trainer=trainer())


def test_the_first_sample_has_no_noise_if_the_prediction_weight_varies() -> None:
    net, example = network(), EXAMPLES[0]
    torch.nn.init.normal_(net.join_noise.weight, std=3.0)
    plain = samples_of(net, example, CONFIG, 0)
    drawn = samples_of(net, example, CONFIG, generator=generator_at(0))
    assert (len(plain), len(drawn)) == (1, 4)
    assert torch.allclose(drawn.margins[0], plain.margins[0], atol=1e-5)
    assert not torch.equal(drawn.margins[1], plain.margins[0])
    fixed = config_with(ScoringOptions(prediction_weight_spread=0.0))
    noisy = samples_of(net, example, fixed, generator=generator_at(0))
    assert not torch.equal(noisy.margins[0], plain.margins[0])
