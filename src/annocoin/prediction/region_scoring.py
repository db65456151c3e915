"""Score regions with the RoI heads of the prediction network."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection import MaskRCNN

from annocoin.prediction.networks import ResizedImage, batch_images
from annocoin.regions.region_set import RegionSet

MASK_SCORED_REGIONS = 64
"""Default number of regions per image whose masks are predicted."""

UNKNOWN_MASK_LOSS = math.log(2)
"""Mask loss of all other regions: that of a probability of one half at every pixel."""


@torch.no_grad()
def score_regions(
    net: MaskRCNN,
    image: ResizedImage,
    regions: RegionSet,
    labels: Sequence[int],
    *,
    mask_scored_regions: int = MASK_SCORED_REGIONS,
) -> tuple[Tensor, Tensor]:
    """Compute the log probabilities and mask losses that `prediction_loss_table` takes.

    Args:
        net: in evaluation mode.
        regions: P regions in the coordinates of the original image.
        labels: the J classes to score.
        mask_scored_regions: masks are predicted only for this many regions, those with the highest
            probability of one of the classes.

    Returns:
        log Pr_p(j | u) of the background and the J classes, float32 [P, J+1]; and the mean over
        pixels of the cross entropy between the mask of class j and the region, float32 [P, J].
    """
    device, heads = next(net.parameters()).device, net.roi_heads
    batch = batch_images([image], device)
    boxes = (regions.boxes.float().cpu() * image.scale).to(device)
    features = net.backbone(batch.tensors)
    pooled = heads.box_roi_pool(features, [boxes], batch.image_sizes)
    logits, _ = heads.box_predictor(heads.box_head(pooled))
    log_probabilities = logits.float().log_softmax(dim=1)[:, [0, *labels]].cpu()
    losses = torch.full((len(regions), len(labels)), UNKNOWN_MASK_LOSS)
    if labels:
        best = log_probabilities[:, 1:].amax(dim=1)
        likely = best.topk(min(mask_scored_regions, len(regions))).indices.sort().values
        pooled = heads.mask_roi_pool(features, [boxes[likely.to(device)]], batch.image_sizes)
        masks = heads.mask_predictor(heads.mask_head(pooled))[:, list(labels)].float().cpu()
        targets = crop_regions(regions[likely], masks.shape[-1])[:, None].expand_as(masks)
        pixel_losses = F.binary_cross_entropy_with_logits(masks, targets, reduction="none")
        losses[likely] = pixel_losses.mean(dim=(2, 3))
    return log_probabilities, losses


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
