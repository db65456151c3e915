"""Pseudo labels and loss tables of a whole dataset: shared among processes, resumable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from annocoin import masks as rle
from annocoin.conditional.networks import read_conditional
from annocoin.data.artefacts import ArtefactFolder
from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.engine.config import ConditionalPreset
from annocoin.engine.distribution import ProcessGroup, num_workers
from annocoin.engine.parallel import BadItem, Worker, work_through
from annocoin.engine.pseudo_labels import (
    PseudoLabelFolder,
    PseudoLabels,
    TableFolder,
    labels_are_current,
    table_is_current,
    write_pseudo_labels,
    write_table,
)
from annocoin.engine.randomness import generator_at
from annocoin.errors import InputError, Problems, one_line
from annocoin.prediction.networks import read_prediction, view
from annocoin.prediction.region_scoring import score_regions
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.retrieval import retrieve
from annocoin.seeds.seed_set import SeedFolder
from annocoin.types import Instances, WeakLabel

FEW = 400
"""So many images are faster done in this process than shared with new ones."""


@dataclass(frozen=True)
class Sources:
    """A dataset and what was made for its images."""

    dataset: WeakDataset
    regions: RegionFolder
    seeds: SeedFolder

    @property
    def images(self) -> list[WeakImage]:
        """Those for which all is there."""
        return [image for image in self.dataset if not self._lacks(image)]

    def check(self, problems: Problems) -> None:
        """Raise, or note, if something was not made for an image."""
        for image in self.dataset:
            with problems.caught():
                if lacking := self._lacks(image):
                    raise InputError(f"{lacking}: nothing for image {image.image_id!r} in it")

    def _lacks(self, image: WeakImage) -> Path | None:
        """The folder in which there is nothing for an image."""
        for folder in (self.regions, self.seeds):
            if image.image_id not in folder:
                return folder.path
        return None


def draw_labels(
    sources: Sources,
    network: Path,
    preset: ConditionalPreset,
    out: Path,
    *,
    seed: int,
    tables: TableFolder | None = None,
    group: ProcessGroup | None = None,
    jobs: int | None = None,
    problems: Problems | None = None,
) -> PseudoLabelFolder:
    """K samples of a conditional network's file for every image that has none in `out` yet.

    Args:
        tables: what a prediction network thinks of the images' regions, if it was asked.
    """
    start = partial(_Sampler, sources, network, preset, seed, tables, _device(group))
    _work(
        PseudoLabelFolder, labels_are_current, sources, start, out, "samples",
        group, jobs, problems,
    )  # fmt: skip
    return PseudoLabelFolder(out)


def retrieve_labels(
    sources: Sources,
    out: Path,
    *,
    group: ProcessGroup | None = None,
    jobs: int | None = None,
    problems: Problems | None = None,
) -> PseudoLabelFolder:
    """The regions that seeds retrieve; masks and boxes that the annotation gives are kept."""
    start = partial(_Retriever, sources)
    _work(
        PseudoLabelFolder, labels_are_current, sources, start, out, "retrieved labels",
        group, jobs, problems,
    )  # fmt: skip
    return PseudoLabelFolder(out)


def make_loss_tables(
    sources: Sources,
    network: Path,
    preset: ConditionalPreset,
    out: Path,
    *,
    group: ProcessGroup | None = None,
    jobs: int | None = None,
    problems: Problems | None = None,
) -> TableFolder:
    """The loss table D of every image under a prediction network's file."""
    start = partial(_Judge, sources, network, preset, _device(group))
    _work(
        TableFolder, table_is_current, sources, start, out, "loss tables",
        group, jobs, problems,
    )  # fmt: skip
    return TableFolder(out)


