"""Peak back-propagation: the pixels that a peak of a class map results from.

The relevance of a peak, initially 1, is propagated back as in excitation backprop and layer-wise
relevance propagation: each layer distributes it over its inputs in proportion to their
contributions. The network is traced once with `torch.fx`; a forward pass records one rule per
layer, and the relevance of all peaks of the image goes back through the rules in one batch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from annocoin.errors import check_choice

RuleName = Literal["conserving", "published"]

ADDITIONS = (operator.add, operator.iadd, torch.add)
PRODUCTS = (operator.mul, operator.imul, torch.mul)
IDENTITY_FUNCTIONS = (
    *(*ADDITIONS, operator.sub, operator.mul, operator.truediv),
    *(F.relu, F.relu6, torch.relu, F.dropout),
)
IDENTITY_MODULES = (
    *(nn.BatchNorm2d, nn.Identity, nn.Dropout),
    *(nn.ReLU, nn.ReLU6, nn.Hardswish, nn.SiLU, nn.GELU),
)
"""Layers that leave relevance unchanged: activations, normalisations, arithmetic with constants."""

MAX_BATCH_BYTES = 32 << 20
"""Default bound of a batch's largest tensor; larger tensors are slow to allocate at every layer."""

MIN_TOTAL = 1e-10
"""Relevance is dropped where the contributions sum to less than this."""


class PeakBackPropagation:
    """Propagates peaks of a network's class maps back to its input.

    Args:
        net: from images [1, 3, H, W] to class maps [1, C, h, w], in evaluation mode.
        rule: "conserving" or "published". With "conserving", a convolution distributes relevance
            in proportion to the positive contributions of its inputs, with the signs that the
            following batch normalisation gives them; an addition in proportion to the positive
            parts of its terms; activations and normalisations leave it unchanged; a product of two
            maps passes it to the larger map, the smaller one being a gate. "published" is the rule
            of the published PRM code: convolutions as above but with their weights' signs, all
            other layers by their derivatives, which do not conserve relevance.

    The attribute `centres` has the centres of the class maps' cells.

    Example:
        >>> net = nn.Conv2d(3, 2, 1, bias=False).eval()
        >>> _ = nn.init.ones_(net.weight)
        >>> forward_pass = PeakBackPropagation(net)(torch.arange(12.0).view(3, 2, 2))
        >>> forward_pass.responses(torch.tensor([[0, 1, 1]])).tolist()
        [[[0.0, 0.0], [0.0, 1.0]]]
    """

    def __init__(self, net: nn.Module, rule: RuleName = "conserving") -> None:
        check_choice("rule", rule, get_args(RuleName))
        if net.training:
            raise ValueError("the network is in training mode; call eval() first")
        self.traced = fx.symbolic_trace(nn.Sequential(net))
        self.conserving = rule == "conserving"
        signs = _batch_norm_signs(self.traced) if self.conserving else {}
        self.convolutions = {
            name: PositiveConvolution(module, signs.get(name))
            for name, module in self.traced.named_modules()
            if isinstance(module, nn.Conv2d)
        }
        self.centres = CellCentres.of(self.traced)

    @torch.no_grad()
    def __call__(self, image: Tensor) -> ForwardPass:
        """Run the network on an image [3, H, W]."""
        recorder = _Recorder(self)
        maps = recorder.run(image[None].contiguous(memory_format=torch.channels_last))
        return ForwardPass(recorder, maps[0], tuple(image.shape[1:]))


