"""Figures are grids of panels in a fixed order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from annocoin import files
from annocoin.conditional.samples import Samples
from annocoin.data.dataset import LabelledImage, LabelledImages, WeakDataset, weak_dataset
from annocoin.engine.pseudo_labels import PseudoLabels
from annocoin.engine.run_directory import RESULT
from annocoin.engine.shared_stages import PREDICTION_FILE
from annocoin.errors import InputError
from annocoin.prediction.networks import PredictionArchitecture, build_network, write_prediction
from annocoin.regions.boundaries import BoundaryDetector
from annocoin.regions.proposals import RegionProposer
from annocoin.regions.region_set import RegionSet
from annocoin.report import figures
from annocoin.report.overlay import Picture, draw, save
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation, Instances, WeakLabel

SIZE = (40, 80)
CLASSES = ("cat", "dog")
IMAGE = np.random.default_rng(0).integers(60, 200, (*SIZE, 3), dtype=np.uint8)


def panels_of(figure: Picture, side: int, columns: int, gap: int) -> list[Picture]:
    """The panels of a figure of `IMAGE`, row by row."""
    height, width = side // 2, side
    assert figure.shape[1] == columns * (width + gap) + gap
    rows = (figure.shape[0] - gap) // (height + gap)
    return [
        figure[y : y + height, x : x + width]
        for y in range(gap, rows * (height + gap), height + gap)
        for x in range(gap, columns * (width + gap), width + gap)
    ]


def halves() -> RegionSet:
    """The left and the right half of the image."""
    ids = np.repeat(np.arange(2), 40)[None].repeat(40, axis=0)
    return RegionSet.of(ids, np.eye(2, dtype=bool))


def samples() -> Samples:
    """The left half is a cat in both samples, the right half a dog in the second."""
    return Samples(
        halves(),
        labels=torch.tensor([[1, 0], [1, 2]]),
        margins=torch.ones(2, 2),
        required_regions=torch.tensor([[0], [0]]),
        annotation_index=(0,),
    )


def test_regions() -> None:
    image = np.zeros((*SIZE, 3), np.uint8)
    image[10:30, 20:50] = 250
    propose = RegionProposer(BoundaryDetector("gradient"), limit=5)
    analysis = propose.analyse(image)
    regions = propose.select(analysis, SIZE)
    figure = figures.regions_figure(image, analysis, regions, best=3)
    panels = panels_of(figure, figures.REGION_SIDE, columns=4, gap=6)
    assert len(panels) == 8
    assert (panels[0][100, 150] == 250).all()
    assert panels[1][:, :, 0].std() > 10  # boundaries on white
    assert panels[3][100, 150].min() > 200  # mean colours
    dark = (panels[0] * 0.6).astype(np.uint8)
    assert (panels[4][40:] != dark[40:]).any()  # a region, below the caption
    assert (panels[7] == 255).all()  # an empty cell


def test_seeds() -> None:
    seeds = Seeds(
        size=SIZE,
        labels=torch.tensor([1]),
        points=torch.tensor([[20.0, 30.0]]),
        scores=torch.ones(1),
        annotation_index=torch.tensor([0]),
        responses=torch.tensor([[[0.0, 0.0], [1.0, 0.0]]]),
        maps=torch.zeros(1, 2, 2),
    )
    annotation = Annotation(SIZE, (WeakLabel(1),))
    instances = samples().instances(0)
    figure = figures.seeds_figure(
        IMAGE, annotation, seeds, {"votes": instances}, CLASSES, max_responses=2
    )
    peaks, response, blank, retrieved = panels_of(figure, figures.SEED_SIDE, columns=4, gap=6)
    scale = figures.SEED_SIDE / 80
    plain = draw(IMAGE, annotation, CLASSES, scale=scale, by_class=True)
    assert (peaks[120, 80] != plain[120, 80]).any()  # the cross at the peak
    assert (response[120, 80] == 255).all()
    assert (blank == 255).all()
    expected = draw(
        IMAGE, instances.annotation(), CLASSES, scale=scale, by_class=True, caption="by votes"
    )
    assert np.array_equal(retrieved, expected)


def test_samples() -> None:
    annotation = Annotation(SIZE, (WeakLabel(1),))
    truth = samples().instances(1)
    figure = figures.samples_figure(IMAGE, annotation, samples(), CLASSES, truth)
    panels = panels_of(figure, figures.SAMPLE_SIDE, columns=5, gap=3)
    scale = figures.SAMPLE_SIDE / 80
    labels = draw(IMAGE, annotation, CLASSES, scale=scale, by_class=True, caption="labels")
    assert np.array_equal(panels[0], labels)
    unscored = Instances(size=SIZE, masks=truth.masks, labels=truth.labels).annotation()
    second = draw(IMAGE, unscored, CLASSES, scale=scale, by_class=True, caption="2")
    assert np.array_equal(panels[2], second)
    expected = draw(IMAGE, truth.annotation(), CLASSES, scale=scale, by_class=True, caption="truth")
    assert np.array_equal(panels[4], expected)


def one_image(path: Path) -> WeakDataset:
    """A dataset of one image with a cat."""
    image = LabelledImage("image", path.name, path, Annotation(SIZE, (WeakLabel(1),)))
    return weak_dataset(LabelledImages.of(CLASSES, [image]), "image")


def write_run(run: Path, stages: dict[str, Path]) -> None:
    listed = [{"stage": name, "folder": str(path)} for name, path in stages.items()]
    files.write_json(run / RESULT, {"stages": listed})


def test_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(IMAGE, tmp_path / "image.png")
    dataset = one_image(tmp_path / "image.png")
    architecture = PredictionArchitecture(CLASSES, "tiny", min_size=64, fpn_channels=8)
    pseudo_labels = PseudoLabels.from_samples(samples(), Annotation(SIZE, (WeakLabel(1),)))
    monkeypatch.setattr(figures, "PseudoLabelFolder", lambda _: {"image": pseudo_labels})
    write_prediction(tmp_path / PREDICTION_FILE, build_network(architecture), architecture)
    names = ("round 1, samples", "round 1, prediction", "final samples", "final prediction")
    write_run(tmp_path, dict.fromkeys(names, tmp_path))
    panels = panels_of(
        figures.rounds_figure(tmp_path, dataset), figures.SAMPLE_SIDE, columns=9, gap=3
    )
    assert len(panels) == 9
    options: Any = {"classes": CLASSES, "scale": figures.SAMPLE_SIDE / 80}
    expected = draw(IMAGE, Annotation(SIZE, (WeakLabel(1),)), **options, caption="labels")
    assert np.array_equal(panels[0], expected)
    drawn = {panel.tobytes() for panel in panels[1:4]}
    assert len(drawn) == 3  # two distinct samples, and the consensus again with another number
    assert (panels[1][20, 200] != panels[2][20, 200]).any()  # only one of them has the dog
    none, every = (figures.rounds_figure(tmp_path, dataset, shown_score=s) for s in (1.0, 0.0))
    assert not np.array_equal(none, every)


def test_a_run_without_rounds_has_no_figure(tmp_path: Path) -> None:
    write_run(tmp_path, {"prediction": tmp_path})
    with pytest.raises(InputError, match="without rounds"):
        figures.rounds_figure(tmp_path, one_image(tmp_path / "image.png"))
