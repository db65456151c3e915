"""Published figures: mAP^r (%) on PASCAL VOC 2012 val, as the papers print them.

They are for other data, larger networks and longer trainings than most benchmarks here: to be read
beside our figures, not compared with them digit by digit.
"""

from __future__ import annotations

from collections.abc import Mapping

Figures = Mapping[str, float]
"""mAP in % by IoU threshold."""

PAPER: dict[str, Figures] = {
    "full": {"0.25": 76.7, "0.5": 67.9, "0.7": 52.5, "0.75": 44.9},
    "prm": {"0.25": 44.3, "0.5": 26.8, "0.75": 9.0},
    "iam": {"0.25": 45.9, "0.5": 28.8, "0.75": 11.9},
    "ocis": {"0.25": 48.5, "0.5": 30.2, "0.75": 14.4},
    "label-penet": {"0.25": 49.1, "0.5": 30.2, "0.75": 12.9},
    "wise": {"0.25": 49.2, "0.5": 41.7, "0.75": 23.7},
    "irn": {"0.5": 46.7, "0.75": 23.5},
    "annocoin": {"0.25": 59.7, "0.5": 50.9, "0.7": 30.2, "0.75": 28.5},
    "sdi": {"0.5": 44.8},  # .75 is printed as 46.7, more than .5: a misprint
    "bbtp": {"0.25": 75.0, "0.5": 58.9, "0.7": 30.4, "0.75": 21.6},
    "annocoin-box": {"0.25": 73.8, "0.5": 58.2, "0.7": 34.3, "0.75": 32.1},
}
"""Table 1 of the paper, by the names of our rows."""

LATER: dict[str, tuple[str, Figures]] = {
    "LIID (2020)": ("tags", {"0.5": 48.4, "0.75": 24.9}),
    "BESTIE (2022)": ("tags", {"0.25": 61.2, "0.5": 51.0, "0.7": 31.9, "0.75": 26.6}),
    "CIM (2023)": ("tags", {"0.25": 68.7, "0.5": 55.9, "0.7": 37.1, "0.75": 30.9}),
    "WeakSAM, Mask R-CNN (2024)": (
        "tags and SAM",
        {"0.25": 70.3, "0.5": 59.6, "0.7": 43.1, "0.75": 36.2},
    ),
    "WeakSAM, Mask2Former (2024)": (
        "tags and SAM",
        {"0.25": 73.4, "0.5": 64.4, "0.7": 49.7, "0.75": 45.3},
    ),
    "BoxInst, ResNet-101 (2021)": ("boxes", {"0.5": 62.4, "0.75": 33.2}),
    "DiscoBox (2021)": ("boxes", {"0.5": 63.0, "0.75": 33.0}),
    "BoxLevelSet (2022)": ("boxes", {"0.25": 77.9, "0.5": 66.3, "0.7": 46.4, "0.75": 38.7}),
    "Box2Mask-T (2022)": ("boxes", {"0.5": 70.8, "0.75": 44.4}),
}
"""After the paper, with the weak labels that they use."""

TERMS: dict[str, Figures] = {
    "U": {"0.25": 57.9, "0.5": 47.6, "0.75": 23.1},
    "U+P": {"0.25": 59.1, "0.5": 49.9, "0.75": 26.9},
    "U+P+H": {"0.25": 59.7, "0.5": 50.9, "0.75": 28.5},
}
"""Table 2: terms of the conditional distribution."""

DIVERSITY: dict[str, Figures] = {
    "Pr_p, Pr_c": {"0.25": 59.7, "0.5": 50.9, "0.75": 28.5},
    "PW_p, Pr_c": {"0.25": 59.5, "0.5": 50.3, "0.75": 27.7},
    "Pr_p, PW_c": {"0.25": 57.3, "0.5": 46.9, "0.75": 23.4},
    "PW_p, PW_c": {"0.25": 57.2, "0.5": 46.6, "0.75": 23.0},
}
"""Table 3: distributions or pointwise networks."""

ARCHITECTURES: dict[str, Figures] = {
    "U-Net, tags": {"0.25": 59.7, "0.5": 50.9, "0.7": 30.2, "0.75": 28.5},
    "ResNet, tags": {"0.25": 59.1, "0.5": 49.7, "0.7": 29.2, "0.75": 27.1},
    "U-Net, boxes": {"0.25": 73.8, "0.5": 58.2, "0.7": 34.3, "0.75": 32.1},
    "ResNet, boxes": {"0.25": 73.1, "0.5": 57.7, "0.7": 33.5, "0.75": 31.2},
}
"""Table 1: the conditional network as a U-Net, or as a ResNet-50 (tags) or -101 (boxes)."""

VOC_CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
PER_CLASS: dict[str, tuple[float, ...]] = {
    "annocoin": (75.5, 53.6, 69.9, 45.3, 26.7, 64.3, 37.4, 73.7, 19.3, 48.7,
                 25.3, 64.6, 55.0, 68.3, 42.1, 30.8, 44.2, 40.5, 70.6, 62.2),
    "annocoin-box": (79.1, 63.9, 75.1, 49.3, 36.5, 73.1, 46.4, 78.8, 30.1, 56.4,
                     32.1, 71.3, 61.6, 74.8, 49.5, 40.2, 51.1, 48.3, 77.2, 69.9),
}  # fmt: skip
"""AP at IoU .5 of each of `VOC_CLASSES` (the paper's appendix)."""
