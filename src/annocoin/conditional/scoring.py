"""Scoring: from the unary scores F of a network to the scores G of eq. 1, and to samples.

`Candidates` holds what scoring and inference need about one image. The unary term may include a
prior from the seeds and the log odds of a prediction network; both are additions to the paper.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from annocoin.conditional.inference import (
    CROSS_CLASS_NMS_THRESHOLD,
    NMS_THRESHOLD,
    Labelling,
    OverlapDenominator,
    build_suppression,
    infer,
)
from annocoin.conditional.networks import ConditionalNetwork
from annocoin.conditional.pairwise import (
    DELTA,
    ITERATIONS,
    VOTE_SHARPNESS,
    VOTES,
    Difference,
    PairwiseForm,
    boundary_aware_scores,
    iou_voting_scores,
    pairwise_weights,
)
from annocoin.conditional.refinement import PredictedShares, refine_masks
from annocoin.conditional.requirements import Requirements
from annocoin.conditional.samples import Samples
from annocoin.errors import InputError, check_choice, check_positive
from annocoin.objective.task_loss import label_columns
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.evidence import region_evidence
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.votes import vote

Terms = Literal["U", "U+P", "U+P+H"]

NEUTRAL_IOU = 0.15
"""The expected IoU with a seed's object at which the seed prior is 0."""

NEUTRAL_DETECTION = 0.05
"""The same for `detected_iou`, a product of score and IoU; with .15 second instances are lost."""

MIN_IOU = 0.02
"""Added to expected IoUs, so that their logarithms are bounded."""

DETECTION_RANGE = math.log((1 + MIN_IOU) / NEUTRAL_DETECTION)
"""The log odds of a region that is detected with certainty."""

NEUTRAL_EVIDENCE = -1.0
"""The evidence of class maps at which the prior is 0; nine of ten regions have less."""


@dataclass(frozen=True)
class ScoringOptions:
    """How regions are scored and selected.

    Args:
        terms: unary, pairwise and higher order terms, the columns of the paper's ablation.
        seed_prior_weight: weight of `seed_prior` in the unary term; 0 in the paper.
        prediction_weight: weight of the prediction network's log odds in the unary term, if a loss
            table is available; 0 in the paper.
        prediction_weight_spread: how much that weight varies over samples. The first sample has
            `prediction_weight` and no noise, the others from 1 - spread to 1 + spread times as
            much: where the two networks disagree, so do the samples. With 0, all have the same.
        pairwise: the form of the pairwise term, see `pairwise_weights`.
        vote_sharpness: see `iou_voting_scores`.
        iterations, delta, difference: see `boundary_aware_scores`.
        instance_penalty: subtracted from S(y) for every instance, so that negative values give more
            instances; 0 in the paper.
        nms_threshold, overlap_denominator, cross_class_nms_threshold: see `build_suppression`.
        share_regions: whether one region may be an instance of several classes, as in the paper's
            algorithm, which selects for each class separately; see `Requirements.per_class`.
        extra_margin: see `infer`; with a loss table it is larger by what the prediction network can
            add to a score. So an instance that the network does not find is not dropped because it
            finds another one, but only if its own gain is negative.
        select_all, local_search: see `infer`.
        mask_threshold: see `refine_masks`; with None the mask of an instance is its region, as in
            the paper.
    """

    terms: Terms = "U+P+H"
    seed_prior_weight: float = 1.0
    prediction_weight: float = 1.0
    prediction_weight_spread: float = 1.0
    pairwise: PairwiseForm = "votes"
    vote_sharpness: float = VOTE_SHARPNESS
    iterations: int = ITERATIONS
    delta: float = DELTA
    difference: Difference = "pair"
    instance_penalty: float = 0.0
    nms_threshold: float = NMS_THRESHOLD
    overlap_denominator: OverlapDenominator = "smaller"
    cross_class_nms_threshold: float = CROSS_CLASS_NMS_THRESHOLD
    share_regions: bool = False
    extra_margin: float | None = None
    select_all: bool = False
    local_search: bool = False
    mask_threshold: float | None = None

    def __post_init__(self) -> None:
        check_choice("terms", self.terms, get_args(Terms))
        check_choice("pairwise", self.pairwise, get_args(PairwiseForm))
        check_choice("difference", self.difference, get_args(Difference))
        check_choice("overlap_denominator", self.overlap_denominator, get_args(OverlapDenominator))
        check_positive("iterations", self.iterations)
        for name in ("vote_sharpness", "delta"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} {getattr(self, name)}; expected above 0")
        if not math.isfinite(self.instance_penalty):
            raise InputError(f"instance_penalty {self.instance_penalty}; expected a finite number")
        for name in ("seed_prior_weight", "prediction_weight", "extra_margin"):
            if not (getattr(self, name) or 0) >= 0:
                raise InputError(f"{name} {getattr(self, name)}; expected 0 or more")
        for name in ("prediction_weight_spread", "nms_threshold", "cross_class_nms_threshold"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} {getattr(self, name)}; expected 0 to 1")
        if self.mask_threshold is not None and not 0 < self.mask_threshold < 1:
            raise InputError(
                f"mask_threshold {self.mask_threshold}; expected null, or a number between 0 and 1"
            )


