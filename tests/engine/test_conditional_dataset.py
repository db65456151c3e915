"""Prepared images: computed once, equal to what is computed anew, complete in their files."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from annocoin import masks
from annocoin.conditional.networks import ConditionalArchitecture, ConditionalNetwork
from annocoin.conditional.requirements import Requirements, requirements_of
from annocoin.conditional.scoring import map_prior, seed_prior, seed_votes
from annocoin.data.dataset import WeakDataset
from annocoin.engine import conditional_dataset
from annocoin.engine.conditional_dataset import (
    ConditionalDataset,
    PreparedFolder,
    PreparedImage,
    prepare_image,
    prepare_images,
    with_artefacts,
    write_prepared,
)
from annocoin.engine.conditional_training import train_direct_loss, train_from_seeds
from annocoin.engine.image_stages import Execution
from annocoin.engine.network_config import ConditionalConfig, ConditionalTraining, Evidence, Targets
from annocoin.engine.trainer import Trainer
from annocoin.errors import InputError, Problems
from annocoin.seeds.evidence import class_shares, share_labels
from annocoin.seeds.region_filter import filter_regions, seed_pixels
from annocoin.types import Annotation, WeakLabel
from engine.worlds import Artefacts, no_seeds

CLASSES = ("ringtail", "crossbill", "starfish", "zebra", "checkerspot", "moonfish")
TRAINING = ConditionalTraining(initial_steps=2, steps=2, batch_size=4, samples=2)
CONFIG = ConditionalConfig(
    ConditionalArchitecture(CLASSES, "tiny", size=64), training=TRAINING, top_regions=20
)
PIXELS = replace(CONFIG, training=replace(TRAINING, targets="pixels"), require_peak=False)
MAPS = replace(CONFIG, training=replace(TRAINING, targets="maps"), evidence="maps")
SERIAL = Execution(jobs=1)


def trainer(**options: Any) -> Trainer:
    return Trainer(workers=0, **options)


def network() -> ConditionalNetwork:
    torch.manual_seed(0)
    return ConditionalNetwork(CONFIG.architecture, "imagenet")


def prepare(
    artefacts: Artefacts, supervision: str, out: Path, config: ConditionalConfig = CONFIG
) -> PreparedFolder:
    weak, seeds = artefacts.weak[supervision], artefacts.seeds[supervision]
    return prepare_images(weak, artefacts.regions, seeds, out, config, SERIAL)


@pytest.fixture(scope="module")
def folder(artefacts: Artefacts, tmp_path_factory: pytest.TempPathFactory) -> PreparedFolder:
    """The eight scenes with tags; tests must not change them."""
    return prepare(artefacts, "image", tmp_path_factory.mktemp("prepared") / "p")


def assert_same_requirements(first: Requirements, second: Requirements) -> None:
    assert torch.equal(first.regions.membership, second.regions.membership)
    assert torch.equal(first.regions.superpixels, second.regions.superpixels)
    assert torch.equal(first.regions.scores, second.regions.scores)
    torch.testing.assert_close(first.regions.edge_strength, second.regions.edge_strength)
    assert first.labels == second.labels
    assert len(first.required) == len(second.required)
    for ours, theirs in zip(first.required, second.required, strict=True):
        assert torch.equal(ours.compatible, theirs.compatible)
        assert (ours.label, ours.annotation_index, ours.allows_extra) == (
            theirs.label,
            theirs.annotation_index,
            theirs.allows_extra,
        )
    assert torch.equal(first.extra_allowed, second.extra_allowed)
    assert all(torch.equal(a, b) for a, b in zip(first.peaks, second.peaks, strict=True))
    assert first.num_fallbacks == second.num_fallbacks


def assert_same(first: PreparedImage, second: PreparedImage) -> None:
    assert_same_requirements(first.requirements, second.requirements)
    assert torch.equal(first.seed_prior, second.seed_prior)
    assert torch.equal(first.targets, second.targets)


def naive_vote_targets(requirements: Requirements, votes: Tensor, labels: Tensor) -> Tensor:
    """The soft labels of every pixel, by loops over classes and superpixels."""
    regions = requirements.regions
    count = regions.membership.shape[1]
    table = torch.zeros(len(requirements.labels) + 1, count)
    for s in range(count):
        inside = regions.membership[:, s]
        for j, label in enumerate(requirements.labels, start=1):
            of_class = [float(row[inside].sum()) for row in votes[labels == label]]
            table[j, s] = max(of_class, default=0.0)
        table[0, s] = max(0.0, 1 - float(table[1:, s].max()))
        table[:, s] /= table[:, s].sum()
    return table[:, regions.superpixels.long()]


@pytest.mark.parametrize("supervision", ["image", "box", "point", "mixed"])
def test_files_hold_what_is_computed_anew(
    artefacts: Artefacts, tmp_path: Path, supervision: str
) -> None:
    """Step by step from annotation, regions and seeds, without `prepare_image`."""
    folder = prepare(artefacts, supervision, tmp_path / "p")
    weak, seed_folder = artefacts.weak[supervision], artefacts.seeds[supervision]
    assert list(folder) == [image.image_id for image in weak]
    for image in weak:
        stored, seeds = folder[image.image_id], seed_folder[image.image_id]
        regions = artefacts.regions[image.image_id]
        kept = filter_regions(regions, seeds, image.annotation, top_regions=20)
        requirements = requirements_of(
            image.annotation, regions[kept], seeds=seeds, image=image.pixels()
        )
        assert_same_requirements(stored.requirements, requirements)
        votes = seed_votes(requirements, seeds)
        torch.testing.assert_close(stored.seed_prior, seed_prior(requirements, seeds, votes))
        naive = naive_vote_targets(requirements, votes, seeds.labels)
        torch.testing.assert_close(stored.pixel_targets(), naive, rtol=1e-4, atol=1e-5)
        assert_same(stored, prepare_image(image, regions, seeds, CONFIG))
        if supervision == "box":
            assert len(requirements.required) == len(image.annotation)
            assert not requirements.extra_allowed.any()


@pytest.mark.parametrize("supervision", ["image", "box", "point", "mixed"])
def test_images_with_tags_only_have_evidence_from_maps_and_others_from_votes(
    artefacts: Artefacts, tmp_path: Path, supervision: str
) -> None:
    folder = prepare(artefacts, supervision, tmp_path / "p", MAPS)
    from_maps = 0
    for image in artefacts.weak[supervision]:
        regions = artefacts.regions[image.image_id]
        stored, seeds = folder[image.image_id], artefacts.seeds[supervision][image.image_id]
        by_votes = prepare_image(image, regions, seeds, CONFIG)
        assert_same_requirements(stored.requirements, by_votes.requirements)
        if not all(label.kind == "tag" for label in image.annotation):
            assert_same(stored, by_votes)
            continue
        from_maps += 1
        requirements = stored.requirements
        shares = class_shares(requirements.regions, seeds, requirements.labels)
        torch.testing.assert_close(stored.seed_prior, map_prior(requirements.regions, shares))
        torch.testing.assert_close(stored.targets, share_labels(shares))
        assert stored.pixel_targets().shape == (1 + len(requirements.labels), 64, 64)
        assert not torch.allclose(stored.seed_prior, by_votes.seed_prior)
    assert from_maps == (8 if supervision == "image" else 0)


@pytest.mark.parametrize("evidence", ["votes", "maps"])
@pytest.mark.parametrize("targets", ["votes", "maps", "pixels"])
def test_evidence_and_targets_are_chosen_separately(
    artefacts: Artefacts, evidence: Evidence, targets: Targets
) -> None:
    image = artefacts.weak["image"][1]
    regions, seeds = artefacts.regions[image.image_id], artefacts.seeds["image"][image.image_id]
    config = replace(CONFIG, training=replace(TRAINING, targets=targets), evidence=evidence)
    prepared = prepare_image(image, regions, seeds, config)
    prior_of = prepare_image(image, regions, seeds, replace(CONFIG, evidence=evidence))
    assert torch.equal(prepared.seed_prior, prior_of.seed_prior)
    targets_of = replace(CONFIG, training=replace(TRAINING, targets=targets))
    assert torch.equal(prepared.targets, prepare_image(image, regions, seeds, targets_of).targets)
    total = prepared.pixel_targets().sum(dim=0)
    torch.testing.assert_close(total, torch.ones(64, 64))


def test_training_from_class_maps(artefacts: Artefacts, tmp_path: Path) -> None:
    folder = prepare(artefacts, "image", tmp_path / "p", MAPS)
    examples = ConditionalDataset(artefacts.weak["image"], folder, size=64)
    net, before = network(), network().state_dict()
    train_from_seeds(net, examples, MAPS, trainer=trainer())
    assert any(not torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_pixel_targets_by_loops(artefacts: Artefacts, tmp_path: Path) -> None:
    """As the paper's: seeds' pixels are of their classes in equal parts, others of background."""
    folder = prepare(artefacts, "image", tmp_path / "p", PIXELS)
    shared = 0
    for image in artefacts.weak["image"]:
        seeds, stored = artefacts.seeds["image"][image.image_id], folder[image.image_id]
        labels = stored.requirements.labels
        assert all(contains.shape[1] == 0 for contains in stored.requirements.peaks)
        pixels = seed_pixels(seeds)
        targets = stored.pixel_targets()
        assert targets.shape == (1 + len(labels), 64, 64)
        for y, x in [(0, 0), (20, 31), (40, 40), *seeds.points.long().flip(1).tolist()]:
            y, x = min(y, 63), min(x, 63)
            present = {int(seeds.labels[n]) for n in range(len(seeds)) if pixels[n, y, x]}
            shared += len(present) > 1
            expected = [float(not present)]
            expected += [(label in present) / max(1, len(present)) for label in labels]
            assert targets[:, y, x].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("targets", ["votes", "pixels"])
def test_a_box_without_a_fitting_region_has_a_fallback_from_grab_cut(
    artefacts: Artefacts, tmp_path: Path, targets: Targets
) -> None:
    image = artefacts.weak["box"][0]
    regions, seeds = artefacts.regions[image.image_id], artefacts.seeds["box"][image.image_id]
    index = int(seeds.annotation_index[0])
    box = image.annotation[index].box
    assert box is not None
    unfit = regions[regions.box_iou([box])[:, 0] < 0.3]
    config = replace(CONFIG, training=replace(TRAINING, targets=targets))
    prepared = prepare_image(image, unfit, seeds, config)
    requirements = prepared.requirements
    assert requirements.num_fallbacks >= 1
    (required,) = [r for r in requirements.required if r.annotation_index == index]
    (fallback,) = requirements.regions[required.compatible].masks().numpy()
    x0, y0, x1, y1 = masks.boxes(masks.encode(fallback[None]))[0].tolist()
    assert (x0 >= int(box[0]), y0 >= int(box[1]), x1 <= box[2] + 1, y1 <= box[3] + 1) == (True,) * 4
    write_prepared(tmp_path / "a.npz", prepared)
    read = conditional_dataset.FORMAT.read(tmp_path / "a.npz", conditional_dataset._decode)
    assert_same(read, prepared)


def test_an_image_without_labels_or_regions(artefacts: Artefacts, tmp_path: Path) -> None:
    image = replace(artefacts.weak["image"][0], annotation=Annotation((64, 64)))
    regions = artefacts.regions[image.image_id]
    for selected in (regions, regions[[]]):
        for config in (CONFIG, PIXELS, MAPS):
            prepared = prepare_image(image, selected, no_seeds((64, 64)), config)
            write_prepared(tmp_path / "a.npz", prepared)
            read = conditional_dataset.FORMAT.read(tmp_path / "a.npz", conditional_dataset._decode)
            assert_same(read, prepared)
            assert read.pixel_targets().tolist() == torch.ones(1, 64, 64).tolist()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The ids of the images that are prepared from now on."""
    ids: list[object] = []

    def recorded(image: Any, *args: Any) -> PreparedImage:
        ids.append(image.image_id)
        return prepare_image(image, *args)

    monkeypatch.setattr(conditional_dataset, "prepare_image", recorded)
    return ids


