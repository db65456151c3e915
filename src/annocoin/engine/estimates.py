"""Expected time, memory and disk space of a run, from measurements.

The time of a stage is its measured seconds on one core, times images (or steps x batch size), by
the cores. Every constant names its measurement: a section of docs/benchmarks.md, on two cores of a
virtual machine with AVX-512. Other machines differ: all results are to be read as "about".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from annocoin.backbones import SCRATCH, Precision
from annocoin.conditional.networks import ConditionalNetwork
from annocoin.engine.config import Config
from annocoin.engine.methods import METHODS
from annocoin.engine.network_config import PredictionConfig
from annocoin.masks import Size
from annocoin.prediction.networks import build_network
from annocoin.seeds.classifier import Classifier, ClassifierArchitecture


@dataclass(frozen=True)
class Cost:
    """Seconds of one core for an image, once through a network; proportional to its area.

    Args:
        seconds: measured, in full precision.
        side: of the network's input then, in pixels.
    """

    seconds: float
    side: int

    def at(self, side: int) -> float:
        """The seconds for another size."""
        return self.seconds * (side / self.side) ** 2


BF16_SPEEDUP = 2.0
"""Of ResNets, see `suggest_bfloat16`. Where they were measured in bfloat16, the constants below are
twice the measured seconds."""

TRAINING_SPEEDUP = 1.3
"""Of trainings by twice the cores: .62 s a step of the MobileNetV2 with two, .82 s with one ("Whole
runs on photographs", version 0.1 and now). Stages that go image by image scale with the cores."""

REGION_SECONDS, REGION_SECONDS_PER_MEGAPIXEL, REGION_SIDE = 0.2, 3.6, 800
"""Fit to CPU seconds of four photographs: .25, .31, .75 and 2.18 with a longer side of 128, 250,
500 and 800 pixels ("Regions": .78 for VOC); larger images are reduced to `REGION_SIDE`."""

REGION_BF16_SPEEDUP = 1.3
"""Of regions, of which only the boundaries are computed in bfloat16 ("Regions")."""

CLASSIFIER = {"resnet50": Cost(0.40, 320), "tiny": Cost(0.03, 256)}
"""Whole runs on photographs: 870 s for 3 x 1,464 images in bfloat16; tiny: 3.0 CPU seconds for 5 x
20 scenes."""

SEEDS = {"resnet50": Cost(1.40, 320), "tiny": Cost(0.1, 128)}
"""There: 510 s for 1,464 images on two cores in bfloat16; tiny: an image and eight peaks of "Peak
back-propagation"."""

MAP_SCALES = (1.0, 1.5)
"""The scales of the class maps in that run."""

EXAMPLES = 0.07
"""There: 50 s for 1,464 images on two cores."""

FROM_SEEDS = {
    "unet-mobilenet_v2": Cost(0.23, 192),
    "unet-resnet50": Cost(5.2, 512),
    "tiny": Cost(0.05, 160),
}
DIRECT_LOSS = {
    "unet-mobilenet_v2": Cost(0.35, 192),
    "unet-resnet50": Cost(3.8, 512),
    "tiny": Cost(0.10, 160),
}
"""Per image of a step: there, 363 s for 200 and 113 s for 40 steps of 8; "Loading"; "Whole runs on
synthetic scenes", 60 s for 200 and 25 s for 40 steps of 8 on two cores."""

PREDICTION = {
    "resnet50": (Cost(1.1, 256), Cost(9.7, 800)),
    "mobilenet_v2": (Cost(0.206, 224),),
    "tiny": (Cost(0.07, 128),),
}
"""Per image of a step: Whole runs on photographs, 1,317 s for 600 steps of 4 in bfloat16 and 1,237
s for 1,500; "Loading"; synthetic scenes, 65 s for 300 steps of 4 on two cores."""

TABLES = {"detections": Cost(0.72, 256), "rois": Cost(0.17, 128)}
"""Per image, of detections at one size: "Tags of all 10,731 images", 1,084 s for 6,000 on two cores
in bfloat16; synthetic scenes, 80 s for 960 on two cores."""

SAMPLES = 0.15
"""Per image: Whole runs on photographs, 112 s for 1,464 on two cores."""

MASKS = {"resnet50": Cost(0.2, 256), "tiny": Cost(0.02, 128)}
"""Per image of samples that a prediction network refines, above `SAMPLES`: "Whole runs on
photographs", boxes, 239 s instead of 85 s for 1,464 in bfloat16; synthetic scenes, 15 to 24 s for
960."""

PEER_LABELS = 0.17
"""Per image of a stage of a peer's labels: CPU seconds of SDI, the slowest of three that were
measured (12 synthetic scenes of 128 pixels; PRM .10, WISE .02)."""

BASE_MEMORY, WORKER_MEMORY = 0.8, 1.9
"""GB of a process that imported torch, and of one that computes regions ("Regions")."""

TRAINING_MEMORY = Cost(1.45, 256)
"""GB above that at the peak of a whole run of `voc-cpu`, --jobs 1, with its ResNet-50; scaled by
the area of the largest prediction network."""

IMAGE_BYTES = {"regions": 41_000, "seeds": 9_000, "examples": 47_000, "round": 11_000}
"""Of the files of an image in each stage: of 12 photographs in a run of `voc-cpu`."""


@dataclass(frozen=True)
class StageImages:
    """How many images each part of a run processes; 0 where it is not needed.

    Args:
        classifier: of its training.
        regions, seeds, prepared: of these stages.
        rounds: of each round, and of the last training.
        median_size: of the images.
    """

    classifier: int
    regions: int
    seeds: int
    prepared: int
    rounds: tuple[int, ...]
    median_size: Size


def stage_seconds(config: Config, images: StageImages, cores: int) -> dict[str, float]:
    """The expected seconds of the stages of a run, by their names in its directory."""
    seconds: dict[str, float] = {}
    speedup = TRAINING_SPEEDUP ** math.log2(cores)
    options, conditional = config.classifier, config.conditional
    if images.classifier:
        cost = _of(CLASSIFIER, options.backbone).at(options.size)
        cost /= _precision_speedup(options.backbone, options.precision)
        seconds["classifier"] = cost * options.epochs * images.classifier / speedup
    if images.regions:
        megapixels = math.prod(_reduced(images.median_size, REGION_SIDE)) / 1e6
        cost = REGION_SECONDS + REGION_SECONDS_PER_MEGAPIXEL * megapixels
        cost /= REGION_BF16_SPEEDUP if config.regions.precision == "bf16" else 1.0
        seconds["regions"] = cost * images.regions / cores
    if images.seeds:
        cost = _of(SEEDS, options.backbone).at(options.size)
        if config.seeds.map_scales:
            cost *= _area(config.seeds.map_scales) / _area(MAP_SCALES)
        cost /= _precision_speedup(options.backbone, config.seeds.precision)
        seconds["seeds"] = cost * images.seeds / cores
    if not config.rounds or not images.prepared:
        steps = config.prediction_steps
        seconds |= _peer_seconds(config, images.rounds[-1], speedup, cores)
        return seconds | {"prediction": _prediction(config.prediction, steps) / speedup}
    seconds["examples"] = EXAMPLES * images.prepared / cores
    trunk, size = conditional.architecture.trunk, conditional.architecture.size
    visits = conditional.training.initial_steps * conditional.training.batch_size
    seconds["conditional"] = _of(FROM_SEEDS, trunk).at(size) * visits / speedup
    teacher = config.labelling_network
    table = TABLES[conditional.tables].at(teacher.architecture.min_size)
    if conditional.tables == "detections":
        table *= _area(conditional.detection_scales)
    table /= _precision_speedup(teacher.architecture.backbone, teacher.training.precision)
    masks = 0.0
    if conditional.scoring.mask_threshold is not None:
        masks = _of(MASKS, teacher.architecture.backbone).at(teacher.architecture.min_size)
        masks /= _precision_speedup(teacher.architecture.backbone, teacher.training.precision)
    visits = conditional.training.steps * conditional.training.batch_size
    for number, (count, following) in enumerate(pairwise(images.rounds), start=1):
        name = f"round {number}"
        refined = masks if number > 1 else 0.0  # by the network of the round before
        seconds[f"{name}, samples"] = (SAMPLES + refined) * count / cores
        seconds[f"{name}, prediction"] = _prediction(teacher, teacher.training.steps) / speedup
        seconds[f"{name}, tables"] = table * following / cores
        seconds[f"{name}, conditional"] = _of(DIRECT_LOSS, trunk).at(size) * visits / speedup
    seconds["final samples"] = (SAMPLES + masks) * images.rounds[-1] / cores
    if steps := config.prediction.training.final_steps:
        seconds["final prediction"] = _prediction(config.prediction, steps) / speedup
    return seconds


def _peer_seconds(config: Config, images: int, speedup: float, cores: int) -> dict[str, float]:
    """Of the stages that only a peer has; the network of its own is taken for a classifier."""
    method, training, options = METHODS[config.method], config.baseline, config.classifier
    seconds: dict[str, float] = {}
    if method.network:
        cost = _of(CLASSIFIER, options.backbone).at(training.size or options.size)
        cost /= _precision_speedup(options.backbone, options.precision)
        seconds[f"{config.method} network"] = cost * training.steps * training.batch_size / speedup
    if method.labels:
        seconds[f"{config.method} labels"] = PEER_LABELS * images / cores
    return seconds


def peak_memory(config: Config, images: StageImages, jobs: int) -> float:
    """The expected memory of all processes of a run, in GB."""
    networks = [config.prediction, *([config.teacher] if config.teacher and config.rounds else [])]
    training = max(TRAINING_MEMORY.at(network.architecture.min_size) for network in networks)
    workers = jobs * WORKER_MEMORY if images.regions and jobs > 1 else 0.0
    return BASE_MEMORY + max(training, workers)


def disk_space(config: Config, images: StageImages) -> float:
    """The expected size of the run directory, in GB: the files of images, and the networks.

    Networks are stored twice, in their stage and as the result; a checkpoint has three times the
    size of the weights.
    """
    counts = {"regions": images.regions, "seeds": images.seeds, "examples": images.prepared}
    counts["round"] = sum(images.rounds) if images.prepared else 0
    files = sum(IMAGE_BYTES[name] * count for name, count in counts.items())
    sizes = network_bytes(config, classifier=bool(images.classifier))
    rounds = config.rounds if images.prepared else 0
    networks = sum(2 * size * (rounds or 1) for size in sizes) + 3 * max(sizes)
    return (files + networks) / 1e9


def network_bytes(config: Config, *, classifier: bool) -> list[int]:
    """The sizes of the networks of a run in bytes; nothing is allocated for them."""
    options = config.classifier
    with torch.device("meta"):
        networks: list[nn.Module] = [
            build_network(network.architecture, SCRATCH)
            for name, network in config.prediction_networks.items()
            if config.rounds or name == "prediction"
        ]
        if config.rounds:
            networks.append(ConditionalNetwork(config.conditional.architecture, SCRATCH))
        if classifier:
            architecture = ClassifierArchitecture(
                config.classes, options.backbone, options.stride_in_1x1, options.size
            )
            networks.append(Classifier(architecture, SCRATCH))
    return [sum(4 * weight.numel() for weight in net.state_dict().values()) for net in networks]


def median_size(sizes: Iterable[Size]) -> Size:
    """The size of the image in the middle by area."""
    ordered: Sequence[Size] = sorted(sizes, key=math.prod)
    return ordered[len(ordered) // 2]


def _prediction(network: PredictionConfig, steps: int) -> float:
    """Seconds of one core; measured at the nearest size of that backbone."""
    costs = PREDICTION.get(network.architecture.backbone, PREDICTION["resnet50"])
    side = network.architecture.min_size
    cost = min(costs, key=lambda c: abs(math.log(c.side / side))).at(side)
    speedup = _precision_speedup(network.architecture.backbone, network.training.precision)
    return cost / speedup * steps * network.training.batch_size


def _of(costs: Mapping[str, Cost], backbone: str) -> Cost:
    """The cost of a backbone; of one that was not measured, that of the ResNet-50."""
    known = [name for name in costs if name.endswith("resnet50")]
    return costs.get(backbone) or costs[known[0]]


def _precision_speedup(backbone: str, precision: Precision) -> float:
    is_resnet = backbone.startswith("resnet")  # others were not measured
    return BF16_SPEEDUP if precision == "bf16" and is_resnet else 1.0


def _area(scales: Iterable[float]) -> float:
    """Pixels of an image at all scales, relative to those at scale 1."""
    return sum(scale**2 for scale in scales)


def _reduced(size: Size, longest: int) -> Size:
    scale = min(1.0, longest / max(size))
    return round(size[0] * scale), round(size[1] * scale)
