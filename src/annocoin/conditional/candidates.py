"""Candidates: all that scoring and inference need to know about one image, worked out once."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from torch import Tensor

from annocoin.conditional import scoring
from annocoin.conditional.clashes import BETWEEN, OVERLAP, OverlapOf, clashes
from annocoin.conditional.inference import Labelling, columns_of, infer
from annocoin.conditional.networks import ConditionalNetwork
from annocoin.conditional.prior import seed_prior
from annocoin.conditional.requirements import Requirements
from annocoin.conditional.samples import Samples
from annocoin.conditional.scoring import PairwiseForm, coupling, final_scores
from annocoin.errors import InputError, check_choice, check_positive
from annocoin.regions import RegionSet
from annocoin.seeds import Seeds

Terms = Literal["U", "U+P", "U+P+H"]


@dataclass(frozen=True)
class ScoringOptions:
    """How regions are scored and chosen.

    Args:
        terms: unary, pairwise and higher order terms, the columns of the paper's ablation.
        prior: how much what the seeds say counts in the unary term, see `seed_prior`.
        trust: how much what a prediction network thinks of the regions counts there, if it was
            asked; our addition to the paper, 0 leaves it out.
        doubt: how far samples differ in that: the first, which has no noise either, trusts as said,
            the others from 1 - doubt to 1 + doubt times as much. Where the two networks disagree
            nobody knows, and samples should say so. 0: they differ by their noise alone.
        pairwise: the form of the pairwise term, see `coupling`.
        sharpness: see `votes_of_neighbours`.
        iterations, delta: see `agreement_of_neighbours`.
        price: what every instance costs in S(y): a scene has few objects, and none for a slight
            reason. The paper has none.
        most, overlap, between: the overlap at which a region leaves the race and how it is
            measured, see `clashes`.
        exhaustive, exchanging: see `infer`.
    """

    terms: Terms = "U+P+H"
    prior: float = 1.0
    trust: float = 1.0
    doubt: float = 1.0
    pairwise: PairwiseForm = "votes"
    sharpness: float = scoring.SHARPNESS
    iterations: int = scoring.ITERATIONS
    delta: float = scoring.DELTA
    price: float = 0.0
    most: float = OVERLAP
    overlap: OverlapOf = "smaller"
    between: float = BETWEEN
    exhaustive: bool = False
    exchanging: bool = False

    def __post_init__(self) -> None:
        check_choice("terms", self.terms, get_args(Terms))
        check_choice("pairwise", self.pairwise, get_args(PairwiseForm))
        check_choice("overlap", self.overlap, get_args(OverlapOf))
        check_positive("iterations", self.iterations)
        if not (self.sharpness > 0 and self.delta > 0 and 0 <= self.most <= 1 and self.prior >= 0):
            raise InputError(
                f"sharpness {self.sharpness}, delta {self.delta}, most {self.most}, "
                f"prior {self.prior}; expected above 0, above 0, 0 to 1, and 0 or more"
            )
        if not (self.trust >= 0 and 0 <= self.doubt <= 1):
            raise InputError(
                f"trust {self.trust}, doubt {self.doubt}; expected 0 or more, and 0 to 1"
            )
        if not (self.price >= 0 and 0 <= self.between <= 1):
            raise InputError(
                f"price {self.price}, between {self.between}; expected 0 or more, and 0 to 1"
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
        if table is not None and self.options.trust:
            expected = (len(requirements.regions), len(requirements.labels) + 1)
            if table.shape != expected:
                raise InputError(f"a loss table of shape {tuple(table.shape)}; expected {expected}")
            self.thought = self.options.trust * (table[:, :1] - table[:, 1:])
        if self.options.terms != "U+P+H":
            requirements = requirements.without_obligation()
        self.requirements = requirements
        form: PairwiseForm = "none" if self.options.terms == "U" else self.options.pairwise
        self.form = form
        self.coupling = coupling(requirements.regions, form)
        self.clashing = clashes(
            requirements, self.options.most, self.options.overlap, self.options.between
        )

    def to(self, device: torch.device | str) -> Candidates:
        """The same on another device; itself, if it is there already."""
        if torch.device(device) == self.regions.device:
            return self
        moved = copy.copy(self)
        moved.__dict__.pop("iou", None)
        moved.requirements = self.requirements.to(device)
        moved.clashing = self.clashing.to(device)
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
        if not self.options.price:
            return scores
        return torch.cat([scores[..., :1], scores[..., 1:] - self.options.price], dim=-1)

    def _trusted(self, count: int) -> Tensor | None:
        """What the prediction network thinks, as far as each of K samples trusts it: [K, P, J]."""
        if self.thought is None:
            return None
        others = count - 1
        spread = (2 * torch.arange(others) + 1) / max(1, others) - 1
        shares = 1 + self.options.doubt * torch.cat([torch.zeros(1), spread])
        return shares.to(self.thought)[:, None, None] * self.thought

    def infer(self, scores: Tensor) -> Labelling:
        """y^k of scores G [K, P, J+1]."""
        return infer(
            scores,
            self.requirements,
            self.clashing,
            exhaustive=self.options.exhaustive,
            exchanging=self.options.exchanging,
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
            marks=tuple(r.mark for r in self.requirements.required),
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
        pixels: the image as the network sees it, [3, H, W] in 0..1 (`look_at`).
        count: K; 0 gives the single sample of the pointwise network PW_c, with zero noise. With
            doubt, see `ScoringOptions`, the first of K has none either.
        generator: of the noise.
    """
    device = net.mean.device
    candidates = candidates.to(device)
    features = net.features(pixels[None].to(device))[0]
    noise = net.noise(count, features, generator) if count else None
    if noise is not None and candidates.options.doubt:
        noise[0] = 0
    unary = net.unary(features, noise, candidates.regions, candidates.columns)
    return candidates.samples(candidates.scores(unary))
