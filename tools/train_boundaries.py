"""Train the boundary detector on BSDS500 and write its weights for the package.

    python tools/train_boundaries.py BSDS500 --encoder mobilenet_v2.pth --out boundaries.safetensors

BSDS500 contains `images/{train,val}` and `groundTruth/{train,val}`. A pixel is a boundary if at
least 30 % of the annotators marked it, background if none did, and ignored in between. `--minutes`
is the duration of the training, over which the learning rate falls. `--start` continues from the
weights of an earlier run. The saved weights are a running average.
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import scipy.io
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from annocoin.backbones import BoundaryNet, load_boundary_weights
from annocoin.data.images import read_image

MIN_AGREEMENT = 0.3
"""The share of annotators from which a pixel is a boundary."""

IGNORED = 0.01
"""A share of annotators that counts neither as boundary nor as background."""

CROP = 320
SCALES = (0.55, 1.6)
AVERAGE_DECAY = 0.998

Example = tuple[Tensor, Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, metavar="BSDS500")
    parser.add_argument("--encoder", type=Path, required=True, help="torchvision's MobileNetV2")
    parser.add_argument("--start", type=Path, help="weights of an earlier run")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--splits", nargs="+", default=["train", "val"])
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate of the decoder")
    parser.add_argument("--bf16", action="store_true", help="faster where the processor has it")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    examples = [example for split in options.splits for example in load(options.data, split)]
    print(f"{len(examples)} images", flush=True)
    net = BoundaryNet()
    weights = torch.load(options.encoder, weights_only=True)
    encoder = {k.removeprefix("features."): v for k, v in weights.items() if "features." in k}
    known = net.encoder.state_dict()
    net.encoder.load_state_dict({k: v for k, v in encoder.items() if k in known})
    if options.start is not None:
        load_boundary_weights(net, load_file(options.start))
    train(net, examples, options)


def train(net: BoundaryNet, examples: list[Example], options: argparse.Namespace) -> None:
    """Train for `options.minutes`; weights are saved every two minutes and at the end."""
    net.train().to(memory_format=torch.channels_last)
    average = copy.deepcopy(net)
    rest = [p for name, p in net.named_parameters() if not name.startswith("encoder.")]
    groups: list[dict[str, Any]] = [
        {"params": rest, "peak": options.rate},
        {"params": list(net.encoder.parameters()), "peak": options.rate / 5},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=1e-4)
    rng = np.random.default_rng(options.seed)
    started = saved = time.monotonic()
    step, mean, progress = 0, 0.0, 0.0
    while progress < 1:
        progress = (time.monotonic() - started) / 60 / options.minutes
        warmup = min(1.0, (step + 1) / 100)
        decay = max(1e-3, 0.5 + 0.5 * np.cos(np.pi * min(progress, 1)))
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * warmup * decay
        batch = [augment(*examples[rng.integers(len(examples))], rng) for _ in range(options.batch)]
        images = torch.stack([image for image, _ in batch])
        targets = torch.stack([target for _, target in batch])
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=options.bf16):
            logits, sides = net.with_sides(images.to(memory_format=torch.channels_last))
        total = loss(logits.float(), targets)
        for side in sides:
            total = total + 0.2 * loss(
                side.float(), F.adaptive_max_pool2d(targets, side.shape[-2:])
            )
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        keep = min(AVERAGE_DECAY, step / (step + 10))
        with torch.no_grad():
            for mean_weight, weight in zip(average.parameters(), net.parameters(), strict=True):
                mean_weight.lerp_(weight, 1 - keep)
        mean = 0.98 * mean + 0.02 * float(total.detach()) if step else float(total.detach())
        if step % 50 == 0:
            print(f"step {step}  loss {mean:.4f}  progress {progress:.2f}", flush=True)
        if time.monotonic() - saved > 120 or progress >= 1:
            save(average, options.out)
            saved = time.monotonic()
        step += 1


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy with the classes balanced by square roots, plus half a Dice loss.

    `targets` are shares of annotators: boundary from 0.3 on, background at 0, ignored in between.
    """
    positive, negative = targets >= MIN_AGREEMENT, targets <= 0
    counted = (positive | negative).float()
    share = positive.sum() / counted.sum().clamp(min=1)
    weight = torch.where(positive, (1 - share).sqrt(), share.sqrt()) * counted
    cross = F.binary_cross_entropy_with_logits(logits, positive.float(), reduction="none")
    cross = (cross * weight).sum() / weight.sum().clamp(min=1e-6)
    probability = logits.sigmoid() * counted
    truth = positive.float()
    total = probability.square().sum() + truth.sum()
    dice = 2 * (probability * truth).sum() / total.clamp(min=1)
    return cross + 0.5 * (1 - dice)


