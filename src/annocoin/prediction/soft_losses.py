"""Losses of Mask R-CNN with soft targets: K samples for the price of one.

Cross entropy is linear in its target, so that its mean over K samples is one cross entropy with
their mean. Each image counts the same, and what it counts does not depend on others in the batch.
Masks are averaged over all pairs of a sample and a box that stands for something in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.ops import roi_align

from annocoin.errors import InputError, check_positive
from annocoin.objective.diversity import class_entropy, mask_entropy
from annocoin.prediction.networks import mask_layer
from annocoin.prediction.soft_targets import (
    MatchWeights,
    SoftTargets,
    match,
    sample_anchors,
    sample_rois,
)

BETA = 1 / 9
"""Where the smooth L1 loss of boxes goes from square to linear, torchvision's."""


@dataclass(frozen=True)
class LossOptions:
    """What of an image the losses look at.

    Args:
        anchors, rois: how many an image, at most.
        positive_anchors, positive_rois: the most of them with an instance, as a share.
        entropy: the weight of the entropy, 1 - gamma; 0 leaves it out (PW_p).
        mask: the weight of the masks' losses beside the others. More than 1 helps true masks; noisy
            ones then spoil the features of the classes.
        shared_masks: one mask for all classes; see `share_masks`.
    """

    anchors: int = 256
    positive_anchors: float = 0.5
    rois: int = 512
    positive_rois: float = 0.25
    entropy: float = 0.5
    mask: float = 1.0
    shared_masks: bool = False

    def __post_init__(self) -> None:
        for name in ("anchors", "rois"):
            check_positive(name, getattr(self, name))
        for name in ("positive_anchors", "positive_rois", "entropy"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} {getattr(self, name)}; expected 0 to 1")
        if self.mask < 0:
            raise InputError(f"mask {self.mask}; expected 0 or more")


