"""Candidates: all that scoring and inference need to know about one image, worked out once."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from annocoin.conditional.inference import (
    BETWEEN,
    OVERLAP,
    Labelling,
    OverlapOf,
    build_suppression,
    infer,
)
from annocoin.conditional.networks import ConditionalNetwork
from annocoin.conditional.requirements import Requirements
from annocoin.conditional.samples import Samples
from annocoin.errors import InputError, check_choice, check_positive
from annocoin.objective.task_loss import columns_of
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.votes import greatest_of_class, vote

PairwiseForm = Literal["none", "votes", "normalised", "literal"]


ITERATIONS = 3


DELTA = 0.1
"""The paper's number of iterations, and what it adds to squared differences."""


EDGE_SCALE = 5.0
"""How much the mean edge per pixel side counts in the normalised form."""


SHARPNESS = 1.0
"""How much more high scores count among votes."""


IOU_EXPONENT = 4
"""The power of the IoU by which regions hear one another's votes: few but near relatives."""


Terms = Literal["U", "U+P", "U+P+H"]


@dataclass(frozen=True)
class ScoringOptions:
    """How regions are scored and chosen.

    Args:
        terms: unary, pairwise and higher order terms, the columns of the paper's ablation.
        prior: how much what the seeds say counts in the unary term, see `seed_prior`.
        prediction_weight: how much what a prediction network thinks of the regions counts there, if it was
            asked; our addition to the paper, 0 leaves it out.
        prediction_weight_spread: how far samples differ in that: the first, which has no noise either, trusts as said,
            the others from 1 - prediction_weight_spread to 1 + prediction_weight_spread times as much. Where the two networks disagree
            nobody knows, and samples should say so. 0: they differ by their noise alone.
        pairwise: the form of the pairwise term, see `coupling`.
        sharpness: see `votes_of_neighbours`.
        iterations, delta: see `agreement_of_neighbours`.
        instance_penalty: what every instance costs in S(y): a scene has few objects, and none for a slight
            reason. The paper has none.
        most, overlap, between: the overlap at which a region leaves the race and how it is
            measured, see `suppression`.
        select_all, local_search: see `infer`.
    """

    terms: Terms = "U+P+H"
    prior: float = 1.0
    prediction_weight: float = 1.0
    prediction_weight_spread: float = 1.0
    pairwise: PairwiseForm = "votes"
    sharpness: float = SHARPNESS
    iterations: int = ITERATIONS
    delta: float = DELTA
    instance_penalty: float = 0.0
    nms_threshold: float = OVERLAP
    overlap: OverlapOf = "smaller"
    cross_class_nms_threshold: float = BETWEEN
    select_all: bool = False
    local_search: bool = False

    def __post_init__(self) -> None:
        check_choice("terms", self.terms, get_args(Terms))
        check_choice("pairwise", self.pairwise, get_args(PairwiseForm))
        check_choice("overlap", self.overlap, get_args(OverlapOf))
        check_positive("iterations", self.iterations)
        if not (
            self.sharpness > 0
            and self.delta > 0
            and 0 <= self.nms_threshold <= 1
            and self.prior >= 0
        ):
            raise InputError(
                f"sharpness {self.sharpness}, delta {self.delta}, most {self.nms_threshold}, "
                f"prior {self.prior}; expected above 0, above 0, 0 to 1, and 0 or more"
            )
        if not (self.prediction_weight >= 0 and 0 <= self.prediction_weight_spread <= 1):
            raise InputError(
                f"prediction_weight {self.prediction_weight}, prediction_weight_spread {self.prediction_weight_spread}; expected 0 or more, and 0 to 1"
            )
        if not (self.instance_penalty >= 0 and 0 <= self.cross_class_nms_threshold <= 1):
            raise InputError(
                f"instance_penalty {self.instance_penalty}, between {self.cross_class_nms_threshold}; expected 0 or more, and 0 to 1"
            )


