"""Time peak back-propagation: all peaks of an image at once, and one backward pass a peak.

    python benchmarks/peak_back_propagation.py
    python benchmarks/peak_back_propagation.py --backbones resnet50 --size 448 --peaks 16

The peer is the usual way: convolutions with PRM's backward rule in autograd, one backward pass per
peak through a graph that is kept. It has the published rule; ours is timed with both rules, at once
and peak by peak. Forward passes are not in the times, but reported. Random weights; one process.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from annocoin.files import write_json
from annocoin.seeds.back_propagation import PeakBackPropagation, PeakPass
from annocoin.seeds.classifier import Classifier, ClassifierArchitecture

SIZES = {"tiny": 128, "mobilenet_v2": 320, "resnet50": 320}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbones", nargs="+", default=list(SIZES))
    parser.add_argument("--size", type=int, help="of the image; default 128 for tiny, else 320")
    parser.add_argument("--peaks", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {}
    for name in options.backbones:
        size = options.size or SIZES.get(name, 320)
        results[name] = measure(name, size, options.peaks, options.repeats)
        print(f"{name}, {size} x {size}, {options.peaks} peaks, {options.threads} thread(s)")
        for what, value in results[name].items():
            print(f"  {what:52s} {value:.3g}", flush=True)
    if options.json is not None:
        write_json(options.json, results, indent=1)


def measure(name: str, size: int, count: int, repeats: int) -> dict[str, float]:
    net = example(name)
    image = torch.rand(3, size, size, generator=torch.Generator().manual_seed(0))
    results: dict[str, float] = {}
    passes: dict[str, PeakPass] = {}
    found: dict[str, Tensor] = {}
    ways: dict[str, Callable[[], Tensor]] = {}
    maps = net(image[None])[0]
    peaks = torch.stack([torch.randint(0, side, (count,)) for side in maps.shape], dim=1)
    for rule in ("conserving", "published"):
        back = PeakBackPropagation(net, rule)  # type: ignore[arg-type]
        started = time.perf_counter()
        passes[rule] = back(image)
        results[f"forward, {rule}, s"] = time.perf_counter() - started
        ways[f"{rule}, at once"] = lambda rule=rule: passes[rule].responses(peaks)  # type: ignore[misc]
        ways[f"{rule}, peak by peak"] = lambda rule=rule: torch.cat(  # type: ignore[misc]
            [passes[rule].responses(peak[None]) for peak in peaks]
        )
    ways["published, autograd, a backward pass a peak"] = one_by_one(net, image, peaks)
    seconds = interleaved(ways, repeats, found)
    for way, spent in seconds.items():
        results[f"{way}, ms a peak"] = 1000 * spent / count
    slow = seconds["published, autograd, a backward pass a peak"]
    for rule in ("conserving", "published"):
        results[f"{rule}: autograd / at once"] = slow / seconds[f"{rule}, at once"]
        alone, together = found[f"{rule}, peak by peak"], found[f"{rule}, at once"]
        results[f"{rule}: peak by peak / at once"] = (
            seconds[f"{rule}, peak by peak"] / seconds[f"{rule}, at once"]
        )
        results[f"{rule}: difference, share of the greatest"] = difference(together, alone)
    results["published: difference from autograd"] = difference(
        found["published, at once"], found["published, autograd, a backward pass a peak"]
    )
    return results


def interleaved(
    ways: dict[str, Callable[[], Tensor]], repeats: int, found: dict[str, Tensor]
) -> dict[str, float]:
    """The median seconds of each way, taken in turn, so that a slow moment hits all of them."""
    spent: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats + 1):
        for way, work in ways.items():
            started = time.perf_counter()
            found[way] = work()
            spent[way].append(time.perf_counter() - started)
    return {way: statistics.median(values[1:]) for way, values in spent.items()}


def difference(first: Tensor, second: Tensor) -> float:
    greatest = second.flatten(1).amax(dim=1)[:, None, None]
    return float(((first - second) / greatest).abs().max())


def example(name: str) -> Classifier:
    """A classifier whose activations are as a trained one's: normalised by what came in."""
    torch.manual_seed(0)
    net = Classifier(ClassifierArchitecture(tuple("abcdefghij"), name))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight, 1, 0.3)
            nn.init.normal_(module.bias, 0, 0.3)
    net.train()
    with torch.no_grad():
        for _ in range(20):
            net(torch.rand(4, 3, 96, 96))
    return net.eval()


class _Before(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, above: Tensor) -> Tensor:
        ctx.save_for_backward(above)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, mass: Tensor) -> Any:
        return mass * ctx.saved_tensors[0], None


class _After(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, total: Tensor) -> Tensor:
        ctx.save_for_backward(total)
        return out.clone()

    @staticmethod
    def backward(ctx: Any, mass: Tensor) -> Any:
        (total,) = ctx.saved_tensors
        return torch.where(total > 1e-10, mass / total, 0), None


class PeakConvolution(nn.Module):
    """A convolution whose backward pass is PRM's, by autograd."""

    def __init__(self, inner: nn.Conv2d) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        m = self.inner
        geometry: Any = (m.stride, m.padding, m.dilation, m.groups)
        above = (x - x.min()).detach()
        positive = m.weight.detach().relu()
        total = F.conv2d(above, positive, None, *geometry)
        with torch.no_grad():
            value = m(x)
        linear: Tensor = F.conv2d(_Before.apply(x, above), positive, None, *geometry)
        passed: Tensor = _After.apply(linear, total)
        return passed + (value - linear).detach()


def one_by_one(net: nn.Module, image: Tensor, peaks: Tensor) -> Callable[[], Tensor]:
    """The published rule, a backward pass for each peak: gives [N, H, W] when called."""
    net = copy.deepcopy(net)
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Conv2d):
                setattr(module, name, PeakConvolution(child))
    pixels = image[None].clone().requires_grad_()
    maps = net(pixels)

    def back() -> Tensor:
        found = []
        for c, row, column in peaks.tolist():
            (mass,) = torch.autograd.grad(maps[0, c, row, column], pixels, retain_graph=True)
            mass = mass[0].sum(dim=0).clamp(min=0)
            found.append(mass / mass.sum())
        return torch.stack(found)

    return back


if __name__ == "__main__":
    main()
