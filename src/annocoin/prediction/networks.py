"""The prediction network, a plain torchvision Mask R-CNN: construction, files, input images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import mobilenet_v2
from torchvision.models.detection import MaskRCNN, faster_rcnn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import RPNHead
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign
from torchvision.ops.poolers import initLevelMapper

from annocoin import backbones
from annocoin.backbones import IMAGENET, IMAGENET_MEAN, IMAGENET_STD, SCRATCH, TINY
from annocoin.errors import InputError, check_choice, check_positive
from annocoin.masks import Size
from annocoin.network_files import read_architecture, read_network, write_network

RESNET_LAYERS = {"layer1": 256, "layer2": 512, "layer3": 1024, "layer4": 2048}
BACKBONES = {
    "resnet50": RESNET_LAYERS,
    "resnet101": RESNET_LAYERS,
    "mobilenet_v2": {"3": 24, "6": 32, "13": 96, "17": 320},
    TINY: {"3": 24, "6": 32, "13": 96},
}
"""Layers with strides 4, 8, 16 (and 32) that feed the feature pyramid, with their channels."""

ASPECT_RATIOS = (0.5, 1.0, 2.0)
BOX_HEAD_CONVOLUTIONS = 2
NORM_GROUPS = 16
"""Convolutions of the box head, and groups of all normalisation, with `group_norm`."""

MAX_MASK_LAYERS = 64
LARGE_IMAGE = 16_000_000
"""Pixels of images that are resized channel by channel."""

SIZE_DIVISOR = 32
"""Batches are padded to multiples of this, as in torchvision."""

PREDICTION_KIND = "prediction network"
TRAIN = "annocoin train"


@dataclass(frozen=True)
class PredictionArchitecture:
    """The options of a prediction network, named as in torchvision where it has them.

    Args:
        classes: names of classes 1..C.
        backbone: "resnet50", "resnet101" or "mobilenet_v2" with a feature pyramid of strides 4 to
            64, or "tiny", the first layers of MobileNetV2 with strides 4 to 32.
        stride_in_1x1: whether a ResNet downsamples in 1x1 instead of 3x3 convolutions.
        min_size, max_size: images are resized to this shorter side, unless the longer side would
            exceed `max_size`.
        fpn_channels: channels of the feature pyramid and of the mask head.
        representation_size: width of the box head's linear layers.
        mask_layers: convolutions of the mask head.
        anchor_size: side of the finest level's anchors; it doubles from level to level.
        rpn_top_n: proposals per image, before and after non-maximum suppression.
        detections_per_image: maximum number of instances per image.
        box_sampling_ratio, mask_sampling_ratio: sampling points of RoIAlign in each direction of a
            cell; fewer are faster.
        group_norm: use group normalisation in the pyramid and the heads, and a box head with two
            convolutions; layers that are not pretrained converge much sooner.
    """

    classes: tuple[str, ...]
    backbone: str = "resnet50"
    stride_in_1x1: bool = False
    min_size: int = 800
    max_size: int = 1333
    fpn_channels: int = 256
    representation_size: int = 1024
    mask_layers: int = 4
    anchor_size: int = 32
    rpn_top_n: int = 1000
    detections_per_image: int = 100
    box_sampling_ratio: int = 2
    mask_sampling_ratio: int = 2
    group_norm: bool = False

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("a prediction network needs at least one class")
        check_choice("prediction backbone", self.backbone, BACKBONES)
        for field in fields(self):
            if field.type == "int":
                check_positive(field.name, getattr(self, field.name))
        if self.group_norm and self.fpn_channels % NORM_GROUPS:
            raise InputError(
                f"fpn_channels {self.fpn_channels}; group_norm needs a multiple of {NORM_GROUPS}"
            )
        if self.mask_layers > MAX_MASK_LAYERS:
            raise InputError(f"mask_layers {self.mask_layers}; expected at most {MAX_MASK_LAYERS}")
        if not 32 <= self.min_size <= self.max_size <= 4096:
            raise InputError(
                f"min_size {self.min_size}, max_size {self.max_size}; "
                "expected 32 <= min_size <= max_size <= 4096"
            )


def build_network(architecture: PredictionArchitecture, weights: str | Path = SCRATCH) -> MaskRCNN:
    """Build a Mask R-CNN whose backbone has these weights; all other layers are random.

    All modules are torchvision's, so that `state_dict()` loads into a `MaskRCNN` built without this
    package, see docs/guide.md.

    Args:
        weights: see `annocoin.backbones.build_backbone`.
    """
    a, layers = architecture, BACKBONES[architecture.backbone]
    channels, hidden, classes = a.fpn_channels, a.representation_size, len(a.classes) + 1
    names = [str(i) for i in range(len(layers))]
    norm = partial(nn.GroupNorm, NORM_GROUPS) if a.group_norm else None
    body, return_layers = _backbone(a, weights), dict(zip(layers, names, strict=True))
    fpn = BackboneWithFPN(body, return_layers, list(layers.values()), channels, norm_layer=norm)
    box_head: nn.Module = faster_rcnn.TwoMLPHead(channels * 7 * 7, hidden)
    if a.group_norm:
        convolutions = [channels] * BOX_HEAD_CONVOLUTIONS
        box_head = faster_rcnn.FastRCNNConvFCHead((channels, 7, 7), convolutions, [hidden], norm)
    anchor_sizes = tuple((a.anchor_size * 2**i,) for i in range(len(layers) + 1))  # one is pooled
    net = MaskRCNN(
        fpn,
        min_size=a.min_size,
        max_size=a.max_size,
        rpn_anchor_generator=AnchorGenerator(anchor_sizes, (ASPECT_RATIOS,) * len(anchor_sizes)),
        rpn_head=RPNHead(channels, len(ASPECT_RATIOS)),
        rpn_pre_nms_top_n_train=a.rpn_top_n,
        rpn_pre_nms_top_n_test=a.rpn_top_n,
        rpn_post_nms_top_n_train=a.rpn_top_n,
        rpn_post_nms_top_n_test=a.rpn_top_n,
        box_roi_pool=_roi_pool(names, 7, a.box_sampling_ratio),
        box_head=box_head,
        box_predictor=faster_rcnn.FastRCNNPredictor(hidden, classes),
        box_detections_per_img=a.detections_per_image,
        mask_roi_pool=_roi_pool(names, 14, a.mask_sampling_ratio),
        mask_head=MaskRCNNHeads(channels, (channels,) * a.mask_layers, 1, norm),
        mask_predictor=MaskRCNNPredictor(channels, channels, classes),
    )
    for layer in (net.roi_heads.box_predictor.cls_score, net.roi_heads.box_predictor.bbox_pred):
        nn.init.normal_(layer.weight, std=0.01)
        nn.init.zeros_(layer.bias)
    return net


def write_prediction(
    path: str | Path, net: MaskRCNN, architecture: PredictionArchitecture, *, half: bool = False
) -> None:
    """Write a prediction network as .safetensors, atomically.

    Args:
        half: store weights as float16, in half of the space.
    """
    write_network(path, net, PREDICTION_KIND, asdict(architecture), half=half)


def read_prediction(path: str | Path) -> tuple[MaskRCNN, PredictionArchitecture]:
    """Read a file that `write_prediction` wrote; anything else is an `InputError`."""
    architecture = read_prediction_architecture(path)
    net = read_network(path, PREDICTION_KIND, lambda _: build_network(architecture), TRAIN)
    return net, architecture


def read_prediction_architecture(path: str | Path) -> PredictionArchitecture:
    """The architecture in a file that `write_prediction` wrote, without the weights."""

    def build(options: dict[str, Any]) -> PredictionArchitecture:
        return PredictionArchitecture(**options | {"classes": tuple(options["classes"])})

    return read_architecture(path, PREDICTION_KIND, build, TRAIN)


def freeze_backbone(net: MaskRCNN, layers: int) -> None:
    """Exclude the backbone's first layers from training; 5 of a ResNet reach up to layer1."""
    for layer in list(net.backbone.body.children())[:layers]:
        layer.requires_grad_(False)


