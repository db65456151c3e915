"""The prediction network: a plain torchvision Mask R-CNN on one of a few backbones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import mobilenet_v2
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import (
    FastRCNNConvFCHead,
    FastRCNNPredictor,
    TwoMLPHead,
)
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign

from annocoin.backbones import (
    IMAGENET,
    IMAGENET_MEAN,
    IMAGENET_STD,
    SCRATCH,
    TINY,
    boundary_network,
    build_backbone,
)
from annocoin.errors import InputError, check_choice, check_positive
from annocoin.network_files import read_network, write_network

RATIOS = (0.5, 1.0, 2.0)
STRIDE = 32
"""Sides of what the backbone sees are multiples of this."""

GROUPS = 16
"""Of group normalisation."""

BOX_CONVOLUTIONS = 2

MOBILENET = "mobilenet_v2"
MOBILENET_TAPS = {3: 24, 6: 32, 13: 96, 17: 320}
"""Layers of MobileNetV2 with strides 4, 8, 16, 32, and their channels."""

RESNETS = {"resnet50": (256, 512, 1024, 2048), "resnet101": (256, 512, 1024, 2048)}
BACKBONES = (*RESNETS, MOBILENET, TINY)


@dataclass(frozen=True)
class PredictionArchitecture:
    """What a prediction network is made of, apart from its weights.

    Args:
        classes: the names of classes 1..C.
        backbone: "resnet50", "resnet101", "mobilenet_v2", each with a feature pyramid of strides 4
            to 64; or "tiny", the first layers of MobileNetV2, strides 4 to 32.
        stride_in_1x1: where a ResNet halves the resolution.
        size: the length of an image's shorter side when the network sees it.
        longest: the most its longer side has then.
        channels: of the pyramid and of the mask head.
        hidden: of the box head.
        mask_layers: convolutions of the mask head.
        smallest: the side of the finest level's anchors; each level doubles it.
        proposals: how many boxes the region proposal network passes on for an image.
        detections: the most instances of an image.
        box_sampling, mask_sampling: points in each direction that a cell of a RoI is averaged
            from. Fewer are faster, which on a processor is felt.
        normalised: whether the pyramid and the heads have group normalisation, and the box head
            two convolutions: new layers learn much sooner with it.
    """

    classes: tuple[str, ...]
    backbone: str = "resnet50"
    stride_in_1x1: bool = False
    size: int = 800
    longest: int = 1333
    channels: int = 256
    hidden: int = 1024
    mask_layers: int = 4
    smallest: int = 32
    proposals: int = 1000
    detections: int = 100
    box_sampling: int = 2
    mask_sampling: int = 2
    normalised: bool = False

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("a prediction network needs at least one class")
        check_choice("prediction backbone", self.backbone, BACKBONES)
        counts = ("channels", "hidden", "mask_layers", "smallest", "proposals", "detections")
        for name in (*counts, "box_sampling", "mask_sampling"):
            check_positive(name, getattr(self, name))
        if self.normalised and self.channels % GROUPS:
            raise InputError(
                f"channels {self.channels}; with normalised, expected a multiple of {GROUPS}"
            )
        if not 32 <= self.size <= self.longest <= 4096:
            raise InputError(
                f"size {self.size}, longest {self.longest}; expected 32 <= size <= longest <= 4096"
            )


def build_network(architecture: PredictionArchitecture, weights: str | Path = SCRATCH) -> MaskRCNN:
    """A Mask R-CNN with these backbone weights; the rest is random.

    Every module is torchvision's own: its `state_dict()` loads into a `MaskRCNN` put together in
    the same way without this package, see docs/guide.md.

    Args:
        weights: see `annocoin.seeds.backbones.build_trunk`.
    """
    a = architecture
    body, taps = _body(a, weights)
    norm = partial(nn.GroupNorm, GROUPS) if a.normalised else None
    backbone = BackboneWithFPN(
        body,
        {layer: str(i) for i, layer in enumerate(taps)},
        list(taps.values()),
        a.channels,
        norm_layer=norm,
    )
    box_head: nn.Module = TwoMLPHead(a.channels * 49, a.hidden)
    if a.normalised:
        convolutions = [a.channels] * BOX_CONVOLUTIONS
        box_head = FastRCNNConvFCHead((a.channels, 7, 7), convolutions, [a.hidden], norm)
    levels = len(taps) + 1  # torchvision adds a pooled one
    sizes = tuple((a.smallest * 2**level,) for level in range(levels))
    names = [str(i) for i in range(len(taps))]
    net = MaskRCNN(
        backbone,
        min_size=a.size,
        max_size=a.longest,
        rpn_anchor_generator=AnchorGenerator(sizes, (RATIOS,) * levels),
        rpn_head=RPNHead(a.channels, len(RATIOS)),
        rpn_pre_nms_top_n_train=a.proposals,
        rpn_pre_nms_top_n_test=a.proposals,
        rpn_post_nms_top_n_train=a.proposals,
        rpn_post_nms_top_n_test=a.proposals,
        box_roi_pool=MultiScaleRoIAlign(names, 7, a.box_sampling),
        box_head=box_head,
        box_predictor=FastRCNNPredictor(a.hidden, len(a.classes) + 1),
        box_detections_per_img=a.detections,
        mask_roi_pool=MultiScaleRoIAlign(names, 14, a.mask_sampling),
        mask_head=MaskRCNNHeads(a.channels, (a.channels,) * a.mask_layers, 1, norm),
        mask_predictor=MaskRCNNPredictor(a.channels, a.channels, len(a.classes) + 1),
    )
    for predictor in (net.roi_heads.box_predictor.cls_score, net.roi_heads.box_predictor.bbox_pred):
        nn.init.normal_(predictor.weight, std=0.01)
        nn.init.zeros_(predictor.bias)
    return net


def freeze(net: MaskRCNN, parts: int) -> None:
    """Keep the backbone's first parts from learning: of a ResNet 5 are up to layer1."""
    for part in list(net.backbone.body.children())[:parts]:
        part.requires_grad_(False)