def test_images_are_prepared_once(
    artefacts: Artefacts, tmp_path: Path, calls: list[object]
) -> None:
    first = prepare(artefacts, "image", tmp_path / "p")
    assert calls == list(first)
    examples = ConditionalDataset(artefacts.weak["image"], first, size=64)
    train_from_seeds(network(), examples, CONFIG, trainer=trainer())
    second = prepare(artefacts, "image", tmp_path / "p")
    assert len(calls) == 8, "neither training nor a second stage prepares them again"
    removed, damaged = list(second.files)[:2]
    second.files[removed].unlink()
    second.files[damaged].write_bytes(b"nonsense")
    third = prepare(artefacts, "image", tmp_path / "p")
    assert calls[8:] == [removed, damaged]
    for image_id in (removed, damaged):
        assert_same(third[image_id], first[image_id])


def test_other_options_need_another_folder(artefacts: Artefacts, folder: PreparedFolder) -> None:
    for change in ({"top_regions": 5}, {"require_peak": False}, {"evidence": "maps"}):
        with pytest.raises(InputError, match=f"made with {next(iter(change))}"):
            prepare(artefacts, "image", folder.path, replace(CONFIG, **change))
    config = replace(CONFIG, training=PIXELS.training)
    with pytest.raises(InputError, match="made with targets votes, now it is pixels"):
        prepare(artefacts, "image", folder.path, config)


