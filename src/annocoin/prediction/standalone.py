"""A prediction network as a folder with Python code for torchvision and its weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from safetensors.torch import save_file
from torchvision.models.detection import MaskRCNN

from annocoin import __version__
from annocoin.prediction.networks import (
    ASPECT_RATIOS,
    BACKBONES,
    BOX_HEAD_CONVOLUTIONS,
    NORM_GROUPS,
    RESNET_LAYERS,
    PredictionArchitecture,
)

MODEL_FILE = "model.py"
WEIGHTS_FILE = "prediction.safetensors"


def write_standalone(
    folder: Path, net: MaskRCNN, architecture: PredictionArchitecture, threshold: float
) -> None:
    """Write model.py and prediction.safetensors into a folder."""
    state = {name: value.detach().cpu().contiguous() for name, value in net.state_dict().items()}
    save_file(state, folder / WEIGHTS_FILE)
    (folder / MODEL_FILE).write_text(model_source(architecture, threshold), encoding="utf-8")


def model_source(a: PredictionArchitecture, threshold: float) -> str:
    """The code of model.py: a network of this architecture, built with torchvision only."""
    layers, channels, hidden = BACKBONES[a.backbone], a.fpn_channels, a.representation_size
    is_resnet = layers == RESNET_LAYERS
    network = a.backbone if is_resnet else "mobilenet_v2"
    body = f"{network}(weights=None, norm_layer=FrozenBatchNorm2d)"
    heads = "FastRCNNPredictor, TwoMLPHead"
    box_head, norm = f"TwoMLPHead({channels} * 7 * 7, {hidden})", ""
    lines = [f"    body = {body}{'' if is_resnet else '.features'}"]
    if a.stride_in_1x1 and is_resnet:
        lines += [
            "    for stage in (body.layer2, body.layer3, body.layer4):  # as in original ResNets",
            "        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)",
        ]
    if a.group_norm:
        heads = "FastRCNNConvFCHead, FastRCNNPredictor"
        lines += [f"    norm = partial(nn.GroupNorm, {NORM_GROUPS})"]
        convolutions = [channels] * BOX_HEAD_CONVOLUTIONS
        box_head = f"FastRCNNConvFCHead(({channels}, 7, 7), {convolutions}, [{hidden}], norm)"
        norm = ", norm"
    return _TEMPLATE.format(
        version=__version__,
        imports="from functools import partial\n" if a.group_norm else "",
        nn="from torch import nn\n" if a.group_norm else "",
        network=network,
        heads=heads,
        classes=_literal(a.classes),
        layers=json.dumps(layers),
        body="\n".join(lines),
        channels=channels,
        hidden=hidden,
        fpn_norm=", norm_layer=norm" if a.group_norm else "",
        norm=norm,
        a=a,
        anchors=tuple((a.anchor_size * 2**i,) for i in range(len(layers) + 1)),
        ratios=ASPECT_RATIOS,
        num_ratios=len(ASPECT_RATIOS),
        box_head=box_head,
        threshold=threshold,
        mask_layers=(channels,) * a.mask_layers,
        weights=WEIGHTS_FILE,
    )


def _literal(names: Sequence[str]) -> str:
    """Code of a tuple of strings: one line, or one line for each if they are many."""
    strings = [json.dumps(name, ensure_ascii=False) for name in names]
    line = f"({', '.join(strings)}{',' * (len(names) == 1)})"
    if len(line) <= 80:
        return line
    return "".join(["(\n", *(f"    {string},\n" for string in strings), ")"])


_TEMPLATE = '''\
"""A Mask R-CNN for torchvision, exported by annocoin {version}; it does not need annocoin.

    python model.py IMAGE       # print the instances in an image

    net = load()                # in Python
    instances = net([image])[0]

An image is RGB, float [3, H, W] in 0..1, of any size. The instances are a dict: "boxes" [N, 4] in
pixels (x0, y0, x1, y1), "labels" [N] (1 is the first of CLASSES), "scores" [N], and "masks"
[N, 1, H, W], the probability of each pixel.
"""

import sys
{imports}from pathlib import Path

import torch
from safetensors.torch import load_file
{nn}from torchvision.io import ImageReadMode, read_image
from torchvision.models import {network}
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.models.detection.faster_rcnn import {heads}
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import FrozenBatchNorm2d, MultiScaleRoIAlign
from torchvision.ops.poolers import initLevelMapper

CLASSES = {classes}
WEIGHTS = Path(__file__).with_name("{weights}")

# Layers of the backbone that feed the feature pyramid, with their channels; names of its levels.
LAYERS = {layers}
LEVELS = [str(i) for i in range(len(LAYERS))]


def load(weights=WEIGHTS):
    """The trained network, in evaluation mode."""
    net = build()
    net.load_state_dict(load_file(weights))
    return net.eval()


def build():
    """The network with random weights."""
{body}
    return_layers = dict(zip(LAYERS, LEVELS))
    anchor_sizes = {anchors}
    return MaskRCNN(
        BackboneWithFPN(body, return_layers, list(LAYERS.values()), {channels}{fpn_norm}),
        min_size={a.min_size},
        max_size={a.max_size},
        rpn_anchor_generator=AnchorGenerator(anchor_sizes, ({ratios},) * len(anchor_sizes)),
        rpn_head=RPNHead({channels}, {num_ratios}),
        rpn_pre_nms_top_n_test={a.rpn_top_n},
        rpn_post_nms_top_n_test={a.rpn_top_n},
        box_roi_pool=roi_align(7, sampling_ratio={a.box_sampling_ratio}),
        box_head={box_head},
        box_predictor=FastRCNNPredictor({hidden}, len(CLASSES) + 1),
        box_score_thresh={threshold},
        box_detections_per_img={a.detections_per_image},
        mask_roi_pool=roi_align(14, sampling_ratio={a.mask_sampling_ratio}),
        mask_head=MaskRCNNHeads({channels}, {mask_layers}, 1{norm}),
        mask_predictor=MaskRCNNPredictor({channels}, {channels}, len(CLASSES) + 1),
    )


def roi_align(size, sampling_ratio):
    """RoIAlign with fixed strides 4, 8, ..; torchvision infers them from the first image."""
    pool = MultiScaleRoIAlign(LEVELS, size, sampling_ratio)
    pool.scales = [2.0 ** -(level + 2) for level in range(len(LEVELS))]
    pool.map_levels = initLevelMapper(2, len(LEVELS) + 1)
    return pool


def main(path):
    """Print class, score and box of the instances in an image."""
    image = read_image(path, ImageReadMode.RGB, apply_exif_orientation=True) / 255
    with torch.inference_mode():
        instances = load()([image])[0]
    for label, score, box in zip(instances["labels"], instances["scores"], instances["boxes"]):
        corners = ", ".join(f"{{value:.1f}}" for value in box.tolist())
        print(f"{{CLASSES[label - 1]}} {{score:.3f}} [{{corners}}]")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python model.py IMAGE")
    main(sys.argv[1])
'''