def load(root: Path, split: str) -> list[Example]:
    """Images, uint8 [3, H, W], and the share of annotators with a boundary, [1, H, W]."""
    examples = []
    for path in sorted((root / "images" / split).glob("*.jpg")):
        truth = scipy.io.loadmat(root / "groundTruth" / split / f"{path.stem}.mat")["groundTruth"]
        maps = [truth[0, i]["Boundaries"][0, 0] for i in range(truth.shape[1])]
        image = torch.from_numpy(read_image(path).transpose(2, 0, 1).copy())
        examples.append((image, torch.from_numpy(agreement(maps))[None]))
    return examples


def agreement(maps: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.float32]:
    """The share of annotators with a boundary within one pixel, where any of them drew one.

    Annotators draw the same contour a pixel apart. Pixels beside a line are ignored.
    """
    stack = np.stack(maps).astype(bool)
    cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    near = np.stack([cv2.dilate(lines.astype(np.uint8), cross) for lines in stack]).astype(bool)
    share = near.mean(axis=0) * stack.any(axis=0)
    beside = near.any(axis=0) & (share == 0)
    return np.where(beside, IGNORED, share).astype(np.float32)


def augment(image: Tensor, target: Tensor, rng: np.random.Generator) -> Example:
    """A random crop at a random scale, randomly flipped, rotated and recoloured.

    Where the scaled image is smaller than the crop, it is padded by reflection and ignored there.
    """
    scale = float(np.exp(rng.uniform(*np.log(SCALES))))
    scale = max(scale, 0.51 * CROP / min(image.shape[-2:]))  # reflection can at most double it
    side = round(CROP / scale)
    window: list[slice] = [slice(None)]
    for length in image.shape[-2:]:
        begin = int(rng.integers(max(length - side, 0) + 1))
        window.append(slice(begin, begin + min(side, length)))
    crop, lines = image[tuple(window)].float()[None] / 255, target[tuple(window)][None]
    size = [min(CROP, round(length * scale)) for length in crop.shape[-2:]]
    crop = F.interpolate(crop, size=size, mode="bilinear", antialias=True)
    if scale < 1:
        lines = F.adaptive_max_pool2d(lines, size)
    else:  # enlarging: max pooling would thicken the lines
        lines = F.interpolate(lines, size=size, mode="nearest")
    margin = (0, CROP - size[1], 0, CROP - size[0])
    crop = F.pad(crop, margin, mode="reflect")[0]
    lines = F.pad(lines, margin, value=IGNORED)[0]
    crop = recolour(crop, rng)
    turns = int(rng.integers(1, 4)) if rng.random() < 0.3 else 0
    crop, lines = crop.rot90(turns, (1, 2)), lines.rot90(turns, (1, 2))
    if rng.random() < 0.5:
        crop, lines = crop.flip(2), lines.flip(2)
    return crop.contiguous(), lines.contiguous()


def recolour(crop: Tensor, rng: np.random.Generator) -> Tensor:
    """Random brightness, contrast, saturation and tint."""
    grey = crop.mean(dim=0, keepdim=True)
    crop = grey + (crop - grey) * rng.uniform(0.5, 1.3)
    gain = rng.uniform(0.75, 1.25) * rng.uniform(0.92, 1.08, size=(3, 1, 1))
    return (crop * torch.from_numpy(gain).float() + rng.uniform(-0.1, 0.1)).clamp(0, 1)


def save(net: BoundaryNet, path: Path) -> None:
    half = {
        k: v.detach().half().contiguous()
        for k, v in net.state_dict().items()
        if v.dtype.is_floating_point
    }
    save_file(half, path)


if __name__ == "__main__":
    main()