def test_damaged_files_are_one_line(folder: PreparedFolder, tmp_path: Path) -> None:
    path = next(iter(folder.files.values()))
    with np.load(path) as file:
        arrays = dict(file)
    damages: dict[str, Callable[[], dict[str, Any]]] = {
        "requirement_bits": lambda: {**arrays, "requirement_bits": arrays["requirement_bits"][1:]},
        "seed_prior": lambda: {**arrays, "seed_prior": arrays["seed_prior"][0]},
        "targets": lambda: {k: v for k, v in arrays.items() if k != "targets"},
        "version": lambda: {**arrays, "version": np.asarray(99)},
    }
    for name, damage in damages.items():
        np.savez(tmp_path / f"{name}.npz", **damage())
        with pytest.raises(InputError, match="not a file of prepared images"):
            folder.read(tmp_path / f"{name}.npz")


def test_examples_by_position(artefacts: Artefacts, folder: PreparedFolder) -> None:
    weak = artefacts.weak["image"]
    examples = ConditionalDataset(weak, folder, size=48)
    assert len(examples) == len(weak) == 8
    for index, image in enumerate(weak):
        example = examples[index]
        assert example.image_id == examples.image_id(index) == image.image_id
        assert example.pixels.shape == (3, 48, 48)
        assert example.requirements.labels == image.annotation.distinct_labels
        assert example.targets().shape == (1 + len(example.requirements.labels), 64, 64)
        assert example.table is None
        candidates = example.candidates(CONFIG.scoring)
        assert candidates.seed_prior is not None
    copied = pickle.loads(pickle.dumps(examples))
    assert torch.equal(copied[3].pixels, examples[3].pixels)


