"""Measure the conditional distribution: its cost, and what its samples are worth.

    python benchmarks/conditional.py speed
    python benchmarks/conditional.py quality SYNTHETIC --split train --regions REGIONS --seeds SEEDS
    python benchmarks/conditional.py quality VOCdevkit/VOC2012 --split devval --regions REGIONS \\
        --seeds SEEDS --trunk unet-mobilenet_v2 --weights mobilenet_v2.pth

`speed` has K = 10 samples, P = 500 regions and C = 20 classes at 256 x 256 pixels, on one core: the
plain U-Net trunk, sampling after it, and a training step after it, beside the way the paper writes
it, which multiplies the features of every sample with the mask of every region. It also counts how
often greedy inference finds the true argmax of small random problems.

`quality` trains the network from the seeds of a split's tags, then looks at the same images, whose
masks are used for measuring only: mean best IoU of the objects and mAP (protocol chainercv) of the
labels that seeds retrieve and of the network's, by terms of the score (docs/benchmarks.md says
which), with the diversity of K samples. `--pictures` draws the samples of ten images.
"""

from __future__ import annotations

import argparse
import itertools
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
from annocoin.engine.conditional_dataset import ConditionalDataset
from annocoin.engine.conditional_training import direct_step, train_from_seeds
from annocoin.engine.config import ConditionalOptions
from annocoin.engine.randomness import generator_at
from annocoin.evaluation.evaluator import evaluate
from annocoin.files import write_json
from annocoin.objective.task_loss import total
from annocoin.progress import track
from annocoin.regions.region_set import RegionSet
from annocoin.regions.storage import RegionFolder
from annocoin.report import overlay
from annocoin.report.figures import picture_of_samples
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
    "U+P+H, literal": ScoringOptions(pairwise="literal"),
    "U+P+H, no prior": ScoringOptions(prior=0.0),
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
    parser.add_argument("--steps", type=int, default=ConditionalOptions.initial_steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, help="measure on so many images only")
    parser.add_argument("--network", type=Path, help="keep the trained weights here, or use them")
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
    size = regions.size
    net = ConditionalNetwork(
        ConditionalArchitecture(tuple(f"class {c + 1}" for c in range(CLASSES)))
    )
    image = torch.rand(1, 3, SIDE, SIDE)
    said = Annotation(size, (WeakLabel(3), WeakLabel(11), WeakLabel(20)))
    requirements = requirements_of(said, regions)
    with torch.no_grad():
        features = net.features(image)[0]
    noise = net.noise(SAMPLES, features, generator_at(0))

    def trunk() -> None:
        net.features(image).sum().backward()

    def sample() -> Samples:
        candidates = Candidates(requirements)
        drawn = net.noise(SAMPLES, features, generator_at(0))
        with torch.no_grad():
            unary = net.unary(features, drawn, candidates.regions, candidates.columns)
            return candidates.samples(candidates.scores(unary))

    def naive() -> Tensor:
        return masked_scores(net, features, noise, regions)

    def ours() -> Tensor:
        with torch.no_grad():
            return net.unary(features, noise, regions)

    table = torch.rand(REGIONS, 4, generator=generator_at(1))
    learning = ConditionalOptions(samples=SAMPLES)

    def step() -> None:
        grown = features.clone().requires_grad_()
        candidates = Candidates(requirements)
        drawn = net.noise(SAMPLES, grown, generator_at(0))
        unary = net.unary(grown, drawn, candidates.regions, candidates.columns)
        direct_step(unary, candidates, table, learning)[0].backward()

    torch.testing.assert_close(ours(), naive(), rtol=1e-2, atol=1e-4)
    results: dict[str, Any] = {
        "trunk, forward and backward, s": median(trunk),
        "sampling after the trunk, s": median(sample),
        "training step after the trunk, s": median(step),
        "scores of all classes, s": median(ours),
        "scores by masks, s": once(naive),
        "memory of scores of all classes, MB": peak_bytes(ours) / 1e6,
        "memory of scores by masks, MB": peak_bytes(naive) / 1e6,
    }
    results["training step / trunk"] = (
        results["training step after the trunk, s"] / results["trunk, forward and backward, s"]
    )
    results["masks / ours, time"] = (
        results["scores by masks, s"] / results["scores of all classes, s"]
    )
    results |= argmax_found()
    return results


