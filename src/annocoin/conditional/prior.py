"""What the seeds say about regions before the network says anything."""

from __future__ import annotations

import torch
from torch import Tensor

from annocoin.conditional.requirements import Requirements
from annocoin.seeds import Seeds
from annocoin.seeds.votes import greatest_of_class, vote

EVEN = 0.15
"""The expected overlap with a seed's object at which a region is as likely an instance as not."""

LEAST = 0.02


def seed_votes(requirements: Requirements, seeds: Seeds) -> Tensor:
    """The share of each seed's vote that each region gets, [N, P], of those its mark admits.

    See `annocoin.seeds.votes.vote`.
    """
    labels = requirements.labels
    by_mark = {r.mark: r.admissible for r in requirements.required}
    rows = []
    for label, mark in zip(seeds.labels.tolist(), seeds.marks.tolist(), strict=True):
        further = requirements.further[labels.index(label)]
        rows.append(by_mark.get(mark, further))
    return vote(requirements.regions, seeds, torch.stack(rows) if rows else None)


def seed_prior(requirements: Requirements, seeds: Seeds) -> Tensor:
    """How much seeds speak for each region as an instance of each class: [P, J], around 0.

    The logarithm of the IoU that a region is expected to have with the object of a seed of the
    class, against `EVEN`; the seed for which that is greatest counts.
    """
    regions = requirements.regions
    expected = seed_votes(requirements, seeds) @ regions.iou()
    table = greatest_of_class(expected, seeds, requirements.labels, without=EVEN - LEAST)
    return ((table.T + LEAST) / EVEN).log()
