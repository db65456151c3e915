"""Losses of Mask R-CNN with soft targets: K samples at the cost of one.

Cross entropy is linear in its target, so that the mean over K samples is one cross entropy with
the mean target. Every image has the same weight, and its losses do not depend on the other images
of a batch. Mask losses are means over all pairs of a sample and a box matched in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection._utils import BoxCoder
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.roi_heads import project_masks_on_boxes
from torchvision.models.detection.rpn import concat_box_prediction_layers
from torchvision.ops import box_iou

from annocoin.errors import InputError, check_choice, check_positive
from annocoin.objective.diversity import (
    GAMMA,
    box_self_diversity,
    class_entropy,
    expected_box_losses,
    mask_entropy,
)
from annocoin.prediction.soft_targets import (
    MatchWeights,
    SoftTargets,
    match_boxes,
    sample_anchors,
    sample_rois,
)

AWAY_IOU = 0.1
"""A box is away from an instance if their IoU is lower; else it may show only a part of it."""

SMOOTH_L1_BETA = 1 / 9
"""Where the loss of boxes changes from quadratic to linear, as in torchvision."""

BAG_WEIGHT = 1.0
SMOOTHNESS_WEIGHT = 0.05
"""Weights of the two parts of `projection_losses`."""

MaskLoss = Literal["targets", "projection"]

Features = dict[str, Tensor]
Losses = dict[str, Tensor]


@dataclass(frozen=True)
class LossOptions:
    """Sampling and weights of the losses.

    Args:
        anchors_per_image, rois_per_image: maximum number in the losses.
        positive_anchor_fraction, positive_roi_fraction: maximum fraction of them that is matched
            to an instance.
        pointwise: PW_p, without the entropy of the prediction (self diversity).
        masks: loss of masks: cross entropy with the "targets", or by their "projection" onto rows
            and columns alone, which boxes give, see `projection_losses`.
        mask_weight: weight of the mask losses. More than 1 helps with true masks; with noisy ones
            it harms the classification.
        class_agnostic_masks: predict one mask for all classes, see `make_masks_class_agnostic`.
        background_max_score: boxes away from all instances to which the network gives a higher
            score are not background in the losses: they may be objects without a label. For RoIs
            it is the probability of the annotated classes, for anchors the objectness. 1 is Mask
            R-CNN's loss.
        expected_boxes: the loss of a RoI's box as its expectation over the RoI's classes, minus
            its self diversity, as the paper's eq. 11 has it: see `expected_box_losses` and
            `box_self_diversity`. Otherwise Mask R-CNN's loss: the box of the matched class alone.
    """

    anchors_per_image: int = 256
    positive_anchor_fraction: float = 0.5
    rois_per_image: int = 512
    positive_roi_fraction: float = 0.25
    pointwise: bool = False
    masks: MaskLoss = "targets"
    mask_weight: float = 1.0
    class_agnostic_masks: bool = False
    background_max_score: float = 1.0
    expected_boxes: bool = False

    def __post_init__(self) -> None:
        check_positive("anchors_per_image", self.anchors_per_image)
        check_positive("rois_per_image", self.rois_per_image)
        for name in ("positive_anchor_fraction", "positive_roi_fraction", "background_max_score"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} {getattr(self, name)}; expected 0 to 1")
        check_choice("masks", self.masks, get_args(MaskLoss))
        if self.mask_weight < 0:
            raise InputError(f"mask_weight {self.mask_weight}; expected 0 or more")


class SampledRoIs(NamedTuple):
    """The RoIs of one image in the losses; all boxes are in pixels of the resized image."""

    boxes: Tensor  # [N, 4]
    matches: MatchWeights
    targets: SoftTargets
    scale: Tensor  # factors from pixels of the targets' masks to those of the boxes, [4]


class SoftLosses(nn.Module):
    """The losses of a Mask R-CNN for images with soft targets.

    Their sum is DIV(Pr_p, Pr_c) - (1 - gamma) DIV(Pr_p, Pr_p), plus torchvision's losses of the
    region proposal network and, unless boxes are part of the diversities, of box regression.
    """

    def __init__(
        self, net: MaskRCNN, options: LossOptions | None = None, gamma: float = GAMMA
    ) -> None:
        super().__init__()
        if not 0 <= gamma <= 1:
            raise InputError(f"gamma {gamma}; expected 0 to 1")
        self.net = net
        self.options = options or LossOptions()
        self.entropy_weight = 0.0 if self.options.pointwise else 1 - gamma

    def forward(
        self,
        images: ImageList,
        targets: Sequence[SoftTargets],
        scales: Sequence[Tensor],
        generators: Sequence[torch.Generator],
    ) -> Losses:
        """Compute the losses, each a mean over images, with torchvision's names.

        Args:
            images: B images, see `batch_images`.
            targets: B targets.
            scales: factors from a target's box coordinates to those of its image, B of [4].
            generators: B generators for sampling anchors and RoIs.
        """
        features = self.net.backbone(images.tensors)
        # torchvision's RoI pooling does not support mixed precision
        features = {name: level.float() for name, level in features.items()}
        targets = [replace(t, boxes=t.boxes * s) for t, s in zip(targets, scales, strict=True)]
        proposals, losses = self._rpn_losses(images, features, targets, generators)
        per_image = zip(proposals, targets, scales, generators, strict=True)
        rois = [self._sample_rois(*each) for each in per_image]
        losses |= self._box_losses(images, features, rois)
        losses |= self._mask_losses(images, features, rois)
        return losses

    def _rpn_losses(
        self,
        images: ImageList,
        features: Features,
        targets: Sequence[SoftTargets],
        generators: Sequence[torch.Generator],
    ) -> tuple[list[Tensor], Losses]:
        """The proposals of each image, and the losses of the region proposal network."""
        rpn, limit = self.net.rpn, self.options.anchors_per_image
        levels = list(features.values())
        level_logits, level_deltas = rpn.head(levels)
        anchors = rpn.anchor_generator(images, levels)
        logits, deltas = concat_box_prediction_layers(level_logits, level_deltas)
        logits, deltas = logits.float(), deltas.float()
        with torch.no_grad():
            boxes = rpn.box_coder.decode(deltas.detach(), anchors).view(len(anchors), -1, 4)
            per_level = [level[0].numel() for level in level_logits]
            proposals, _ = rpn.filter_proposals(boxes, logits, images.image_sizes, per_level)
        classification = regression = logits.sum() * 0
        max_positive = int(limit * self.options.positive_anchor_fraction)
        for i, (target, generator) in enumerate(zip(targets, generators, strict=True)):
            matches = match_boxes(anchors[i], target, 0.7, 0.3, allow_low_quality_matches=True)
            chosen, matches = sample_anchors(matches, limit, max_positive, generator)
            count = max(1, len(chosen)) * len(targets)
            rows = i * len(anchors[i]) + chosen
            boxes, scores = anchors[i][chosen], logits[rows, 0]
            foreground = matches.instances.sum(dim=1)
            background = self._background(scores.detach().sigmoid(), boxes, matches, target)
            losses = foreground * F.softplus(-scores) + background * F.softplus(scores)
            classification = classification + losses.sum() / count
            losses = _box_regression(deltas[rows, None], boxes, matches, target, rpn.box_coder)
            regression = regression + losses.sum() / count
        return proposals, {"loss_objectness": classification, "loss_rpn_box_reg": regression}

    def _background(
        self, scores: Tensor, boxes: Tensor, matches: MatchWeights, targets: SoftTargets
    ) -> Tensor:
        """The weights of boxes [N, 4] with scores [N] as background, [N]."""
        likely = scores > self.options.background_max_score
        if not len(targets) or not bool(likely.any()):  # without labels there are no objects
            return matches.background
        away = box_iou(boxes, targets.boxes.to(boxes)).amax(dim=1) < AWAY_IOU
        return matches.background.masked_fill(likely & away, 0)

    @torch.no_grad()
    def _sample_rois(
        self, proposals: Tensor, targets: SoftTargets, scale: Tensor, generator: torch.Generator
    ) -> SampledRoIs:
        """Sample an image's RoIs from the proposals and the instances' boxes."""
        boxes = torch.cat([proposals, targets.boxes.to(proposals)])
        matches = match_boxes(boxes, targets, 0.5, 0.5)
        limit = self.options.rois_per_image
        max_positive = int(limit * self.options.positive_roi_fraction)
        # not all boxes that are matched in any sample, only as many as in one sample on average:
        # else K samples would cost more than one
        max_positive = min(max_positive, math.ceil(float(matches.instances.sum()) - 1e-3))
        chosen, matches = sample_rois(matches, limit, max_positive, generator)
        return SampledRoIs(boxes[chosen], matches, targets, scale)

    def _box_losses(
        self, images: ImageList, features: Features, rois: Sequence[SampledRoIs]
    ) -> Losses:
        heads, counts = self.net.roi_heads, [len(image.boxes) for image in rois]
        pooled = heads.box_roi_pool(features, [image.boxes for image in rois], images.image_sizes)
        logits, deltas = heads.box_predictor(heads.box_head(pooled))
        all_logs = logits.float().log_softmax(dim=1)
        all_deltas = deltas.float().view(*logits.shape, 4)
        classification = regression = entropy = box_diversity = all_logs.sum() * 0
        for (boxes, matches, targets, _), logs, deltas in zip(
            rois, all_logs.split(counts), all_deltas.split(counts), strict=True
        ):
            count = max(1, len(boxes)) * len(rois)
            probabilities = torch.zeros_like(logs)
            scores = logs.detach().exp()[:, targets.labels.unique()].sum(dim=1)
            probabilities[:, 0] = self._background(scores, boxes, matches, targets)
            probabilities.index_add_(1, targets.labels, matches.instances)
            classification = classification - (probabilities * logs).sum() / count
            entropy = entropy + class_entropy(logs).sum() / count
            if self.options.expected_boxes:
                box_losses, diversity = _expected_boxes(
                    deltas, logs.exp(), boxes, matches, targets, heads.box_coder
                )
                box_diversity = box_diversity + diversity.sum() / count
            else:
                box_losses = _box_regression(deltas, boxes, matches, targets, heads.box_coder)
            regression = regression + box_losses.sum() / count
        losses = {"loss_classifier": classification, "loss_box_reg": regression}
        if self.entropy_weight:
            losses["class_entropy"] = -self.entropy_weight * entropy
            if self.options.expected_boxes:
                losses["box_diversity"] = -self.entropy_weight * box_diversity
        return losses

    def _mask_losses(
        self, images: ImageList, features: Features, rois: Sequence[SampledRoIs]
    ) -> Losses:
        heads, side = self.net.roi_heads, 2 * int(self.net.roi_heads.mask_roi_pool.output_size[0])
        all_boxes, pairs, first = [], [], 0
        for boxes, matches, targets, scale in rois:
            positive = matches.instances.sum(dim=1) > 0
            boxes, instances = boxes[positive], matches.instances[positive]
            row, label, masks, weights = _mask_targets(targets, boxes / scale, instances, side)
            weights = weights / weights.sum().clamp(min=1e-6) / len(rois)
            pairs.append((first + row, label, masks, self.options.mask_weight * weights))
            all_boxes.append(boxes)
            first += len(boxes)
        hidden = heads.mask_head(heads.mask_roi_pool(features, all_boxes, images.image_sizes))
        hidden = heads.mask_predictor.relu(heads.mask_predictor.conv5_mask(hidden))
        row, label, masks, weights = (torch.cat(part) for part in zip(*pairs, strict=True))
        logits = self._mask_logits(hidden, row, label)
        if self.options.masks == "projection":
            mask_losses = projection_losses(logits, masks)
        else:
            pixel_losses = F.binary_cross_entropy_with_logits(logits, masks, reduction="none")
            mask_losses = pixel_losses.mean(dim=(1, 2))
        losses = {"loss_mask": (weights * mask_losses).sum()}
        if self.entropy_weight:
            entropy = (weights * mask_entropy(logits)).sum()
            losses["mask_entropy"] = -self.entropy_weight * entropy
        return losses

    def _mask_logits(self, hidden: Tensor, row: Tensor, label: Tensor) -> Tensor:
        """Masks of RoIs `row` [N] for classes `label` [N] only: float32 [N, side, side]."""
        layer = self.net.roi_heads.mask_predictor.mask_fcn_logits
        if self.options.class_agnostic_masks:
            weight, bias = layer.weight.mean(dim=0)[:, 0, 0], layer.bias.mean()
            logits = torch.einsum("mfhw,f->mhw", hidden, weight.to(hidden.dtype)) + bias
            return logits[row].float()
        weight = layer.weight[label, :, 0, 0].to(hidden.dtype)
        logits = torch.einsum("nfhw,nf->nhw", hidden[row], weight)
        return (logits + layer.bias[label, None, None]).float()


def _box_regression(
    deltas: Tensor, boxes: Tensor, matches: MatchWeights, targets: SoftTargets, coder: BoxCoder
) -> Tensor:
    """Weighted losses of all pairs of a box and an instance that it is matched to: [pairs].

    Args:
        deltas: of each box, for each class or for all of them: [N, C+1 or 1, 4].
        boxes: [N, 4].
    """
    row, instance = matches.instances.nonzero(as_tuple=True)
    label = targets.labels[instance] if deltas.shape[1] > 1 else 0
    expected = coder.encode_single(targets.boxes[instance], boxes[row])
    losses = F.smooth_l1_loss(deltas[row, label], expected, beta=SMOOTH_L1_BETA, reduction="none")
    return matches.instances[row, instance] * losses.sum(dim=1)


def _expected_boxes(
    deltas: Tensor,
    probabilities: Tensor,
    boxes: Tensor,
    matches: MatchWeights,
    targets: SoftTargets,
    coder: BoxCoder,
) -> tuple[Tensor, Tensor]:
    """The boxes' parts of DIV(Pr_p, Pr_c) [pairs] and of DIV(Pr_p, Pr_p) [M], of matched RoIs.

    Both have the weight of the match: RoIs that are background in all samples have no box.

    Args:
        deltas: of each RoI and class, [N, C+1, 4].
        probabilities: of each RoI's classes, [N, C+1].
    """
    row, instance = matches.instances.nonzero(as_tuple=True)
    expected = coder.encode_single(targets.boxes[instance], boxes[row])
    cross = expected_box_losses(
        probabilities[row, 1:], deltas[row, 1:], expected, beta=SMOOTH_L1_BETA
    )
    weight = matches.instances.sum(dim=1)
    matched = weight > 0
    diversity = box_self_diversity(
        probabilities[matched, 1:], deltas[matched, 1:], beta=SMOOTH_L1_BETA
    )
    return matches.instances[row, instance] * cross, weight[matched] * diversity


def _mask_targets(
    targets: SoftTargets, boxes: Tensor, weights: Tensor, side: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean mask inside each box for each class that it is matched to.

    Args:
        boxes: in pixels of the masks, [M, 4].
        weights: of each box's instances, [M, U].

    Returns:
        The box [N] and the class [N] of each pair, its mean mask [N, side, side], and the fraction
        of samples in which the box is matched to that class [N].
    """
    row, instance = weights.nonzero(as_tuple=True)
    weight = weights[row, instance]
    pairs, pair = torch.unique(
        torch.stack([row, targets.labels[instance]]), dim=1, return_inverse=True
    )
    crops = project_masks_on_boxes(targets.masks, boxes[row], instance, side)
    pair_weight = weight.new_zeros(pairs.shape[1]).index_add_(0, pair, weight)
    total = crops.new_zeros(pairs.shape[1], side, side)
    total.index_add_(0, pair, weight[:, None, None] * crops)
    return pairs[0], pairs[1], total / pair_weight[:, None, None], pair_weight


