"""The prediction network is a plain torchvision Mask R-CNN; its files and its input images."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision.models import mobilenet_v2
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN, resnet_fpn_backbone
from torchvision.models.detection.faster_rcnn import (
    FastRCNNConvFCHead,
    FastRCNNPredictor,
    TwoMLPHead,
)
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from annocoin.backbones import boundary_network
from annocoin.conditional.networks import (
    ConditionalArchitecture,
    ConditionalNetwork,
    read_conditional,
    write_conditional,
)
from annocoin.errors import InputError
from annocoin.prediction import networks
from annocoin.prediction.networks import (
    PredictionArchitecture,
    batch_images,
    build_network,
    freeze_backbone,
    make_masks_class_agnostic,
    read_prediction,
    resize_for,
    resize_shortest_side,
    write_prediction,
)
from annocoin.prediction.predictor import Predictor
from prediction.worlds import CLASSES, network, random_image, small

LEVELS = {
    "tiny": {"3": 24, "6": 32, "13": 96},
    "mobilenet_v2": {"3": 24, "6": 32, "13": 96, "17": 320},
}


def by_hand(backbone: str, group_norm: bool) -> MaskRCNN:
    """The network of `small`, built with torchvision only."""
    layers = LEVELS[backbone]
    norm = partial(nn.GroupNorm, 16) if group_norm else None
    body = mobilenet_v2(weights=None, norm_layer=FrozenBatchNorm2d).features
    names = [str(i) for i in range(len(layers))]
    box_head: nn.Module = TwoMLPHead(16 * 7 * 7, 32)
    if group_norm:
        box_head = FastRCNNConvFCHead((16, 7, 7), [16, 16], [32], norm)
    return MaskRCNN(
        BackboneWithFPN(
            body, dict(zip(layers, names, strict=True)), list(layers.values()), 16, norm_layer=norm
        ),
        min_size=64,
        max_size=128,
        rpn_anchor_generator=AnchorGenerator(
            tuple((12 * 2**i,) for i in range(len(layers) + 1)),
            ((0.5, 1.0, 2.0),) * (len(layers) + 1),
        ),
        rpn_head=RPNHead(16, 3),
        rpn_pre_nms_top_n_test=60,
        rpn_post_nms_top_n_test=60,
        box_roi_pool=MultiScaleRoIAlign(names, 7, 2),
        box_head=box_head,
        box_predictor=FastRCNNPredictor(32, 4),
        mask_roi_pool=MultiScaleRoIAlign(names, 14, 2),
        mask_head=MaskRCNNHeads(16, [16], 1, norm),
        mask_predictor=MaskRCNNPredictor(16, 16, 4),
    )


def assert_same_output(first: MaskRCNN, second: MaskRCNN) -> None:
    images = [random_image(0, (64, 96)), random_image(1, (80, 50))]
    with torch.no_grad():
        outputs = zip(first.eval()(images), second.eval()(images), strict=True)
    for one, other in outputs:
        assert len(one["scores"]) > 3
        assert set(one) == set(other) == {"boxes", "labels", "scores", "masks"}
        for name in one:
            assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("group_norm", [False, True])
@pytest.mark.parametrize("backbone", ["tiny", "mobilenet_v2"])
def test_weights_load_into_a_mask_rcnn_built_by_hand(backbone: str, group_norm: bool) -> None:
    ours = network(backbone=backbone, group_norm=group_norm)
    theirs = by_hand(backbone, group_norm)
    theirs.load_state_dict(ours.state_dict())
    assert_same_output(ours, theirs)


def test_a_resnet_is_torchvisions_mask_rcnn() -> None:
    torch.manual_seed(0)
    ours = build_network(
        PredictionArchitecture(
            CLASSES, "resnet50", min_size=64, max_size=96, detections_per_image=10
        )
    )
    backbone = resnet_fpn_backbone(backbone_name="resnet50", weights=None)
    theirs = MaskRCNN(backbone, num_classes=4, min_size=64, max_size=96, box_detections_per_img=10)
    theirs.load_state_dict(ours.state_dict())
    assert_same_output(ours, theirs)


def test_all_modules_are_torchvisions() -> None:
    for module in network(group_norm=True).modules():
        assert type(module).__module__.split(".")[0] in ("torch", "torchvision")


@pytest.mark.parametrize("backbone", ["tiny", "mobilenet_v2", "resnet50"])
def test_anchor_sizes_double_from_level_to_level(backbone: str) -> None:
    net = build_network(small(backbone=backbone, anchor_size=20))
    with torch.no_grad():
        levels = net.backbone(torch.zeros(1, 3, 128, 192))
    assert len(levels) == (4 if backbone == "tiny" else 5)
    assert [tuple(level.shape) for level in levels.values()] == [
        (1, 16, 128 // stride, 192 // stride) for stride in (4, 8, 16, 32, 64)[: len(levels)]
    ]
    for i, cells in enumerate(net.rpn.anchor_generator.cell_anchors):
        areas = (cells[:, 2] - cells[:, 0]) * (cells[:, 3] - cells[:, 1])
        assert areas.sqrt().tolist() == pytest.approx([20 * 2**i] * 3, rel=0.05)


def test_batch_normalisation_is_frozen() -> None:
    net = network().train()
    before = {k: v.clone() for k, v in net.state_dict().items() if "running" in k}
    assert before
    net.backbone(torch.randn(2, 3, 64, 64))
    assert all(torch.equal(net.state_dict()[k], v) for k, v in before.items())
    assert not [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]


def test_the_tiny_backbone_has_the_weights_of_the_boundary_detector() -> None:
    net = build_network(small(), "imagenet")
    encoder = boundary_network().encoder
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        features = net.backbone.body(image)["2"]
        torch.testing.assert_close(features, encoder.eval()[:14](image))
    assert float(features.std()) > 0.01
    with pytest.raises(InputError, match=r"tiny backbone 'file.pth'; expected one of"):
        build_network(small(), "file.pth")


def test_the_backbone_starts_from_a_torchvision_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = torchvision.models.mobilenet_v2(weights=None).eval()
    for module in original.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1)
    torch.save(original.state_dict(), tmp_path / "mobilenet.pth")
    net = build_network(small(backbone="mobilenet_v2"), tmp_path / "mobilenet.pth").eval()
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        features = net.backbone.body(image)["3"]
        torch.testing.assert_close(features, original.features[:18](image), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="no such file"):
        build_network(small(backbone="mobilenet_v2"), tmp_path / "missing.pth")


def test_a_new_network_has_small_logits() -> None:
    torch.manual_seed(0)
    net = build_network(small())
    with torch.no_grad():
        logits, deltas = net.roi_heads.box_predictor(torch.rand(5, 32))
    assert float(logits.abs().max()) < 0.3
    assert float(deltas.abs().max()) < 0.3


def test_stride_in_1x1() -> None:
    body = build_network(small(backbone="resnet50", stride_in_1x1=True)).backbone.body
    assert body.layer2[0].conv1.stride == (2, 2)
    assert body.layer2[0].conv2.stride == (1, 1)


def test_frozen_layers() -> None:
    net = build_network(small(backbone="resnet50"))
    freeze_backbone(net, 5)
    names = {name for name, _ in net.backbone.body.named_parameters()}
    trained = {name for name, w in net.backbone.body.named_parameters() if w.requires_grad}
    assert names - trained == {n for n in names if n.startswith(("conv1", "bn1", "layer1"))}
    assert trained
    assert all(w.requires_grad for w in net.roi_heads.parameters())


def test_class_agnostic_masks_are_the_mean_over_classes() -> None:
    net = network()
    hidden = torch.randn(2, 16, 14, 14)
    with torch.no_grad():
        before = net.roi_heads.mask_predictor(hidden)
        make_masks_class_agnostic(net)
        after = net.roi_heads.mask_predictor(hidden)
    assert net.roi_heads.mask_predictor.mask_fcn_logits.out_channels == 4
    torch.testing.assert_close(after, before.mean(dim=1, keepdim=True).expand_as(before))
    assert float((before - after).abs().max()) > 0.1


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ()},
        {"backbone": "vgg16"},
        {"min_size": 16},
        {"min_size": 800, "max_size": 700},
        {"max_size": 5000},
        {"fpn_channels": 0},
        {"fpn_channels": 24, "group_norm": True},
        {"rpn_top_n": 0},
        {"box_sampling_ratio": 0},
    ],
)
def test_bad_architectures(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        PredictionArchitecture(**{"classes": CLASSES, **change})


@pytest.mark.parametrize("group_norm", [False, True])
def test_networks_are_read_as_they_were_written(tmp_path: Path, group_norm: bool) -> None:
    path = tmp_path / "net.safetensors"
    net = network(group_norm=group_norm)
    write_prediction(path, net, small(group_norm=group_norm))
    loaded, architecture = read_prediction(path)
    assert architecture == small(group_norm=group_norm)
    assert not loaded.training
    with torch.no_grad():
        first, second = (n([random_image(0)])[0] for n in (net.eval(), loaded))
    assert len(first["scores"]) > 3
    for name in first:
        assert torch.equal(first[name], second[name])
    assert set(load_file(path)) == set(net.state_dict())  # torchvision's names


def assert_refused(path: Path, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        read_prediction(path)
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    assert_refused(path, "no such file; `annocoin train` trains a prediction network")
    assert_refused(tmp_path, "no such file")
    path.write_bytes(b"text")
    assert_refused(path, "not a prediction network")
    write_prediction(path, network(), small())
    with pytest.raises(InputError, match="not a conditional network"):
        read_conditional(path)
    path.write_bytes(path.read_bytes()[:-100])
    assert_refused(path, "not a prediction network")
    write_conditional(path, ConditionalNetwork(ConditionalArchitecture(("cat",), "tiny", size=64)))
    assert_refused(path, "not a prediction network")


@pytest.mark.parametrize(
    "change",
    [
        {"fpn_channels": 32},
        {"classes": ["cat"]},
        {"classes": []},
        {"classes": 3},
        {"backbone": "mobilenet_v2"},
        {"backbone": "nonsense"},
        {"group_norm": True},
        {"representation_size": -1},
        {"colour": "red"},
    ],
)
def test_files_with_another_architecture_are_refused(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "net.safetensors"
    write_prediction(path, network(), small())
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
    key = "annocoin prediction network"
    metadata[key] = json.dumps(json.loads(metadata[key]) | change)
    save_file(load_file(path), path, metadata)
    assert_refused(path, "not a prediction network that `annocoin train` wrote")


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("size", [(64, 96), (48, 72), (128, 160), (96, 64), (40, 160)])
def test_resizing_is_torchvisions(size: tuple[int, int]) -> None:
    net = network(min_size=64, max_size=128)
    image = pixels(*size)
    batch = batch_images([resize_shortest_side(image, 64, 128)])
    expected, _ = net.transform([torch.tensor(image).permute(2, 0, 1) / 255])
    assert batch.image_sizes == expected.image_sizes
    torch.testing.assert_close(batch.tensors, expected.tensors)


def test_batches_are_padded_with_zeros() -> None:
    images = [resize_shortest_side(pixels(*size), 64, 128) for size in ((64, 70), (100, 64))]
    batch = batch_images(images)
    assert batch.tensors.shape == (2, 3, 128, 96)
    assert batch.image_sizes == [(64, 70), (100, 64)]
    for padded, image in zip(batch.tensors, images, strict=True):
        single = batch_images([image]).tensors[0]
        height, width = image.size
        assert torch.equal(padded[:, :height, :width], single[:, :height, :width])
        assert float(padded[:, height:].abs().sum() + padded[:, :, width:].abs().sum()) == 0


def test_mirrored_images_and_the_scale_of_boxes() -> None:
    image = resize_shortest_side(pixels(50, 100), 100, 150)
    assert image.size == (75, 150)
    assert image.original_size == (50, 100)
    assert image.scale.tolist() == [1.5, 1.5, 1.5, 1.5]
    mirrored = image.mirrored()
    assert torch.equal(mirrored.pixels[:, :, 0], image.pixels[:, :, -1])
    assert mirrored.original_size == image.original_size
    narrow = resize_shortest_side(pixels(50, 101), 25, 150)
    assert narrow.size == (25, 50)
    assert narrow.scale.tolist() == pytest.approx([50 / 101, 0.5, 50 / 101, 0.5])


@pytest.mark.parametrize("sides", [(40, 64), (64, 40), (320, 224)])
def test_roi_pooling_has_fixed_strides(sides: tuple[int, int]) -> None:
    """torchvision infers them from the first image, wrongly for small ones."""
    net = build_network(small()).eval()
    with torch.no_grad():
        net([torch.rand(3, *sides)])
    for pool in (net.roi_heads.box_roi_pool, net.roi_heads.mask_roi_pool):
        assert pool.scales == [1 / 4, 1 / 8, 1 / 16]


WRITE = """
import sys, torch
from annocoin.prediction.networks import PredictionArchitecture, build_network, write_prediction
torch.manual_seed(0)
architecture = PredictionArchitecture(("cat",), "tiny", fpn_channels=8, representation_size=8)
write_prediction(sys.argv[1], build_network(architecture), architecture)
"""


def test_equal_networks_give_equal_bytes_and_changes_are_noticed(tmp_path: Path) -> None:
    """In other processes: the order of safetensors' texts is random in each."""
    contents = set()
    for number in range(3):
        file = tmp_path / f"{number}.safetensors"
        subprocess.run([sys.executable, "-c", WRITE, str(file)], check=True)
        contents.add(file.read_bytes())
    assert len(contents) == 1
    content = contents.pop()
    load_file(file)
    for position in (3, 40, len(content) // 3, len(content) - 1):
        changed = bytearray(content)
        changed[position] ^= 4
        file.write_bytes(changed)
        with pytest.raises(InputError, match="not a prediction network"):
            read_prediction(file)
    file.write_bytes(content[:-1])
    with pytest.raises(InputError, match="not a prediction network"):
        read_prediction(file)


@pytest.mark.parametrize("size", [(10, 4000), (4000, 10), (1, 500), (1, 1), (30, 20), (107, 300)])
def test_images_of_any_shape_are_resized_as_by_torchvision(size: tuple[int, int]) -> None:
    architecture = PredictionArchitecture(
        ("cat",), "tiny", min_size=64, max_size=107, fpn_channels=8
    )
    net = build_network(architecture).eval()
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    resized = resize_for(net, image)
    assert min(resized.shape[1:]) >= 1
    assert max(resized.shape[1:]) <= 107
    if min(size) * 107 / max(size) >= 1:
        expected, _ = net.transform([torch.tensor(image).permute(2, 0, 1).float() / 255])
        height, width = expected.image_sizes[0]
        assert torch.equal(resized, expected.tensors[0, :, :height, :width])
    with pytest.MonkeyPatch.context() as patch:  # channel by channel, as of large images
        patch.setattr(networks, "LARGE_IMAGE", 0)
        assert torch.allclose(resize_for(net, image), resized, atol=1e-5)
    assert Predictor(net, threshold=0.0)([image])[0].size == size