class Candidates:
    """The regions of an image with all that does not depend on the conditional network.

    `regions` are those of the unary scores. If classes may share regions, those of scores,
    labellings and samples are `requirements.regions`, a copy for each class.

    Args:
        requirements: from `requirements_of`.
        seed_prior: from `seed_prior`, [P, J]; None for no prior.
        table: loss table D [P, J+1] of a prediction network; None for none.
    """

    def __init__(
        self,
        requirements: Requirements,
        options: ScoringOptions | None = None,
        *,
        seed_prior: Tensor | None = None,
        table: Tensor | None = None,
    ) -> None:
        self.options = options = options or ScoringOptions()
        self.seed_prior: Tensor | None = None
        self.table = table
        self.prediction_log_odds: Tensor | None = None
        count, num_classes = len(requirements.regions), len(requirements.labels)
        if seed_prior is not None and seed_prior.shape != (count, num_classes):
            shape = tuple(seed_prior.shape)
            raise InputError(f"a seed prior of shape {shape}; expected {(count, num_classes)}")
        if table is not None and table.shape != (count, num_classes + 1):
            shape = tuple(table.shape)
            raise InputError(f"a loss table of shape {shape}; expected {(count, num_classes + 1)}")
        if seed_prior is not None and options.seed_prior_weight:
            self.seed_prior = options.seed_prior_weight * seed_prior
        if table is not None and options.prediction_weight:
            self.prediction_log_odds = options.prediction_weight * (table[:, :1] - table[:, 1:])
        self.regions = requirements.regions
        self.requirements = (
            requirements if options.terms == "U+P+H" else requirements.unconstrained()
        )
        if options.share_regions:
            self.requirements = self.requirements.per_class()
        self.pairwise: PairwiseForm = "none" if options.terms == "U" else options.pairwise
        self.weights = pairwise_weights(requirements.regions, self.pairwise)
        self.suppression = build_suppression(
            self.requirements,
            options.nms_threshold,
            options.overlap_denominator,
            options.cross_class_nms_threshold,
        )

    def to(self, device: torch.device | str) -> Candidates:
        """The same on another device; itself if it is there already."""
        if torch.device(device) == self.regions.device:
            return self
        moved = copy.copy(self)
        moved.__dict__.pop("iou", None)
        moved.requirements = self.requirements.to(device)
        shared = self.regions is not self.requirements.regions
        moved.regions = self.regions.to(device) if shared else moved.requirements.regions
        moved.suppression = self.suppression.to(device)
        for name in ("weights", "seed_prior", "table", "prediction_log_odds"):
            value = getattr(self, name)
            setattr(moved, name, None if value is None else value.to(device))
        return moved

    @cached_property
    def iou(self) -> Tensor:
        """Intersection over union of all pairs of regions of a labelling, [P, P]."""
        return self.requirements.regions.iou()

    @property
    def columns(self) -> list[int]:
        """The classes of the J+1 columns of scores: the background and the annotation's."""
        return [0, *self.requirements.labels]

    def scores(self, unary: Tensor) -> Tensor:
        """G [K, P, J+1] from F [K, P, J+1]; differentiable, the iterations are unrolled."""
        options = self.options
        if self.seed_prior is not None:
            unary = _add_to_classes(unary, self.seed_prior)
        if self.prediction_log_odds is not None:
            factors = self._prediction_factors(len(unary)).to(self.prediction_log_odds)
            unary = _add_to_classes(unary, factors[:, None, None] * self.prediction_log_odds)
        scores = unary
        if self.weights is not None and self.pairwise in VOTES:
            scores = iou_voting_scores(unary, self.weights, sharpness=options.vote_sharpness)
        elif self.weights is not None:
            scores = boundary_aware_scores(
                unary,
                self.weights,
                iterations=options.iterations,
                delta=options.delta,
                difference=options.difference,
            )
        if options.instance_penalty:
            scores = _add_to_classes(scores, scores.new_tensor(-options.instance_penalty))
        return self.repeat(scores)

    def repeat(self, values: Tensor) -> Tensor:
        """Values of the regions, [..., P, J+1], for each of their copies if classes share them."""
        if self.regions is self.requirements.regions:
            return values
        return torch.cat([values] * len(self.requirements.labels), dim=-2)

    def _prediction_factors(self, num_samples: int) -> Tensor:
        """Factors of the prediction weight, [K]: 1, then evenly spaced in 1 +- spread."""
        others = num_samples - 1
        offsets = (2 * torch.arange(others) + 1) / max(1, others) - 1
        return 1 + self.options.prediction_weight_spread * torch.cat([torch.zeros(1), offsets])

    def infer(self, scores: Tensor) -> Labelling:
        """y^k of scores G [K, P, J+1]."""
        extra_margin: Tensor | None = None
        if self.options.extra_margin is not None:
            extra_margin = scores.new_full((len(scores),), self.options.extra_margin)
            if self.prediction_log_odds is not None:
                range_of_weight_1 = self.options.prediction_weight * DETECTION_RANGE
                extra_margin += range_of_weight_1 * self._prediction_factors(len(scores)).to(scores)
        return infer(
            scores,
            self.requirements,
            self.suppression,
            extra_margin=extra_margin,
            select_all=self.options.select_all,
            local_search=self.options.local_search,
        )

    def samples(self, scores: Tensor) -> Samples:
        """The samples of scores G [K, P, J+1], on the CPU."""
        labels, required_regions = self.infer(scores)
        columns = label_columns(labels, self.requirements.labels)
        margins = scores.gather(2, columns[..., None])[..., 0] - scores[..., 0]
        prediction: Tensor | None = None
        if self.table is not None:  # of the label and the background alone
            table = self.repeat(self.table).expand(len(scores), -1, -1)
            log_odds = table[..., 0] - table.gather(2, columns[..., None])[..., 0]
            prediction = log_odds.sigmoid().float().cpu()
        regions = self.requirements.regions
        return Samples(
            regions=regions if regions.device.type == "cpu" else regions.to("cpu"),
            labels=labels.cpu(),
            margins=margins.detach().float().cpu(),
            required_regions=required_regions.cpu(),
            annotation_index=tuple(r.annotation_index for r in self.requirements.required),
            prediction=prediction,
        )