def projection_losses(logits: Tensor, boxes: Tensor) -> Tensor:
    """Losses of N masks [N, h, w] of which only the boxes are known: [N] (BBTP).

    A tight box tells of every row and column of pixels whether it crosses the object: if it crosses
    the box, some pixel of it is foreground (a positive bag); otherwise all are background (a
    negative bag). The mean over these lines of the cross entropy of the highest logit, plus
    `smoothness`.

    Args:
        logits: of the masks.
        boxes: 1 inside the object's box, 0 outside, [N, h, w]. A mask with that box gives the same,
            unless it leaves out whole lines.
    """
    lines = torch.cat([logits.amax(dim=2), logits.amax(dim=1)], dim=1)
    crossed = torch.cat([boxes.amax(dim=2), boxes.amax(dim=1)], dim=1) > 0.5
    bags = F.binary_cross_entropy_with_logits(lines, crossed.to(lines.dtype), reduction="none")
    return BAG_WEIGHT * bags.mean(dim=1) + SMOOTHNESS_WEIGHT * smoothness(logits.sigmoid())


def smoothness(masks: Tensor) -> Tensor:
    """The mean squared difference of each pixel to its 8 neighbours, [N, h, w] to [N]."""
    pairs = (
        masks[:, :, 1:] - masks[:, :, :-1],
        masks[:, 1:] - masks[:, :-1],
        masks[:, 1:, 1:] - masks[:, :-1, :-1],
        masks[:, 1:, :-1] - masks[:, :-1, 1:],
    )
    return torch.stack([difference.square().mean(dim=(1, 2)) for difference in pairs]).mean(dim=0)
