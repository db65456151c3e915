"""Boundary detectors: from an image to the probability of an object boundary at every pixel.

The network was trained on BSDS500 by `tools/train_boundaries.py`; its weights are part of the
package (`weights/boundaries.safetensors`, model card in `weights/boundaries.md`). The gradient of
Lab colours is the classical alternative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from annocoin.backbones import (
    BoundaryNet,
    Image,
    Precision,
    boundary_network,
    load_boundary_weights,
)
from annocoin.errors import InputError, check_choice

Maps = npt.NDArray[np.float32]

DetectorKind = Literal["network", "gradient"]
KINDS = get_args(DetectorKind)

SCALES = (0.5, 1.0, 1.5)
"""Factors by which the image is resized; the largest helps with small objects."""

MAX_SIDE = 800
"""Images with a longer side are reduced to this length, and the maps enlarged again."""

MIN_SIDE = 320
"""Smaller images are enlarged to this length, but at most by `MAX_ENLARGEMENT`."""

MAX_ENLARGEMENT = 3.0


class BoundaryDetector:
    """Image to boundary maps.

    Args:
        kind: "network", or "gradient" (multi-scale Lab gradient, which needs no weights).
        scales: factors by which the image is resized; one map each.
        precision: of the network; "bf16" uses bfloat16 autocast.

    Example:
        >>> detector = BoundaryDetector("gradient", scales=(1.0,))
        >>> halves = np.zeros((20, 30, 3), np.uint8)
        >>> halves[:, 15:] = 255
        >>> maps = detector(halves)
        >>> maps.shape, int(maps[0, 10].argmax()) in (14, 15)
        ((1, 20, 30), True)
    """

    def __init__(
        self,
        kind: DetectorKind = "network",
        scales: Sequence[float] = SCALES,
        precision: Precision = "32",
    ) -> None:
        check_choice("boundary detector", kind, KINDS)
        check_choice("precision", precision, get_args(Precision))
        self.scales, self.bfloat16 = tuple(scales), precision == "bf16"
        self._net = boundary_network() if kind == "network" else None

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Use a network with these weights, such as `tools/train_boundaries.py` writes."""
        self._net = boundary_network(pretrained=False)
        load_boundary_weights(self._net, weights)

    def __call__(self, image: Image) -> Maps:
        """Boundary probabilities, float32 [K, H, W] in 0..1, of an RGB image, uint8 [H, W, 3]."""
        check_image(image)
        height, width = image.shape[:2]
        longer = max(height, width)
        fit = min(MAX_ENLARGEMENT, max(1.0, MIN_SIDE / longer), MAX_SIDE / longer)
        maps = np.empty((len(self.scales), height, width), dtype=np.float32)
        for output, scale in zip(maps, self.scales, strict=True):
            size = [max(1, round(side * fit * scale)) for side in (width, height)]
            method = cv2.INTER_AREA if fit * scale < 1 else cv2.INTER_LINEAR
            resized = np.asarray(cv2.resize(image, size, interpolation=method), dtype=np.uint8)
            probability = (
                lab_gradient(resized)
                if self._net is None
                else _predict(self._net, resized, self.bfloat16)
            )
            output[:] = cv2.resize(probability, (width, height), interpolation=cv2.INTER_LINEAR)
        return np.clip(maps, 0, 1, out=maps)


def check_image(image: Image) -> None:
    """Raise unless it is an RGB image, uint8 [H, W, 3]."""
    shape, dtype = np.shape(image), getattr(image, "dtype", type(image).__name__)
    if len(shape) != 3 or shape[2] != 3 or 0 in shape or dtype != np.uint8:
        raise InputError(f"an image of {dtype} {shape}; expected RGB as a uint8 array [H, W, 3]")


def lab_gradient(image: Image) -> Maps:
    """Gradient magnitude of the Lab colours, the strongest of three widths, as 1 - exp(-g / 15)."""
    lab = cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_RGB2Lab)
    strongest = np.zeros(image.shape[:2], dtype=np.float32)
    for sigma in (1.0, 2.0, 4.0):
        smooth = cv2.GaussianBlur(lab, (0, 0), sigma, borderType=cv2.BORDER_REPLICATE)
        across = cv2.Sobel(smooth, cv2.CV_32F, 1, 0, borderType=cv2.BORDER_REPLICATE) / 8
        down = cv2.Sobel(smooth, cv2.CV_32F, 0, 1, borderType=cv2.BORDER_REPLICATE) / 8
        magnitude = np.sqrt((across**2 + down**2).sum(axis=2)) * sigma
        strongest = np.maximum(strongest, magnitude)
    return np.asarray(1 - np.exp(-strongest / 15), dtype=np.float32)


@torch.inference_mode()
def _predict(net: BoundaryNet, image: Image, bfloat16: bool) -> Maps:
    pixels = torch.from_numpy(image.astype(np.float32) / 255).permute(2, 0, 1)[None]
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = net(pixels.to(memory_format=torch.channels_last))
    probability: Maps = logits[0, 0].float().sigmoid().numpy()
    return probability
