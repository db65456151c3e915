"""Time of the conditional network, and quality of its samples.

    python benchmarks/conditional.py speed
    python benchmarks/conditional.py quality SYNTHETIC --split train --regions REGIONS --seeds SEEDS
    python benchmarks/conditional.py quality VOCdevkit/VOC2012 --split devval --regions REGIONS \\
        --seeds SEEDS --trunk unet-mobilenet_v2 --weights mobilenet_v2.pth

`speed` has K = 10 samples, P = 500 regions and C = 20 classes at 256 x 256 pixels, on one core: the
plain U-Net trunk, sampling after it, and a training step after it. They are compared with the
paper's order of operations, which multiplies the features of every sample with the mask of every
region. It also counts how often greedy inference finds the argmax of small random problems.

`quality` trains the network from the seeds of a split's tags and measures on the same images, whose
masks are used for nothing else: mean best IoU of the objects, F1 and mAP (protocol chainercv) of
the labels that the seeds retrieve and of the network's, by terms of the score, and the diversity of
K samples. `--pictures` draws the samples of ten images.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from annocoin.conditional.inference import Suppression, build_suppression, infer
from annocoin.conditional.networks import ConditionalArchitecture, ConditionalNetwork
from annocoin.conditional.requirements import requirements_of
from annocoin.conditional.samples import Samples
from annocoin.conditional.scoring import Candidates, ScoringOptions
from annocoin.data.dataset import EvaluationDataset
from annocoin.data.loading import load_evaluation, load_weak
from annocoin.engine.conditional_dataset import ConditionalDataset, prepare_images
from annocoin.engine.conditional_training import direct_step, train_from_seeds
from annocoin.engine.image_stages import Execution
from annocoin.engine.network_config import ConditionalConfig, ConditionalTraining
from annocoin.engine.randomness import generator_at
from annocoin.evaluation.evaluator import evaluate
from annocoin.files import write_json
from annocoin.objective.task_loss import labelling_score
from annocoin.progress import track
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import RegionFolder
from annocoin.report import overlay
from annocoin.report.figures import samples_figure
from annocoin.seeds.retrieval import retrieve
from annocoin.seeds.seed_set import SeedFolder
from annocoin.types import Annotation, Instances, WeakLabel
from region_algebra import median, peak_bytes, random_regions

SAMPLES, REGIONS, CLASSES, SIDE = 10, 500, 20, 256

VARIANTS: dict[str, ScoringOptions] = {
    "U": ScoringOptions("U"),
    "U+P": ScoringOptions("U+P"),
    "U+H": ScoringOptions(pairwise="none"),
    "U+P+H": ScoringOptions(),
    "U+P+H, normalised": ScoringOptions(pairwise="normalised"),
    "U+P+H, edge-votes": ScoringOptions(pairwise="edge-votes"),
    "U+P+H, literal": ScoringOptions(pairwise="literal", difference="neighbourhood"),
    "U+P+H, literal, of pairs": ScoringOptions(pairwise="literal"),
    "U+P+H, no prior": ScoringOptions(seed_prior_weight=0.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("speed", "quality"))
    parser.add_argument("dataset", type=Path, nargs="?")
    parser.add_argument("--split")
    parser.add_argument("--regions", type=Path)
    parser.add_argument("--seeds", type=Path)
    parser.add_argument("--supervision", default="image")
    parser.add_argument("--trunk", default="tiny")
    parser.add_argument("--weights", default="imagenet")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=ConditionalTraining.initial_steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="number of images to measure on")
    parser.add_argument("--network", type=Path, help="file of the trained weights; reused if there")
    parser.add_argument("--pictures", type=Path, help="draw the samples of ten images here")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.what == "quality" and None in (options.dataset, options.regions, options.seeds):
        parser.error("quality needs DATASET, --regions and --seeds")
    results = speed() if options.what == "speed" else quality(options)
    for name, value in results.items():
        print(f"{name:58s} {value:.4f}" if isinstance(value, float) else f"{name:58s} {value}")
    if options.json is not None:
        write_json(options.json, results, indent=1)


def speed() -> dict[str, Any]:
    torch.set_num_threads(1)
    regions = random_regions(np.random.default_rng(0))[: 2 * REGIONS : 2]
    classes = tuple(f"class {c + 1}" for c in range(CLASSES))
    net = ConditionalNetwork(ConditionalArchitecture(classes))
    image = torch.rand(1, 3, SIDE, SIDE)
    tags = Annotation(regions.size, (WeakLabel(3), WeakLabel(11), WeakLabel(20)))
    requirements = requirements_of(tags, regions)
    with torch.no_grad():
        features = net.features(image)[0]
    noise = net.noise(SAMPLES, features, generator_at(0))

    def trunk() -> None:
        net.features(image).sum().backward()

    def sample() -> Samples:
        drawn = net.noise(SAMPLES, features, generator_at(0))
        return sample_image(net, features, drawn, Candidates(requirements))

    def naive() -> Tensor:
        return masked_scores(net, features, noise, regions)

    def pooled() -> Tensor:
        with torch.no_grad():
            return net.unary(features, noise, regions)

    table = torch.rand(REGIONS, 4, generator=generator_at(1))
    training = ConditionalTraining(samples=SAMPLES)

    def step() -> None:
        leaf = features.clone().requires_grad_()
        candidates = Candidates(requirements)
        drawn = net.noise(SAMPLES, leaf, generator_at(0))
        unary = net.unary(leaf, drawn, candidates.regions, candidates.columns)
        direct_step(unary, candidates, table, training)[0].backward()

    torch.testing.assert_close(pooled(), naive(), rtol=1e-2, atol=1e-4)
    results: dict[str, Any] = {
        "trunk, forward and backward, s": median(trunk),
        "sampling after the trunk, s": median(sample),
        "training step after the trunk, s": median(step),
        "scores of all classes, s": median(pooled),
        "scores by masks, s": once(naive),
        "memory of scores of all classes, MB": peak_bytes(pooled) / 1e6,
        "memory of scores by masks, MB": peak_bytes(naive) / 1e6,
    }
    results["training step / trunk"] = (
        results["training step after the trunk, s"] / results["trunk, forward and backward, s"]
    )
    results["scores by masks / scores, time"] = (
        results["scores by masks, s"] / results["scores of all classes, s"]
    )
    results |= argmax_rate()
    return results


@torch.no_grad()
def masked_scores(
    net: ConditionalNetwork, features: Tensor, noise: Tensor, regions: RegionSet
) -> Tensor:
    """F [K, P, C+1] in the paper's order: every sample's features times every region's mask."""
    ids = torch.nn.functional.interpolate(
        regions.superpixels[None, None].float(), features.shape[-2:], mode="nearest-exact"
    )[0, 0].long()
    rows = []
    for z in noise:
        joined = (net.join(features[None]) + net.join_noise(z[None])).relu()
        scores = []
        for members in regions.membership:
            mask = members[ids].to(joined.dtype)
            pixels = net.classify(joined * mask)[0] * mask
            scores.append(net.architecture.score_scale * pixels.mean(dim=(1, 2)))
        rows.append(torch.stack(scores))
    return torch.stack(rows)


