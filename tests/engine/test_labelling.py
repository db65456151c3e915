"""Pseudo labels and loss tables of a dataset, with networks that are hardly trained."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from annocoin import masks
from annocoin.conditional.networks import (
    ConditionalArchitecture,
    ConditionalNetwork,
    read_conditional,
    write_conditional,
)
from annocoin.conditional.scoring import MIN_IOU, NEUTRAL_DETECTION, ScoringOptions
from annocoin.data.dataset import WeakDataset
from annocoin.engine import image_stages
from annocoin.engine.conditional_dataset import (
    ConditionalDataset,
    PreparedFolder,
    prepare_image,
    prepare_images,
)
from annocoin.engine.conditional_training import train_from_seeds
from annocoin.engine.image_stages import Execution
from annocoin.engine.labelling import (
    MaskPredictor,
    draw_labels,
    loss_table,
    make_loss_tables,
    retrieve_labels,
    samples_of,
)
from annocoin.engine.network_config import ConditionalConfig, ConditionalTraining
from annocoin.engine.parallel import work_through
from annocoin.engine.presets import preset
from annocoin.engine.pseudo_labels import PseudoLabelFolder, PseudoLabels
from annocoin.engine.randomness import generator_at
from annocoin.engine.trainer import Trainer
from annocoin.errors import InputError, Problems
from annocoin.objective.task_loss import (
    TaskLossOptions,
    prediction_loss_table,
    restricted_loss_table,
)
from annocoin.prediction.networks import (
    PredictionArchitecture,
    build_network,
    read_prediction,
    resize_shortest_side,
    write_prediction,
)
from annocoin.prediction.region_scoring import (
    IOU_EXPONENT,
    RegionScores,
    detect_annotated,
    mask_probabilities,
    score_regions,
    segment_boxes,
)
from annocoin.seeds.retrieval import retrieve
from engine.worlds import Artefacts

SERIAL = Execution(jobs=1)


def tiny_config(weak: WeakDataset, **options: Any) -> ConditionalConfig:
    """Of small networks and few regions."""
    options = {"training": ConditionalTraining(samples=3), "top_regions": 20, **options}
    return ConditionalConfig(ConditionalArchitecture(weak.classes, "tiny", size=64), **options)


class World:
    """Files of the two networks, and the scenes prepared for the conditional network."""

    def __init__(self, artefacts: Artefacts, root: Path) -> None:
        self.weak = artefacts.weak["box"]
        self.config = tiny_config(self.weak)
        folders = (artefacts.regions, artefacts.seeds["box"])
        self.prepared = prepare_images(self.weak, *folders, root / "p", self.config, SERIAL)
        torch.manual_seed(0)
        net = ConditionalNetwork(self.config.architecture, "imagenet")
        torch.nn.init.normal_(net.join_noise.weight, std=3.0)
        torch.nn.init.normal_(net.classify.weight, std=0.1)
        self.conditional, self.prediction = root / "c.safetensors", root / "p.safetensors"
        write_conditional(self.conditional, net.eval())
        architecture = PredictionArchitecture(
            self.weak.classes, "tiny", min_size=64, max_size=96, fpn_channels=16,
            representation_size=32, mask_layers=1, anchor_size=20, rpn_top_n=50,
        )  # fmt: skip
        write_prediction(self.prediction, build_network(architecture, "imagenet"), architecture)

    def draw(self, out: Path, dataset: WeakDataset | None = None, **options: Any) -> Any:
        options = {"execution": SERIAL, "seed": 0, **options}
        dataset, execution = dataset or self.weak, options.pop("execution")
        network, config = self.conditional, self.config
        return draw_labels(dataset, self.prepared, network, config, out, execution, **options)

    def tables(
        self,
        out: Path,
        dataset: WeakDataset | None = None,
        execution: Execution = SERIAL,
        **changes: Any,
    ) -> Any:
        config = replace(self.config, **changes)
        arguments = (dataset or self.weak, self.prepared, self.prediction, config)
        return make_loss_tables(*arguments, out, execution)


@pytest.fixture(scope="module")
def world(artefacts: Artefacts, tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(artefacts, tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def labels(world: World, tmp_path_factory: pytest.TempPathFactory) -> PseudoLabelFolder:
    folder: PseudoLabelFolder = world.draw(tmp_path_factory.mktemp("labels") / "l")
    return folder


def same(first: PseudoLabels, second: PseudoLabels) -> bool:
    return first.instances == second.instances and torch.equal(first.members, second.members)


def test_every_label_has_an_instance_in_every_sample(
    world: World, labels: PseudoLabelFolder
) -> None:
    assert list(labels) == [image.image_id for image in world.weak]
    assert any(len(drawn.instances) > drawn.members[0].sum() for drawn in labels.values())
    for image in world.weak:
        drawn = labels[image.image_id]
        expected = sorted(image.annotation.labels.tolist())
        assert len(drawn.members) == 3
        for sample in drawn.members:
            assert sorted(drawn.instances.labels[sample].tolist()) == expected
        boxes = {tuple(box) for box in drawn.consensus_instances().boxes.tolist()}
        assert boxes == {tuple(box) for box in image.annotation.boxes.double().tolist()}


@pytest.mark.parametrize("jobs", [1, 2])
def test_masks_of_a_prediction_network_refine_the_labels(
    world: World, tmp_path: Path, jobs: int
) -> None:
    """As drawn for single images; without the network, or without refinement, masks differ."""
    scoring = replace(world.config.scoring, mask_threshold=0.4)
    config = replace(world.config, scoring=scoring)
    arguments = (world.weak, world.prepared, world.conditional, config)
    execution = Execution(jobs=jobs)
    refined = draw_labels(
        *arguments, tmp_path / "refined", execution, seed=0, prediction=world.prediction
    )
    net, predictor = read_conditional(world.conditional), MaskPredictor(world.prediction)
    examples = ConditionalDataset(world.weak, world.prepared, size=64)
    different = 0
    for example, image in zip((examples[i] for i in range(3)), world.weak, strict=False):
        regions = example.requirements.regions
        generator = generator_at(0, "samples", str(example.image_id))
        whole = samples_of(net, example, world.config, generator=generator)
        generator = generator_at(0, "samples", str(example.image_id))
        predicted = partial(predictor.shares, image.pixels(), regions)
        samples = samples_of(net, example, config, generator=generator, predicted=predicted)
        expected = PseudoLabels.from_samples(samples, image.annotation)
        assert same(refined[image.image_id], expected)
        different += not same(expected, PseudoLabels.from_samples(whole, image.annotation))
        classes = sorted(label.label for label in image.annotation)
        assert sorted(samples.consensus().labels.tolist()) == classes
    assert different


def test_the_shares_of_superpixels_are_the_means_of_the_networks_masks(world: World) -> None:
    image = world.weak[0]
    requirements = world.prepared[image.image_id].requirements
    regions, boxes = requirements.regions, torch.tensor([label.box for label in image.annotation])
    classes = torch.tensor([label.label for label in image.annotation])
    shares = MaskPredictor(world.prediction).shares(image.pixels(), regions, boxes, classes)
    net, architecture = read_prediction(world.prediction)
    resized = resize_shortest_side(image.pixels(), architecture.min_size, architecture.max_size)
    detections = segment_boxes(net, resized, boxes, classes)
    probabilities = mask_probabilities(net, resized, boxes, classes)
    assert torch.equal(torch.as_tensor(detections.masks), probabilities >= 0.5)
    ids = regions.superpixels.long()
    for row, mask in zip(shares, probabilities, strict=True):
        means = [float(mask[ids == s].mean()) for s in range(len(row))]
        assert row.tolist() == pytest.approx(means, abs=1e-5)


def test_samples_depend_on_seed_and_image_only(
    world: World, labels: PseudoLabelFolder, tmp_path: Path
) -> None:
    few = world.draw(tmp_path / "few", world.weak[2:4])
    assert list(few) == [image.image_id for image in world.weak[2:4]]
    assert all(same(few[image_id], labels[image_id]) for image_id in few)
    other = world.draw(tmp_path / "other", seed=1)
    assert any(not same(other[image_id], labels[image_id]) for image_id in other)
    removed = next(iter(few))
    few.files[removed].unlink()
    stamp = few.files[world.weak[3].image_id].stat().st_mtime_ns
    again = world.draw(tmp_path / "few", world.weak[2:4])
    assert same(again[removed], labels[removed])
    assert again.files[world.weak[3].image_id].stat().st_mtime_ns == stamp


@pytest.mark.parametrize("stage", ["draw", "tables"])
def test_other_processes_can_do_the_work(
    world: World,
    labels: PseudoLabelFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
) -> None:
    """All that they need can be pickled."""

    def pickled(tasks: Any, start: Any, description: str, *, jobs: int, problems: Problems) -> Any:
        assert jobs == 2
        start = pickle.loads(pickle.dumps(start))
        return work_through(tasks, start, description, jobs=1, problems=problems)

    monkeypatch.setattr(image_stages, "work_through", pickled)
    folder = getattr(world, stage)(tmp_path / "out", execution=Execution(jobs=2))
    assert len(folder) == 8
    if stage == "draw":
        assert all(same(folder[image_id], labels[image_id]) for image_id in labels)


def test_loss_tables_are_those_of_single_images(
    world: World, labels: PseudoLabelFolder, tmp_path: Path
) -> None:
    tables = world.tables(tmp_path / "t")
    net, architecture = read_prediction(world.prediction)
    for image in world.weak:
        requirements = world.prepared[image.image_id].requirements
        resized = resize_shortest_side(image.pixels(), architecture.min_size, architecture.max_size)
        scores = score_regions(net, resized, requirements.regions, requirements.labels)
        expected = restricted_loss_table(*scores[:2])
        assert tables[image.image_id].shape == expected.shape
        torch.testing.assert_close(tables[image.image_id], expected, rtol=1e-3, atol=1e-3)
    with_tables = world.draw(tmp_path / "l", tables=tables)
    assert any(not same(with_tables[i], labels[i]) for i in labels), "they enter the scores"
    fewer = {image.image_id: tables[image.image_id] for image in world.weak[1:]}
    drawn = world.draw(tmp_path / "m", tables=fewer)
    assert list(drawn) == list(fewer), "an image without a table is left out"


def test_only_the_regions_of_highest_probability_have_a_mask_loss(
    world: World, tmp_path: Path
) -> None:
    tables = {
        limit: world.tables(
            tmp_path / str(limit),
            world.weak[:1],
            tables="rois",
            task_loss=TaskLossOptions(mask_scored_regions=limit),
        )[world.weak[0].image_id]
        for limit in (None, 1, 64)
    }
    assert len(tables[1]) < 64
    assert torch.equal(tables[None], tables[64])
    assert not torch.equal(tables[None], tables[1])


def test_loss_tables_of_detections_are_those_of_single_images(
    world: World, labels: PseudoLabelFolder, tmp_path: Path
) -> None:
    """Region by region, from the masks that the network detects given the annotated classes."""
    tables = world.tables(tmp_path / "t", tables="detections")
    net, architecture = read_prediction(world.prediction)
    detected = 0
    for image in world.weak:
        requirements = world.prepared[image.image_id].requirements
        resized = resize_shortest_side(image.pixels(), architecture.min_size, architecture.max_size)
        detections = detect_annotated(net, resized, requirements.labels)
        table = tables[image.image_id]
        assert table.shape == (len(requirements.regions), 1 + len(requirements.labels))
        for u, region in enumerate(requirements.regions.masks()):
            for column, label in enumerate(requirements.labels, start=1):
                best = 0.0
                for mask, of_class, score in zip(*detections, strict=True):
                    if of_class == label:
                        iou = float((region & mask).sum() / (region | mask).sum())
                        best = max(best, float(score) * iou**IOU_EXPONENT)
                detected += best > 0
                log_odds = math.log((best + MIN_IOU) / NEUTRAL_DETECTION)
                margin = float(table[u, 0] - table[u, column])
                assert margin == pytest.approx(log_odds, abs=5e-3)  # files have half precision
    assert detected > 0
    rois = world.tables(tmp_path / "r")
    assert any(not torch.allclose(tables[i], rois[i], atol=1e-2) for i in tables)
    with_tables = world.draw(tmp_path / "l", tables=tables)
    assert list(with_tables) == list(labels)


def test_detections_are_averaged_over_scales(world: World, tmp_path: Path) -> None:
    def detected(name: str, scales: tuple[float, ...]) -> PseudoLabelFolder:
        return world.tables(tmp_path / name, tables="detections", detection_scales=scales)

    both, small, large = detected("b", (1, 1.5)), detected("s", (1,)), detected("l", (1.5,))
    differ = 0
    for image_id in both:
        means = [
            (table[:, :1] - table[:, 1:]).exp() for table in (small[image_id], large[image_id])
        ]
        differ += not torch.allclose(*means, atol=0.05)
        margins = both[image_id][:, :1] - both[image_id][:, 1:]
        torch.testing.assert_close(margins.exp(), sum(means) / 2, rtol=0.02, atol=0.02)
    assert differ


def test_forms_of_the_loss_table(world: World) -> None:
    generator = torch.Generator().manual_seed(0)
    log_probabilities = torch.rand(5, 3, generator=generator).log_softmax(dim=1)
    mask_losses = torch.rand(5, 2, generator=generator)
    box_losses = torch.rand(5, 2, generator=generator)
    scores, config = RegionScores(log_probabilities, mask_losses, box_losses), world.config
    ours = loss_table(scores, config)
    assert torch.equal(ours, restricted_loss_table(log_probabilities, mask_losses))
    printed = replace(config, training=replace(config.training, restrict_to_annotation=False))
    paper = loss_table(scores, printed)
    assert torch.equal(paper, prediction_loss_table(log_probabilities, mask_losses))
    options = TaskLossOptions(clamp=None, box=True)
    for form, table in ((config, restricted_loss_table), (printed, prediction_loss_table)):
        boxes = loss_table(scores, replace(form, task_loss=options))
        assert torch.equal(boxes, table(*scores, clamp=None))
        assert not torch.equal(boxes, table(*scores[:2], clamp=None))


@pytest.mark.parametrize("stage", ["draw", "tables"])
def test_an_image_that_became_unreadable_is_skipped_or_named(
    world: World, tmp_path: Path, stage: str
) -> None:
    weak = world.weak
    (tmp_path / "b.jpg").write_bytes(weak[5].path.read_bytes()[:-600])
    broken = replace(weak[5], path=tmp_path / "b.jpg")
    dataset = replace(weak, images=(*weak[:5], broken, *weak[6:]))
    work = getattr(world, stage)
    with pytest.raises(InputError, match=str(broken.image_id)):
        work(tmp_path / "out", dataset)
    execution = Execution(jobs=1, problems=Problems(skip=True))
    folder = work(tmp_path / "out", dataset, execution=execution)
    assert set(folder) == {image.image_id for image in weak} - {broken.image_id}
    assert len(execution.problems.skipped) == 1


def test_retrieved_labels_of_tags_are_those_of_the_seeds(
    artefacts: Artefacts, tmp_path: Path
) -> None:
    weak, seeds = artefacts.weak["image"], artefacts.seeds["image"]
    config = tiny_config(weak)
    folder = retrieve_labels(weak, artefacts.regions, seeds, tmp_path / "l", config, SERIAL)
    for image in weak:
        regions, peaks = artefacts.regions[image.image_id], seeds[image.image_id]
        expected = retrieve(regions, peaks, image.annotation).instances(regions, peaks)
        retrieved = folder[image.image_id].consensus_instances()
        assert retrieved.masks == expected.masks
        assert torch.equal(retrieved.labels, expected.labels)
        assert set(retrieved.labels.tolist()) == set(image.annotation.distinct_labels)


@pytest.mark.parametrize("extra_margin", [None, 0.0])
def test_retrieved_labels_of_class_maps_are_the_labelling_of_the_prior(
    artefacts: Artefacts, tmp_path: Path, extra_margin: float | None
) -> None:
    """Without pairwise terms: the best region of every class, and further ones near it."""
    weak, seeds = artefacts.weak["image"], artefacts.seeds["image"]
    scoring = ScoringOptions(
        pairwise="none", seed_prior_weight=2.0, extra_margin=extra_margin, nms_threshold=0.3
    )
    config = tiny_config(weak, evidence="maps", require_peak=False, scoring=scoring)
    folder = retrieve_labels(weak, artefacts.regions, seeds, tmp_path / "l", config, SERIAL)
    for image in weak:
        prepared = prepare_image(
            image, artefacts.regions[image.image_id], seeds[image.image_id], config
        )
        labels, prior = prepared.requirements.labels, prepared.seed_prior
        labelled = folder[image.image_id]
        assert labelled.members.shape[0] == 1
        instances = labelled.consensus_instances()
        assert set(instances.labels.tolist()) == set(image.annotation.distinct_labels)
        if len(labels) == 1:
            best = prepared.requirements.regions[int(prior[:, 0].argmax())]
            assert best.rles()[0] in instances.masks
        if extra_margin == 0:
            assert len(instances) == len(labels)


@pytest.mark.parametrize("evidence", ["votes", "maps"])
def test_retrieved_labels_may_have_tight_boxes(
    artefacts: Artefacts, tmp_path: Path, evidence: Any
) -> None:
    weak, seeds = artefacts.weak["box"], artefacts.seeds["box"]
    config = tiny_config(weak, evidence=evidence, annotated_boxes=False)
    folder = retrieve_labels(weak, artefacts.regions, seeds, tmp_path / "l", config, SERIAL)
    for labels in folder.values():
        instances = labels.consensus_instances()
        assert torch.equal(instances.boxes, torch.from_numpy(masks.boxes(instances.masks)))


@pytest.mark.parametrize("evidence", ["votes", "maps"])
@pytest.mark.parametrize("supervision", ["box", "mixed"])
def test_retrieved_labels_keep_annotated_boxes_and_masks(
    artefacts: Artefacts, tmp_path: Path, supervision: str, evidence: Any
) -> None:
    weak, seeds = artefacts.weak[supervision], artefacts.seeds[supervision]
    config = tiny_config(weak, evidence=evidence)
    folder = retrieve_labels(weak, artefacts.regions, seeds, tmp_path / "l", config, SERIAL)
    for image in weak:
        instances = folder[image.image_id].consensus_instances()
        boxes = {tuple(box) for box in instances.boxes.tolist()}
        annotated = {label.box for label in image.annotation if label.box is not None}
        assert annotated <= boxes
        annotated_masks = [label.mask for label in image.annotation if label.mask is not None]
        assert all(mask in instances.masks for mask in annotated_masks)
        assert len(instances) == len(image.annotation)


@pytest.mark.parametrize("name", ["voc-r50", "voc-r50-literal"])
def test_the_papers_presets_from_seeds_to_samples(
    artefacts: Artefacts, tmp_path: Path, name: str
) -> None:
    weak, literal = artefacts.weak["image"], name == "voc-r50-literal"
    config = preset(name, weak.classes).conditional
    config = replace(
        config,
        architecture=replace(config.architecture, trunk="tiny", size=64),
        training=replace(config.training, initial_steps=2, batch_size=2, samples=3),
    )
    folders = (artefacts.regions, artefacts.seeds["image"])
    prepared = prepare_images(weak, *folders, tmp_path / "p", config, SERIAL)
    examples = ConditionalDataset(weak, prepared, size=64)
    example = examples[0]
    assert all(contains.shape[1] == 0 for contains in example.requirements.peaks) == literal
    assert (example.candidates(config.scoring).seed_prior is None) == literal
    net = ConditionalNetwork(config.architecture)
    train_from_seeds(net, examples, config, trainer=Trainer(workers=0))
    samples = samples_of(net, example, config, generator=generator_at(0))
    assert len(samples) == 3
    assert all(example.requirements.met_by(labels) for labels in samples.labels)
    assert len(samples_of(net, example, config, 5)) == 5
    consensus = samples.consensus()
    assert set(consensus.labels.tolist()) == set(weak[0].annotation.distinct_labels)
    assert bool(((consensus.confidence >= 0) & (consensus.confidence <= 1)).all())
    pointwise = replace(config, training=replace(config.training, pointwise=True))
    assert len(samples_of(net, example, pointwise)) == 1


def test_nothing_is_labelled_without_prepared_images(world: World, tmp_path: Path) -> None:
    with PreparedFolder.writing(tmp_path / "p", {}, []):
        pass
    empty = PreparedFolder(tmp_path / "p")
    with pytest.raises(InputError, match="no image of the dataset is prepared there"):
        ConditionalDataset(world.weak, empty, size=64)
