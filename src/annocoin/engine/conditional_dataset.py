"""The images of a dataset as the conditional network needs them.

What depends only on annotation, regions and seeds is computed once per image and kept in a file;
loading an example reads that file and the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from annocoin.backbones import resize_longest_side
from annocoin.conditional.requirements import (
    REQUIREMENT_FIELDS,
    Requirements,
    requirements_from_arrays,
    requirements_of,
    requirements_to_arrays,
)
from annocoin.conditional.scoring import (
    Candidates,
    ScoringOptions,
    map_prior,
    seed_prior,
    seed_votes,
)
from annocoin.data.artefacts import MAX_BITS, ArrayFormat, Arrays, ArtefactFolder
from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.engine.image_stages import Execution, check_usable, run_image_stage
from annocoin.engine.network_config import ConditionalConfig
from annocoin.errors import InputError, Problems
from annocoin.regions import storage
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import RegionFolder, regions_from_arrays, regions_to_arrays
from annocoin.seeds.evidence import class_shares, share_labels
from annocoin.seeds.region_filter import filter_regions, seed_pixels
from annocoin.seeds.seed_set import SeedFolder, Seeds
from annocoin.seeds.votes import soft_labels
from annocoin.types import ImageId

FORMAT = ArrayFormat(
    "prepared images",
    "annocoin train",
    version=1,
    fields={
        **storage.FORMAT.fields,
        **REQUIREMENT_FIELDS,
        "seed_prior": ((None, None), ("float32",)),
        "targets": ((None, None), ("float32", "uint8")),  # of superpixels; of pixels, as bits
    },
)


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """The part of an example that is computed once.

    Args:
        requirements: of the annotation, with the filtered regions and fallback masks.
        seed_prior: log odds of the regions by the seeds' votes, [P, J].
        targets: of the initial training: soft labels of superpixels, [J+1, S], or of pixels,
            [J+1, H, W]; both sum to 1 over the background and the J classes.
    """

    requirements: Requirements
    seed_prior: Tensor
    targets: Tensor

    def pixel_targets(self) -> Tensor:
        """The targets of every pixel, [J+1, H, W]."""
        if self.targets.ndim == 3:
            return self.targets
        return self.targets[:, self.requirements.regions.superpixels.long()]


@dataclass(frozen=True, eq=False)
class ConditionalExample:
    """One image.

    Args:
        pixels: at the network's size, [3, h, w] in 0..1.
        prepared: its regions, requirements and seeds.
        table: the loss table D [P, J+1] of a prediction network, if there is one.
        flipped: whether pixels and targets are mirrored; regions are not.
    """

    image_id: ImageId
    pixels: Tensor
    prepared: PreparedImage
    table: Tensor | None = None
    flipped: bool = False

    @property
    def requirements(self) -> Requirements:
        return self.prepared.requirements

    def targets(self) -> Tensor:
        """The targets of every pixel in the initial training, [J+1, H, W]."""
        targets = self.prepared.pixel_targets()
        return targets.flip(2) if self.flipped else targets

    def mirrored(self) -> ConditionalExample:
        """Flipped horizontally, for the initial training."""
        return replace(self, pixels=self.pixels.flip(2), flipped=not self.flipped)

    def without_table(self) -> ConditionalExample:
        return replace(self, table=None)

    def candidates(self, options: ScoringOptions | None = None) -> Candidates:
        """The regions, ready for scoring and inference."""
        if self.flipped:
            raise ValueError("the regions of a mirrored example are not mirrored")
        prior = self.prepared.seed_prior
        return Candidates(self.requirements, options, seed_prior=prior, table=self.table)


class PreparedFolder(ArtefactFolder[PreparedImage]):
    """The prepared images in a folder, by image id."""

    index_name = "examples.json"
    command = "`annocoin train`"

    def read(self, path: Path) -> PreparedImage:
        return FORMAT.read(path, _decode)


class ExampleSequence(Protocol):
    """Examples by position."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> ConditionalExample: ...


class ConditionalDataset:
    """The images that are prepared, by position.

    Args:
        size: longest side of the images, in pixels.
        tables: loss tables of a prediction network, by image id.
    """

    def __init__(
        self,
        dataset: WeakDataset,
        prepared: PreparedFolder,
        *,
        size: int,
        tables: Mapping[ImageId, Tensor] | None = None,
    ) -> None:
        self.images = [image for image in dataset if image.image_id in prepared]
        if tables is not None:
            self.images = [image for image in self.images if image.image_id in tables]
        if not self.images:
            raise InputError(f"{prepared.path}: no image of the dataset is prepared there")
        self.classes = dataset.classes
        self.prepared, self.size, self.tables = prepared, size, tables

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> ConditionalExample:
        image = self.images[index]
        return ConditionalExample(
            image.image_id,
            resize_longest_side(image.pixels(), self.size),
            self.prepared[image.image_id],
            None if self.tables is None else self.tables[image.image_id],
        )

    def image_id(self, index: int) -> ImageId:
        return self.images[index].image_id


