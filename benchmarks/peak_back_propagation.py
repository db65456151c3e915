"""Time peak back-propagation: all peaks of an image in one batch, and one backward pass per peak.

    python benchmarks/peak_back_propagation.py
    python benchmarks/peak_back_propagation.py --backbones resnet50 --size 448 --peaks 16

The baseline is the usual implementation: convolutions with PRM's backward rule in autograd, one
backward pass per peak through a retained graph, with the published rule. `PeakBackPropagation` is
timed with both rules, in one batch and peak by peak. Forward passes are reported separately. Random
weights; one process.
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
from annocoin.seeds.back_propagation import ForwardPass, PeakBackPropagation
from annocoin.seeds.classifier import Classifier, ClassifierArchitecture

SIZES = {"tiny": 128, "mobilenet_v2": 320, "resnet50": 320}
AUTOGRAD = "published, autograd, a backward pass a peak"


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
    passes: dict[str, ForwardPass] = {}
    methods: dict[str, Callable[[], Tensor]] = {}
    maps = net(image[None])[0]
    peaks = torch.stack([torch.randint(0, side, (count,)) for side in maps.shape], dim=1)
    for rule in ("conserving", "published"):
        back_propagation = PeakBackPropagation(net, rule)  # type: ignore[arg-type]
        started = time.perf_counter()
        passes[rule] = back_propagation(image)
        results[f"forward, {rule}, s"] = time.perf_counter() - started
        methods[f"{rule}, at once"] = lambda rule=rule: passes[rule].responses(peaks)  # type: ignore[misc]
        methods[f"{rule}, peak by peak"] = lambda rule=rule: torch.cat(  # type: ignore[misc]
            [passes[rule].responses(peak[None]) for peak in peaks]
        )
    methods[AUTOGRAD] = autograd_responses(net, image, peaks)
    seconds, responses = interleaved(methods, repeats)
    for method, spent in seconds.items():
        results[f"{method}, ms a peak"] = 1000 * spent / count
    for rule in ("conserving", "published"):
        batched, single = f"{rule}, at once", f"{rule}, peak by peak"
        results[f"{rule}: autograd / at once"] = seconds[AUTOGRAD] / seconds[batched]
        results[f"{rule}: peak by peak / at once"] = seconds[single] / seconds[batched]
        results[f"{rule}: difference, share of the greatest"] = difference(
            responses[batched], responses[single]
        )
    results["published: difference from autograd"] = difference(
        responses["published, at once"], responses[AUTOGRAD]
    )
    return results


def interleaved(
    methods: dict[str, Callable[[], Tensor]], repeats: int
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Median seconds and results of each method, run in turn so that a slow moment hits all."""
    seconds: dict[str, list[float]] = {method: [] for method in methods}
    results: dict[str, Tensor] = {}
    for _ in range(repeats + 1):
        for method, run in methods.items():
            started = time.perf_counter()
            results[method] = run()
            seconds[method].append(time.perf_counter() - started)
    return {method: statistics.median(values[1:]) for method, values in seconds.items()}, results


def difference(first: Tensor, second: Tensor) -> float:
    """The largest difference of two responses [N, H, W], relative to their maximum."""
    return float(((first - second) / second.amax(dim=(1, 2), keepdim=True)).abs().max())


def example(name: str) -> Classifier:
    """A classifier with random weights whose batch normalisations have fitting statistics."""
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


class _ScaleInput(torch.autograd.Function):
    """The identity, whose backward pass multiplies by the shifted input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shifted: Tensor) -> Tensor:
        ctx.save_for_backward(shifted)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Any:
        return relevance * ctx.saved_tensors[0], None


class _NormaliseOutput(torch.autograd.Function):
    """The identity, whose backward pass divides by the sum of contributions."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, total: Tensor) -> Tensor:
        ctx.save_for_backward(total)
        return out.clone()

    @staticmethod
    def backward(ctx: Any, relevance: Tensor) -> Any:
        (total,) = ctx.saved_tensors
        return torch.where(total > 1e-10, relevance / total, 0), None


class PeakConvolution(nn.Module):
    """A convolution whose backward pass is PRM's, by autograd."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, x: Tensor) -> Tensor:
        m = self.convolution
        geometry: Any = (m.stride, m.padding, m.dilation, m.groups)
        shifted = (x - x.min()).detach()
        positive = m.weight.detach().relu()
        total = F.conv2d(shifted, positive, None, *geometry)
        with torch.no_grad():
            value = m(x)
        linear: Tensor = F.conv2d(_ScaleInput.apply(x, shifted), positive, None, *geometry)
        normalised: Tensor = _NormaliseOutput.apply(linear, total)
        return normalised + (value - linear).detach()


def autograd_responses(net: nn.Module, image: Tensor, peaks: Tensor) -> Callable[[], Tensor]:
    """A function that runs one backward pass per peak with the published rule: [N, H, W]."""
    net = copy.deepcopy(net)
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Conv2d):
                setattr(module, name, PeakConvolution(child))
    pixels = image[None].clone().requires_grad_()
    maps = net(pixels)

    def run() -> Tensor:
        responses = []
        for peak in peaks.tolist():
            (gradient,) = torch.autograd.grad(maps[0][tuple(peak)], pixels, retain_graph=True)
            relevance = gradient[0].sum(dim=0).clamp(min=0)
            responses.append(relevance / relevance.sum())
        return torch.stack(responses)

    return run


if __name__ == "__main__":
    main()
