"""ConditionalDataset: the images of a dataset, each made ready for the conditional network when asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args, overload

import torch
from torch import Tensor

from annocoin.backbones import resize_longest_side
from annocoin.conditional.requirements import BOX_OVERLAP, Requirements, requirements_of
from annocoin.conditional.scoring import Candidates, ScoringOptions, seed_votes
from annocoin.data.dataset import WeakDataset
from annocoin.errors import InputError, check_choice
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.seed_set import SeedFolder, Seeds
from annocoin.seeds.votes import BEST, filter_regions, seed_pixels, soft_labels
from annocoin.types import ImageId

Targets = Literal["votes", "pixels"]


@dataclass(frozen=True, eq=False)
class ConditionalExample:
    """One image.

    Args:
        pixels: as the network sees it, [3, h, w] in 0..1.
        requirements: its regions, and what its annotation demands of them.
        seeds: the first guess of where its objects are.
        flipped: whether pixels and targets have left and right override.
        table: what a prediction network thinks of the regions, D [P, J+1], if it was asked.
    """

    image_id: ImageId
    pixels: Tensor
    requirements: Requirements
    seeds: Seeds
    flipped: bool = False
    table: Tensor | None = None

    def targets(self, source: Targets = "votes") -> Tensor:
        """How much every pixel belongs to the background and each class: [J+1, H, W], sums to 1.

        Args:
            source: "votes" of the seeds, for regions that meet their weak_labels; or the "pixels" of the
                seeds themselves, where their responses are strong (the paper's words, literally).
        """
        check_choice("targets", source, get_args(Targets))
        shares = self._targets(source)
        return shares.flip(2) if self.flipped else shares

    def _targets(self, source: Targets) -> Tensor:
        if source == "votes":
            regions, votes = self.requirements.regions, seed_votes(self.requirements, self.seeds)
            shares = soft_labels(regions, self.seeds, votes, self.requirements.labels)
            return shares[:, regions.superpixels.long()]
        pixels = seed_pixels(self.seeds)
        rows = [pixels[self.seeds.labels == label].any(dim=0) for label in self.requirements.labels]
        classes = torch.stack(rows).float() if rows else torch.zeros(0, *self.seeds.size)
        background = (classes.sum(dim=0, keepdim=True) == 0).float()
        shares = torch.cat([background, classes])
        return shares / shares.sum(dim=0)

    def mirrored(self) -> ConditionalExample:
        """Left and right override, for learning from targets; its regions are not."""
        return replace(self, pixels=self.pixels.flip(2), flipped=not self.flipped)

    def candidates(self, options: ScoringOptions | None = None) -> Candidates:
        """What scoring and inference need to know."""
        if self.flipped:
            raise ValueError("a mirrored case has targets only")
        return Candidates(self.requirements, options, seeds=self.seeds, table=self.table)


class ConditionalDataset(Sequence[ConditionalExample]):
    """The images of a dataset that have regions and seeds, by position.

    Args:
        size: the length of an image's longer side when the network sees it.
        filtered: whether only regions that seeds touch, and the `best` others, are kept.
        seeded: whether tags admit only regions that hold a peak of their class.
        tables: what a prediction network thinks of the images' regions, see `ConditionalExample`.
    """

    def __init__(
        self,
        dataset: WeakDataset,
        regions: RegionFolder,
        seeds: SeedFolder,
        *,
        size: int,
        filtered: bool = True,
        best: int = BEST,
        seeded: bool = True,
        box_overlap: float = BOX_OVERLAP,
        tables: Mapping[ImageId, Tensor] | None = None,
    ) -> None:
        self.images = [i for i in dataset if i.image_id in regions and i.image_id in seeds]
        if not self.images:
            raise InputError(
                f"no image has regions in {regions.path} and seeds in {seeds.path}; "
                "run `annocoin regions` and `annocoin seeds` on this dataset"
            )
        self.classes = dataset.classes
        self.regions, self.seeds, self.size = regions, seeds, size
        self.filtered, self.best = filtered, best
        self.seeded, self.box_overlap = seeded, box_overlap
        self.tables = tables

    def __len__(self) -> int:
        return len(self.images)

    @overload
    def __getitem__(self, position: int) -> ConditionalExample: ...
    @overload
    def __getitem__(self, position: slice) -> list[ConditionalExample]: ...
    def __getitem__(self, position: int | slice) -> ConditionalExample | list[ConditionalExample]:
        if isinstance(position, slice):
            return [self[i] for i in range(len(self))[position]]
        image = self.images[position]
        pixels = image.pixels()
        regions, seeds = self.regions[image.image_id], self.seeds[image.image_id]
        seeds.check_for(image.annotation)
        if self.filtered:
            kept = filter_regions(
                regions,
                seeds,
                image.annotation,
                best=self.best,
                box_overlap=self.box_overlap,
            )
            regions = regions[kept]
        requirements = requirements_of(
            image.annotation,
            regions,
            seeds=seeds if self.seeded else None,
            image=pixels,
            box_overlap=self.box_overlap,
        )
        table = None if self.tables is None else self.tables[image.image_id]
        seen = resize_longest_side(pixels, self.size)
        return ConditionalExample(image.image_id, seen, requirements, seeds, table=table)