def tables_of(folder: PreparedFolder) -> dict[Any, Tensor]:
    return {
        i: torch.rand(p.seed_prior.shape[0], p.seed_prior.shape[1] + 1) for i, p in folder.items()
    }


def test_images_without_a_loss_table_are_left_out(
    artefacts: Artefacts, folder: PreparedFolder
) -> None:
    weak, tables = artefacts.weak["image"], tables_of(folder)
    missing = weak[2].image_id
    del tables[missing]
    examples = ConditionalDataset(weak, folder, size=64, tables=tables)
    assert [examples.image_id(i) for i in range(7)] == [
        image.image_id for image in weak if image.image_id != missing
    ]
    assert torch.equal(examples[2].table, tables[weak[3].image_id])  # type: ignore[arg-type]
    train_direct_loss(network(), examples, CONFIG, trainer=trainer())
    with pytest.raises(InputError, match="no image of the dataset is prepared there"):
        ConditionalDataset(weak, folder, size=64, tables={})


def with_broken_image(weak: WeakDataset, path: Path, index: int = 5) -> WeakDataset:
    """The dataset with one image truncated after its size."""
    content = weak[index].path.read_bytes()
    path.write_bytes(content[:-600])
    broken = replace(weak[index], path=path)
    return replace(weak, images=(*weak[:index], broken, *weak[index + 1 :]))


