"""Masks for images: a trained prediction network at work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.transform import resize_boxes

from annocoin import masks
from annocoin.engine.distribution import open_device
from annocoin.errors import InputError, check_positive
from annocoin.masks import Size
from annocoin.types import Instances

SCORE = 0.05
"""The least score of an instance that is kept, torchvision's."""

T = TypeVar("T")


class Predictor:
    """Instances in images, by a Mask R-CNN.

    Args:
        net: a prediction network.
        threshold: instances with a lower score are left out.
        device: where to compute.

    Example:
        >>> from annocoin.prediction import Architecture, build_network
        >>> small = Architecture(("cat",), "tiny", size=64, channels=8, hidden=8, mask_layers=1)
        >>> found = Predictor(build_network(small), threshold=0.9)([np.zeros((80, 64, 3), "uint8")])
        >>> found[0].size
        (80, 64)
    """

    def __init__(self, net: MaskRCNN, *, threshold: float = SCORE, device: str = "cpu") -> None:
        if not 0 <= threshold <= 1:
            raise InputError(f"score threshold {threshold}; expected 0 to 1")
        self.device = open_device(device)
        self.net = net.eval().to(self.device)
        self.threshold = threshold

    @torch.inference_mode()
    def __call__(self, images: Sequence[npt.NDArray[np.uint8]]) -> list[Instances]:
        """The instances of RGB images, uint8 [H, W, 3] of any sizes, best first."""
        if not len(images):
            return []
        net = self.net
        net.roi_heads.score_thresh = self.threshold
        seen = [torch.tensor(i, device=self.device).permute(2, 0, 1).float() / 255 for i in images]
        batch, _ = net.transform(seen)
        features = net.backbone(batch.tensors)
        proposals, _ = net.rpn(batch, features)
        found, _ = net.roi_heads(features, proposals, batch.image_sizes)
        sizes = [(image.shape[0], image.shape[1]) for image in images]
        return [
            _instances(own, inner, outer)
            for own, inner, outer in zip(found, batch.image_sizes, sizes, strict=True)
        ]


def in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """The items in lists of `size`, the last one perhaps shorter."""
    check_positive("batch", size)
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _instances(found: dict[str, Tensor], inner: Size, outer: Size) -> Instances:
    """What the heads found in an image of size `inner`, in the image as it was.

    Masks are pasted one by one: all at once would take gigabytes in a photograph.
    """
    boxes = resize_boxes(found["boxes"], inner, outer)
    pasted, kept = [], []
    for place, (mask, box) in enumerate(zip(found["masks"], boxes, strict=True)):
        dense = paste_masks_in_image(mask[None], box[None], outer)[0, 0] >= 0.5
        if dense.any():
            pasted += masks.encode(dense[None].cpu().numpy())
            kept.append(place)
    return Instances(
        size=outer, masks=pasted, labels=found["labels"][kept], scores=found["scores"][kept]
    )
