"""From a dataset with regions and seeds to cases, presets and samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from annocoin.conditional.networks import ConditionalNetwork
from annocoin.data.dataset import WeakDataset
from annocoin.data.loading import load_evaluation, load_labelled, load_weak
from annocoin.engine.classifier_training import options_for
from annocoin.engine.conditional_dataset import ConditionalDataset
from annocoin.engine.conditional_training import train_from_seeds
from annocoin.engine.dataset_stages import make_regions, make_seeds
from annocoin.engine.presets import conditional_preset
from annocoin.errors import InputError
from annocoin.regions.proposals import RegionOptions
from annocoin.regions.storage import RegionFolder
from annocoin.report.figures import picture_of_samples
from annocoin.seeds.seed_set import SeedFolder

Made = tuple[WeakDataset, RegionFolder, SeedFolder]


@pytest.fixture(scope="module")
def made(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    root = tmp_path_factory.mktemp("cases")
    labelled = load_labelled(scenes)
    regions = make_regions(labelled, root / "r", RegionOptions("gradient", limit=80), jobs=1)
    found = {}
    for supervision in ("image", "box"):
        weak = load_weak(scenes, supervision)
        options = options_for("tiny", size=64, epochs=1, batch=4)
        seeds = make_seeds(weak, regions, root / supervision, classifier=options, jobs=1)
        found[supervision] = (weak, regions, seeds)
    return found


@pytest.mark.parametrize("supervision", ["image", "box"])
def test_cases(made: dict[str, Made], supervision: str) -> None:
    weak, regions, seeds = made[supervision]
    cases = ConditionalDataset(weak, regions, seeds, size=64, best=20)
    assert len(cases) == len(weak) == 8
    assert [case.image_id for case in cases[2:4]] == [weak[2].image_id, weak[3].image_id]
    for case, image in zip(cases, weak, strict=True):
        assert case.image_id == image.image_id
        assert case.pixels.shape == (3, 64, 64)
        assert case.requirements.labels == image.annotation.distinct_labels
        assert case.targets().shape == (1 + len(case.requirements.labels), 64, 64)
        left = len(case.requirements.regions) - case.requirements.added
        assert left <= len(regions[image.image_id])
        if supervision == "box":
            assert len(case.requirements.required) == len(image.annotation)
            assert not case.requirements.further.any()
    whole = ConditionalDataset(weak, regions, seeds, size=64, filtered=False)
    assert len(whole[0].requirements.regions) >= len(cases[0].requirements.regions)


def test_a_preset_from_seeds_to_labels(made: dict[str, Made], scenes: Path) -> None:
    weak, regions, seeds = made["image"]
    truth = load_evaluation(scenes)
    for name in ("default", "paper-literal"):
        chosen = conditional_preset(name, weak.classes, trunk="tiny")
        chosen = replace(
            chosen,
            architecture=replace(chosen.architecture, size=64),
            learning=replace(chosen.learning, initial_steps=2, batch=2, samples=3),
        )
        cases = chosen.cases(weak, regions, seeds)
        literal = name == "paper-literal"
        assert all(held.shape[1] == 0 for held in cases[0].requirements.peaks) == literal
        assert (cases[0].candidates(chosen.learning.scoring).prior is None) == literal
        net = ConditionalNetwork(chosen.architecture)
        train_from_seeds(net, cases, chosen.learning)
        samples = chosen.samples(net, cases[0])
        assert len(samples) == 3
        assert all(cases[0].requirements.met_by(labels) for labels in samples.labels)
        assert len(chosen.samples(net, cases[0], 5)) == 5
        labels = samples.consensus()
        assert set(labels.labels.tolist()) == set(weak[0].annotation.distinct_labels)
        assert bool(((labels.confidence >= 0) & (labels.confidence <= 1)).all())
        picture = picture_of_samples(
            weak[0].pixels(),
            weak[0].annotation,
            samples,
            weak.classes,
            truth.truth(weak[0].image_id),
        )
        assert picture.shape[1] > 5 * picture.shape[0] * 0.9  # tags, three, consensus, truth
        assert picture.std() > 10
    pointwise = replace(chosen, learning=replace(chosen.learning, pointwise=True))
    assert len(pointwise.samples(net, cases[0])) == 1


def test_cases_without_regions_or_seeds(made: dict[str, Made]) -> None:
    weak, regions, seeds = made["image"]
    renamed = replace(weak, images=tuple(replace(i, image_id=f"x{i.image_id}") for i in weak))
    with pytest.raises(InputError, match="run `annocoin regions`"):
        ConditionalDataset(renamed, regions, seeds, size=64)


def test_seeds_of_another_supervision(made: dict[str, Made]) -> None:
    boxes, regions, _ = made["box"]
    _, _, seeds_of_tags = made["image"]
    cases = ConditionalDataset(boxes, regions, seeds_of_tags, size=64)
    wrong = [i for i in boxes if len(i.annotation) > len(i.annotation.distinct_labels)]
    assert wrong, "a scene with two creatures of a class"
    with pytest.raises(InputError, match="run `annocoin seeds` again"):
        list(cases)


def test_other_classes(made: dict[str, Made]) -> None:
    weak, regions, seeds = made["image"]
    chosen = conditional_preset("default", tuple(reversed(weak.classes)), trunk="tiny")
    cases = chosen.cases(weak, regions, seeds)
    torch.manual_seed(0)
    with pytest.raises(InputError, match="the dataset has"):
        train_from_seeds(ConditionalNetwork(chosen.architecture), cases, chosen.learning)
