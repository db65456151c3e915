"""Cases: the images of a dataset, each made ready for the conditional network when asked for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from annocoin.conditional.candidates import Candidates, ScoringOptions
from annocoin.conditional.requirements import BOX_OVERLAP, Requirements, requirements_of
from annocoin.data.dataset import ImageId, WeakDataset
from annocoin.errors import InputError
from annocoin.regions import RegionFolder
from annocoin.seeds import SeedFolder, Seeds, worth_keeping
from annocoin.seeds.classifier import look_at
from annocoin.seeds.votes import soft_labels, vote


@dataclass(frozen=True, eq=False)
class Case:
    """One image.

    Args:
        pixels: as the network sees it, [3, h, w] in 0..1.
        requirements: its regions, and what its annotation demands of them.
        seeds: the first guess of where its objects are.
    """

    image_id: ImageId
    pixels: Tensor
    requirements: Requirements
    seeds: Seeds

    def soft_labels(self) -> Tensor:
        """How much every superpixel belongs to the background and each class: [J+1, S].

        Seeds vote for regions that meet their marks.
        """
        regions, labels = self.requirements.regions, self.requirements.labels
        by_mark = {r.mark: r.admissible for r in self.requirements.required}
        admissible = []
        for label, mark in zip(self.seeds.labels.tolist(), self.seeds.marks.tolist(), strict=True):
            may = self.requirements.further[labels.index(label)]
            admissible.append(may if may.any() else by_mark[mark])
        rows = torch.stack(admissible) if admissible else None
        return soft_labels(regions, self.seeds, vote(regions, self.seeds, rows), labels)


class Cases:
    """The images of a dataset that have regions and seeds, by position.

    Args:
        size: the length of an image's longer side when the network sees it.
        filtered: whether only regions that seeds touch, and the best others, are kept.
        seeded: whether tags admit only regions that hold a peak of their class.
    """

    def __init__(
        self,
        dataset: WeakDataset,
        regions: RegionFolder,
        seeds: SeedFolder,
        *,
        size: int,
        filtered: bool = True,
        seeded: bool = True,
        box_overlap: float = BOX_OVERLAP,
    ) -> None:
        self.images = [i for i in dataset if i.image_id in regions and i.image_id in seeds]
        if not self.images:
            raise InputError(
                f"no image has regions in {regions.path} and seeds in {seeds.path}; "
                "run `annocoin regions` and `annocoin seeds` on this dataset"
            )
        self.classes = dataset.classes
        self.regions, self.seeds, self.size = regions, seeds, size
        self.filtered, self.seeded, self.box_overlap = filtered, seeded, box_overlap

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, position: int) -> Case:
        image = self.images[position]
        pixels = image.pixels()
        regions, seeds = self.regions[image.image_id], self.seeds[image.image_id]
        if self.filtered:
            regions = regions[worth_keeping(regions, seeds, image.annotation)]
        requirements = requirements_of(
            image.annotation,
            regions,
            seeds=seeds if self.seeded else None,
            image=pixels,
            box_overlap=self.box_overlap,
        )
        return Case(image.image_id, look_at(pixels, self.size), requirements, seeds)

    def candidates(self, case: Case, options: ScoringOptions | None = None) -> Candidates:
        return Candidates(case.requirements, options)