@torch.no_grad()
def draw_samples(
    net: ConditionalNetwork,
    pixels: Tensor,
    candidates: Candidates,
    num_samples: int,
    generator: torch.Generator | None = None,
    predicted: PredictedShares | None = None,
) -> Samples:
    """Samples of the conditional distribution for one image.

    Args:
        pixels: the resized image, [3, H, W] in 0..1 (`resize_longest_side`).
        num_samples: K; 0 gives the single sample of the pointwise network PW_c, with zero noise. If
            the prediction weight varies, the first of K samples has zero noise too.
        generator: of the noise.
        predicted: masks of a prediction network, for `refine_masks`.
    """
    device = net.mean.device
    candidates = candidates.to(device)
    features = net.features(pixels[None].to(device))[0]
    noise = net.noise(num_samples, features, generator) if num_samples else None
    if noise is not None and candidates.options.prediction_weight_spread:
        noise[0] = 0
    pixels = net.pixel_scores(features, noise, candidates.columns)
    scores = candidates.scores(net.region_scores(pixels, candidates.regions, candidates.columns))
    samples, threshold = candidates.samples(scores), candidates.options.mask_threshold
    if threshold is None:
        return samples
    shares = candidates.regions.superpixel_means(pixels.mean(dim=0)).softmax(dim=0)[1:]
    requirements = candidates.requirements.to("cpu")
    return refine_masks(samples, requirements, scores.cpu(), shares.cpu(), threshold, predicted)


def seed_votes(requirements: Requirements, seeds: Seeds) -> Tensor:
    """The votes of each seed for the regions compatible with its weak label, [N, P]; see `vote`."""
    compatible = {r.annotation_index: r.compatible for r in requirements.required}
    extra_allowed = dict(zip(requirements.labels, requirements.extra_allowed, strict=True))
    rows = [
        compatible.get(index, extra_allowed[label])
        for label, index in zip(seeds.labels.tolist(), seeds.annotation_index.tolist(), strict=True)
    ]
    return vote(requirements.regions, seeds, torch.stack(rows) if rows else None)


def seed_prior(requirements: Requirements, seeds: Seeds, votes: Tensor) -> Tensor:
    """The evidence of the seeds for each region as an instance of each class: [P, J].

    The logarithm of the IoU that the region is expected to have with the object of a seed of the
    class, relative to `NEUTRAL_IOU`; the greatest over the seeds. A class without seeds has 0.

    Args:
        votes: from `seed_votes`, [N, P].
    """
    expected = votes @ requirements.regions.iou()
    best = expected.new_full((len(requirements.labels), expected.shape[1]), NEUTRAL_IOU - MIN_IOU)
    for row, label in zip(best, requirements.labels, strict=True):
        if bool((seeds.labels == label).any()):
            row[:] = expected[seeds.labels == label].amax(dim=0)
    return log_expected_iou(best.T)


def map_prior(regions: RegionSet, shares: Tensor) -> Tensor:
    """The evidence of class maps for each region as an instance of each class: [P, J].

    Relative to `NEUTRAL_EVIDENCE`.

    Args:
        shares: from `class_shares`, [J, S].
    """
    return region_evidence(regions, shares) - NEUTRAL_EVIDENCE


def log_expected_iou(iou: Tensor, neutral: float = NEUTRAL_IOU) -> Tensor:
    """Expected IoUs as additions to the margins of regions: log((IoU + .02) / neutral)."""
    return ((iou + MIN_IOU) / neutral).log()


def _add_to_classes(scores: Tensor, values: Tensor) -> Tensor:
    """Scores [K, P, J+1] with values added to all columns but the background's."""
    return torch.cat([scores[..., :1], scores[..., 1:] + values.to(scores)], dim=-1)
