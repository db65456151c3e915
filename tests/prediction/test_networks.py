"""The prediction network is torchvision's Mask R-CNN: its weights need nothing of ours."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
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

from annocoin.errors import InputError
from annocoin.prediction.networks import (
    PredictionArchitecture,
    build_network,
    freeze,
    mask_layer,
    share_masks,
)
from annocoin.regions.boundaries import BoundaryDetector
from prediction.worlds import CLASSES, network, picture, small

LEVELS = {
    "tiny": {"3": 24, "6": 32, "13": 96},
    "mobilenet_v2": {"3": 24, "6": 32, "13": 96, "17": 320},
}


def by_hand(backbone: str, normalised: bool) -> MaskRCNN:
    """What `small` describes, as someone who has torchvision only would put it together."""
    taps = LEVELS[backbone]
    norm = partial(nn.GroupNorm, 16) if normalised else None
    body = mobilenet_v2(weights=None, norm_layer=FrozenBatchNorm2d).features
    names = [str(i) for i in range(len(taps))]
    box_head: nn.Module = TwoMLPHead(16 * 7 * 7, 32)
    if normalised:
        box_head = FastRCNNConvFCHead((16, 7, 7), [16, 16], [32], norm)
    return MaskRCNN(
        BackboneWithFPN(
            body, dict(zip(taps, names, strict=True)), list(taps.values()), 16, norm_layer=norm
        ),
        min_size=64,
        max_size=128,
        rpn_anchor_generator=AnchorGenerator(
            tuple((12 * 2**i,) for i in range(len(taps) + 1)),
            ((0.5, 1.0, 2.0),) * (len(taps) + 1),
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
    images = [picture(0, (64, 96)), picture(1, (80, 50))]
    with torch.no_grad():
        one, other = first.eval()(images), second.eval()(images)
    for mine, theirs in zip(one, other, strict=True):
        assert len(mine["scores"]) > 3
        assert set(mine) == set(theirs) == {"boxes", "labels", "scores", "masks"}
        for name in mine:
            assert torch.equal(mine[name], theirs[name]), name


@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("backbone", ["tiny", "mobilenet_v2"])
def test_weights_load_into_a_mask_rcnn_put_together_by_hand(
    backbone: str, normalised: bool
) -> None:
    ours = network(backbone=backbone, normalised=normalised)
    theirs = by_hand(backbone, normalised)
    theirs.load_state_dict(ours.state_dict())
    assert_same_output(ours, theirs)


def test_a_resnet_is_torchvisions_own_mask_rcnn() -> None:
    torch.manual_seed(0)
    ours = build_network(
        PredictionArchitecture(CLASSES, "resnet50", size=64, longest=96, detections=10)
    )
    backbone = resnet_fpn_backbone(backbone_name="resnet50", weights=None)
    theirs = MaskRCNN(backbone, num_classes=4, min_size=64, max_size=96, box_detections_per_img=10)
    theirs.load_state_dict(ours.state_dict())
    assert_same_output(ours, theirs)


def test_there_is_nothing_of_ours_in_it() -> None:
    for part in network(normalised=True).modules():
        assert type(part).__module__.split(".")[0] in ("torch", "torchvision")


@pytest.mark.parametrize("backbone", ["tiny", "mobilenet_v2", "resnet50"])
def test_anchors_fit_the_levels_of_the_pyramid(backbone: str) -> None:
    """From stride 4 up, each with anchors twice as large as the one below."""
    net = build_network(small(backbone=backbone, smallest=20))
    with torch.no_grad():
        levels = net.backbone(torch.zeros(1, 3, 128, 192))
    assert len(levels) == (4 if backbone == "tiny" else 5)
    assert [tuple(level.shape) for level in levels.values()] == [
        (1, 16, 128 // stride, 192 // stride) for stride in (4, 8, 16, 32, 64)[: len(levels)]
    ]
    for i, cells in enumerate(net.rpn.anchor_generator.cell_anchors):
        areas = (cells[:, 2] - cells[:, 0]) * (cells[:, 3] - cells[:, 1])
        assert areas.sqrt().tolist() == pytest.approx([20 * 2**i] * 3, rel=0.05)


def test_normalisation_of_the_backbone_is_fixed() -> None:
    net = network().train()
    before = {k: v.clone() for k, v in net.state_dict().items() if "running" in k}
    assert before
    net.backbone(torch.randn(2, 3, 64, 64))
    assert all(torch.equal(net.state_dict()[k], v) for k, v in before.items())
    assert not [part for part in net.modules() if isinstance(part, nn.BatchNorm2d)]


def test_the_tiny_backbone_brings_its_weights() -> None:
    """And computes what the boundary detector's encoder does."""
    net = build_network(small(), "imagenet")
    encoder = BoundaryDetector().network().encoder
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        found = net.backbone.body(image)["2"]
        torch.testing.assert_close(found, encoder.eval()[:14](image))
    assert float(found.std()) > 0.01
    with pytest.raises(InputError, match="brings its own"):
        build_network(small(), "file.pth")


def test_the_backbone_starts_from_a_torchvision_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = torchvision.models.mobilenet_v2(weights=None).eval()
    for part in original.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.running_mean.normal_(std=0.1)
            part.running_var.uniform_(0.5, 1)
    torch.save(original.state_dict(), tmp_path / "mobilenet.pth")
    net = build_network(small(backbone="mobilenet_v2"), tmp_path / "mobilenet.pth").eval()
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        found = net.backbone.body(image)["3"]
        torch.testing.assert_close(found, original.features[:18](image), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="no such file"):
        build_network(small(backbone="mobilenet_v2"), tmp_path / "missing.pth")


def test_a_new_network_prefers_no_class() -> None:
    torch.manual_seed(0)
    net = build_network(small())
    with torch.no_grad():
        logits, deltas = net.roi_heads.box_predictor(torch.rand(5, 32))
    assert float(logits.abs().max()) < 0.3
    assert float(deltas.abs().max()) < 0.3


def test_strides_in_1x1_reach_the_backbone() -> None:
    body = build_network(small(backbone="resnet50", stride_in_1x1=True)).backbone.body
    assert body.layer2[0].conv1.stride == (2, 2)
    assert body.layer2[0].conv2.stride == (1, 1)


def test_frozen_parts() -> None:
    net = build_network(small(backbone="resnet50"))
    freeze(net, 5)
    learns = {name for name, w in net.backbone.body.named_parameters() if w.requires_grad}
    every = {name for name, _ in net.backbone.body.named_parameters()}
    assert every - learns == {n for n in every if n.startswith(("conv1", "bn1", "layer1"))}
    assert learns
    assert all(w.requires_grad for w in net.roi_heads.parameters())


def test_one_mask_for_all_classes() -> None:
    net = network()
    hidden = torch.randn(2, 16, 14, 14)
    with torch.no_grad():
        before = net.roi_heads.mask_predictor(hidden)
        share_masks(net)
        after = net.roi_heads.mask_predictor(hidden)
    assert mask_layer(net).out_channels == 4
    torch.testing.assert_close(after, before.mean(dim=1, keepdim=True).expand_as(before))
    assert float((before - after).abs().max()) > 0.1


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ()},
        {"backbone": "vgg16"},
        {"size": 16},
        {"size": 800, "longest": 700},
        {"longest": 5000},
        {"channels": 0},
        {"channels": 24, "normalised": True},
        {"proposals": 0},
        {"box_sampling": 0},
    ],
)
def test_bad_architectures(change: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        PredictionArchitecture(**{"classes": CLASSES, **change})