def _body(a: PredictionArchitecture, weights: str | Path) -> tuple[nn.Module, dict[str, int]]:
    """A backbone with fixed batch normalisation, and the layers to tap with their channels."""
    taps: dict[str, int]
    if a.backbone == TINY:
        if str(weights) not in (IMAGENET, SCRATCH):
            raise InputError(
                f"backbone weights {weights}: the tiny backbone brings its own, or none"
            )
        layers = mobilenet_v2(weights=None).features[: max(MOBILENET_TAPS)]
        if str(weights) == IMAGENET:  # our boundary detector's encoder, which came from there
            state = boundary_network().encoder.state_dict()
            layers.load_state_dict({k: v for k, v in state.items() if k in layers.state_dict()})
        taps = {str(layer): width for layer, width in list(MOBILENET_TAPS.items())[:3]}
    else:
        layers = build_backbone(a.backbone, weights, stride_in_1x1=a.stride_in_1x1)
        if a.backbone == MOBILENET:
            taps = {str(layer): width for layer, width in MOBILENET_TAPS.items()}
        else:
            taps = {f"layer{i}": width for i, width in enumerate(RESNETS[a.backbone], start=1)}
    return _fixed(layers), taps


def _fixed(module: nn.Module) -> nn.Module:
    """The same with batch normalisation that keeps statistics and weights, as torchvision's."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            fixed = FrozenBatchNorm2d(child.num_features, child.eps)
            state = {k: v for k, v in child.state_dict().items() if k != "num_batches_tracked"}
            fixed.load_state_dict(state)
            setattr(module, name, fixed)
        else:
            _fixed(child)
    return module


def mask_layer(net: MaskRCNN) -> nn.Conv2d:
    """The last convolution of the mask head, with a channel for every class."""
    layer: nn.Conv2d = net.roi_heads.mask_predictor.mask_fcn_logits
    return layer


@torch.no_grad()
def share_masks(net: MaskRCNN) -> None:
    """Give every class the mean of the classes' last mask weights: one mask for all of them."""
    layer = mask_layer(net)
    for weights in (layer.weight, layer.bias):
        assert weights is not None
        weights.copy_(weights.mean(dim=0, keepdim=True).expand_as(weights))


@dataclass(frozen=True, eq=False)
class ResizedImage:
    """An image at the size at which a network sees it.

    Args:
        pixels: RGB in 0..1, float32 [3, h, w].
        original: height and width before.
    """

    pixels: Tensor
    original: tuple[int, int]

    @property
    def size(self) -> tuple[int, int]:
        return int(self.pixels.shape[1]), int(self.pixels.shape[2])

    @property
    def scale(self) -> Tensor:
        """Factors of a box's four coordinates, from the original to here: float32 [4]."""
        down, across = (new / old for new, old in zip(self.size, self.original, strict=True))
        return torch.tensor([across, down, across, down])

    def mirrored(self) -> ResizedImage:
        """Left and right override."""
        return ResizedImage(self.pixels.flip(2), self.original)


def view(image: npt.NDArray[np.uint8], size: int, longest: int) -> ResizedImage:
    """An image, uint8 [H, W, 3], with its shorter side `size`, its longer at most `longest`."""
    height, width = image.shape[:2]
    scale = min(size / min(height, width), longest / max(height, width))
    wanted = (max(1, round(height * scale)), max(1, round(width * scale)))
    pixels = torch.tensor(image).permute(2, 0, 1).float() / 255
    if wanted != (height, width):
        # without averaging where it shrinks, as torchvision's own transform does at test time
        pixels = F.interpolate(pixels[None], wanted, mode="bilinear", align_corners=False)[0]
    return ResizedImage(pixels, (height, width))


def batch_of(views: Sequence[ResizedImage], device: torch.device | str = "cpu") -> ImageList:
    """Normalised images in one tensor [B, 3, H, W]; smaller ones end in zeros, as torchvision's."""
    height = max(own.size[0] for own in views)
    width = max(own.size[1] for own in views)
    height, width = (-(-side // STRIDE) * STRIDE for side in (height, width))
    mean, std = torch.tensor(IMAGENET_MEAN).view(3, 1, 1), torch.tensor(IMAGENET_STD).view(3, 1, 1)
    together = torch.zeros(len(views), 3, height, width)
    for place, own in zip(together, views, strict=True):
        place[:, : own.size[0], : own.size[1]] = (own.pixels - mean) / std
    return ImageList(together.to(device), [own.size for own in views])


PREDICTION_KIND = "prediction network"


def write_prediction(
    path: str | Path,
    net: MaskRCNN,
    architecture: PredictionArchitecture,
    made: Mapping[str, Any] | None = None,
) -> None:
    """Write a prediction network as .safetensors, whole or not at all."""
    write_network(path, net, PREDICTION_KIND, asdict(architecture), made)


def read_prediction(path: str | Path) -> tuple[MaskRCNN, PredictionArchitecture]:
    """Read what `write_prediction` wrote; anything else is an `InputError`."""
    found: list[PredictionArchitecture] = []

    def build(said: dict[str, Any]) -> MaskRCNN:
        found.append(PredictionArchitecture(**{**said, "classes": tuple(said["classes"])}))
        return build_network(found[0])

    return read_network(path, PREDICTION_KIND, build, "annocoin train"), found[0]
