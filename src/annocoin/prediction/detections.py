"""The prediction network's detections given the annotation, as evidence for regions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.transform import resize_boxes

from annocoin.prediction.networks import ResizedImage, batch_images
from annocoin.regions.region_set import RegionSet

MIN_SCORE = 0.02
"""Detections with a lower score are not considered."""

IOU_EXPONENT = 4
"""Exponent of the IoU of a region with a detection: only regions that fit it get its score."""

ABSENT = -1e4
"""Logit of classes that the image does not have."""


class Detections(NamedTuple):
    """The instances that a network finds in one image.

    Args:
        masks: of the original image's size, bool [N, H, W].
        labels: classes 1..C, int64 [N].
        scores: float32 [N], falling.
    """

    masks: Tensor
    labels: Tensor
    scores: Tensor


@torch.no_grad()
def detect_annotated(
    net: MaskRCNN, image: ResizedImage, labels: Sequence[int], *, min_score: float = MIN_SCORE
) -> Detections:
    """Detections of the classes that the image is known to have.

    The class posterior of every RoI is conditioned on the annotation: other classes have
    probability 0, and the rest sums to 1.

    Args:
        net: in evaluation mode.
        labels: the classes of the annotation.
    """
    device, heads = next(net.parameters()).device, net.roi_heads
    batch = batch_images([image], device)
    features = net.backbone(batch.tensors)
    proposals, _ = net.rpn(batch, features)
    pooled = heads.box_roi_pool(features, proposals, batch.image_sizes)
    logits, deltas = heads.box_predictor(heads.box_head(pooled))
    known = torch.full_like(logits[0], ABSENT)
    known[[0, *labels]] = 0
    heads.score_thresh = min_score
    boxes, scores, found = heads.postprocess_detections(
        logits + known, deltas, proposals, batch.image_sizes
    )
    pooled = heads.mask_roi_pool(features, boxes, batch.image_sizes)
    probabilities = heads.mask_predictor(heads.mask_head(pooled)).sigmoid()
    probabilities = probabilities[torch.arange(len(found[0]), device=device), found[0]]
    in_image = resize_boxes(boxes[0], batch.image_sizes[0], image.original_size)
    masks = torch.zeros(len(in_image), *image.original_size, dtype=torch.bool)
    for mask, probability, box in zip(masks, probabilities, in_image, strict=True):
        pasted = paste_masks_in_image(probability[None, None], box[None], image.original_size)
        mask[:] = pasted[0, 0].cpu() >= 0.5
    return Detections(masks, found[0].cpu(), scores[0].float().cpu())


def detected_iou(regions: RegionSet, detections: Detections, labels: Sequence[int]) -> Tensor:
    """How well each region is detected as an instance of each of J classes, in 0..1: [P, J].

    The greatest product of a detection's score and a power of the region's IoU with its mask.
    """
    result = torch.zeros(len(regions), len(labels))
    if not len(detections.labels):
        return result
    iou = regions.iou_with(detections.masks).cpu()
    products = detections.scores * iou**IOU_EXPONENT
    for column, label in enumerate(labels):
        of_class = detections.labels == label
        if bool(of_class.any()):
            result[:, column] = products[:, of_class].amax(dim=1)
    return result
