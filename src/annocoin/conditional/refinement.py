"""Masks of instances, refined: any union of superpixels instead of one of the regions.

An addition to the paper, whose instances are regions. The region that inference selects is often
the best one, and still too large or too small at a superpixel: other regions that overlap it
strongly, and the scores of its pixels, tell which.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from annocoin.conditional.pairwise import IOU_EXPONENT
from annocoin.conditional.requirements import Requirements
from annocoin.conditional.samples import Samples
from annocoin.objective.task_loss import label_columns
from annocoin.regions.region_set import RegionSet

MIN_SHARE = 0.2
"""A mask has only superpixels that at least this share of the regions around it contains, weighted
by the fourth power of their IoU with the selected region."""

PredictedShares = Callable[[Tensor, Tensor], Tensor]
"""From boxes [U, 4] and classes [U] to the share of each superpixel that a prediction network
gives to the instance in the box, [U, S]."""


def refine_masks(
    samples: Samples,
    requirements: Requirements,
    scores: Tensor,
    shares: Tensor,
    threshold: float,
    predicted: PredictedShares | None = None,
) -> Samples:
    """The samples with a refined mask for each distinct instance, as their regions.

    A superpixel s belongs to the mask of region u with class j if the mean of these probabilities
    is above the threshold: that of its pixels for class j; the expectation of M_vs over regions v,
    each of which is the object with a probability proportional to IoU_uv^4 exp(G_vj - G_v0); and
    that of the mask which a prediction network predicts in the box of u, if there is one. An
    instance that meets a requirement has at least the superpixels of all compatible regions, and at
    most those of some: an annotated mask stays as it is, and a point stays inside.

    Args:
        samples: K labellings of the P regions of `requirements`.
        scores: G [K, P, J+1], whose mean over samples counts.
        shares: probability of each superpixel for each class, [J, S].
        predicted: the masks of a prediction network.
    """
    regions, required = requirements.regions, _required(samples)
    numbers: dict[tuple[int, int, int], int] = {}  # region, label, requirement -> instance
    rows = [
        [
            numbers.setdefault((u, int(labels[u]), required[k].get(u, -1)), len(numbers))
            for u in labels.nonzero()[:, 0].tolist()
        ]
        for k, labels in enumerate(samples.labels)
    ]
    selected = torch.tensor([u for u, _, _ in numbers], dtype=torch.int64)
    classes = torch.tensor([label for _, label, _ in numbers], dtype=torch.int64)
    columns = label_columns(classes, requirements.labels)
    mean = scores.mean(dim=0)
    margins = (mean[:, columns] - mean[:, :1]).T  # [U, P]
    probabilities = [shares[columns - 1]]
    if predicted is not None and len(selected):
        probabilities.append(predicted(regions.boxes[selected], classes))
    masks = refined_membership(regions, selected, margins, torch.stack(probabilities), threshold)
    for mask, (_, _, requirement) in zip(masks, numbers, strict=True):
        if requirement >= 0:
            compatible = regions.membership[requirements.required[requirement].compatible]
            mask[:] = (mask & compatible.any(dim=0)) | compatible.all(dim=0)
    empty = ~masks.any(dim=1)
    masks[empty] = regions.membership[selected[empty]]
    return _with_instances(samples, regions, masks, selected, classes, rows)


def refined_membership(
    regions: RegionSet, selected: Tensor, margins: Tensor, shares: Tensor, threshold: float
) -> Tensor:
    """The superpixels of U instances, bool [U, S].

    Args:
        selected: the region of each, int64 [U].
        margins: of all regions for the class of each instance, [U, P].
        shares: N further probabilities of the superpixels, [N, U, S].
    """
    near = regions.iou()[selected] ** IOU_EXPONENT
    members = regions.membership.float()
    expected = (near.log() + margins).softmax(dim=1) @ members
    around = near @ members / near.sum(dim=1, keepdim=True)
    probabilities = torch.cat([expected[None], shares])
    return (probabilities.mean(dim=0) > threshold) & (around > MIN_SHARE)


def _required(samples: Samples) -> list[dict[int, int]]:
    """For each sample, the requirement that each of its regions meets."""
    return [
        {region: r for r, region in enumerate(regions)}
        for regions in samples.required_regions.tolist()
    ]


def _with_instances(
    samples: Samples,
    regions: RegionSet,
    masks: Tensor,
    selected: Tensor,
    classes: Tensor,
    rows: list[list[int]],
) -> Samples:
    """The samples whose regions are the U masks; sample k has those of `rows[k]`."""
    members = torch.zeros(len(samples), len(masks), dtype=torch.bool)
    numbers = torch.full(samples.labels.shape, -1)
    for k, row in enumerate(rows):
        members[k, row] = True
        numbers[k, selected[row]] = torch.tensor(row, dtype=torch.int64)
    prediction = samples.prediction
    return replace(
        samples,
        regions=replace(regions, membership=masks, scores=regions.scores[selected]).to("cpu"),
        labels=torch.where(members, classes, 0),
        margins=torch.where(members, samples.margins[:, selected], 0),
        required_regions=numbers.gather(1, samples.required_regions),
        prediction=None if prediction is None else prediction[:, selected],
    )