def once(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def argmax_rate(problems: int = 300) -> dict[str, Any]:
    """How often greedy inference finds the best of all labellings, and its relative score."""
    equal, shares = 0, []
    for seed in range(problems):
        generator = torch.Generator().manual_seed(seed)
        members = torch.rand(6, 5, generator=generator) < 0.4
        members[torch.arange(6), torch.arange(6) % 5] = True
        regions = RegionSet.of(np.repeat([np.arange(5)], 4, axis=0), members)
        requirements = requirements_of(Annotation((4, 5), (WeakLabel(1), WeakLabel(2))), regions)
        suppression = build_suppression(requirements, cross_class_nms_threshold=1.0)
        scores = torch.randn(1, 6, 3, generator=generator)
        greedy = infer(scores, requirements, suppression).labels
        score = float(labelling_score(scores, greedy, (1, 2))[0])
        values = [
            float(labelling_score(scores[0], labels, (1, 2)))
            for labels in map(torch.tensor, itertools.product((0, 1, 2), repeat=6))
            if allowed(labels, suppression) and requirements.met_by(labels)
        ]
        equal += score > max(values) - 1e-5
        shares.append((score - min(values)) / max(1e-9, max(values) - min(values)))
    return {
        "greedy inference finds the argmax, share of problems": equal / problems,
        "its score, from the worst (0) to the best (1) labelling": float(np.mean(shares)),
    }


def allowed(labels: Tensor, suppression: Suppression) -> bool:
    """Whether no two regions of a class overlap too much."""
    same = (labels[:, None] == labels[None]) & (labels > 0)[:, None]
    return not bool((same & suppression.same_class[0]).fill_diagonal_(False).any())


def quality(options: argparse.Namespace) -> dict[str, Any]:
    weak = load_weak(options.dataset, options.supervision, split=options.split)
    truth = load_evaluation(options.dataset, split=options.split)
    regions, seeds = RegionFolder(options.regions), SeedFolder(options.seeds)
    config = ConditionalConfig(
        ConditionalArchitecture(weak.classes, options.trunk, size=options.size),
        training=ConditionalTraining(initial_steps=options.steps),
        weights=options.weights,
    )
    with tempfile.TemporaryDirectory() as folder:
        prepared = prepare_images(weak, regions, seeds, Path(folder), config, Execution())
        dataset = ConditionalDataset(weak, prepared, size=options.size)
        return measure_all(dataset, config, regions, seeds, truth, options)


def measure_all(
    dataset: ConditionalDataset,
    config: ConditionalConfig,
    regions: RegionFolder,
    seeds: SeedFolder,
    truth: EvaluationDataset,
    options: argparse.Namespace,
) -> dict[str, Any]:
    net, seconds = trained(dataset, config, options)
    results: dict[str, Any] = {"images": len(dataset), "seconds to train": seconds}
    labels: dict[str, dict[Any, Instances]] = {}
    diversities: dict[str, list[float]] = {name: [] for name in VARIANTS}
    pictures: list[overlay.Picture] = []
    for i in track(range(len(dataset))[: options.limit], "samples"):
        example, image = dataset[i], dataset.images[i]
        image_id = image.image_id
        for method in ("votes", "combined", "objectness"):
            retrieved = retrieve(regions[image_id], seeds[image_id], image.annotation, method)  # type: ignore[arg-type]
            instances = retrieved.instances(regions[image_id], seeds[image_id])
            labels.setdefault(f"seeds, by {method}", {})[image_id] = instances
        with torch.no_grad():
            features = net.features(example.pixels[None])[0]
        for name, scoring in VARIANTS.items():
            candidates = example.candidates(scoring)
            noise = net.noise(SAMPLES, features, generator_at(options.seed, i))
            pointwise = sample_image(net, features, None, candidates)
            samples = sample_image(net, features, noise, candidates)
            labels.setdefault(f"{name}, zero noise", {})[image_id] = pointwise.consensus()
            labels.setdefault(f"{name}, samples", {})[image_id] = samples.consensus()
            for k in range(SAMPLES):
                labels.setdefault(f"{name}, sample {k}", {})[image_id] = samples.instances(k)
            diversities[name].append(samples.diversity)
            if name == "U+P+H" and len(pictures) < 10:
                true = truth.truth(image_id)
                pictures.append(
                    samples_figure(image.pixels(), image.annotation, samples, dataset.classes, true)
                )
    if options.pictures is not None:
        overlay.save(overlay.sheet(pictures, 1), options.pictures)
    measured = tuple(one for one in truth.labelled if one.image_id in labels["U+P+H, samples"])
    truth = EvaluationDataset(replace(truth.labelled, images=measured))
    figures = {name: label_quality(of_images, truth) for name, of_images in labels.items()}
    for name in VARIANTS:
        single = [figures.pop(f"{name}, sample {k}") for k in range(SAMPLES)]
        figures[f"{name}, mean of samples"] = {
            key: float(np.mean([of_sample[key] for of_sample in single])) for key in single[0]
        }
    for name, values in figures.items():
        print(f"{name:34s}" + "  ".join(f"{key} {value:.3f}" for key, value in values.items()))
        results |= {f"{name}: {key}": value for key, value in values.items()}
    results |= confidence_quality(labels["U+P+H, samples"], truth)
    for name, diversity in diversities.items():
        results[f"{name}: mean pairwise 1 - IoU of samples"] = float(np.mean(diversity))
    return results


def trained(
    dataset: ConditionalDataset, config: ConditionalConfig, options: argparse.Namespace
) -> tuple[ConditionalNetwork, float]:
    """The network, trained from the seeds or read from a file, and the seconds that it took."""
    torch.manual_seed(options.seed)
    known = options.network is not None and options.network.exists()
    net = ConditionalNetwork(config.architecture, "none" if known else config.weights)
    started = time.monotonic()
    if known:
        net.load_state_dict(torch.load(options.network, weights_only=True))
    else:
        train_from_seeds(net, dataset, config, seed=options.seed)
        if options.network is not None:
            torch.save(net.state_dict(), options.network)
    return net.eval(), time.monotonic() - started


@torch.no_grad()
def sample_image(
    net: ConditionalNetwork, features: Tensor, noise: Tensor | None, candidates: Candidates
) -> Samples:
    unary = net.unary(features, noise, candidates.regions, candidates.columns)
    return candidates.samples(candidates.scores(unary))


def confidence_quality(labels: dict[Any, Instances], truth: EvaluationDataset) -> dict[str, Any]:
    """Whether confident instances have a greater IoU with the truth."""
    confidence = np.concatenate([instances.confidence.numpy() for instances in labels.values()])
    iou = np.concatenate(
        [
            class_iou(instances, truth.truth(image_id)).amax(dim=1).numpy()
            for image_id, instances in labels.items()
        ]
    )
    order = confidence.argsort(kind="stable")
    third = len(order) // 3
    return {
        "confidence: rank correlation with the true IoU": float(spearmanr(confidence, iou)[0]),
        "confidence: IoU >= .5 in the most confident third": float(
            (iou[order[-third:]] >= 0.5).mean()
        ),
        "confidence: IoU >= .5 in the least confident third": float(
            (iou[order[:third]] >= 0.5).mean()
        ),
    }


def class_iou(instances: Instances, true: Instances) -> Tensor:
    """IoU of every instance with every true one of its class, else 0: [N, M + 1]."""
    masks = true.dense().flatten(1).double()
    found = instances.dense().flatten(1).double()
    common = found @ masks.T
    iou = common / (found.sum(1)[:, None] + masks.sum(1)[None] - common)
    iou = iou * (instances.labels[:, None] == true.labels[None])
    return torch.cat([iou, torch.zeros(len(instances), 1, dtype=iou.dtype)], dim=1)


def label_quality(labels: dict[Any, Instances], truth: EvaluationDataset) -> dict[str, float]:
    """Mean best IoU of the objects, instances per image, F1 at an IoU of .5, and mAP."""
    best: list[float] = []
    count = matched = 0
    for image_id, instances in labels.items():
        true = truth.truth(image_id)
        iou = class_iou(instances, true)[:, :-1]
        best += iou.amax(dim=0).tolist() if len(instances) else [0.0] * len(true)
        count += len(instances)
        matched += min(int((iou >= 0.5).any(dim=0).sum()), int((iou >= 0.5).any(dim=1).sum()))
    means = evaluate(labels, truth, protocol="chainercv").mean
    return {
        "best IoU": float(np.mean(best)),
        "instances": count / len(labels),
        "F1": 2 * matched / (count + len(best)),
        **{f"mAP {threshold:g}": mean for threshold, mean in means.items()},
    }


if __name__ == "__main__":
    main()
