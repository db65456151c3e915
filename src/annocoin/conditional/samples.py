"""K samples of the conditional distribution for one image, and their agreement."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from annocoin.regions.region_set import RegionSet
from annocoin.types import Instances


@dataclass(frozen=True, eq=False)
class Samples:
    """K labellings of the regions of one image, each consistent with its annotation.

    Args:
        regions: the P regions.
        labels: y^k, int64 [K, P] of 0..C, mostly 0.
        margins: G_{u,y_u} - G_{u,0}, the score relative to the background, float32 [K, P].
        required_regions: the region that meets each of R requirements, int64 [K, R].
        annotation_index: the index of each requirement's weak label in the annotation, R of them.
        prediction: the probability of each instance under the prediction network, given the
            annotation, float32 [K, P]; None without a loss table.
    """

    regions: RegionSet
    labels: Tensor
    margins: Tensor
    required_regions: Tensor
    annotation_index: tuple[int, ...]
    prediction: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def instances(self, sample: int) -> Instances:
        """One sample as instances; scores are the sigmoids of margins."""
        selected = self.labels[sample].nonzero()[:, 0]
        return Instances(
            size=self.regions.size,
            masks=self.regions[selected].rles(),
            labels=self.labels[sample, selected],
            scores=self.margins[sample, selected].double().sigmoid(),
            confidence=self.confidence[sample, selected],
        )

    def consensus(self) -> Instances:
        """The sample of greatest agreement with the others."""
        return self.instances(int(self.agreement.argmax()))

    @cached_property
    def confidence(self) -> Tensor:
        """The confidence of each instance, float64 [K, P]; NaN for background and if K = 1.

        The mean over the other samples of the greatest IoU with an instance of the same class (1 if
        every sample contains this instance, 0 if no other one overlaps it), times the probability
        that the prediction network gives it. So both distributions must agree on a sure instance.
        """
        confidence = torch.full(self.labels.shape, torch.nan, dtype=torch.float64)
        if len(self) > 1:
            for k, labels in enumerate(self.labels):
                others = self._best_iou[k, :, torch.arange(len(self)) != k]
                confidence[k, labels > 0] = others.mean(dim=1)[labels > 0]
        return confidence if self.prediction is None else confidence * self.prediction.double()

    @cached_property
    def agreement(self) -> Tensor:
        """The mean agreement of each sample with the others, float64 [K]; 1 if all are equal.

        That of two samples is the mean over the instances of both of the greatest IoU with one of
        the same class in the other sample, 0 without one.
        """
        if len(self) == 1:
            return torch.ones(1, dtype=torch.float64)
        total = self._best_iou.sum(dim=1)
        counts = (self.labels > 0).sum(dim=1).double()
        both = counts[:, None] + counts[None, :]
        pairs = torch.where(both > 0, (total + total.T) / both.clamp(min=1), 1.0)
        return (pairs.sum(dim=1) - pairs.diagonal()) / (len(self) - 1)

    @property
    def diversity(self) -> float:
        """1 - the mean agreement of two samples; 0 if K = 1."""
        return float(1 - self.agreement.mean())

    @cached_property
    def _best_iou(self) -> Tensor:
        """The greatest IoU of instance u of sample k with one of its class in k': [K, P, K']."""
        count, num_regions = self.labels.shape
        best = torch.zeros(count, num_regions, count, dtype=torch.float64)
        used = (self.labels > 0).any(dim=0).nonzero()[:, 0]
        if not len(used):
            return best
        iou = self.regions[used].iou().double()
        labels = self.labels[:, used]
        for k in range(count):
            for other in range(count):
                same = (labels[k][:, None] == labels[other]) & (labels[k] > 0)[:, None]
                best[k, used, other] = (iou * same).amax(dim=1)
        return best
