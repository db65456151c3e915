"""Precision and recall of the boundary detectors on object outlines, and time per image.

    python benchmarks/boundaries.py VOCdevkit/VOC2012 --split devval

Neither detector was trained on VOC. An outline pixel is recalled if a detected pixel lies within
four pixels of it, and the other way round for precision (VOC has a void band of about five pixels
along its outlines); detections are thinned across the edge. VOC outlines only the objects of its
classes, so that precision is low for every detector: the figures compare detectors, not datasets.
One core.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import torch

from annocoin.data.images import read_image
from annocoin.data.loading import load_evaluation
from annocoin.files import write_json
from annocoin.regions.boundaries import BoundaryDetector

THRESHOLDS = np.linspace(0.05, 0.95, 19)
NEAR = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (9, 9))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--split")
    parser.add_argument("--limit", type=int, default=100, help="images")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    truth = load_evaluation(options.dataset, split=options.split)
    ids = list(truth)[: options.limit]
    paths = {image.image_id: image.image_path() for image in truth.labelled}
    results = {}
    for kind in ("gradient", "network"):
        detector = BoundaryDetector(kind)  # type: ignore[arg-type]
        counts, seconds = np.zeros((len(THRESHOLDS), 4)), 0.0
        for image_id in ids:
            image = read_image(paths[image_id])
            started = time.perf_counter()
            probability = detector(image).mean(axis=0)
            seconds += time.perf_counter() - started
            dense = truth.truth(image_id).dense().numpy()
            counts += compare(thinned(probability), outlines(dense))
        precision = counts[:, 0] / counts[:, 1].clip(1)
        recall = counts[:, 2] / counts[:, 3].clip(1)
        f = 2 * precision * recall / (precision + recall).clip(1e-9)
        best = int(f.argmax())
        results[kind] = {
            "best F": float(f[best]),
            "precision": float(precision[best]),
            "recall": float(recall[best]),
            "seconds per image": seconds / len(ids),
        }
        line = "  ".join(f"{name} {value:.3f}" for name, value in results[kind].items())
        print(f"{kind:9s} {line}", flush=True)
    if options.json:
        write_json(options.json, {"images": len(ids), **results}, indent=2)


def outlines(dense: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """The inner outline pixels of masks [N, H, W]: bool [H, W]."""
    edge = np.zeros(dense.shape[1:], dtype=bool)
    for mask in dense.astype(np.uint8):
        edge |= (mask - cv2.erode(mask, np.ones((3, 3), np.uint8))).astype(bool)
    return edge


def thinned(probability: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The map where it is a maximum across the edge, 0 elsewhere."""
    smooth = cv2.GaussianBlur(probability, (0, 0), 1.0)
    right, left = np.roll(smooth, -1, 1), np.roll(smooth, 1, 1)
    down, up = np.roll(smooth, -1, 0), np.roll(smooth, 1, 0)
    peak = ((smooth >= right) & (smooth >= left)) | ((smooth >= down) & (smooth >= up))
    return np.where(peak, probability, 0).astype(np.float32)


def compare(
    probability: npt.NDArray[np.float32], truth: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """By threshold: detections near truth, detections, truth near detections, truth. [T, 4]."""
    near_truth = cv2.dilate(truth.astype(np.uint8), NEAR).astype(bool)
    rows = []
    for threshold in THRESHOLDS:
        detected = probability >= threshold
        near_detected = cv2.dilate(detected.astype(np.uint8), NEAR).astype(bool)
        precision = (detected & near_truth).sum(), detected.sum()
        rows.append([*precision, (truth & near_detected).sum(), truth.sum()])
    return np.asarray(rows, dtype=np.float64)


if __name__ == "__main__":
    main()
