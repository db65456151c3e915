"""IRN: confident labels by hand, its network, training and instances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from annocoin import masks as rle
from annocoin.baselines.irn import (
    IrnOptions,
    _IrnExamples,
    confident_labels,
    irn_instances,
    relative_maps,
    train_irn,
)
from annocoin.baselines.irn_network import IrnArchitecture, IrnNetwork, read_irn, write_irn
from annocoin.baselines.irn_peer import evidence_maps
from annocoin.baselines.irn_relations import IGNORED
from annocoin.data.dataset import WeakDataset
from annocoin.data.loading import load_weak
from annocoin.engine.metrics import MemoryLogger
from annocoin.engine.trainer import Trainer
from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.classifier import Classifier, ClassifierArchitecture
from annocoin.seeds.evidence import class_shares
from annocoin.seeds.seed_set import Seeds
from annocoin.synthetic.creatures import EASY
from annocoin.synthetic.dataset import write_synthetic
from annocoin.types import Annotation, ImageId, WeakLabel

TINY = IrnArchitecture("tiny", width=64)
SMALL = IrnOptions(size=128, radius=5, max_displacement=1.5, batch_size=2, lr=3e-3, min_area=0.002)


def truth(annotation: Annotation) -> Tensor:
    """The class of every pixel by the true masks, int64 [H, W]."""
    labels = torch.zeros(annotation.size, dtype=torch.int64)
    instances = annotation.instances()
    for mask, label in zip(instances.dense(), instances.labels, strict=True):
        labels[mask] = label
    return labels


@pytest.fixture(scope="module")
def two_scenes(tmp_path_factory: pytest.TempPathFactory) -> WeakDataset:
    """Two scenes with two objects each, of different classes."""
    root = tmp_path_factory.mktemp("irn") / "voc"
    write_synthetic(root, images=8, size=64, seed=0, style=EASY)
    weak = load_weak(root, "mask")
    several = [image.image_id for image in weak if len(image.annotation) > 1][:2]
    return weak.subset(several)


def test_scenes_are_overfitted(two_scenes: WeakDataset) -> None:
    """From true pixel classes, the network separates two objects and follows their outline."""
    labels: dict[ImageId, Tensor] = {i.image_id: truth(i.annotation) for i in two_scenes}
    options = IrnOptions(**{**vars(SMALL), "epochs": 110, "scale_range": (1.0, 1.0)})
    torch.manual_seed(0)
    net, logger = IrnNetwork(TINY, "imagenet"), MemoryLogger()
    frozen = {name: value.clone() for name, value in net.trunk.state_dict().items()}
    train_irn(net, two_scenes.images, labels, options, trainer=Trainer(workers=0, logger=logger))
    first, last = logger.lines[0], logger.lines[-1]
    assert last["loss_displacement_foreground"] < 0.3 * first["loss_displacement_foreground"]
    assert last["loss"] < 0.6 * first["loss"]
    assert all(torch.equal(value, net.trunk.state_dict()[name]) for name, value in frozen.items())
    assert not net.training
    for image in two_scenes:
        classes = image.annotation.distinct_labels
        maps = torch.stack([(labels[image.image_id] == label).float() for label in classes])
        found = irn_instances(net, image.pixels(), maps, image.annotation, options)
        true = image.annotation.instances()
        largest = int(true.areas.argmax())
        same = found.labels == true.labels[largest]
        iou = rle.iou(found[same].masks, [true.masks[largest]])
        assert iou.max() > 0.6
        assert found.scores.max() == 1
        assert set(found.labels.tolist()) <= set(classes)


def test_confident_labels_by_hand() -> None:
    """Class 2 above .3 of its maximum, background below .05 of all maxima."""
    maps = torch.tensor([[8.0, 4.0, 2.0, 0.2, -5.0] + [-5.0] * 3] * 8)[None]
    options = IrnOptions(size=32)
    annotation = Annotation((8, 8), (WeakLabel(2), WeakLabel(2)))
    labels = confident_labels(maps, annotation, options)
    assert labels.tolist() == [[2, 2, IGNORED, 0, 0, 0, 0, 0]] * 8


def test_the_greater_of_two_maps_is_the_class() -> None:
    maps = torch.tensor([[[4.0, 1.0]], [[3.0, 6.0]]]).repeat_interleave(4, 2).expand(2, 8, 8)
    options = IrnOptions(size=32)
    annotation = Annotation((8, 8), (WeakLabel(1), WeakLabel(3)))
    labels = confident_labels(maps, annotation, options)
    assert labels.tolist() == [[1] * 4 + [3] * 4] * 8


def test_images_without_labels_are_background() -> None:
    labels = confident_labels(torch.zeros(0, 5, 5), Annotation((40, 80)), IrnOptions(size=320))
    assert labels.shape == (40, 80)
    assert bool((labels == 0).all())
    net, image = IrnNetwork(TINY).eval(), np.zeros((40, 80, 3), np.uint8)
    assert len(irn_instances(net, image, torch.zeros(0, 5, 5), Annotation((40, 80)), SMALL)) == 0


def test_relative_maps() -> None:
    maps = torch.tensor([[[2.0, -3.0], [1.0, 0.0]], [[-1.0, -2.0], [-3.0, -4.0]]])
    assert relative_maps(maps, (2, 2)).tolist() == [[[1, 0], [0.5, 0]], [[0, 0], [0, 0]]]


def test_evidence_maps_end_at_boundaries() -> None:
    """Two superpixels with a sure boundary between them: the class stays on its side."""
    ids = np.repeat([[0, 1]], 8, axis=0).repeat(4, axis=1)
    edges = np.zeros((8, 8))
    edges[:, 3:5] = 1.0
    maps = torch.zeros(1, 8, 8)
    maps[0, 2:4, 1:3] = 4.0
    seeds = Seeds(
        size=(8, 8),
        labels=torch.tensor([2]),
        points=torch.tensor([[2.0, 3.0]]),
        scores=torch.ones(1),
        annotation_index=torch.tensor([0]),
        responses=torch.full((1, 8, 8), 1 / 64),
        maps=maps,
    )
    annotation = Annotation((8, 8), (WeakLabel(2),))
    for strength in (1.0, 0.0):
        regions = RegionSet.of(ids, np.eye(2, dtype=bool), edges=strength * edges)
        values = evidence_maps(regions, seeds, annotation)
        assert values.shape == (1, 8, 8)
        assert torch.equal(values[0, :, :4], torch.ones(8, 4))
        (share,) = class_shares(regions, seeds, [2])
        assert torch.allclose(values[0, :, 4:], share[1].square().expand(8, 4))
        assert (float(share[1]) < 0.5) == (strength == 1.0)


def test_the_mean_displacement_is_subtracted() -> None:
    torch.manual_seed(0)
    net, images = IrnNetwork(TINY), torch.rand(2, 3, 32, 32)
    for _ in range(100):
        training = net.train()(images).displacement
    torch.testing.assert_close(
        net.mean_displacement, training.mean(dim=(0, 2, 3)), rtol=1e-3, atol=1e-5
    )
    evaluated = net.eval()(images).displacement
    torch.testing.assert_close(evaluated, training - net.mean_displacement.view(1, 2, 1, 1))
    assert float(training.detach().mean(dim=(0, 2, 3)).abs().min()) > 1e-3  # so that it can fail


def test_bfloat16_changes_little_and_trains_all_branches() -> None:
    torch.manual_seed(0)
    net, images = IrnNetwork(TINY).train(), torch.rand(2, 3, 64, 48)
    full, half = net(images), net(images, bfloat16=True)
    for expected, value in zip(full, half, strict=True):
        assert value.dtype == torch.float32
        difference = (value - expected).detach().abs().max()
        assert 0 < float(difference) < 0.05 * float(expected.detach().abs().max())
    (half.boundary.sum() + half.displacement.square().sum()).backward()
    trained = [weight for weight in net.parameters() if weight.requires_grad]
    assert all(float(weight.grad.abs().max()) > 0 for weight in trained if weight.grad is not None)
    assert not [weight for weight in trained if weight.grad is None]


@pytest.mark.parametrize(("backbone", "taps"), [("tiny", 3), ("resnet18", 5), ("mobilenet_v2", 5)])
def test_outputs_have_a_quarter_of_the_resolution(backbone: str, taps: int) -> None:
    net = IrnNetwork(IrnArchitecture(backbone, width=32)).eval()
    assert len(net.taps) == taps
    boundary, displacement = net(torch.rand(1, 3, 66, 96))
    assert boundary.shape == (1, 17, 24)
    assert displacement.shape == (1, 2, 17, 24)
    trained = {name.split(".")[0] for name, w in net.named_parameters() if w.requires_grad}
    assert "trunk" not in trained


def test_files_keep_the_network(tmp_path: Path) -> None:
    torch.manual_seed(0)
    classifier = Classifier(ClassifierArchitecture(("a", "b"), "tiny", size=64))
    net = IrnNetwork.from_classifier(classifier, width=32).eval()
    weights = classifier.trunk.state_dict()
    assert all(torch.equal(weights[name], v) for name, v in net.trunk.state_dict().items())
    write_irn(tmp_path / "irn.safetensors", net)
    images = torch.rand(1, 3, 64, 64)
    for one, other in zip(read_irn(tmp_path / "irn.safetensors")(images), net(images), strict=True):
        assert torch.equal(one, other)


def test_crops_keep_pixels_and_labels_together(two_scenes: WeakDataset) -> None:
    """The label of a cell is that of its pixels, after scaling, mirroring and cropping."""
    image = two_scenes[0]
    grey = torch.from_numpy(image.pixels().copy()).float().mean(dim=2) / 255
    means = torch.nn.functional.avg_pool2d(grey[None], 4)[0]
    labels = {image.image_id: (means * 1000).long()}  # brightness as label
    options = IrnOptions(size=64, scale_range=(0.5, 1.5))
    examples = _IrnExamples([image], labels, options, seed=0)
    for step in range(8):
        pixels, cropped = examples.load(0, step)
        assert pixels.shape == (3, 64, 64)
        assert cropped.shape == (16, 16)
        inside = cropped != IGNORED
        brightness = torch.nn.functional.avg_pool2d(pixels.mean(dim=0)[None], 4)[0]
        pair = torch.stack([brightness[inside], cropped[inside] / 1000])
        assert float(torch.corrcoef(pair)[0, 1]) > 0.8
        assert bool((brightness[~inside] == 0.5).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": 16}, "size 16"),
        ({"foreground": 0.1, "background": 0.2}, "background <= foreground"),
        ({"radius": 1}, "radius 1"),
        ({"epochs": 0}, "epochs 0"),
        ({"scale_range": (0.0, 1.0)}, "scale_range"),
        ({"precision": "16"}, "precision '16'"),
    ],
)
def test_bad_options(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        IrnOptions(**change)


def test_bad_input(two_scenes: WeakDataset) -> None:
    with pytest.raises(InputError, match="no image has labels"):
        train_irn(IrnNetwork(TINY), two_scenes.images, {})
    with pytest.raises(InputError, match="width 40"):
        IrnArchitecture("tiny", width=40)
    annotation = Annotation((64, 64), (WeakLabel(1),))
    with pytest.raises(ValueError, match="expected one for each"):
        confident_labels(torch.zeros(2, 8, 8), annotation, SMALL)
