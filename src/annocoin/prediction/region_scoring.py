"""Scores of regions under the prediction network: by its detections, or by its RoI heads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.transform import resize_boxes

from annocoin.masks import Size
from annocoin.objective.task_loss import MASK_SCORED_REGIONS
from annocoin.prediction.networks import ResizedImage, batch_images
from annocoin.prediction.soft_losses import SMOOTH_L1_BETA
from annocoin.regions.region_set import RegionSet

UNKNOWN_MASK_LOSS = math.log(2)
"""Mask loss of all other regions: that of a probability of one half at every pixel."""

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
    net: MaskRCNN,
    image: ResizedImage,
    labels: Sequence[int],
    *,
    min_score: float = MIN_SCORE,
    bfloat16: bool = False,
) -> Detections:
    """Detections of the classes that the image is known to have.

    The class posterior of every RoI is conditioned on the annotation: other classes have
    probability 0, and the rest sums to 1.

    Args:
        net: in evaluation mode.
        labels: the classes of the annotation.
        bfloat16: whether the backbone uses bfloat16 autocast.
    """
    device, heads = next(net.parameters()).device, net.roi_heads
    batch = batch_images([image], device)
    features = _features(net, batch.tensors, bfloat16)
    proposals, _ = net.rpn(batch, features)
    pooled = heads.box_roi_pool(features, proposals, batch.image_sizes)
    logits, deltas = heads.box_predictor(heads.box_head(pooled))
    known = torch.full_like(logits[0], ABSENT)
    known[[0, *labels]] = 0
    heads.score_thresh = min_score
    boxes, scores, found = heads.postprocess_detections(
        logits + known, deltas, proposals, batch.image_sizes
    )
    masks = _masks_in_boxes(net, features, boxes[0], found[0], batch.image_sizes[0], image)
    return Detections(masks >= 0.5, found[0].cpu(), scores[0].float().cpu())


@torch.no_grad()
def segment_boxes(net: MaskRCNN, image: ResizedImage, boxes: Tensor, labels: Tensor) -> Detections:
    """The masks that a network sees in boxes of known classes, scored by its class probability.

    Args:
        net: in evaluation mode.
        boxes: in the original image, [N, 4].
        labels: classes 1..C, int64 [N].
    """
    device, heads = next(net.parameters()).device, net.roi_heads
    batch = batch_images([image], device)
    resized, labels = (boxes.float() * image.scale).to(device), labels.to(device)
    features = _features(net, batch.tensors, False)
    pooled = heads.box_roi_pool(features, [resized], batch.image_sizes)
    logits, _ = heads.box_predictor(heads.box_head(pooled))
    scores = logits.softmax(dim=1)[torch.arange(len(labels), device=device), labels]
    masks = _masks_in_boxes(net, features, resized, labels, batch.image_sizes[0], image)
    return Detections(masks >= 0.5, labels.cpu(), scores.float().cpu())


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


class RegionScores(NamedTuple):
    """The outputs of the RoI heads on P regions, for the background and J classes.

    Args:
        log_probabilities: log Pr_p(j | u), float32 [P, J+1].
        mask_losses: the mean over pixels of the cross entropy between the mask of class j and the
            region, float32 [P, J].
        box_losses: the smooth L1 loss between the box that the network regresses for class j and
            the region's tight box, summed over its four offsets, float32 [P, J].
    """

    log_probabilities: Tensor
    mask_losses: Tensor
    box_losses: Tensor


@torch.no_grad()
def score_regions(
    net: MaskRCNN,
    image: ResizedImage,
    regions: RegionSet,
    labels: Sequence[int],
    *,
    mask_scored_regions: int | None = MASK_SCORED_REGIONS,
    bfloat16: bool = False,
) -> RegionScores:
    """Compute the log probabilities and losses that `prediction_loss_table` takes.

    Args:
        net: in evaluation mode.
        regions: P regions in the coordinates of the original image.
        labels: the J classes to score.
        mask_scored_regions: masks are predicted only for this many regions, those with the highest
            probability of one of the classes; None for all.
        bfloat16: whether the backbone uses bfloat16 autocast.
    """
    device, heads = next(net.parameters()).device, net.roi_heads
    batch = batch_images([image], device)
    boxes = (regions.boxes.float().cpu() * image.scale).to(device)
    features = _features(net, batch.tensors, bfloat16)
    pooled = heads.box_roi_pool(features, [boxes], batch.image_sizes)
    logits, deltas = heads.box_predictor(heads.box_head(pooled))
    offsets = deltas.float().view(*logits.shape, 4)[:, list(labels)].cpu()  # 0 is the RoI itself
    box_losses = F.smooth_l1_loss(
        offsets, torch.zeros_like(offsets), beta=SMOOTH_L1_BETA, reduction="none"
    )
    log_probabilities = logits.float().log_softmax(dim=1)[:, [0, *labels]].cpu()
    losses = torch.full((len(regions), len(labels)), UNKNOWN_MASK_LOSS)
    if labels:
        best = log_probabilities[:, 1:].amax(dim=1)
        limit = len(regions) if mask_scored_regions is None else mask_scored_regions
        likely = best.topk(min(limit, len(regions))).indices.sort().values
        pooled = heads.mask_roi_pool(features, [boxes[likely.to(device)]], batch.image_sizes)
        masks = heads.mask_predictor(heads.mask_head(pooled))[:, list(labels)].float().cpu()
        targets = crop_regions(regions[likely], masks.shape[-1])[:, None].expand_as(masks)
        pixel_losses = F.binary_cross_entropy_with_logits(masks, targets, reduction="none")
        losses[likely] = pixel_losses.mean(dim=(2, 3))
    return RegionScores(log_probabilities, losses, box_losses.sum(dim=2))


@torch.no_grad()
def mask_probabilities(
    net: MaskRCNN, image: ResizedImage, boxes: Tensor, labels: Tensor, *, bfloat16: bool = False
) -> Tensor:
    """The probability of every pixel to be of the instance in a box: float32 [N, H, W].

    Args:
        net: in evaluation mode.
        boxes: in the original image, [N, 4].
        labels: their classes 1..C, int64 [N].
    """
    device = next(net.parameters()).device
    batch = batch_images([image], device)
    features = _features(net, batch.tensors, bfloat16)
    resized = (boxes.float() * image.scale).to(device)
    return _masks_in_boxes(net, features, resized, labels.to(device), batch.image_sizes[0], image)


def _masks_in_boxes(
    net: MaskRCNN,
    features: dict[str, Tensor],
    boxes: Tensor,
    labels: Tensor,
    size: Size,
    image: ResizedImage,
) -> Tensor:
    """The mask probabilities of classes [N] in boxes [N, 4] of the resized image: [N, H, W].

    Args:
        size: of the resized image; the masks have that of the original one.
    """
    heads = net.roi_heads
    pooled = heads.mask_roi_pool(features, [boxes], [size])
    probabilities = heads.mask_predictor(heads.mask_head(pooled)).sigmoid()
    probabilities = probabilities[torch.arange(len(labels), device=labels.device), labels]
    in_image = resize_boxes(boxes, size, image.original_size)
    masks = torch.zeros(len(in_image), *image.original_size)
    for mask, probability, box in zip(masks, probabilities, in_image, strict=True):
        pasted = paste_masks_in_image(probability[None, None], box[None], image.original_size)
        mask[:] = pasted[0, 0].cpu()
    return masks


def _features(net: MaskRCNN, images: Tensor, bfloat16: bool) -> dict[str, Tensor]:
    """The levels of the feature pyramid of images [B, 3, H, W], in full precision."""
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
        features = net.backbone(images)
    return {name: level.float() for name, level in features.items()}


def crop_regions(regions: RegionSet, side: int) -> Tensor:
    """Crop each region to its box and resize it: float32 [P, side, side] of 0 and 1.

    Samples the nearest pixel on a grid, without building masks of the image's size.
    """
    boxes = regions.boxes.float()
    steps = (torch.arange(side, device=boxes.device) + 0.5) / side
    height, width = regions.size
    x = boxes[:, :1] + (boxes[:, 2:3] - boxes[:, :1]) * steps
    y = boxes[:, 1:2] + (boxes[:, 3:] - boxes[:, 1:2]) * steps
    columns, rows = x.long().clamp(0, width - 1), y.long().clamp(0, height - 1)
    ids = regions.superpixels[rows[:, :, None], columns[:, None, :]].long()  # [P, side, side]
    return regions.membership.float().gather(1, ids.flatten(1)).view(-1, side, side)