@torch.no_grad()
def masked_scores(
    net: ConditionalNetwork, features: Tensor, noise: Tensor, regions: RegionSet
) -> Tensor:
    """F [K, P, C+1] as the paper writes it: every sample's features times every region's mask."""
    ids = torch.nn.functional.interpolate(
        regions.superpixels[None, None].float(), features.shape[-2:], mode="nearest-exact"
    )[0, 0].long()
    rows = []
    for own in noise:
        joined = (net.join(features[None]) + net.join_noise(own[None])).relu()
        scores = []
        for members in regions.membership:
            mask = members[ids].to(joined.dtype)
            of_pixels = net.classify(joined * mask)[0] * mask
            scores.append(net.architecture.scale * of_pixels.mean(dim=(1, 2)))
        rows.append(torch.stack(scores))
    return torch.stack(rows)


def once(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def argmax_found(problems: int = 300) -> dict[str, Any]:
    """How often greedy inference finds the best of all labellings, and how near it comes."""
    equal, shares = 0, []
    for seed in range(problems):
        generator = torch.Generator().manual_seed(seed)
        members = torch.rand(6, 5, generator=generator) < 0.4
        members[torch.arange(6), torch.arange(6) % 5] = True
        regions = RegionSet.of(np.repeat([np.arange(5)], 4, axis=0), members)
        requirements = requirements_of(Annotation((4, 5), (WeakLabel(1), WeakLabel(2))), regions)
        suppression = build_suppression(requirements, cross_class_nms_threshold=1.0)
        scores = torch.randn(1, 6, 3, generator=generator)
        found = infer(scores, requirements, suppression).labels
        own = float(total(scores, found, (1, 2))[0])
        values = [
            float(total(scores[0], labels, (1, 2)))
            for labels in map(torch.tensor, itertools.product((0, 1, 2), repeat=6))
            if allowed(labels, suppression) and requirements.met_by(labels)
        ]
        equal += own > max(values) - 1e-5
        shares.append((own - min(values)) / max(1e-9, max(values) - min(values)))
    return {
        "greedy inference finds the argmax, share of problems": equal / problems,
        "its score, from the worst (0) to the best (1) labelling": float(np.mean(shares)),
    }


def allowed(labels: Tensor, suppression: Suppression) -> bool:
    """Whether no two regions of a class overlap too much."""
    same = (labels[:, None] == labels[None]) & (labels > 0)[:, None]
    return not bool((same & suppression.within[0]).fill_diagonal_(False).any())


def quality(options: argparse.Namespace) -> dict[str, Any]:
    weak = load_weak(options.dataset, options.supervision, split=options.split)
    truth = load_evaluation(options.dataset, split=options.split)
    cases = ConditionalDataset(
        weak, RegionFolder(options.regions), SeedFolder(options.seeds), size=options.size
    )
    net, seconds = trained(options, cases)
    results: dict[str, Any] = {"images": len(cases), "seconds to train": seconds}
    chosen = range(len(cases))[: options.limit]
    found: dict[str, dict[Any, Instances]] = {}
    diversities: dict[str, list[float]] = {name: [] for name in VARIANTS}
    pictures: list[overlay.Picture] = []
    for i in track(chosen, "samples"):
        case, image = cases[i], cases.images[i]
        everything = cases.regions[case.image_id]
        for way in ("votes", "combined", "objectness"):
            retrieved = retrieve(everything, case.seeds, image.annotation, way)  # type: ignore[arg-type]
            answers = found.setdefault(f"seeds, by {way}", {})
            answers[case.image_id] = retrieved.instances(everything, case.seeds)
        with torch.no_grad():
            features = net.features(case.pixels[None])[0]
        for name, scoring in VARIANTS.items():
            candidates = case.candidates(scoring)
            noise = net.noise(SAMPLES, features, generator_at(options.seed, i))
            for samples, kind in (
                (sampled(net, features, None, candidates), "zero noise"),
                (sampled(net, features, noise, candidates), "samples"),
            ):
                answers = found.setdefault(f"{name}, {kind}", {})
                answers[case.image_id] = samples.consensus()
                if kind == "samples":
                    diversities[name].append(samples.diversity)
                    for k in range(SAMPLES):
                        one = found.setdefault(f"{name}, sample {k}", {})
                        one[case.image_id] = samples.instances(k)
            if name == "U+P+H" and len(pictures) < 10:
                pictures.append(
                    picture_of_samples(
                        image.pixels(),
                        image.annotation,
                        samples,
                        weak.classes,
                        truth.truth(case.image_id),
                    )
                )
    if options.pictures is not None:
        overlay.save(overlay.sheet(pictures, 1), options.pictures)
    ids = {case_id for answers in found.values() for case_id in answers}
    left = tuple(one for one in truth.labelled if one.image_id in ids)
    scored = EvaluationDataset(replace(truth.labelled, images=left))
    figures = {name: measured(answers, scored) for name, answers in found.items()}
    for name in VARIANTS:  # what the samples are worth one by one
        own = [figures.pop(f"{name}, sample {k}") for k in range(SAMPLES)]
        figures[f"{name}, mean of samples"] = {
            key: float(np.mean([one[key] for one in own])) for key in own[0]
        }
    for name, of in figures.items():
        print(f"{name:34s}" + "  ".join(f"{key} {value:.3f}" for key, value in of.items()))
        results |= {f"{name}: {key}": value for key, value in of.items()}
    results |= worth_of_confidence(found["U+P+H, samples"], scored)
    for name, values in diversities.items():
        results[f"{name}: mean pairwise 1 - IoU of samples"] = float(np.mean(values))
    return results


def trained(
    options: argparse.Namespace, cases: ConditionalDataset
) -> tuple[ConditionalNetwork, float]:
    torch.manual_seed(options.seed)
    architecture = ConditionalArchitecture(cases.classes, options.trunk, size=options.size)
    known = options.network is not None and options.network.exists()
    net = ConditionalNetwork(architecture, "none" if known else options.weights)
    started = time.monotonic()
    if known:
        net.load_state_dict(torch.load(options.network, weights_only=True))
    else:
        learning = replace(ConditionalOptions(), initial_steps=options.steps, seed=options.seed)
        train_from_seeds(net, cases, learning)
        if options.network is not None:
            torch.save(net.state_dict(), options.network)
    return net.eval(), time.monotonic() - started


@torch.no_grad()
def sampled(
    net: ConditionalNetwork, features: Tensor, noise: Tensor | None, candidates: Candidates
) -> Samples:
    unary = net.unary(features, noise, candidates.regions, candidates.columns)
    return candidates.samples(candidates.scores(unary))


def worth_of_confidence(answers: dict[Any, Instances], truth: EvaluationDataset) -> dict[str, Any]:
    """Whether instances that the samples agree on are better ones."""
    sure = np.concatenate([found.confidence.numpy() for found in answers.values()])
    right = np.concatenate(
        [
            overlaps(found, truth.truth(image_id)).amax(dim=1).numpy()
            for image_id, found in answers.items()
        ]
    )
    order = sure.argsort(kind="stable")
    third = len(order) // 3
    return {
        "confidence: rank correlation with the true IoU": float(spearmanr(sure, right)[0]),
        "confidence: IoU >= .5 in the most confident third": float(
            (right[order[-third:]] >= 0.5).mean()
        ),
        "confidence: IoU >= .5 in the least confident third": float(
            (right[order[:third]] >= 0.5).mean()
        ),
    }


def overlaps(found: Instances, true: Instances) -> Tensor:
    """IoU of every found instance with every true one of its class, else 0: [N, M + 1]."""
    masks = true.dense().flatten(1).double()
    own = found.dense().flatten(1).double()
    common = own @ masks.T
    iou = common / (own.sum(1)[:, None] + masks.sum(1)[None] - common)
    iou = iou * (found.labels[:, None] == true.labels[None])
    return torch.cat([iou, torch.zeros(len(found), 1, dtype=iou.dtype)], dim=1)


def measured(answers: dict[Any, Instances], truth: EvaluationDataset) -> dict[str, float]:
    """Mean best IoU of the objects, instances an image, F1 at an IoU of .5, and mAP."""
    best: list[float] = []
    count = right = 0
    for image_id, found in answers.items():
        true = truth.truth(image_id)
        iou = overlaps(found, true)[:, :-1]
        best += iou.amax(dim=0).tolist() if len(found) else [0.0] * len(true)
        count += len(found)
        right += min(int((iou >= 0.5).any(dim=0).sum()), int((iou >= 0.5).any(dim=1).sum()))
    means = evaluate(answers, truth, protocol="chainercv").mean
    return {
        "best IoU": float(np.mean(best)),
        "instances": count / len(answers),
        "F1": 2 * right / (count + len(best)),
        **{f"mAP {threshold:g}": mean for threshold, mean in means.items()},
    }


if __name__ == "__main__":
    main()
