"""K samples of the conditional distribution for one image, and how far they agree."""

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
        margins: how much better the label is than the background, float32 [K, P]; 0 there.
        met: the region that meets each of R requirements, int64 [K, R].
        annotation_index: the weak_label of the annotation behind each requirement, R of them.
    """

    regions: RegionSet
    labels: Tensor
    margins: Tensor
    met: Tensor
    annotation_index: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def instances(self, sample: int) -> Instances:
        """One sample as instances, with their confidence; scores rank them by their margin."""
        chosen = self.labels[sample].nonzero()[:, 0]
        return Instances(
            size=self.regions.size,
            masks=self.regions[chosen].rles(),
            labels=self.labels[sample, chosen],
            scores=self.margins[sample, chosen].double().sigmoid(),
            confidence=self.confidence[sample, chosen],
        )

    def consensus(self) -> Instances:
        """The sample that the others agree with most."""
        return self.instances(int(self.support.argmax()))

    @cached_property
    def confidence(self) -> Tensor:
        """How sure each chosen region is, float64 [K, P]; NaN for others and with one sample.

        It is the mean, over the other samples, of the greatest IoU with a region that has the same
        label there: 1 if every sample has this very instance, 0 if no other has anything like it.
        """
        found = torch.full(self.labels.shape, torch.nan, dtype=torch.float64)
        if len(self) == 1:
            return found
        agreement = self._agreement
        own, region = self.labels.nonzero(as_tuple=True)
        for k, u in zip(own.tolist(), region.tolist(), strict=True):
            others = torch.arange(len(self)) != k
            found[k, u] = agreement[k, u, others].mean()
        return found

    @cached_property
    def support(self) -> Tensor:
        """How much of each sample the others have too, float64 [K]: 1 if all are the same.

        For a pair of samples it is the mean over the instances of both of the greatest IoU with one
        of the same label in the other; instances that only one has count as 0.
        """
        alike = self._alike
        count = len(self)
        if count == 1:
            return torch.ones(1, dtype=torch.float64)
        return (alike.sum(dim=1) - alike.diagonal()) / (count - 1)

    @property
    def diversity(self) -> float:
        """The mean over pairs of samples of 1 - how alike they are; 0 with one sample."""
        return float(1 - self.support.mean())

    @cached_property
    def _agreement(self) -> Tensor:
        """The greatest IoU of region u, chosen in k, with one of its label in k': [K, P, K']."""
        count, regions = self.labels.shape
        best = torch.zeros(count, regions, count, dtype=torch.float64)
        used = (self.labels > 0).any(dim=0).nonzero()[:, 0]
        if not len(used):
            return best
        iou = self.regions[used].iou().double()
        labels = self.labels[:, used]
        for k in range(count):
            for other in range(count):
                same = (labels[k][:, None] == labels[other][None]) & (labels[k] > 0)[:, None]
                best[k, used, other] = (iou * same).amax(dim=1)
        return best

    @cached_property
    def _alike(self) -> Tensor:
        """How alike two samples are, float64 [K, K]."""
        shared = self._agreement.sum(dim=1)
        sizes = (self.labels > 0).sum(dim=1).double()
        both = sizes[:, None] + sizes[None, :]
        return torch.where(both > 0, (shared + shared.T) / both.clamp(min=1), 1.0)