class SoftLosses(nn.Module):
    """A Mask R-CNN and what it is trained with: images and soft targets in, losses out.

    Their sum is DIV(Pr_p, Pr_c) - (1 - gamma) DIV(Pr_p, Pr_p), with the losses of torchvision's
    region proposals and boxes beside it.
    """

    def __init__(self, net: MaskRCNN, options: LossOptions | None = None) -> None:
        super().__init__()
        self.net = net
        self.options = options or LossOptions()

    def forward(
        self,
        images: ImageList,
        targets: Sequence[SoftTargets],
        scales: Sequence[Tensor],
        generators: Sequence[torch.Generator],
    ) -> dict[str, Tensor]:
        """The losses, each a mean over images.

        Args:
            images: B images as the network sees them.
            targets: B of them.
            scales: from a target's coordinates to those of its image, [4] each.
            generators: of what is random about each image.
        """
        places = [own.boxes * scale for own, scale in zip(targets, scales, strict=True)]
        features = self.net.backbone(images.tensors)
        # RoI pooling of torchvision knows no mixture of precisions
        features = {name: level.float() for name, level in features.items()}
        proposals, losses = self._region_proposals(images, features, targets, places, generators)
        rois, shares = self._rois(proposals, targets, places, generators)
        losses |= self._boxes(images, features, targets, places, rois, shares)
        losses |= self._masks(images, features, targets, scales, rois, shares)
        return losses

    def _region_proposals(
        self,
        images: ImageList,
        features: dict[str, Tensor],
        targets: Sequence[SoftTargets],
        places: Sequence[Tensor],
        generators: Sequence[torch.Generator],
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        rpn = self.net.rpn
        maps, deltas = rpn.head(list(features.values()))
        anchors = rpn.anchor_generator(images, list(features.values()))
        per_level = [level[0].numel() for level in maps]
        scores, deltas = concat_box_prediction_layers(maps, deltas)
        scores, deltas = scores.float(), deltas.float()
        with torch.no_grad():
            boxes = rpn.box_coder.decode(deltas.detach(), anchors).view(len(anchors), -1, 4)
            found, _ = rpn.filter_proposals(boxes, scores, images.image_sizes, per_level)
        of_score = of_box = scores.sum() * 0
        count = len(anchors[0])
        for i, (own, generator) in enumerate(zip(targets, generators, strict=True)):
            shares = match(
                anchors[i], places[i], own, foreground=0.7, background=0.3, best_too=True
            )
            positive = int(self.options.anchors * self.options.positive_anchors)
            chosen, drawn = sample_anchors(shares, self.options.anchors, positive, generator)
            logits = scores[i * count + chosen, 0]
            each = drawn.instances.sum(dim=1) * F.softplus(-logits)
            each = each + drawn.background * F.softplus(logits)
            of_score = of_score + each.sum() / max(1, len(chosen))
            row, instance = drawn.instances.nonzero(as_tuple=True)
            anchor = chosen[row]
            goal = rpn.box_coder.encode_single(places[i][instance], anchors[i][anchor])
            apart = F.smooth_l1_loss(
                deltas[i * count + anchor], goal, beta=BETA, reduction="none"
            ).sum(dim=1)
            weight = drawn.instances[row, instance]
            of_box = of_box + (weight * apart).sum() / max(1, len(chosen))
        images_seen = len(targets)
        return found, {"rpn score": of_score / images_seen, "rpn box": of_box / images_seen}

    @torch.no_grad()
    def _rois(
        self,
        proposals: Sequence[Tensor],
        targets: Sequence[SoftTargets],
        places: Sequence[Tensor],
        generators: Sequence[torch.Generator],
    ) -> tuple[list[Tensor], list[MatchWeights]]:
        """The boxes that the heads learn from, and what they stand for."""
        rois, shares = [], []
        for found, own, place, generator in zip(
            proposals, targets, places, generators, strict=True
        ):
            boxes = torch.cat([found, place.to(found)])
            matched = match(boxes, place, own, foreground=0.5, background=0.5)
            positive = int(self.options.rois * self.options.positive_rois)
            # more boxes stand for something in some sample than in one: no more than in one are
            # looked at, or K samples would cost more than one
            positive = min(positive, math.ceil(float(matched.instances.sum()) - 1e-3))
            chosen, own_shares = sample_rois(matched, self.options.rois, positive, generator)
            rois.append(boxes[chosen])
            shares.append(own_shares)
        return rois, shares

    def _boxes(
        self,
        images: ImageList,
        features: dict[str, Tensor],
        targets: Sequence[SoftTargets],
        places: Sequence[Tensor],
        rois: Sequence[Tensor],
        shares: Sequence[MatchWeights],
    ) -> dict[str, Tensor]:
        heads = self.net.roi_heads
        pooled = heads.box_roi_pool(features, list(rois), images.image_sizes)
        logits, deltas = heads.box_predictor(heads.box_head(pooled))
        logs = logits.float().log_softmax(dim=1)
        deltas = deltas.float().view(len(logs), logs.shape[1], 4)
        weight = torch.cat(
            [own.new_full((len(own),), 1 / max(1, len(own) * len(rois))) for own in rois]
        )
        wanted = torch.zeros_like(logs)
        of_box = logs.sum() * 0
        first = 0
        for own, place, boxes, share in zip(targets, places, rois, shares, strict=True):
            here = slice(first, first + len(boxes))
            wanted[here, 0] = share.background
            wanted[here].index_add_(1, own.labels, share.instances)
            row, instance = share.instances.nonzero(as_tuple=True)
            goal = heads.box_coder.encode_single(place[instance], boxes[row])
            apart = F.smooth_l1_loss(
                deltas[first + row, own.labels[instance]], goal, beta=BETA, reduction="none"
            ).sum(dim=1)
            of_box = of_box + (weight[here][row] * share.instances[row, instance] * apart).sum()
            first += len(boxes)
        losses = {"class": -(weight * (wanted * logs).sum(dim=1)).sum(), "box": of_box}
        if self.options.entropy:
            mean = (weight * class_entropy(logs)).sum()
            losses["class entropy"] = -self.options.entropy * mean
        return losses

    def _masks(
        self,
        images: ImageList,
        features: dict[str, Tensor],
        targets: Sequence[SoftTargets],
        scales: Sequence[Tensor],
        rois: Sequence[Tensor],
        shares: Sequence[MatchWeights],
    ) -> dict[str, Tensor]:
        kept = [share.instances.sum(dim=1) > 0 for share in shares]
        boxes = [own[which] for own, which in zip(rois, kept, strict=True)]
        heads = self.net.roi_heads
        hidden = heads.mask_head(heads.mask_roi_pool(features, boxes, images.image_sizes))
        hidden = heads.mask_predictor.relu(heads.mask_predictor.conv5_mask(hidden))
        rows, labels, goals, weights = [], [], [], []
        first = 0
        for own, box, which, share, scale in zip(targets, boxes, kept, shares, scales, strict=True):
            row, label, goal, weight = _mask_goals(
                own,
                box / scale,
                share.instances[which],
                int(2 * heads.mask_roi_pool.output_size[0]),
            )
            rows.append(first + row)
            labels.append(label)
            goals.append(goal)
            weights.append(weight / weight.sum().clamp(min=1e-6) / len(rois))
            first += len(box)
        row, label, goal, weight = map(torch.cat, (rows, labels, goals, weights))
        logits = _logits(hidden, row, label, mask_layer(self.net), self.options.shared_masks)
        each = F.binary_cross_entropy_with_logits(logits, goal, reduction="none").mean(dim=(1, 2))
        losses = {"mask": self.options.mask * (weight * each).sum()}
        if self.options.entropy:
            mean = (weight * mask_entropy(logits)).sum()
            losses["mask entropy"] = -self.options.mask * self.options.entropy * mean
        return losses


def _mask_goals(
    targets: SoftTargets, boxes: Tensor, shares: Tensor, side: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean mask inside each box for each class that it stands for.

    Args:
        boxes: in the coordinates of the targets, [M, 4].
        shares: of each box's instances, [M, U].

    Returns:
        The box [N] and the class [N] of each pair, its mean mask [N, side, side], and the share of
        samples in which the box stands for that class [N].
    """
    row, instance = shares.nonzero(as_tuple=True)
    share = shares[row, instance]
    label = targets.labels[instance]
    pairs, place = torch.unique(torch.stack([row, label]), dim=1, return_inverse=True)
    crops = roi_align(
        targets.masks[:, None].float(),
        torch.cat([instance[:, None].float(), boxes[row]], dim=1),
        (side, side),
    )[:, 0]
    weight = share.new_zeros(pairs.shape[1]).index_add_(0, place, share)
    total = crops.new_zeros(pairs.shape[1], side, side)
    total.index_add_(0, place, share[:, None, None] * crops)
    return pairs[0], pairs[1], total / weight[:, None, None], weight


def _logits(hidden: Tensor, row: Tensor, label: Tensor, layer: nn.Conv2d, shared: bool) -> Tensor:
    """The mask of each pair's class, float32 [N, side, side], without those of other classes."""
    assert layer.bias is not None
    if shared:
        weight, bias = layer.weight.mean(dim=0), layer.bias.mean()
        logits = torch.einsum("mfhw,f->mhw", hidden, weight[:, 0, 0].to(hidden.dtype)) + bias
        return logits[row].float()
    weight = layer.weight[label, :, 0, 0].to(hidden.dtype)
    logits = torch.einsum("nfhw,nf->nhw", hidden[row], weight)
    return (logits + layer.bias[label, None, None]).float()
