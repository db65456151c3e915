"""Train the boundary detector on BSDS500 and write its weights for the package.

    python tools/train_boundaries.py BSDS500 --encoder mobilenet_v2.pth --out boundaries.safetensors

BSDS500 holds `images/{train,val}` and `groundTruth/{train,val}`. A pixel is a boundary where at
least 30 % of the annotators say so, none where nobody does, and is not counted in between.
`--minutes` is the length of the training; the learning rate falls over that time.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.io
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from annocoin.data.images import read_image
from annocoin.regions.network import BoundaryNet

AGREE = 0.3
CROP = 320
Example = tuple[Tensor, Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, metavar="BSDS500")
    parser.add_argument("--encoder", type=Path, required=True, help="torchvision's MobileNetV2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--splits", nargs="+", default=["train", "val"])
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--batch", type=int, default=8)
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
    train(net, examples, options)


def train(net: BoundaryNet, examples: list[Example], options: argparse.Namespace) -> None:
    """Run until the time is over; the weights are saved every two minutes and at the end."""
    net.train().to(memory_format=torch.channels_last)
    rest = [p for name, p in net.named_parameters() if not name.startswith("encoder.")]
    groups: list[dict[str, Any]] = [
        {"params": rest, "peak": 2e-3},
        {"params": list(net.encoder.parameters()), "peak": 4e-4},
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
        logits, sides = net.with_sides(images.to(memory_format=torch.channels_last))
        total = loss(logits, targets)
        for side in sides:
            total = total + 0.2 * loss(side, F.adaptive_max_pool2d(targets, side.shape[-2:]))
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        optimizer.step()
        mean = 0.98 * mean + 0.02 * float(total.detach()) if step else float(total.detach())
        if step % 50 == 0:
            print(f"step {step}  loss {mean:.4f}  done {done:.2f}", flush=True)
        if time.monotonic() - saved > 120 or done >= 1:
            save(net, options.out)
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
    near = stack.copy()
    for shift in ((0, 1), (0, -1), (1, 0), (-1, 0)):
        near |= np.roll(stack, shift, axis=(1, 2))
    share = near.mean(axis=0) * stack.any(axis=0)
    # The pixels beside a line belong to nobody: neither boundary nor not.
    beside = near.any(axis=0) & (share == 0)
    return np.where(beside, 0.01, share).astype(np.float32)


def augment(image: Tensor, target: Tensor, rng: np.random.Generator) -> Example:
    """A random crop at a random scale, mirrored and turned; colours a little changed."""
    scale = float(np.exp(rng.uniform(np.log(0.7), np.log(1.5))))
    side = min(round(CROP / scale), *image.shape[-2:])
    y, x = (int(rng.integers(length - side + 1)) for length in image.shape[-2:])
    window = (slice(None), slice(y, y + side), slice(x, x + side))
    crop = image[window].float()[None] / 255
    crop = F.interpolate(crop, size=(CROP, CROP), mode="bilinear", antialias=True)[0]
    lines = F.adaptive_max_pool2d(target[window][None], CROP)[0]
    if side < CROP:  # enlarging: max pooling would thicken the lines
        lines = F.interpolate(target[window][None], size=(CROP, CROP), mode="nearest")[0]
    crop = (crop * rng.uniform(0.8, 1.2) + rng.uniform(-0.08, 0.08)).clamp(0, 1)
    turns = int(rng.integers(4))
    crop, lines = crop.rot90(turns, (1, 2)), lines.rot90(turns, (1, 2))
    if rng.random() < 0.5:
        crop, lines = crop.flip(2), lines.flip(2)
    return crop.contiguous(), lines.contiguous()


def save(net: BoundaryNet, path: Path) -> None:
    half = {
        k: v.detach().half().contiguous()
        for k, v in net.state_dict().items()
        if v.dtype.is_floating_point
    }
    save_file(half, path)


if __name__ == "__main__":
    main()
