"""Seconds that a training step waits for data, for the conditional and the prediction network.

    python benchmarks/loading.py DATASET --split train --images 48 --out FOLDER

Every row is measured twice in one run: "before", as version 0.1 did it, with regions filtered and
requirements, fallback masks and votes computed at every visit, in the training process; and
"after", with prepared examples and a loader process. Networks have random weights and few steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from annocoin.backbones import SCRATCH
from annocoin.conditional.networks import ConditionalNetwork, write_conditional
from annocoin.data.dataset import WeakDataset
from annocoin.data.loading import load_weak
from annocoin.engine.conditional_dataset import (
    ConditionalDataset,
    ConditionalExample,
    ExampleSequence,
    prepare_image,
    prepare_images,
)
from annocoin.engine.conditional_training import train_direct_loss, train_from_seeds
from annocoin.engine.config import Config
from annocoin.engine.image_stages import (
    CLASSIFIER_FILE,
    Execution,
    make_classifier,
    make_regions,
    make_seeds,
)
from annocoin.engine.labelling import draw_labels
from annocoin.engine.network_config import ConditionalConfig
from annocoin.engine.prediction_training import train_prediction
from annocoin.engine.presets import configure
from annocoin.engine.trainer import Trainer
from annocoin.prediction.networks import build_network
from annocoin.regions.storage import RegionFolder
from annocoin.seeds.seed_set import SeedFolder

WARM_UP = 1


@dataclass
class Unprepared:
    """Examples whose regions, requirements and votes are computed at every visit."""

    dataset: ConditionalDataset
    regions: RegionFolder
    seeds: SeedFolder
    config: Config

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> ConditionalExample:
        image = self.dataset.images[index]
        regions, seeds = self.regions[image.image_id], self.seeds[image.image_id]
        prepared = prepare_image(image, regions, seeds, self.config.conditional)
        return replace(self.dataset[index], prepared=prepared)


class WithTables:
    """Examples with random loss tables."""

    def __init__(self, examples: ExampleSequence) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> ConditionalExample:
        example = self.examples[index]
        shape = (len(example.requirements.regions), len(example.requirements.labels) + 1)
        return replace(example, table=torch.zeros(shape))


def measure(
    name: str, steps: int, fit: Callable[[Trainer, int], object], workers: int | None
) -> None:
    """Time steps after a warm-up, whose first batch nobody could have prefetched."""
    fit(Trainer(workers=workers), WARM_UP)
    trainer = Trainer(workers=workers)
    fit(trainer, steps)
    wait, total = trainer.data_seconds / steps, trainer.step_seconds / steps
    print(
        f"{name:44s} wait {wait:6.3f} s  step {total:7.3f} s  {100 * wait / total:5.1f} %",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--split")
    parser.add_argument("--supervision", default="image")
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--weights", type=Path, help="Folder with ImageNet weights.")
    parser.add_argument("--presets", nargs="+", default=["voc-cpu", "voc-r50"])
    parser.add_argument("--steps", type=int, nargs="+", default=[8, 2])
    arguments = parser.parse_args()
    whole = load_weak(arguments.dataset, arguments.supervision, split=arguments.split)
    dataset = replace(whole, images=whole.images[: arguments.images])
    out, config = arguments.out, configure("voc-cpu", dataset.classes, weights=arguments.weights)
    regions = make_regions(dataset, out / "regions", config.regions)
    make_classifier(dataset, out / "classifier", replace(config.classifier, epochs=1))
    seeds = make_seeds(
        dataset,
        regions,
        out / f"seeds-{dataset.supervision}",
        config.seeds,
        classifier=out / "classifier" / CLASSIFIER_FILE,
    )
    for name, steps in zip(arguments.presets, arguments.steps, strict=True):
        measure_preset(name, steps, dataset, regions, seeds, out)


def measure_preset(
    name: str, steps: int, dataset: WeakDataset, regions: RegionFolder, seeds: SeedFolder, out: Path
) -> None:
    config = configure(name, dataset.classes)
    folder = out / f"examples-{name}-{dataset.supervision}"
    prepared = prepare_images(dataset, regions, seeds, folder, config.conditional, Execution())
    size = config.conditional.architecture.size
    examples = ConditionalDataset(dataset, prepared, size=size)
    before = Unprepared(examples, regions, seeds, config)
    net = ConditionalNetwork(config.conditional.architecture, SCRATCH)

    def options(steps: int) -> ConditionalConfig:
        training = replace(config.conditional.training, initial_steps=steps, steps=steps)
        return replace(config.conditional, training=training)

    sources: list[tuple[str, ExampleSequence, int | None]]
    sources = [("before", before, 0), ("after", examples, None)]
    for when, source, workers in sources:
        measure(
            f"{name}, conditional from seeds, {when}",
            steps,
            partial(_from_seeds, net, source, options),
            workers,
        )
        measure(
            f"{name}, conditional direct loss, {when}",
            steps,
            partial(_direct_loss, net, source, options),
            workers,
        )
    file = out / f"conditional-{name}.safetensors"
    write_conditional(file, net)
    labels = draw_labels(
        dataset,
        prepared,
        file,
        config.conditional,
        out / f"labels-{name}-{dataset.supervision}",
        Execution(),
        seed=0,
    )
    prediction = build_network(config.prediction.architecture)
    for when, workers in (("before", 0), ("after", None)):
        measure(
            f"{name}, prediction, {when}",
            steps,
            lambda trainer, n: train_prediction(
                prediction, config.prediction, dataset, labels, steps=n, trainer=trainer
            ),
            workers,
        )


def _from_seeds(
    net: ConditionalNetwork,
    source: ExampleSequence,
    options: Callable[[int], ConditionalConfig],
    trainer: Trainer,
    steps: int,
) -> None:
    train_from_seeds(net, source, options(steps), trainer=trainer)


def _direct_loss(
    net: ConditionalNetwork,
    source: ExampleSequence,
    options: Callable[[int], ConditionalConfig],
    trainer: Trainer,
    steps: int,
) -> None:
    train_direct_loss(net, WithTables(source), options(steps), trainer=trainer)


if __name__ == "__main__":
    main()