def test_an_image_that_became_unreadable_is_skipped_or_named_in_training(
    artefacts: Artefacts, folder: PreparedFolder, tmp_path: Path
) -> None:
    weak = with_broken_image(artefacts.weak["image"], tmp_path / "b.jpg")
    image_id = str(weak[5].image_id)
    examples = ConditionalDataset(weak, folder, size=64, tables=tables_of(folder))
    for train in (train_from_seeds, train_direct_loss):
        with pytest.raises(InputError, match=image_id):
            train(network(), examples, CONFIG, trainer=trainer())
        problems = Problems(skip=True)
        net = network()
        before = net.classify.weight.detach().clone()
        train(net, examples, CONFIG, trainer=trainer(problems=problems))
        assert not torch.equal(net.classify.weight, before)
        assert len(problems.skipped) == 1
        assert image_id in problems.skipped[0]


def test_an_unreadable_image_is_not_prepared(artefacts: Artefacts, tmp_path: Path) -> None:
    weak = with_broken_image(artefacts.weak["image"], tmp_path / "b.jpg")
    arguments = (weak, artefacts.regions, artefacts.seeds["image"], tmp_path / "p", CONFIG)
    with pytest.raises(InputError, match=r"b\.jpg"):
        prepare_images(*arguments, SERIAL)
    execution = Execution(jobs=1, problems=Problems(skip=True))
    folder = prepare_images(*arguments, execution)
    assert set(folder) == {image.image_id for image in weak} - {weak[5].image_id}
    assert len(execution.problems.skipped) == 1


def test_images_without_regions_or_seeds(artefacts: Artefacts, tmp_path: Path) -> None:
    weak = artefacts.weak["image"]
    renamed = replace(weak, images=tuple(replace(i, image_id=f"x{i.image_id}") for i in weak))
    folders = (artefacts.regions, artefacts.seeds["image"])
    with pytest.raises(InputError, match=r"nothing for image 'x"):
        prepare_images(renamed, *folders, tmp_path / "p", CONFIG, SERIAL)
    mixed = replace(weak, images=(*renamed.images[:3], *weak.images[3:]))
    problems = Problems(skip=True)
    assert len(with_artefacts(mixed, *folders, problems)) == 5
    assert len(problems.skipped) == 3


def test_seeds_of_another_supervision_are_refused(artefacts: Artefacts, tmp_path: Path) -> None:
    """Also where each image has one object per class, so that numbers and classes agree."""
    tags, boxes = artefacts.weak["image"], artefacts.weak["box"]
    of_tags, of_boxes = artefacts.seeds["image"], artefacts.seeds["box"]
    for weak, seeds in ((boxes, of_tags), (tags, of_boxes)):
        with pytest.raises(InputError, match="made for another annotation or supervision"):
            prepare_images(weak, artefacts.regions, seeds, tmp_path / "p", CONFIG, SERIAL)
    single = replace(boxes, images=tuple(i for i in boxes if len(i.annotation) == 1))
    assert len(single) > 0
    with pytest.raises(InputError, match="made for another annotation or supervision"):
        with_artefacts(single, artefacts.regions, of_tags, Problems())


def test_without_a_usable_image_one_line_says_so(artefacts: Artefacts) -> None:
    """Where bad images are skipped, all of them: nothing is left to train on."""
    boxes, seeds = artefacts.weak["box"], artefacts.seeds["image"]
    with pytest.raises(InputError, match=r"no usable image; .*another annotation or supervision"):
        with_artefacts(boxes, artefacts.regions, seeds, Problems(skip=True))


def test_a_network_of_other_classes_is_refused(
    artefacts: Artefacts, folder: PreparedFolder
) -> None:
    examples = ConditionalDataset(artefacts.weak["image"], folder, size=64)
    architecture = replace(CONFIG.architecture, classes=tuple(reversed(CLASSES)))
    net = ConditionalNetwork(architecture)
    with pytest.raises(InputError, match="the dataset has"):
        train_from_seeds(net, examples, replace(CONFIG, architecture=architecture))


def test_seeds_must_belong_to_the_annotation(artefacts: Artefacts) -> None:
    image = artefacts.weak["image"][0]
    regions, seeds = artefacts.regions[image.image_id], artefacts.seeds["image"][image.image_id]
    other = replace(image, annotation=Annotation((64, 64), (WeakLabel(99),)))
    with pytest.raises(InputError, match="seeds of another image or annotation"):
        prepare_image(other, regions, seeds, CONFIG)
