"""Train the boundary detector on BSDS500 and write its weights for the package.

    python tools/train_boundaries.py BSDS500 --encoder mobilenet_v2.pth --out boundaries.safetensors

BSDS500 holds `images/{train,val}` and `groundTruth/{train,val}`. A pixel is a boundary where at
least 30 % of the annotators say so, none where nobody does, and is not counted in between.
`--minutes` is the length of the training; the learning rate falls over that time. `--start` goes on
from weights that an earlier run wrote. What is saved is a running average of the weights.
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

from annocoin.backbones import BoundaryNet
from annocoin.data.images import read_image

AGREE = 0.3
CROP = 320
SCALES = (0.55, 1.6)
NOT_COUNTED = 0.01
"""A share of annotators that is neither a boundary nor none."""

AVERAGE = 0.998
"""How much of the running average of the weights each step keeps."""

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
        start = {name: value.float() for name, value in load_file(options.start).items()}
        net.load_state_dict(start, strict=False)
    train(net, examples, options)


def train(net: BoundaryNet, examples: list[Example], options: argparse.Namespace) -> None:
    """Run until the time is over; the weights are saved every two minutes and at the end."""
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
    step, mean, done = 0, 0.0, 0.0
    while done < 1:
        done = (time.monotonic() - started) / 60 / options.minutes
        warm = min(1.0, (step + 1) / 100)
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * warm * max(1e-3, 0.5 + 0.5 * np.cos(np.pi * min(done, 1)))
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
        keep = min(AVERAGE, step / (step + 10))
        with torch.no_grad():
            for mean_weight, weight in zip(average.parameters(), net.parameters(), strict=True):
                mean_weight.lerp_(weight, 1 - keep)
        mean = 0.98 * mean + 0.02 * float(total.detach()) if step else float(total.detach())
        if step % 50 == 0:
            print(f"step {step}  loss {mean:.4f}  done {done:.2f}", flush=True)
        if time.monotonic() - saved > 120 or done >= 1:
            save(average, options.out)
            saved = time.monotonic()
        step += 1


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy with the classes balanced by square roots, plus half a Dice loss.

    `targets` are 1 on boundaries, 0 elsewhere, and between 0 and 1 where not counted.
    """
    positive, negative = targets >= AGREE, targets <= 0
    counted = (positive | negative).float()
    share = positive.sum() / counted.sum().clamp(min=1)
    weight = torch.where(positive, (1 - share).sqrt(), share.sqrt()) * counted
    cross = F.binary_cross_entropy_with_logits(logits, positive.float(), reduction="none")
    cross = (cross * weight).sum() / weight.sum().clamp(min=1e-6)
    found = logits.sigmoid() * counted
    truth = positive.float()
    overlap = 2 * (found * truth).sum() / (found.square().sum() + truth.sum()).clamp(min=1)
    return cross + 0.5 * (1 - overlap)


def load(root: Path, split: str) -> list[Example]:
    """Images [3, H, W] in bytes and the share of annotators that see a boundary, [1, H, W]."""
    examples = []
    for path in sorted((root / "images" / split).glob("*.jpg")):
        truth = scipy.io.loadmat(root / "groundTruth" / split / f"{path.stem}.mat")["groundTruth"]
        maps = [truth[0, i]["Boundaries"][0, 0] for i in range(truth.shape[1])]
        image = torch.from_numpy(read_image(path).transpose(2, 0, 1).copy())
        examples.append((image, torch.from_numpy(agreement(maps))[None]))
    return examples


def agreement(maps: list[npt.NDArray[np.uint8]]) -> npt.NDArray[np.float32]:
    """The share of annotators with a boundary at a pixel or beside it, thinned to their lines.

    People draw the same contour a pixel apart: neighbours count as agreeing.
    """
    stack = np.stack(maps).astype(bool)
    cross = cv2.getStructuringElement(cv2.MORPH_CROSS, (3, 3))
    near = np.stack([cv2.dilate(lines.astype(np.uint8), cross) for lines in stack]).astype(bool)
    share = near.mean(axis=0) * stack.any(axis=0)
    # The pixels beside a line belong to nobody: neither boundary nor not.
    beside = near.any(axis=0) & (share == 0)
    return np.where(beside, NOT_COUNTED, share).astype(np.float32)


def augment(image: Tensor, target: Tensor, rng: np.random.Generator) -> Example:
    """A random crop at a random scale, mirrored and turned; colours a little override.

    Where the scaled image is smaller than the crop, it is mirrored outwards and not counted there.
    """
    scale = float(np.exp(rng.uniform(*np.log(SCALES))))
    scale = max(scale, 0.51 * CROP / min(image.shape[-2:]))  # mirrored once, not more
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
    lines = F.pad(lines, margin, value=NOT_COUNTED)[0]
    crop = recolour(crop, rng)
    turns = int(rng.integers(1, 4)) if rng.random() < 0.3 else 0
    crop, lines = crop.rot90(turns, (1, 2)), lines.rot90(turns, (1, 2))
    if rng.random() < 0.5:
        crop, lines = crop.flip(2), lines.flip(2)
    return crop.contiguous(), lines.contiguous()


def recolour(crop: Tensor, rng: np.random.Generator) -> Tensor:
    """Brightness, contrast, saturation and tint a little override."""
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
