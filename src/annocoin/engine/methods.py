"""The methods that `annocoin train --method` knows: ours, and its peers (paper, table 1).

What each needs, for checks and plans; the peers themselves are in `annocoin.baselines`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from annocoin.data.dataset import Supervision
from annocoin.errors import InputError, check_positive, check_range
from annocoin.seeds.seeder import SeedOptions

ANNOCOIN, FULL = "annocoin", "full"

MAP_SCALES = (0.5, 1.0, 1.5, 2.0)
"""Of class maps over several scales, where the preset has none (those of IRN)."""


@dataclass(frozen=True)
class Method:
    """What a method needs.

    Args:
        title: with authors and year.
        supervision: the weak labels that it takes, the usual ones first.
        labels: how it makes the labels of the prediction network; empty if it trains without.
        regions, seeds: whether it needs those of the images.
        peaks: whether seeds must be peak response maps, see `SeedOptions.responses`.
        maps: whether it needs only their class maps, over several scales.
        classifier: whether it needs the image classifier itself.
        network: whether it trains a network of its own before it labels.
        projection: whether the prediction network is trained by projections of masks, see
            `LossOptions.masks`.
    """

    title: str
    supervision: tuple[Supervision, ...]
    labels: str = ""
    regions: bool = True
    seeds: bool = True
    peaks: bool = False
    maps: bool = False
    classifier: bool = False
    network: bool = False
    projection: bool = False

    def seed_options(self, options: SeedOptions) -> SeedOptions:
        """The options with the kind of seeds that it needs."""
        if self.peaks:
            return replace(options, responses="peaks")
        if self.maps:
            scales = options.map_scales or MAP_SCALES
            return replace(options, responses="maps", map_scales=scales)
        return options


@dataclass(frozen=True)
class BaselineTraining:
    """Training of the network that some peers have beside the prediction network.

    Args:
        steps: number of steps.
        batch_size: images per step and process.
        lr: maximum learning rate.
        weight_decay: of AdamW.
        size: longer side of the images, in pixels; default that of the classifier's training.
    """

    steps: int = 2000
    batch_size: int = 8
    lr: float = 1e-3
    weight_decay: float = 1e-4
    size: int | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size"):
            check_positive(name, getattr(self, name))
        check_range(self, above=("lr",), least=("weight_decay",))
        if self.size is not None and not 32 <= self.size <= 4096:
            raise InputError(f"size {self.size}; expected 32 to 4096 pixels")


METHODS = {
    ANNOCOIN: Method("AnnoCoIn (Arun 2020)", ("image", "box", "point", "mixed", "mask")),
    FULL: Method("Mask R-CNN (He 2017)", ("mask",), regions=False, seeds=False),
    "prm": Method(
        "PRM (Zhou 2018)", ("image",), "regions by the response of each peak", peaks=True
    ),
    "iam": Method(
        "IAM (Zhu 2019)",
        ("image",),
        "regions by the learned extent of each peak",
        peaks=True,
        classifier=True,
        network=True,
    ),
    "ocis": Method(
        "OCIS (Cholakkal 2019)",
        ("count",),
        "regions by the peaks of density maps",
        seeds=False,
        classifier=True,
        network=True,
    ),
    "label-penet": Method(
        "Label-PEnet (Ge 2019)",
        ("image",),
        "regions by a cascade of classifiers",
        classifier=True,
        network=True,
    ),
    "wise": Method(
        "WISE (Laradji 2019)", ("image",), "the region of highest objectness on each peak"
    ),
    "irn": Method(
        "IRN (Ahn 2019)",
        ("image",),
        "class maps, separated by centroids and spread up to boundaries",
        maps=True,
        classifier=True,
        network=True,
    ),
    "sdi": Method(
        "SDI (Khoreva 2017)",
        ("box",),
        "GrabCut in boxes, in agreement with regions",
        seeds=False,
    ),
    "bbtp": Method(
        "BBTP (Hsu 2019)",
        ("box",),
        "masks of the trained network in the boxes",
        regions=False,
        seeds=False,
        projection=True,
    ),
}
