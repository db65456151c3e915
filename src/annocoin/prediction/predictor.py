"""Predict instances in images with a trained prediction network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.transform import resize_boxes

from annocoin import masks
from annocoin.data.images import read_image
from annocoin.errors import InputError
from annocoin.prediction.networks import resize_for
from annocoin.types import Instances

ImageSource = str | Path | Image.Image | np.ndarray

SCORE = 0.05
"""Default score threshold, as in torchvision."""


class Predictor:
    """Predict instances with a Mask R-CNN.

    Args:
        net: a prediction network.
        threshold: minimum score of an instance, in 0..1.
        device: where to compute.

    Example:
        >>> from annocoin.prediction.networks import PredictionArchitecture, build_network
        >>> architecture = PredictionArchitecture(("cat",), "tiny", min_size=64, fpn_channels=8)
        >>> predictor = Predictor(build_network(architecture), threshold=0.9)
        >>> predictor([np.zeros((80, 64, 3), "uint8")])[0].size
        (80, 64)
    """

    def __init__(
        self, net: MaskRCNN, *, threshold: float = SCORE, device: str | torch.device = "cpu"
    ) -> None:
        if not 0 <= threshold <= 1:
            raise InputError(f"score threshold {threshold}; expected 0 to 1")
        self.device = torch.device(device)
        self.net = net.eval().to(self.device)
        self.threshold = threshold

    def __call__(self, images: Sequence[ImageSource]) -> list[Instances]:
        """Instances of each image by falling score; see `read_image` for the kinds of images."""
        if isinstance(images, ImageSource):
            raise InputError("a single image; expected a sequence, such as [image]")
        return [self._predict(image) for image in images]

    @torch.inference_mode()
    def _predict(self, image: ImageSource) -> Instances:
        """Run the network on one image: padding to a common size would change the predictions."""
        net = self.net
        net.roi_heads.score_thresh = self.threshold  # predictors may share a network
        pixels = read_image(image)
        size = (int(pixels.shape[0]), int(pixels.shape[1]))
        resized = resize_for(net, pixels, self.device)
        del pixels, image
        batch = ImageList(
            net.transform.batch_images([resized], net.transform.size_divisible),
            [(int(resized.shape[1]), int(resized.shape[2]))],
        )
        features = net.backbone(batch.tensors)
        proposals, _ = net.rpn(batch, features)
        (detections,), _ = net.roi_heads(features, proposals, batch.image_sizes)
        boxes = resize_boxes(detections["boxes"], batch.image_sizes[0], size)
        rles, indices = [], []
        for i, (mask, box) in enumerate(zip(detections["masks"], boxes, strict=True)):
            # one by one: all masks of a photograph together take gigabytes
            dense = paste_masks_in_image(mask[None], box[None], size)[0] >= 0.5
            if dense.any():
                rles += masks.encode(dense.cpu().numpy())
                indices.append(i)
        return Instances(
            size=size,
            masks=rles,
            labels=detections["labels"][indices],
            scores=detections["scores"][indices],
        )