class Candidates:
    """The regions of an image, what its annotation requires of them, and how they relate.

    Args:
        requirements: as `requirements_of` gives them.
        seeds: for the prior, if there are any.
        table: D [P, J+1] of a prediction network, if one was asked.
    """

    def __init__(
        self,
        requirements: Requirements,
        options: ScoringOptions | None = None,
        *,
        seeds: Seeds | None = None,
        table: Tensor | None = None,
    ) -> None:
        self.options = options or ScoringOptions()
        self.prior: Tensor | None = None
        self.thought: Tensor | None = None
        if seeds is not None and self.options.prior:
            self.prior = self.options.prior * seed_prior(requirements, seeds)
        if table is not None and self.options.prediction_weight:
            expected = (len(requirements.regions), len(requirements.labels) + 1)
            if table.shape != expected:
                raise InputError(f"a loss table of shape {tuple(table.shape)}; expected {expected}")
            self.thought = self.options.prediction_weight * (table[:, :1] - table[:, 1:])
        if self.options.terms != "U+P+H":
            requirements = requirements.without_obligation()
        self.requirements = requirements
        form: PairwiseForm = "none" if self.options.terms == "U" else self.options.pairwise
        self.form = form
        self.coupling = coupling(requirements.regions, form)
        self.suppression = build_suppression(
            requirements,
            self.options.nms_threshold,
            self.options.overlap,
            self.options.cross_class_nms_threshold,
        )

    def to(self, device: torch.device | str) -> Candidates:
        """The same on another device; itself, if it is there already."""
        if torch.device(device) == self.regions.device:
            return self
        moved = copy.copy(self)
        moved.__dict__.pop("iou", None)
        moved.requirements = self.requirements.to(device)
        moved.suppression = self.suppression.to(device)
        moved.coupling = None if self.coupling is None else self.coupling.to(device)
        moved.prior = None if self.prior is None else self.prior.to(device)
        moved.thought = None if self.thought is None else self.thought.to(device)
        return moved

    @property
    def regions(self) -> RegionSet:
        return self.requirements.regions

    @cached_property
    def iou(self) -> Tensor:
        """Intersection over union of all pairs of regions, [P, P]."""
        return self.regions.iou()

    @property
    def columns(self) -> list[int]:
        """The classes of the scores' J+1 columns: the background, then the annotation's."""
        return [0, *self.requirements.labels]

    def scores(self, unary: Tensor) -> Tensor:
        """G [K, P, J+1] from F [K, P, J+1]."""
        for added in (self.prior, self._trusted(len(unary))):
            if added is not None:
                objects = unary[..., 1:] + added.to(unary)
                unary = torch.cat([unary[..., :1], objects], dim=-1)
        scores = final_scores(
            unary,
            self.coupling,
            self.form,
            iterations=self.options.iterations,
            delta=self.options.delta,
            sharpness=self.options.sharpness,
        )
        if not self.options.instance_penalty:
            return scores
        return torch.cat([scores[..., :1], scores[..., 1:] - self.options.instance_penalty], dim=-1)

    def _trusted(self, count: int) -> Tensor | None:
        """What the prediction network thinks, as far as each of K samples trusts it: [K, P, J]."""
        if self.thought is None:
            return None
        others = count - 1
        spread = (2 * torch.arange(others) + 1) / max(1, others) - 1
        shares = 1 + self.options.prediction_weight_spread * torch.cat([torch.zeros(1), spread])
        return shares.to(self.thought)[:, None, None] * self.thought

    def infer(self, scores: Tensor) -> Labelling:
        """y^k of scores G [K, P, J+1]."""
        return infer(
            scores,
            self.requirements,
            self.suppression,
            select_all=self.options.select_all,
            local_search=self.options.local_search,
        )

    def samples(self, scores: Tensor) -> Samples:
        """The labellings of scores G [K, P, J+1], with what is known about them."""
        labelling = self.infer(scores)
        columns = columns_of(labelling.labels, self.requirements.labels)
        own = scores.gather(2, columns[..., None])[..., 0]
        return Samples(
            regions=self.regions if self.regions.device.type == "cpu" else self.regions.to("cpu"),
            labels=labelling.labels.cpu(),
            margins=(own - scores[..., 0]).detach().float().cpu(),
            met=labelling.met.cpu(),
            annotation_index=tuple(r.annotation_index for r in self.requirements.required),
        )


@torch.no_grad()
def draw_samples(
    net: ConditionalNetwork,
    pixels: Tensor,
    candidates: Candidates,
    count: int,
    generator: torch.Generator | None = None,
) -> Samples:
    """Samples of the conditional distribution for one image.

    Args:
        pixels: the image as the network sees it, [3, H, W] in 0..1 (`resize_longest_side`).
        count: K; 0 gives the single sample of the pointwise network PW_c, with zero noise. With
            prediction_weight_spread, see `ScoringOptions`, the first of K has none either.
        generator: of the noise.
    """
    device = net.mean.device
    candidates = candidates.to(device)
    features = net.features(pixels[None].to(device))[0]
    noise = net.noise(count, features, generator) if count else None
    if noise is not None and candidates.options.prediction_weight_spread:
        noise[0] = 0
    unary = net.unary(features, noise, candidates.regions, candidates.columns)
    return candidates.samples(candidates.scores(unary))


