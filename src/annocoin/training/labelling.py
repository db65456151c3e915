"""Pseudo labels and loss tables of a whole dataset: shared among processes, resumable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from annocoin.conditional.storage import read_conditional
from annocoin.data.artefacts import ArtefactFolder
from annocoin.data.dataset import WeakDataset, WeakImage
from annocoin.distribution import Party
from annocoin.errors import Problems
from annocoin.parallel import Worker, cores, work_through
from annocoin.prediction import judge, read_prediction
from annocoin.prediction.images import view
from annocoin.randomness import generator_at
from annocoin.regions import RegionFolder
from annocoin.seeds import SeedFolder, retrieve
from annocoin.training import pseudo_labels, tables
from annocoin.training.presets import ConditionalPreset
from annocoin.training.pseudo_labels import PseudoLabelFolder, PseudoLabels, write_pseudo_labels
from annocoin.training.tables import TableFolder, write_table
from annocoin.types import Mark

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
        return [
            image
            for image in self.dataset
            if image.image_id in self.regions and image.image_id in self.seeds
        ]


def draw_labels(
    sources: Sources,
    network: Path,
    preset: ConditionalPreset,
    out: Path,
    *,
    seed: int,
    tables: TableFolder | None = None,
    party: Party | None = None,
    jobs: int | None = None,
    problems: Problems | None = None,
) -> PseudoLabelFolder:
    """K samples of a conditional network's file for every image that has none in `out` yet.

    Args:
        tables: what a prediction network thinks of the images' regions, if it was asked.
    """
    start = partial(_Sampler, sources, network, preset, seed, tables, _device(party))
    _work(
        PseudoLabelFolder, pseudo_labels.is_current, sources, start, out, "samples",
        party, jobs, problems,
    )  # fmt: skip
    return PseudoLabelFolder(out)


def retrieve_labels(
    sources: Sources,
    out: Path,
    *,
    party: Party | None = None,
    jobs: int | None = None,
    problems: Problems | None = None,
) -> PseudoLabelFolder:
    """The regions that seeds retrieve; masks and boxes that the annotation gives are kept."""
    start = partial(_Retriever, sources)
    _work(
        PseudoLabelFolder, pseudo_labels.is_current, sources, start, out, "retrieved labels",
        party, jobs, problems,
    )  # fmt: skip
    return PseudoLabelFolder(out)


def judge_regions(
    sources: Sources,
    network: Path,
    preset: ConditionalPreset,
    out: Path,
    *,
    party: Party | None = None,
    jobs: int | None = None,
    problems: Problems | None = None,
) -> TableFolder:
    """The loss table D of every image under a prediction network's file."""
    start = partial(_Judge, sources, network, preset, _device(party))
    _work(
        TableFolder, tables.is_current, sources, start, out, "loss tables",
        party, jobs, problems,
    )  # fmt: skip
    return TableFolder(out)


def _work(
    kind: type[ArtefactFolder[Any]],
    is_current: Callable[[Path], bool],
    sources: Sources,
    start: Callable[[], Worker],
    out: Path,
    doing: str,
    party: Party | None,
    jobs: int | None,
    problems: Problems | None,
) -> None:
    images = sources.images
    names = [(image.image_id, sources.regions.name(image.image_id)) for image in images]
    with kind.writing(out, {}, names, party) as files:
        own: Sequence[int] = range(len(images))
        own = own if party is None else party.share(own)
        places = [(place, files[images[place].image_id]) for place in own]
        todo = [(place, path) for place, path in places if not is_current(path)]
        if jobs is None:
            jobs = cores() if _device(party) == "cpu" and len(todo) > FEW else 1
        work_through(todo, start, doing, jobs=jobs, problems=problems or Problems())


def _device(party: Party | None) -> str:
    return "cpu" if party is None else str(party.device)


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

    def __call__(self, place: int, path: Path) -> None:
        case = self.cases[place]
        where = generator_at(self.seed, "samples", str(case.image_id))
        samples = self.preset.samples(self.net, case, generator=where)
        annotation = self.cases.images[place].annotation
        write_pseudo_labels(path, PseudoLabels.of_samples(samples, annotation))


class _Retriever:
    def __init__(self, sources: Sources) -> None:
        self.sources, self.images = sources, sources.images

    def __call__(self, place: int, path: Path) -> None:
        image = self.images[place]
        regions, seeds = self.sources.regions[image.image_id], self.sources.seeds[image.image_id]
        found = retrieve(regions, seeds, image.annotation)
        instances = found.instances(regions, seeds)
        marks = [image.annotation[mark] for mark in seeds.marks[found.seeds].tolist()]
        for number, mark in enumerate(marks):
            if mark.mask is not None and not mark.crowd:
                given = list(instances.masks)
                given[number] = mark.mask
                instances.masks = tuple(given)
            if _has_box(mark):
                instances.boxes[number] = torch.tensor(mark.box, dtype=torch.float64)
        write_pseudo_labels(path, PseudoLabels.certain(instances))


def _has_box(mark: Mark) -> bool:
    return mark.box is not None and not mark.crowd


class _Judge:
    def __init__(
        self, sources: Sources, network: Path, preset: ConditionalPreset, device: str
    ) -> None:
        net, self.architecture = read_prediction(network)
        self.net = net.to(device)
        self.cases = preset.cases(sources.dataset, sources.regions, sources.seeds)
        self.preset = preset

    def __call__(self, place: int, path: Path) -> None:
        case = self.cases[place]
        pixels = self.cases.images[place].pixels()
        seen = view(pixels, self.architecture.size, self.architecture.longest)
        requirements = case.requirements
        logs, losses = judge(self.net, seen, requirements.regions, requirements.labels)
        write_table(path, self.preset.table(logs, losses))