def prepare_images(
    dataset: WeakDataset,
    regions: RegionFolder,
    seeds: SeedFolder,
    out: Path,
    config: ConditionalConfig,
    execution: Execution,
) -> PreparedFolder:
    """Prepare every image that has regions and seeds, and is not prepared in `out` yet."""
    images = with_artefacts(dataset, regions, seeds, execution.problems)
    items = [
        (
            image.image_id,
            regions.name(image.image_id),
            (image, regions.files[image.image_id], seeds.files[image.image_id]),
        )
        for image in images
    ]
    return run_image_stage(
        PreparedFolder,
        out,
        preparation_options(config),
        items,
        partial(_Preparer, config, regions, seeds),
        lambda path, _: FORMAT.is_current(path),
        "examples",
        execution,
        serial_below=64,
    )


def preparation_options(config: ConditionalConfig) -> dict[str, object]:
    """The options on which prepared images depend."""
    return {
        "top_regions": config.top_regions,
        "require_peak": config.require_peak,
        "box_overlap": config.box_overlap,
        "best_fit_share": config.best_fit_share,
        "box_allows_extra": config.box_allows_extra,
        "evidence": config.evidence,
        "targets": config.training.targets,
    }


def with_artefacts(
    dataset: WeakDataset, regions: RegionFolder, seeds: SeedFolder, problems: Problems
) -> list[WeakImage]:
    """The images that have regions, and seeds for the same annotation."""
    usable = []
    for image in dataset:
        with problems.caught(image.image_id):
            for folder in (regions, seeds):
                if image.image_id not in folder:
                    raise InputError(f"{folder.path}: nothing for image {image.image_id!r}")
            seeds.check(image.image_id, image.annotation)
            usable.append(image)
    check_usable(usable, problems)
    return usable


def prepare_image(
    image: WeakImage, regions: RegionSet, seeds: Seeds, config: ConditionalConfig
) -> PreparedImage:
    """Filtered regions, requirements, seed votes and targets of one image."""
    annotation = image.annotation
    seeds.check_for(annotation)
    kept = filter_regions(
        regions,
        seeds,
        annotation,
        top_regions=config.top_regions,
        box_overlap=config.box_overlap,
    )
    requirements = requirements_of(
        annotation,
        regions[kept],
        seeds=seeds if config.require_peak else None,
        image=image.pixels(),
        box_overlap=config.box_overlap,
        best_fit_share=config.best_fit_share,
        box_allows_extra=config.box_allows_extra,
    )
    votes = seed_votes(requirements, seeds)
    shares: Tensor | None = None
    if "maps" in (config.evidence, config.training.targets) and set(annotation.kinds) <= {"tag"}:
        shares = class_shares(requirements.regions, seeds, requirements.labels)
    if shares is None or config.evidence == "votes":
        prior = seed_prior(requirements, seeds, votes)
    else:
        prior = map_prior(requirements.regions, shares)
    if config.training.targets == "pixels":
        targets = pixel_labels(seeds, requirements.labels)
    elif shares is None or config.training.targets == "votes":
        targets = soft_labels(requirements.regions, seeds, votes, requirements.labels)
    else:
        targets = share_labels(shares)
    return PreparedImage(requirements, prior, targets)


def pixel_labels(seeds: Seeds, labels: Sequence[int]) -> Tensor:
    """Pixels with a strong response of a seed of each class, the rest background: [J+1, H, W].

    A pixel of several classes belongs to each of them in equal parts.
    """
    pixels = seed_pixels(seeds)
    rows = [pixels[seeds.labels == label].any(dim=0) for label in labels]
    classes = torch.stack(rows).float() if rows else torch.zeros(0, *seeds.size)
    background = (classes.sum(dim=0, keepdim=True) == 0).float()
    targets = torch.cat([background, classes])
    return targets / targets.sum(dim=0)


class _Preparer:
    def __init__(self, config: ConditionalConfig, regions: RegionFolder, seeds: SeedFolder) -> None:
        self.config, self.regions, self.seeds = config, regions, seeds

    def compute(self, item: tuple[WeakImage, Path, Path]) -> PreparedImage:
        image, regions, seeds = item
        return prepare_image(image, self.regions.read(regions), self.seeds.read(seeds), self.config)

    def write(self, path: Path, result: PreparedImage) -> None:
        write_prepared(path, result)


def write_prepared(path: Path, prepared: PreparedImage) -> None:
    """Write a prepared image as .npz, atomically."""
    targets = prepared.targets.numpy()
    if targets.ndim == 3:  # shares of pixels: which classes have any
        targets = np.packbits(targets.reshape(len(targets), -1) > 0, axis=1)
    content: Arrays = {
        **regions_to_arrays(prepared.requirements.regions),
        **requirements_to_arrays(prepared.requirements),
        "seed_prior": prepared.seed_prior.numpy(),
        "targets": targets,
    }
    FORMAT.write(path, content)


def _decode(arrays: Arrays) -> PreparedImage:
    regions = regions_from_arrays(arrays)
    requirements = requirements_from_arrays(arrays, regions)
    targets = arrays["targets"]
    if targets.dtype == np.uint8:
        height, width = regions.size
        if targets.shape[0] * height * width > MAX_BITS:
            raise ValueError(f"{targets.shape[0]} targets of {height} x {width} pixels")
        bits = np.unpackbits(targets, axis=1, count=height * width)
        shares = bits.reshape(-1, height, width).astype(np.float32)
        targets = shares / shares.sum(axis=0)
    return PreparedImage(
        requirements, torch.from_numpy(arrays["seed_prior"]), torch.from_numpy(targets)
    )