def coupling(regions: RegionSet, form: PairwiseForm) -> Tensor | None:
    """W [P, P] for a form of the pairwise term, or None without one.

    - "literal": exp(-I_uv) for neighbours, where I_uv is the sum of the edge between them.
    - "normalised": exp(-5 x the mean edge between them), divided by the number of neighbours.
    - "votes": the fourth power of the intersection over union, 1 with itself.
    """
    check_choice("pairwise", form, get_args(PairwiseForm))
    if form == "none":
        return None
    if form == "votes":
        return regions.iou() ** IOU_EXPONENT
    near = regions.neighbours().float()
    if form == "literal":
        return near * torch.exp(-regions.edge_mass())
    weights = near * torch.exp(-EDGE_SCALE * regions.edge_mass(mean=True))
    return weights / near.sum(dim=1, keepdim=True).clamp(min=1)


def final_scores(
    unary: Tensor,
    couplings: Tensor | None,
    form: PairwiseForm,
    *,
    iterations: int = ITERATIONS,
    delta: float = DELTA,
    sharpness: float = SHARPNESS,
) -> Tensor:
    """G [..., P, J] from F [..., P, J]; differentiable, the iterations are unrolled."""
    if couplings is None:
        return unary
    if form == "votes":
        return votes_of_neighbours(unary, couplings, sharpness=sharpness)
    return agreement_of_neighbours(unary, couplings, iterations=iterations, delta=delta)


def agreement_of_neighbours(
    unary: Tensor, couplings: Tensor, *, iterations: int = ITERATIONS, delta: float = DELTA
) -> Tensor:
    """The paper's pairwise term (its equation of the iterative scores), for all classes:

    G^n_{u,c} = G^{n-1}_{u,c} + sum_v W_uv / ((G^{n-1}_{u,c} - G^{n-1}_{v,c})^2 + delta)

    It rewards agreement, of low scores too. Only pairs with W_uv > 0 are computed.
    """
    if delta <= 0:
        raise InputError(f"delta {delta}; expected above 0")
    first, second = couplings.nonzero(as_tuple=True)
    weights = couplings[first, second][:, None]
    scores = unary
    for _ in range(iterations):
        apart = scores[..., first, :] - scores[..., second, :]
        gain = weights / (apart.square() + delta)
        scores = scores.index_add(-2, first, gain.to(scores.dtype))
    return scores


def votes_of_neighbours(
    unary: Tensor, couplings: Tensor, *, sharpness: float = SHARPNESS
) -> Tensor:
    """Regions that overlap vote for one another, the better ones more loudly.

    With m_u = F_{u,c} - F_{u,0} and sharpness b, a region that stands out from the background, so
    that m_u > 0, has the new margin

    m'_u = 1/b log sum_v W_uv exp(b m_v)

    Up to a constant of the class it is the logarithm of the agreement that u is expected to have
    with the object, if region v is that object with a probability in proportion to exp(b m_v). A
    lone high score counts for less than a family of regions that agree on a place, and contours
    that many regions share are those that are really there. As W_uu = 1, no margin falls; those of
    regions that look like background stay as they are.
    """
    if sharpness <= 0:
        raise InputError(f"sharpness {sharpness}; expected above 0")
    if not unary[..., 1:].numel():
        return unary
    background = unary[..., :1]
    margins = unary[..., 1:] - background
    highest = margins.detach().amax(dim=-2, keepdim=True)
    relative = sharpness * (margins - highest)
    heard = couplings.to(relative.dtype) @ relative.exp()
    least = torch.finfo(relative.dtype).tiny  # below it, nobody but the region itself is heard
    logarithm = torch.where(heard > least, heard.clamp(min=least).log(), relative)
    voted = torch.maximum(logarithm, relative) / sharpness + highest
    return torch.cat([background, background + torch.where(margins > 0, voted, margins)], dim=-1)


EVEN = 0.15
"""The expected overlap with a seed's object at which a region is as likely an instance as not."""

LEAST_OVERLAP = 0.02


def seed_votes(requirements: Requirements, seeds: Seeds) -> Tensor:
    """The share of each seed's vote that each region gets, [N, P], of those its weak_label admits.

    See `annocoin.seeds.votes.vote`.
    """
    labels = requirements.labels
    by_mark = {r.annotation_index: r.compatible for r in requirements.required}
    rows = []
    for label, weak_label in zip(
        seeds.labels.tolist(), seeds.annotation_index.tolist(), strict=True
    ):
        further = requirements.further[labels.index(label)]
        rows.append(by_mark.get(weak_label, further))
    return vote(requirements.regions, seeds, torch.stack(rows) if rows else None)


def seed_prior(requirements: Requirements, seeds: Seeds) -> Tensor:
    """How much seeds speak for each region as an instance of each class: [P, J], around 0.

    The logarithm of the IoU that a region is expected to have with the object of a seed of the
    class, against `EVEN`; the seed for which that is greatest counts.
    """
    regions = requirements.regions
    expected = seed_votes(requirements, seeds) @ regions.iou()
    table = greatest_of_class(expected, seeds, requirements.labels, without=EVEN - LEAST_OVERLAP)
    return ((table.T + LEAST_OVERLAP) / EVEN).log()
