"""Pseudo labels of a run under other options of scoring, measured with true masks.

    python benchmarks/labels.py VOCdevkit/VOC2012 --split train --preset voc-cpu \\
        --examples RUN/stages/examples-*/files --tables RUN/stages/round-1-tables-* \\
        --conditional RUN/stages/conditional-*/conditional.safetensors \\
        --prediction RUN/stages/round-1-prediction-*/prediction.safetensors --every 6 \\
        [--variant NAME=VALUE[,NAME=VALUE] ...]

The examples, conditional network and loss tables are those of a run. Without --tables there is no
prediction network in the scores, without --prediction none whose masks refine those of instances,
without --conditional the seed prior decides alone. Each --variant changes options of `conditional`
for one row, such as `scoring.extra_margin=2`. Rows: mAP (protocol chainercv), F1 at .5, instances
per image, rank correlation of confidence and true IoU, and the fraction of wrong masks in the least
and the most confident fifth. `--cores` rows run at once.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from annocoin.api import label_measurement
from annocoin.cli.options import parse_overrides
from annocoin.conditional.networks import read_conditional
from annocoin.conditional.refinement import PredictedShares
from annocoin.data.loading import load_evaluation, load_weak
from annocoin.engine.conditional_dataset import ConditionalDataset, PreparedFolder
from annocoin.engine.labelling import MaskPredictor, samples_of
from annocoin.engine.presets import configure
from annocoin.engine.pseudo_labels import TableFolder
from annocoin.engine.randomness import generator_at
from annocoin.errors import Problems
from annocoin.types import ImageId, Instances


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--split")
    parser.add_argument("--supervision", default="image")
    parser.add_argument("--preset", default="voc-cpu")
    parser.add_argument("--examples", type=Path, required=True)
    parser.add_argument("--conditional", type=Path)
    parser.add_argument("--tables", type=Path)
    parser.add_argument("--prediction", type=Path)
    parser.add_argument("--every", type=int, default=1, help="measure every n-th image")
    parser.add_argument("--variant", action="append", default=[], help="options of one row")
    parser.add_argument("--cores", type=int, default=1)
    options = parser.parse_args()
    variants = ["", *options.variant]
    print(f"{'':44s} .25 / .5 / .7 / .75, F1, instances, spearman, wrong least / most")
    with ProcessPoolExecutor(options.cores) as pool:
        rows = pool.map(partial(measure, options), variants)
        for variant, row in zip(variants, rows, strict=True):
            print(f"{variant or options.preset:44s} {row}", flush=True)


def measure(options: argparse.Namespace, variant: str) -> str:
    """The figures of one variant, as a row."""
    torch.set_num_threads(1)
    weak = load_weak(options.dataset, options.supervision, split=options.split)
    weak = weak.subset({image.image_id for image in weak.images[:: options.every]})
    truth = load_evaluation(options.dataset, split=options.split)
    changes = parse_overrides([f"conditional.{change}" for change in variant.split(",") if change])
    config = configure(options.preset, weak.classes, changes).conditional
    tables = None if options.tables is None else TableFolder(options.tables)
    examples = ConditionalDataset(
        weak, PreparedFolder(options.examples), size=config.architecture.size, tables=tables
    )
    labels: dict[ImageId, Instances] = {}
    net = None if options.conditional is None else read_conditional(options.conditional)
    masks = None if options.prediction is None else MaskPredictor(options.prediction)
    images = {image.image_id: image for image in weak}
    if net is not None:
        net.architecture = replace(net.architecture, score_scale=config.architecture.score_scale)
    for example in (examples[index] for index in range(len(examples))):
        if net is None:
            candidates = example.candidates(config.scoring)
            shape = (config.training.samples, len(candidates.regions), len(candidates.columns))
            samples = candidates.samples(candidates.scores(torch.zeros(shape)))
        else:
            generator = generator_at(0, "samples", str(example.image_id))
            predicted: PredictedShares | None = None
            if masks is not None:
                pixels = images[example.image_id].pixels()
                predicted = partial(masks.shares, pixels, example.requirements.regions)
            samples = samples_of(net, example, config, generator=generator, predicted=predicted)
        labels[example.image_id] = samples.consensus()
    figures = label_measurement(truth, weak, Problems()).figures(labels)
    values = [100 * figures[f"map@{t:g}"] for t in (0.25, 0.5, 0.7, 0.75)]
    return (
        " / ".join(f"{value:.1f}" for value in values)
        + f", {figures['f1@0.5']:.3f}, {figures['instances']:.2f} of "
        + f"{figures['true_instances']:.2f}, {figures.get('confidence_spearman', 0):.2f}, "
        + f"{figures.get('confidence_wrong_least', 0):.2f} / "
        + f"{figures.get('confidence_wrong_most', 0):.2f}"
    )


if __name__ == "__main__":
    main()
