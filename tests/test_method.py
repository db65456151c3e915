"""The table of docs/method.md: its functions and options exist, and its options have an effect."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import annocoin
from annocoin.conditional.networks import ConditionalArchitecture, ConditionalNetwork
from annocoin.conditional.requirements import requirements_of
from annocoin.conditional.scoring import Candidates
from annocoin.engine.conditional_dataset import prepare_image
from annocoin.engine.conditional_training import (
    direct_step,
    train_direct_loss,
    train_from_seeds,
)
from annocoin.engine.config import Config
from annocoin.engine.labelling import loss_table, samples_of
from annocoin.engine.overrides import override
from annocoin.engine.prediction_training import train_prediction
from annocoin.engine.presets import PRESETS, preset
from annocoin.engine.pseudo_labels import PseudoLabels
from annocoin.engine.randomness import generator_at
from annocoin.engine.trainer import Trainer
from annocoin.prediction.networks import ResizedImage, batch_images, resize_shortest_side
from annocoin.prediction.region_scoring import score_regions
from annocoin.prediction.soft_losses import LossOptions, SoftLosses
from annocoin.regions.region_set import RegionSet
from annocoin.types import Annotation, Instances, WeakLabel
from conditional.worlds import annotation, seeds_at, stripes
from engine.worlds import square_example
from prediction.worlds import network, random_image, random_targets, small

SOURCE = Path(annocoin.__file__).parent
METHOD = SOURCE.parents[1] / "docs" / "method.md"
CLASSES = ("cat", "dog")
LITERAL = "voc-r50-literal"
SAME = "the same"


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    text = METHOD.read_text().split(f"\n## {heading}\n")[1]
    lines = text[text.index("\n|") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


ROWS = rows_of("Equations, options and defaults")
PRINTED = {
    name: (value, row[4])
    for row in ROWS
    for name, value in re.findall(r"`([a-z_.0-9]+)=([^`]+)`", row[3])
    if not name.startswith("annocoin")
}
"""The options of the table: their printed values, and what the table says about our default."""


@cache
def definitions(file: str) -> set[str]:
    """The functions and classes of a file, with the methods of classes."""
    names = set()
    for node in ast.parse((SOURCE / file).read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
            names |= {f"{node.name}.{method}" for method in methods}
    return names


def test_the_table_has_all_equations() -> None:
    assert len(ROWS) > 30
    assert len(PRINTED) > 45
    assert all(len(row) == 6 and row[3] for row in ROWS)
    mentioned = " ".join(row[0] for row in ROWS)
    numbers = {int(number) for number in re.findall(r"(?<=eq\. )\d+|(?<=\d, )\d+", mentioned)}
    assert numbers >= set(range(1, 12))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[1][:30]}")
def test_files_and_functions_exist(row: list[str]) -> None:
    places = row[2].split(";")
    assert places
    for place in places:
        file, *names = re.findall(r"`([^`]+)`", place)
        assert names
        assert set(names) <= definitions(file), place


def value_at(config: Any, name: str) -> Any:
    for part in name.split("."):
        config = getattr(config, part)
    return config


@pytest.mark.parametrize("name", PRINTED)
def test_the_literal_preset_has_the_printed_value(name: str) -> None:
    """Where the table says "the same", our default has it too; elsewhere a preset has another."""
    value, ours = PRINTED[name]
    literal = preset(LITERAL, CLASSES)
    assert override(literal, {name: value}) == literal
    printed = value_at(literal, name)
    if ours.startswith(SAME):
        assert value_at(preset("voc-r50", CLASSES), name) == printed
    else:
        row = next(row for row in ROWS if f"`{name}={value}`" in row[3])
        others = [n for n, _ in re.findall(r"`([a-z_.0-9]+)=([^`]+)`", row[3])]
        configs = [preset(n, CLASSES) for n in PRESETS if n != LITERAL]
        assert any(
            value_at(config, n) != value_at(literal, n) for config in configs for n in others
        ), "no option of this row departs from the paper in any preset"


def flattened(options: Any, prefix: str = "") -> dict[str, Any]:
    values = {}
    for item in fields(options):
        value = getattr(options, item.name)
        name = f"{prefix}{item.name}"
        values |= flattened(value, f"{name}.") if is_dataclass(value) else {name: value}
    return values


def test_every_departure_of_the_literal_preset_is_in_the_table() -> None:
    """But for the number of steps, which the rounds have instead of the last training."""
    ours, literal = (flattened(preset(name, CLASSES)) for name in ("voc-r50", LITERAL))
    different = {name for name, value in literal.items() if ours[name] != value}
    assert different - set(PRINTED) == {"prediction.training.steps"}


SIZES = (
    "baseline.", "classifier.backbone", "classifier.batch_size", "classifier.epochs",
    "classifier.frozen_layers", "classifier.head_lr", "classifier.peak_sharpness",
    "classifier.size", "prediction.architecture.", "conditional.architecture.size",
    "conditional.training.initial_steps", "conditional.training.steps", "seeds.threshold",
    "conditional.detection_scales", "conditional.scoring.nms_threshold",
    "conditional.scoring.vote_sharpness", "prediction.training.steps",
    "prediction.training.frozen_layers",
    "prediction.losses.anchors_per_image", "prediction.losses.rois_per_image",
    "prediction.losses.class_agnostic_masks", "prediction.weights", "rounds",
)  # fmt: skip
"""Sizes of networks and trainings, and constants that the paper does not give."""


@pytest.mark.parametrize("name", [name for name in PRESETS if name != LITERAL])
def test_the_departures_of_every_preset_are_in_the_table(name: str) -> None:
    config = replace(preset(name, CLASSES), teacher=None)
    ours, literal = (flattened(each) for each in (config, preset(LITERAL, CLASSES)))
    different = {name for name, value in literal.items() if ours[name] != value}
    precisions = {name for name in different if name.endswith("precision")}
    others = different - set(PRINTED) - precisions
    assert {name for name in others if not name.startswith(SIZES)} == set()


# Small problems, one for each part of the configuration.


def scored(config: Config) -> Tensor:
    """Scores and labels of regions of two classes, with a seed prior and a loss table."""
    rng = np.random.default_rng(0)
    ids = np.kron(np.arange(16).reshape(4, 4), np.ones((2, 2), dtype=int))
    members = rng.random((24, 16)) < 0.2
    members[np.arange(24), np.arange(24) % 16] = True
    regions = RegionSet.of(ids, members, edges=rng.random(ids.shape))
    requirements = requirements_of(Annotation((8, 8), (WeakLabel(1), WeakLabel(2))), regions)
    generator = torch.Generator().manual_seed(3)
    prior, table = torch.randn(24, 2, generator=generator), torch.rand(24, 3, generator=generator)
    scoring = config.conditional.scoring
    candidates = Candidates(requirements, scoring, seed_prior=prior, table=3 * table)
    scores = candidates.scores(torch.randn(6, 24, 3, generator=generator))
    return torch.cat([scores.flatten(), candidates.infer(scores).labels.flatten()])


def drawn(config: Config) -> Tensor:
    """Unary scores of a network without training."""
    torch.manual_seed(0)
    architecture = replace(config.conditional.architecture, size=64)
    net = ConditionalNetwork(architecture, "none").eval()
    torch.nn.init.normal_(net.join_noise.weight)
    torch.nn.init.normal_(net.classify.weight)
    torch.nn.init.normal_(net.classify.bias)
    with torch.no_grad():
        features = net.features(torch.rand(1, 3, 64, 64))[0]
        noise = net.noise(2, features, generator_at(1))
        return net.unary(features, noise, stripes([0], [1, 2], [3])).flatten()


def prepared(config: Config) -> Tensor:
    """The regions of an image with a tag and of one with a box, their requirements and targets."""
    regions = stripes([0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3], [3])
    results = []
    for label in (WeakLabel(1), WeakLabel(1, box=(0, 0, 4, 6))):
        seeds = seeds_at([(0.5, 3.0)], [1])
        seeds.responses[:] = torch.tensor([[0.9, 0.0], [0.1, 0.0]])
        image = SimpleNamespace(
            annotation=annotation(label), pixels=lambda: np.zeros((6, 8, 3), dtype=np.uint8)
        )
        result = prepare_image(image, regions, seeds, config.conditional)  # type: ignore[arg-type]
        parts = [result.requirements.regions.areas, result.requirements.required[0].compatible]
        parts += [result.requirements.extra_allowed, result.pixel_targets(), result.seed_prior]
        results += [part.float().flatten() for part in parts]
    return torch.cat(results)


@cache
def region_scores(mask_scored_regions: int | None) -> Any:
    ids = np.kron(np.arange(6).reshape(2, 3), np.ones((24, 24), dtype=int))
    regions = RegionSet.of(ids, np.eye(6, dtype=bool))
    resized = resize_shortest_side(np.full((48, 72, 3), 99, dtype=np.uint8), 64, 128)
    net = network().eval()
    for layer in (net.roi_heads.box_predictor.cls_score, net.roi_heads.box_predictor.bbox_pred):
        layer.weight.data *= 20  # type: ignore[operator, union-attr]
    limit = mask_scored_regions
    return score_regions(net, resized, regions, (1, 3), mask_scored_regions=limit)


def tabled(config: Config) -> Tensor:
    """The loss table of six regions."""
    scores = region_scores(config.conditional.task_loss.mask_scored_regions)
    return loss_table(scores, config.conditional).flatten()


def directed(config: Config) -> Tensor:
    """The direct loss gradient of a small image."""
    example = square_example(0)
    candidates = example.candidates(replace(config.conditional.scoring, pairwise="none"))
    generator = torch.Generator().manual_seed(0)
    count, columns = len(candidates.regions), len(candidates.columns)
    table = 4 * torch.rand(count, columns, generator=generator)
    unary = torch.randn(4, count, columns, generator=generator, requires_grad=True)
    surrogate, _ = direct_step(unary, candidates, table, config.conditional.training, config.gamma)
    (gradient,) = torch.autograd.grad(surrogate, unary)
    return gradient.flatten()


def sampled(config: Config) -> Tensor:
    """The number of samples that are drawn."""
    torch.manual_seed(0)
    architecture = replace(config.conditional.architecture, size=64, classes=CLASSES)
    net = ConditionalNetwork(architecture, "none").eval()
    return samples_of(net, square_example(0), config.conditional).labels


def losses(config: Config) -> Tensor:
    """The losses of the prediction network."""
    module = SoftLosses(network(), config.prediction.losses, config.gamma)
    images = batch_images([ResizedImage(random_image(0), (64, 96))])
    result = module(images, [random_targets(0)], [torch.ones(4)], [generator_at(0)])
    return torch.stack([result[name].detach() for name in sorted(result)])


def boxed(config: Config) -> Tensor:
    """The boxes of the pseudo labels of a box."""
    label = annotation(WeakLabel(1, box=(0, 0, 3.5, 6)))
    regions = stripes([0], [0, 1], [0, 1, 2], [3])
    candidates = Candidates(requirements_of(label, regions))
    samples = candidates.samples(candidates.scores(torch.zeros(2, len(regions), 2)))
    annotated = config.conditional.annotated_boxes
    return PseudoLabels.from_samples(samples, label, annotated_boxes=annotated).instances.boxes


def weights_of(net: torch.nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in net.parameters()])


def fitted(config: Config) -> Tensor:
    """The conditional network after short trainings, from seeds and with tables."""
    torch.manual_seed(0)
    architecture = ConditionalArchitecture(CLASSES, "tiny", size=64)
    net = ConditionalNetwork(architecture, "none").eval()
    training = replace(config.conditional.training, initial_steps=4, steps=4, samples=2)
    options = replace(config.conditional, architecture=architecture, training=training)
    examples = [square_example(number) for number in range(4)]
    train_from_seeds(net, examples, options, trainer=Trainer(workers=0))
    generator = torch.Generator().manual_seed(0)
    tables = [
        40 * torch.rand(len(e.requirements.regions), 2, generator=generator) for e in examples
    ]
    tabled = [replace(e, table=table) for e, table in zip(examples, tables, strict=True)]
    train_direct_loss(net, tabled, options, trainer=Trainer(workers=0))
    return weights_of(net)


def predicted(config: Config) -> Tensor:
    """The prediction network after a short training."""
    size = (64, 96)
    mask = np.zeros((1, *size), dtype=bool)
    mask[0, 10:40, 20:70] = True
    labels = PseudoLabels.single(Instances(size=size, masks=mask, labels=[1]))
    pixels = (255 * random_image(0)).permute(1, 2, 0).byte().numpy()
    image: Any = SimpleNamespace(image_id="a", pixels=lambda: pixels)
    training = replace(config.prediction.training, batch_size=1)
    losses = LossOptions(anchors_per_image=16, rois_per_image=8)
    options = replace(config.prediction, architecture=small(), losses=losses, training=training)
    net = network()
    train_prediction(net, options, [image], {"a": labels}, steps=4, trainer=Trainer(workers=0))
    return weights_of(net)


PROBLEMS: dict[str, Callable[[Config], Tensor]] = {
    "conditional.scoring.mask_threshold": sampled,
    "conditional.scoring.": scored,
    "conditional.architecture.": drawn,
    "conditional.task_loss.": tabled,
    "conditional.training.restrict_to_annotation": tabled,
    "conditional.training.epsilon": directed,
    "conditional.training.diversity_weight": directed,
    "conditional.training.keep_better": directed,
    "gamma": directed,
    "conditional.training.pointwise": sampled,
    "conditional.training.samples": sampled,
    "conditional.training.targets": prepared,
    "conditional.training.": fitted,
    "conditional.annotated_boxes": boxed,
    "conditional.box_allows_extra": prepared,
    "conditional.require_peak": prepared,
    "conditional.top_regions": prepared,
    "conditional.best_fit_share": prepared,
    "conditional.box_overlap": prepared,
    "prediction.losses.": losses,
    "prediction.training.": predicted,
}
"""The small problem that an option has an effect on, by the beginning of its name."""

ACCEPTED = (
    "seeds.", "classifier.peak_fraction", "prediction.training.final_steps",
    "prediction.training.continued", "teacher", "conditional.evidence", "conditional.tables",
    "conditional.average_tables",
)  # fmt: skip
"""Options of whole stages, which have tests of their own."""

OTHERS = {
    "conditional.training.max_grad_norm": {"conditional.training.max_grad_norm": "0.1"},
    "conditional.training.keep_better": {
        "conditional.training.epsilon": "1",
        "conditional.scoring.select_all": "true",
        "conditional.scoring.overlap_denominator": "later",
    },
    "conditional.training.lr_milestones": {
        "conditional.training.lr_milestones": "[0.2,0.4]",
        "conditional.training.lr_factors": "[0.5,0.1]",
    },
    "conditional.training.lr_factors": {
        "conditional.training.lr_milestones": "[0.3,0.6]",
        "conditional.training.lr_factors": "[0.9,0.8]",
    },
    "prediction.training.lr_milestones": {
        "prediction.training.lr_milestones": "[0.2]",
        "prediction.training.lr_factors": "[0.1]",
    },
    "prediction.training.lr_factors": {
        "prediction.training.lr_milestones": "[0.3]",
        "prediction.training.lr_factors": "[0.9]",
    },
    "prediction.training.backbone_lr_factor": {"prediction.training.backbone_lr_factor": "0.1"},
    "prediction.training.scale_range": {"prediction.training.scale_range": "[0.6,0.9]"},
    "prediction.training.max_grad_norm": {"prediction.training.max_grad_norm": "0.1"},
    "conditional.scoring.extra_margin": {"conditional.scoring.prediction_weight": "0"},
    "conditional.scoring.iterations": {"conditional.scoring.pairwise": "literal"},
    "conditional.scoring.delta": {"conditional.scoring.pairwise": "literal"},
    "conditional.scoring.difference": {"conditional.scoring.pairwise": "literal"},
    "conditional.scoring.share_regions": {"conditional.scoring.cross_class_nms_threshold": "1"},
    "conditional.architecture.upsample": {"conditional.architecture.trunk": "resnet18"},
    "conditional.training.restrict_to_annotation": {"conditional.task_loss.clamp": "null"},
    "conditional.best_fit_share": {"conditional.box_overlap": "0.3"},
    "conditional.box_overlap": {"conditional.best_fit_share": "0"},
}
"""What else a small problem needs for an option to have an effect."""

DIFFERENT = {
    "conditional.scoring.terms": "U",
    "conditional.scoring.iterations": "1",
    "conditional.scoring.delta": "1",
    "conditional.scoring.extra_margin": "0.1",
    "conditional.scoring.instance_penalty": "3",
    "conditional.scoring.local_search": "true",
    "conditional.architecture.pool_over": "region",
    "conditional.architecture.trunk": "tiny",
    "conditional.task_loss.mask_scored_regions": "2",
    "conditional.task_loss.box": "true",
    "conditional.training.pointwise": "true",
    "conditional.training.samples": "3",
    "conditional.training.diversity_weight": "9",
    "conditional.top_regions": "6",
    "conditional.box_overlap": "0.9",
    "prediction.losses.pointwise": "true",
    "gamma": "0",
}
"""Values that are not printed, where the default of the small problem is the printed one."""


@pytest.mark.parametrize("name", [name for name in PRINTED if not name.startswith(ACCEPTED)])
def test_an_option_changes_the_result(name: str) -> None:
    problem = next(problem for start, problem in PROBLEMS.items() if name.startswith(start))
    base = override(preset("synthetic", CLASSES), {
        "prediction.losses.pointwise": "false",
        "conditional.scoring.local_search": "false",
        "conditional.scoring.instance_penalty": "0",
        "conditional.scoring.seed_prior_weight": "1",
        "conditional.scoring.nms_threshold": "0.3",
        **OTHERS.get(name, {}),
    })  # fmt: skip
    printed = override(base, {name: PRINTED[name][0]})
    other = override(base, {name: DIFFERENT[name]}) if name in DIFFERENT else base
    first, second, again = problem(printed), problem(other), problem(printed)
    assert torch.equal(first, again), "the problem itself is random"
    assert first.shape != second.shape or not torch.equal(first, second)


@pytest.mark.parametrize("name", [name for name in PRINTED if name.startswith(ACCEPTED)])
def test_other_options_are_accepted(name: str) -> None:
    assert value_at(override(preset("voc-r50", CLASSES), {name: PRINTED[name][0]}), name) == (
        value_at(preset(LITERAL, CLASSES), name)
    )
