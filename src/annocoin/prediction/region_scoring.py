"""What the prediction network thinks of regions: its RoI heads, run on their boxes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.models.detection import MaskRCNN

from annocoin.prediction.networks import ResizedImage, batch_of
from annocoin.regions.region_set import RegionSet

LOOKED_AT = 64
"""How many regions of an image have their masks compared."""

UNSEEN = math.log(2)
"""The loss of a mask that says nothing, for the rest: to them the network gives other classes."""


@torch.no_grad()
def score_regions(
    net: MaskRCNN,
    seen: ResizedImage,
    regions: RegionSet,
    labels: Sequence[int],
    *,
    looked_at: int = LOOKED_AT,
) -> tuple[Tensor, Tensor]:
    """Log probabilities and mask losses of every region, as `prediction_loss_table` wants them.

    Args:
        net: in evaluation mode.
        seen: the image.
        regions: P of them.
        labels: the J classes that are asked for.
        looked_at: masks are predicted for so many regions, those that most probably are of one of
            these classes.

    Returns:
        log Pr_p(j | u) of the background and the J classes, float32 [P, J+1]; and the mean over
        pixels of the cross entropy between the mask of class j and the region, float32 [P, J].
    """
    device = next(net.parameters()).device
    images = batch_of([seen], device)
    boxes = (regions.boxes.float().cpu() * seen.scale).to(device)
    features = net.backbone(images.tensors)
    heads = net.roi_heads
    pooled = heads.box_roi_pool(features, [boxes], images.image_sizes)
    logits, _ = heads.box_predictor(heads.box_head(pooled))
    logs = logits.float().log_softmax(dim=1)[:, [0, *labels]].cpu()
    losses = torch.full((len(regions), len(labels)), UNSEEN)
    if labels:
        likely = logs[:, 1:].amax(dim=1).topk(min(looked_at, len(regions))).indices.sort().values
        hidden = heads.mask_roi_pool(features, [boxes[likely.to(device)]], images.image_sizes)
        masks = heads.mask_predictor(heads.mask_head(hidden))[:, list(labels)].float().cpu()
        wanted = crops(regions[likely], masks.shape[-1])[:, None].expand_as(masks)
        each = F.binary_cross_entropy_with_logits(masks, wanted, reduction="none")
        losses[likely] = each.mean(dim=(2, 3))
    return logs, losses


def crops(regions: RegionSet, side: int) -> Tensor:
    """Each region inside its own box, at side x side places: float32 [P, side, side] of 0 and 1.

    A place has the pixel that it lies in. No mask of the image's size is made.
    """
    boxes = regions.boxes.float()
    steps = (torch.arange(side, device=boxes.device) + 0.5) / side
    height, width = regions.size
    x = boxes[:, :1] + (boxes[:, 2:3] - boxes[:, :1]) * steps
    y = boxes[:, 1:2] + (boxes[:, 3:] - boxes[:, 1:2]) * steps
    columns, rows = x.long().clamp(0, width - 1), y.long().clamp(0, height - 1)
    ids = regions.superpixels[rows[:, :, None], columns[:, None, :]].long()  # [P, side, side]
    members = regions.membership.float()
    return members.gather(1, ids.flatten(1)).view(-1, side, side)