@torch.no_grad()
def make_masks_class_agnostic(net: MaskRCNN) -> None:
    """Set the mask predictor's weights of every class to their mean over classes."""
    for weights in net.roi_heads.mask_predictor.mask_fcn_logits.parameters():
        weights.copy_(weights.mean(dim=0, keepdim=True).expand_as(weights))


@dataclass(frozen=True, eq=False)
class ResizedImage:
    """An image at the input size of a network.

    Args:
        pixels: RGB in 0..1, float32 [3, h, w].
        original_size: height and width before resizing.
    """

    pixels: Tensor
    original_size: Size

    @property
    def size(self) -> Size:
        return int(self.pixels.shape[1]), int(self.pixels.shape[2])

    @property
    def scale(self) -> Tensor:
        """Factors of a box's coordinates from the original to the resized image: float32 [4]."""
        (height, width), (old_height, old_width) = self.size, self.original_size
        return torch.tensor([width / old_width, height / old_height] * 2)

    def mirrored(self) -> ResizedImage:
        """The image flipped left to right."""
        return ResizedImage(self.pixels.flip(2), self.original_size)


def resize_shortest_side(
    image: npt.NDArray[np.uint8], min_size: int, max_size: int
) -> ResizedImage:
    """Resize an image [H, W, 3] to a shorter side of `min_size`, a longer of at most `max_size`."""
    height, width = image.shape[:2]
    scale = min(min_size / min(height, width), max_size / max(height, width))
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    pixels = torch.tensor(image).permute(2, 0, 1).float() / 255
    if size != (height, width):
        # without antialiasing, as torchvision's transform
        pixels = F.interpolate(pixels[None], size, mode="bilinear", align_corners=False)[0]
    return ResizedImage(pixels, (height, width))