def _work(
    kind: type[ArtefactFolder[Any]],
    is_current: Callable[[Path], bool],
    sources: Sources,
    start: Callable[[], Worker],
    out: Path,
    doing: str,
    group: ProcessGroup | None,
    jobs: int | None,
    problems: Problems | None,
) -> None:
    images = sources.images
    names = [(image.image_id, sources.regions.name(image.image_id)) for image in images]
    with kind.writing(out, {}, names, group) as files:
        own: Sequence[int] = range(len(images))
        own = own if group is None else group.shard(own)
        places = [(place, files[images[place].image_id]) for place in own]
        todo = [(place, path) for place, path in places if not is_current(path)]
        if jobs is None and len(places) <= FEW:  # of all: those left must end as those before
            jobs = 1
        jobs = num_workers(jobs, group, _device(group))
        work_through(todo, start, doing, jobs=jobs, problems=problems or Problems())


def _device(group: ProcessGroup | None) -> str:
    return "cpu" if group is None else str(group.device)


class _Sampler:
    def __init__(
        self,
        sources: Sources,
        network: Path,
        preset: ConditionalPreset,
        seed: int,
        tables: TableFolder | None,
        device: str,
    ) -> None:
        self.net = read_conditional(network).to(device)
        self.cases = preset.cases(sources.dataset, sources.regions, sources.seeds, tables)
        self.preset, self.seed = preset, seed

    def __call__(self, place: int, path: Path) -> BadItem | None:
        try:
            case = self.cases[place]
        except (InputError, OSError) as error:
            return BadItem(one_line(error))
        where = generator_at(self.seed, "samples", str(case.image_id))
        samples = self.preset.samples(self.net, case, generator=where)
        annotation = self.cases.images[place].annotation
        write_pseudo_labels(path, PseudoLabels.of_samples(samples, annotation))
        return None


class _Retriever:
    def __init__(self, sources: Sources) -> None:
        self.sources, self.images = sources, sources.images

    def __call__(self, place: int, path: Path) -> BadItem | None:
        image = self.images[place]
        try:
            regions = self.sources.regions[image.image_id]
            seeds = self.sources.seeds[image.image_id]
            found = retrieve(regions, seeds, image.annotation)
        except (InputError, OSError) as error:
            return BadItem(one_line(error))
        weak_labels = [
            image.annotation[weak_label]
            for weak_label in seeds.annotation_index[found.seeds].tolist()
        ]
        write_pseudo_labels(
            path, PseudoLabels.certain(_with_given(found.instances(regions, seeds), weak_labels))
        )
        return None


def _with_given(found: Instances, weak_labels: Sequence[WeakLabel]) -> Instances:
    """Retrieved instances with the masks and boxes that their weak_labels give."""
    own = [
        weak_label if not weak_label.crowd else WeakLabel(weak_label.label)
        for weak_label in weak_labels
    ]
    pairs = zip(found.masks, own, strict=True)
    masks = [weak_label.mask if weak_label.mask is not None else mask for mask, weak_label in pairs]
    boxes = torch.from_numpy(rle.boxes(masks))
    for number, weak_label in enumerate(own):
        if weak_label.box is not None:
            boxes[number] = torch.tensor(weak_label.box, dtype=torch.float64)
    return Instances(
        size=found.size, masks=masks, labels=found.labels, scores=found.scores, boxes=boxes
    )


class _Judge:
    def __init__(
        self, sources: Sources, network: Path, preset: ConditionalPreset, device: str
    ) -> None:
        net, self.architecture = read_prediction(network)
        self.net = net.to(device)
        self.cases = preset.cases(sources.dataset, sources.regions, sources.seeds)
        self.preset = preset

    def __call__(self, place: int, path: Path) -> BadItem | None:
        try:
            case, pixels = self.cases[place], self.cases.images[place].pixels()
        except (InputError, OSError) as error:
            return BadItem(one_line(error))
        seen = view(pixels, self.architecture.size, self.architecture.longest)
        requirements = case.requirements
        logs, losses = score_regions(self.net, seen, requirements.regions, requirements.labels)
        write_table(path, self.preset.table(logs, losses))
        return None