class ForwardPass:
    """A network's forward pass on one image, ready for back-propagation of peaks.

    Attributes:
        maps: the class maps, [C, h, w].
    """

    def __init__(self, recorder: _Recorder, maps: Tensor, size: tuple[int, ...]) -> None:
        self.maps = maps
        self._recorder, self._size = recorder, size

    @torch.no_grad()
    def responses(self, peaks: Tensor, *, batch: int | None = None) -> Tensor:
        """The peak response maps, each summing to 1: peaks [N, 3] to [N, H, W].

        A peak whose relevance is lost on the way, as in a constant map, gets a uniform response.

        Args:
            peaks: class 0..C-1, row and column of the class map, int64.
            batch: peaks that are propagated at once, which bounds the memory. Default: as many as
                keep the largest tensor within `MAX_BATCH_BYTES`.
        """
        batch = batch or max(1, MAX_BATCH_BYTES // self._recorder.largest)
        parts = [self._relevance(part) for part in peaks.split(batch) if len(part)]
        relevance = torch.cat([self.maps.new_zeros(0, *self._size), *parts])
        total = relevance.sum(dim=(-2, -1), keepdim=True)
        uniform = 1 / (self._size[0] * self._size[1])
        return torch.where(total > MIN_TOTAL, relevance / total.clamp(min=MIN_TOTAL), uniform)

    def _relevance(self, peaks: Tensor) -> Tensor:
        """The relevance of every pixel, summed over the colours: [N, H, W]."""
        one_hot = self.maps.new_zeros(len(peaks), *self.maps.shape)
        classes, rows, columns = peaks.T
        one_hot[torch.arange(len(peaks), device=one_hot.device), classes, rows, columns] = 1
        back = self._recorder.back(one_hot.contiguous(memory_format=torch.channels_last))
        return back.sum(dim=1).clamp(min=0)


class _Recorder(fx.Interpreter):
    """Runs a network and records the input maps and the relevance rule of every layer."""

    def __init__(self, parent: PeakBackPropagation) -> None:
        super().__init__(parent.traced)
        self.convolutions, self.conserving = parent.convolutions, parent.conserving
        self.layers: list[tuple[fx.Node, list[fx.Node], Rule]] = []
        self.from_image: set[fx.Node] = set()
        self.largest = 1  # bytes of the largest map

    def run_node(self, n: fx.Node) -> Any:
        """Run one node of the graph and record its rule if it depends on the image."""
        if n.op == "placeholder":
            self.from_image.add(n)
        sources = [source for source in n.all_input_nodes if source in self.from_image]
        if not sources or n.op == "output":
            return super().run_node(n)
        out, rule = self._run_with_rule(n, sources)
        self.from_image.add(n)
        self.largest = max(self.largest, out.numel() * out.element_size())
        self.layers.append((n, sources, rule))
        return out

    def back(self, relevance: Tensor) -> Tensor:
        """From relevance on the class maps, [N, C, h, w], to that of the image, [N, 3, H, W]."""
        pending = {self.layers[-1][0]: Relevance(relevance)}
        for node, sources, rule in reversed(self.layers):
            if node not in pending:  # its output is not used
                continue
            for source, part in zip(sources, rule(pending.pop(node)), strict=True):
                if part is not None:
                    pending[source] = pending[source] + part if source in pending else part
        (image_relevance,) = pending.values()
        return image_relevance.tensor()

    def _run_with_rule(self, n: fx.Node, sources: list[fx.Node]) -> tuple[Any, Rule]:
        """The output and the rule of a node; the rule first, as layers may work in place."""
        maps = [self.env[source] for source in sources]
        module = self.fetch_attr(str(n.target)) if n.op == "call_module" else None
        function = n.target if n.op == "call_function" else None
        is_identity = isinstance(module, IDENTITY_MODULES) or function in IDENTITY_FUNCTIONS
        if isinstance(module, nn.Conv2d):
            rule = self.convolutions[str(n.target)].rule(maps[0])
        elif self.conserving and len(maps) == 2 and function in ADDITIONS:
            rule = addition_rule(*maps)
        elif self.conserving and len(maps) == 2 and function in PRODUCTS:
            rule = product_rule(*maps)
        elif self.conserving and len(maps) == 1 and is_identity:
            rule = identity_rule
        elif isinstance(module, nn.BatchNorm2d | nn.ReLU | nn.ReLU6):
            out = super().run_node(n)
            return out, derivative_rule(module, out)
        else:
            return gradient_rule(self._as_function(n, sources), maps)
        return super().run_node(n), rule

    def _as_function(self, n: fx.Node, sources: list[fx.Node]) -> Callable[..., Any]:
        """The node as a function of its maps that does not change them in place."""

        def call(*maps: Tensor) -> Any:
            env = {**self.env, **{s: m.clone() for s, m in zip(sources, maps, strict=True)}}
            args, kwargs = fx.node.map_arg((n.args, n.kwargs), env.__getitem__)
            return getattr(self, n.op)(n.target, args, kwargs)

        return call


def _batch_norm_signs(traced: fx.GraphModule) -> dict[str, Tensor]:
    """Sign of the batch normalisation's factor per channel, by the convolution before it.

    The magnitude of the factor cancels in the proportions, its sign does not.
    """
    signs = {}
    for node in traced.graph.nodes:
        if node.op == "call_module" and node.args[0].op == "call_module":
            module = traced.get_submodule(node.target)
            if isinstance(module, nn.BatchNorm2d) and module.affine:
                sign = torch.where(module.weight.detach() < 0, -1.0, 1.0)
                signs[str(node.args[0].target)] = sign
    return signs


@dataclass(frozen=True)
class Relevance:
    """The relevance of N peaks on the maps of one layer: `values * factor`.

    Factors that all peaks share are multiplied with each other first: they are N times smaller.

    Args:
        values: [N, C, h, w].
        factor: [1, C, h, w], or a tensor that broadcasts to it; None is 1.
    """

    values: Tensor
    factor: Tensor | None = None

    def scale(self, factor: Tensor) -> Relevance:
        return Relevance(self.values, factor if self.factor is None else self.factor * factor)

    def tensor(self) -> Tensor:
        return self.values if self.factor is None else self.values * self.factor

    def __add__(self, other: Relevance) -> Relevance:
        if other.factor is None:
            return Relevance(self.tensor() + other.values)
        return Relevance(torch.addcmul(self.tensor(), other.values, other.factor))


Rule = Callable[[Relevance], tuple[Relevance | None, ...]]
"""From the relevance of a layer's output to that of each of its input maps; None is 0."""


class PositiveConvolution:
    """A convolution with the positive part of its weights.

    Args:
        module: the convolution.
        signs: factors of its output channels [D] before the positive part is taken.
    """

    def __init__(self, module: nn.Conv2d, signs: Tensor | None = None) -> None:
        if module.padding_mode != "zeros" or isinstance(module.padding, str):
            raise ValueError(f"{module}: only padding with zeros, by numbers, is supported")
        weight = module.weight.detach()
        if signs is not None:
            weight = weight * signs[:, None, None, None]
        self.weight = weight.clamp(min=0).contiguous(memory_format=torch.channels_last)
        self.module = module

    def rule(self, x: Tensor) -> Rule:
        """For an input [1, C, H, W]: in proportion to (x - min x) times the positive weight."""
        m = self.module
        shifted = x - x.amin()
        total = F.conv2d(shifted, self.weight, None, m.stride, m.padding, m.dilation, m.groups)
        inverse = torch.where(total > MIN_TOTAL, 1 / total.clamp(min=MIN_TOTAL), 0)

        def rule(relevance: Relevance) -> tuple[Relevance]:
            normalised = relevance.scale(inverse).tensor()
            return (Relevance(self._transpose(normalised, shifted.shape[2:]), shifted),)

        return rule

    def _transpose(self, x: Tensor, size: Sequence[int]) -> Tensor:
        """[N, D, h, w] to [N, C, H, W], where size (H, W) is that of the convolution's input."""
        m = self.module
        padding: Any = m.padding
        sides = zip(size, x.shape[2:], m.stride, padding, m.dilation, m.kernel_size, strict=True)
        rest = [n - ((o - 1) * s - 2 * p + d * (k - 1) + 1) for n, o, s, p, d, k in sides]
        # Faster than `torch.nn.grad.conv2d_input`, for depthwise convolutions 9 times.
        return F.conv_transpose2d(
            x, self.weight, None, m.stride, padding, rest, m.groups, m.dilation
        )


def addition_rule(first: Tensor, second: Tensor) -> Rule:
    """In proportion to the positive parts of the terms; in halves where neither has one."""
    positive = first.clamp(min=0)
    total = positive + second.clamp(min=0)
    share = torch.where(total > MIN_TOTAL, positive / total.clamp(min=MIN_TOTAL), 0.5)
    rest = 1 - share
    return lambda relevance: (relevance.scale(share), relevance.scale(rest))


def product_rule(first: Tensor, second: Tensor) -> Rule:
    """All to the larger map; the smaller one is a gate, as in squeeze-and-excitation."""
    if second.numel() > first.numel():
        return lambda relevance: (None, relevance)
    return lambda relevance: (relevance, None)


def identity_rule(relevance: Relevance) -> tuple[Relevance]:
    """Unchanged: for activations, normalisations, and arithmetic with constants."""
    return (relevance,)


def derivative_rule(module: nn.Module, out: Tensor) -> Rule:
    """Times the derivative of a batch normalisation, ReLU or ReLU6 that returned `out`."""
    if isinstance(module, nn.BatchNorm2d):
        assert module.running_var is not None
        slope = (module.running_var + module.eps).rsqrt()
        slope = (slope if module.weight is None else slope * module.weight)[None, :, None, None]
    else:
        maximum = 6 if isinstance(module, nn.ReLU6) else torch.inf
        slope = ((out > 0) & (out < maximum)).float()
    return lambda relevance: (relevance.scale(slope),)


def gradient_rule(function: Callable[..., Tensor], maps: Sequence[Tensor]) -> tuple[Tensor, Rule]:
    """The layer's output, and its derivative as the rule, for layers without another one.

    It conserves the sum in max pooling, average pooling and interpolation.
    """
    out, vjp = torch.func.vjp(function, *maps)[:2]
    batched: Any = torch.vmap(vjp)
    return out, lambda r: tuple(Relevance(part[:, 0]) for part in batched(r.tensor()[:, None]))


@dataclass(frozen=True)
class CellCentres:
    """Centres of the cells of a feature map: cell i is centred at start + i * step.

    Args:
        start, step: in pixels of the network's input, down and across.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.MaxPool2d(2))
        >>> CellCentres.of(fx.symbolic_trace(net))
        CellCentres(start=(1.5, 1.5), step=(4.0, 4.0))
    """

    start: tuple[float, ...] = (0.5, 0.5)
    step: tuple[float, ...] = (1.0, 1.0)

    @classmethod
    def of(cls, traced: fx.GraphModule) -> CellCentres:
        """Of a network's output; branches that meet are assumed to have equal centres."""
        centres: dict[fx.Node, CellCentres] = {}
        for node in traced.graph.nodes:
            sources = [centres[source] for source in node.all_input_nodes if source in centres]
            if node.op == "placeholder":
                centres[node] = cls()
            elif node.op == "call_module" and sources:
                centres[node] = sources[0]._after(traced.get_submodule(node.target))
            elif sources:
                centres[node] = sources[0]
        return centres[node]

    def in_image(self, cells: Sequence[int], scale: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Centres of rows [h] and columns [w] in an image `scale` times as large as the input."""
        axes = zip(self.start, self.step, cells, scale, strict=True)
        rows, columns = ((start + step * torch.arange(n)) * by for start, step, n, by in axes)
        return rows, columns

    def resample(self, maps: Tensor, size: Sequence[int]) -> Tensor:
        """Maps [C, h, w] of an input of this size at the centres of h x w equal cells."""
        positions = []
        axes = zip(self.start, self.step, maps.shape[1:], size, strict=True)
        for start, step, cells, length in axes:
            centres = (torch.arange(cells, device=maps.device) + 0.5) * length / cells
            positions.append(2 * (centres - start) / step / max(cells - 1, 1) - 1)
        grid = torch.stack(torch.meshgrid(*positions, indexing="ij")[::-1], dim=-1)
        return F.grid_sample(maps[None], grid[None], padding_mode="border", align_corners=True)[0]

    def _after(self, layer: nn.Module) -> CellCentres:
        """The centres after a convolution or a pooling layer; others do not move them."""
        if not isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
            return self
        kernel, stride, padding = map(np.asarray, (layer.kernel_size, layer.stride, layer.padding))
        step = np.asarray(self.step)
        shift = np.multiply(getattr(layer, "dilation", 1), kernel - 1) / 2 - padding
        start = self.start + shift * step
        return CellCentres(tuple(start.tolist()), tuple((stride * step).tolist()))