def resize_for(
    net: MaskRCNN, image: npt.NDArray[np.uint8], device: torch.device | str = "cpu"
) -> Tensor:
    """An image [H, W, 3] normalised and resized by the network's transform: [3, h, w].

    One so thin that a side would vanish keeps a pixel of it. The channels of a large one are
    resized one by one, since all of them in full precision take gigabytes.
    """
    transform, (height, width) = net.transform, image.shape[:2]
    mean, std = (
        torch.tensor(v)[:, None, None] for v in (transform.image_mean, transform.image_std)
    )
    factors = transform.min_size[-1] / min(height, width), transform.max_size / max(height, width)
    thin = min(factors) * min(height, width) < 1
    size = [max(1, int(side * min(factors))) for side in (height, width)]
    parts = 3 if height * width > LARGE_IMAGE else 1
    resized = []
    for channels in torch.arange(3).chunk(parts):
        pixels = torch.tensor(image[:, :, channels.tolist()], device=device).permute(2, 0, 1)
        pixels = pixels.float().div_(255)
        pixels.sub_(mean[channels].to(device)).div_(std[channels].to(device))
        if thin:
            resized.append(F.interpolate(pixels[None], size, mode="bilinear")[0])
        else:
            resized.append(transform.resize(pixels)[0])
    return torch.cat(resized)


def batch_images(images: Sequence[ResizedImage], device: torch.device | str = "cpu") -> ImageList:
    """Normalise images and pad them with zeros to one tensor [B, 3, H, W]."""
    transform = GeneralizedRCNNTransform(1, 1, list(IMAGENET_MEAN), list(IMAGENET_STD))
    normalised = [transform.normalize(image.pixels) for image in images]
    batch = transform.batch_images(normalised, SIZE_DIVISOR)
    return ImageList(batch.to(device), [image.size for image in images])


def _roi_pool(names: list[str], size: int, sampling_ratio: int) -> MultiScaleRoIAlign:
    """RoIAlign with fixed strides 4, 8, ..; torchvision infers them from the first image."""
    pool = MultiScaleRoIAlign(names, size, sampling_ratio)
    pool.scales = [2.0 ** -(level + 2) for level in range(len(names))]
    pool.map_levels = initLevelMapper(2, len(names) + 1)
    return pool


def _backbone(a: PredictionArchitecture, weights: str | Path) -> nn.Module:
    """A backbone with frozen batch normalisation."""
    if a.backbone != TINY:
        layers = backbones.build_backbone(a.backbone, weights, stride_in_1x1=a.stride_in_1x1)
    else:
        check_choice("weights of the tiny backbone", str(weights), (IMAGENET, SCRATCH))
        layers = mobilenet_v2(weights=None).features
        if str(weights) == IMAGENET:  # of the boundary detector, which was trained from these
            layers.load_state_dict(backbones.boundary_network().encoder.state_dict(), strict=False)
    _freeze_batch_norm(layers)
    return layers


def _freeze_batch_norm(module: nn.Module) -> None:
    """Replace batch normalisation by torchvision's with fixed statistics and weights."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            frozen = FrozenBatchNorm2d(child.num_features, child.eps)
            frozen.load_state_dict(child.state_dict())
            setattr(module, name, frozen)
        else:
            _freeze_batch_norm(child)
