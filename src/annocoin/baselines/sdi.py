"""SDI: simple does it (Khoreva et al., CVPR 2017), from boxes.

GrabCut separates the object of a box from the background, started from several perturbed versions
of the box: their votes say how sure each pixel is. The region that fits the box best is a second
opinion. Where both agree, a pixel is foreground or background; the others are ignored (M & G+, the
best variant of the paper). Where the result does not fill the box, it is not used.

Simplified: `PERTURBATIONS` boxes instead of 150, for the time, and GrabCut's own colour models
without learned edges; pixels that the paper ignores take the mean of the two opinions, because the
targets of our prediction network have no pixels to ignore; one training, without the recursion that
relabels with the trained network. A box of which neither GrabCut nor a region fills enough is
itself the mask.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from annocoin.baselines.peer import Peer, PeerInputs
from annocoin.data.dataset import WeakImage
from annocoin.engine.randomness import seed_of
from annocoin.regions.region_set import RegionSet
from annocoin.types import Box, Instances

PERTURBATIONS = 10
JITTER = 0.05
"""Standard deviation of a side's shift, relative to the length of the box."""

CONTEXT = 0.4
"""Background around a box that GrabCut sees, relative to the length of the box."""

MAX_SIDE = 128
"""Longer side of the crop that GrabCut works on, in pixels."""

ITERATIONS = 3
MIN_FILLED = 0.2
"""A mask with a smaller share of the pixels of its box is not used."""

Votes = npt.NDArray[np.float32]


class BoxLabeller:
    """A mask for every annotated box; tags beside boxes (of crowds) have none."""

    def __init__(self, inputs: PeerInputs) -> None:
        self.inputs = inputs

    def __call__(self, image: WeakImage) -> Instances:
        annotation = image.annotation
        boxed = annotation.only("box")
        masks = np.zeros((len(boxed), *annotation.size), dtype=bool)
        confidence = np.zeros(len(boxed))
        pixels, regions = image.pixels(), self.inputs.regions_of(image)
        for i, label in enumerate(boxed):
            assert label.box is not None
            generator = np.random.default_rng(seed_of(0, "sdi", str(image.image_id), i))
            votes = grabcut_votes(pixels, label.box, generator)
            masks[i], confidence[i] = resolve(votes, best_region(regions, label.box), label.box)
        return Instances(
            size=annotation.size,
            masks=masks,
            labels=boxed.labels,
            scores=confidence.tolist(),
            boxes=boxed.boxes,
            confidence=confidence.tolist(),
        )


def grabcut_votes(pixels: npt.NDArray[np.uint8], box: Box, generator: np.random.Generator) -> Votes:
    """The share of GrabCuts from perturbed boxes that see foreground, [H, W]; 0 outside the box.

    Args:
        pixels: RGB, uint8 [H, W, 3].
    """
    height, width = pixels.shape[:2]
    x0, y0, x1, y1 = box
    left, right = _margin(x0, x1, width)
    top, bottom = _margin(y0, y1, height)
    crop = pixels[top:bottom, left:right]
    scale = min(1.0, MAX_SIDE / max(crop.shape[:2]))
    size = (max(8, round(crop.shape[1] * scale)), max(8, round(crop.shape[0] * scale)))
    small = np.asarray(cv2.resize(crop, size, interpolation=cv2.INTER_AREA), dtype=np.uint8)
    factors = np.array([size[0] / crop.shape[1], size[1] / crop.shape[0]] * 2)
    corners = (np.array(box) - [left, top, left, top]) * factors
    lengths = np.array([corners[2] - corners[0], corners[3] - corners[1]] * 2)
    votes: Votes = np.zeros((size[1], size[0]), dtype=np.float32)
    for number in range(PERTURBATIONS):
        shift = 0 if number == 0 else JITTER * lengths * generator.standard_normal(4)
        votes = votes + _grabcut(small, corners + shift, int(generator.integers(1 << 30)))
    full = np.zeros((height, width), dtype=np.float32)
    upper = (right - left, bottom - top)
    full[top:bottom, left:right] = cv2.resize(votes / PERTURBATIONS, upper)
    full[~_inside(box, (height, width))] = 0
    return full


def best_region(regions: RegionSet, box: Box) -> npt.NDArray[np.bool_] | None:
    """The region whose tight box overlaps a box most, as a mask [H, W]; None without overlap."""
    if len(regions) == 0:
        return None
    overlap = regions.box_iou([box])[:, 0]
    best = int(overlap.argmax())
    return regions[best].masks()[0].numpy() if overlap[best] > 0 else None


def resolve(
    votes: Votes, region: npt.NDArray[np.bool_] | None, box: Box
) -> tuple[npt.NDArray[np.bool_], float]:
    """The mask [H, W] of a box by both opinions, and how sure it is, in 0..1.

    The confidence is the mean agreement of the opinions with the mask over the pixels of the box.
    """
    inside = _inside(box, (votes.shape[0], votes.shape[1]))
    least = MIN_FILLED * inside.sum()
    opinions = [votes] if (votes >= 0.5).sum() >= least else []
    if region is not None and (region & inside).sum() >= least:
        opinions.append((region & inside).astype(np.float32))
    if not opinions:
        return inside, 0.0
    mean = np.mean(opinions, axis=0)
    mask = mean >= 0.5
    agreement = np.where(mask, mean, 1 - mean)[inside].mean()
    return mask, float(np.clip(2 * agreement - 1, 0, 1))


def _grabcut(pixels: npt.NDArray[np.uint8], box: npt.NDArray[np.float64], seed: int) -> Votes:
    """Foreground of one GrabCut, float32 [h, w] of 0 and 1; some background is always left."""
    height, width = pixels.shape[:2]
    x0, x1 = np.sort(np.clip(np.round(box[[0, 2]]), 1, width - 1)).astype(int)
    y0, y1 = np.sort(np.clip(np.round(box[[1, 3]]), 1, height - 1)).astype(int)
    labels = np.full((height, width), cv2.GC_BGD, dtype=np.uint8)
    labels[y0 : max(y1, y0 + 1), x0 : max(x1, x0 + 1)] = cv2.GC_PR_FGD
    models = np.zeros((2, 1, 65))
    cv2.setRNGSeed(seed)  # of the first colour models
    bgr = np.ascontiguousarray(pixels[..., ::-1])
    cv2.grabCut(bgr, labels, (0, 0, 0, 0), models[0], models[1], ITERATIONS, cv2.GC_INIT_WITH_MASK)
    return (labels == cv2.GC_PR_FGD).astype(np.float32)


def _margin(start: float, stop: float, length: int) -> tuple[int, int]:
    """A side of the crop around a box."""
    context = CONTEXT * (stop - start) + 2
    return max(0, int(start - context)), min(length, int(np.ceil(stop + context)))


def _inside(box: Box, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """The pixels of a box [H, W], at least one."""
    x0, y0 = int(box[0]), int(box[1])
    x1, y1 = max(int(np.ceil(box[2])), x0 + 1), max(int(np.ceil(box[3])), y0 + 1)
    inside = np.zeros(size, dtype=bool)
    inside[y0:y1, x0:x1] = True
    return inside


SDI = Peer(BoxLabeller)
