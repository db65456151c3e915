"""Peak back-propagation: which pixels a peak of a class map comes from.

A peak's unit of mass goes back through the network, split at every layer by how much each input
contributed, so that the map that arrives at the image sums to one. The network is traced once; a
run on an image keeps a rule for each of its steps, and mass then goes back through the rules, all
peaks of the image at once. Nothing is patched, and no gradient is computed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from annocoin.errors import check_choice

RuleName = Literal["conserving", "published"]

ADDITIONS = (operator.add, operator.iadd, torch.add)
PASSING_FUNCTIONS = (
    *(*ADDITIONS, operator.sub, operator.mul, operator.truediv),
    *(F.relu, F.relu6, torch.relu, F.dropout),
)
PASSING_MODULES = (
    *(nn.BatchNorm2d, nn.Identity, nn.Dropout),
    *(nn.ReLU, nn.ReLU6, nn.Hardswish, nn.SiLU, nn.GELU),
)
"""Rectifiers, normalisations, and arithmetic of a map with constants."""

PRODUCTS = (operator.mul, operator.imul, torch.mul)


AT_ONCE = 32 << 20
"""Bytes of a map of many peaks; larger ones are new memory at every layer, which is slow to get."""


class PeakBackPropagation:
    """Go back from peaks of a network's class maps to its input. Made once, for many images.

    Args:
        net: from images [1, 3, H, W] to class maps [1, C, h, w], in evaluation mode.
        rule: how mass goes back. "conserving": a convolution splits it by its inputs' positive
            contributions, with signs as after the batch normalisation that follows; an addition by
            the positive parts of its terms; normalisations and rectifiers pass it on, and so does
            a product with a smaller map, a gate, to the larger one. "published":
            the rule of the published PRM code, which has the first, for the convolution's own
            weights, and leaves all else to derivatives; the mass then changes on the way.

    `cells` says where the cells of the class maps lie.

    Example:
        >>> net = nn.Conv2d(3, 2, 1, bias=False).eval()
        >>> _ = nn.init.ones_(net.weight)
        >>> passed = PeakBackPropagation(net)(torch.arange(12.0).view(3, 2, 2))
        >>> passed.responses(torch.tensor([[0, 1, 1]])).tolist()
        [[[0.0, 0.0], [0.0, 1.0]]]
    """

    def __init__(self, net: nn.Module, rule: RuleName = "conserving") -> None:
        check_choice("rule", rule, get_args(RuleName))
        if net.training:
            raise ValueError("the network is in training mode; call eval() first")
        self.traced = fx.symbolic_trace(nn.Sequential(net))
        self.cells = Cells.of(self.traced)
        self.conserving = rule == "conserving"
        signs = _signs(self.traced) if self.conserving else {}
        self.positive = {
            name: PositiveConvolution(module, signs.get(name))
            for name, module in self.traced.named_modules()
            if isinstance(module, nn.Conv2d)
        }

    @torch.no_grad()
    def __call__(self, image: Tensor) -> PeakPass:
        """Run the network on an image [3, H, W]."""
        run = _Run(self.traced, self.positive, self.conserving)
        maps = run.run(image[None].contiguous(memory_format=torch.channels_last))
        return PeakPass(run, maps, tuple(image.shape[1:]))


class PeakPass:
    """A network's run on one image, from which peaks can be traced back.

    `maps` are its class maps, [C, h, w].
    """

    def __init__(self, run: _Run, maps: Tensor, size: tuple[int, ...]) -> None:
        self._run, self._size = run, size
        self.maps = maps[0]

    @torch.no_grad()
    def responses(self, peaks: Tensor, *, batch: int | None = None) -> Tensor:
        """The peak response maps, each summing to 1: peaks [N, 3] to [N, H, W].

        A peak from which nothing comes back, as from a map of constants, has an even map.

        Args:
            peaks: class 0..C-1, row and column of the class map, int64.
            batch: the most peaks that go back at once; it bounds the memory. Default: as many as
                keep the largest map in `AT_ONCE` bytes.
        """
        batch = batch or max(1, AT_ONCE // self._run.largest)
        found = [self._mass(some) for some in peaks.split(batch) if len(some)]
        mass = torch.cat(found) if found else self.maps.new_zeros(0, *self._size)
        total = mass.sum(dim=(-2, -1), keepdim=True)
        even = 1 / (self._size[0] * self._size[1])
        return torch.where(total > LEAST_TOTAL, mass / total.clamp(min=LEAST_TOTAL), even)

    def _mass(self, peaks: Tensor) -> Tensor:
        """Mass at every pixel, summed over the colours: [N, H, W]."""
        ones = self.maps.new_zeros(len(peaks), *self.maps.shape)
        classes, rows, columns = peaks.T
        ones[torch.arange(len(peaks), device=ones.device), classes, rows, columns] = 1
        back = self._run.back(ones.contiguous(memory_format=torch.channels_last))
        return back.sum(dim=1).clamp(min=0)


class _Run(fx.Interpreter):
    """Runs a network and keeps, for every step, which maps it took and how mass goes back."""

    def __init__(
        self, traced: fx.GraphModule, positive: dict[str, PositiveConvolution], conserving: bool
    ) -> None:
        super().__init__(traced)
        self.positive, self.conserving = positive, conserving
        self.steps: list[tuple[fx.Node, list[fx.Node], Rule]] = []
        self.of_image: set[fx.Node] = set()
        self.largest = 1

    def run_node(self, n: fx.Node) -> Any:
        """Run one step; what depends on the image gets a rule."""
        if n.op == "placeholder":
            self.of_image.add(n)
        if n.op not in ("call_module", "call_function", "call_method"):
            return super().run_node(n)
        sources = [source for source in n.all_input_nodes if source in self.of_image]
        if not sources:
            return super().run_node(n)
        out, rule = self._step(n, tuple(self.env[source] for source in sources), sources)
        self.of_image.add(n)
        self.largest = max(self.largest, out.numel() * out.element_size())
        self.steps.append((n, sources, rule))
        return out

    def back(self, mass: Tensor) -> Tensor:
        """From mass on the class maps, [N, C, h, w], to mass on the image, [N, 3, H, W]."""
        masses = {self.steps[-1][0]: Mass(mass)}
        for node, sources, rule in reversed(self.steps):
            if node not in masses:  # a branch that ends nowhere
                continue
            for source, part in zip(sources, rule(masses.pop(node)), strict=True):
                if part is None:
                    continue
                masses[source] = masses[source] + part if source in masses else part
        (arrived,) = masses.values()
        return arrived.whole()

    def _step(
        self, n: fx.Node, maps: tuple[Tensor, ...], sources: list[fx.Node]
    ) -> tuple[Any, Rule]:
        if n.op == "call_module" and n.target in self.positive:
            rule = convolution(maps[0], self.positive[str(n.target)])
            return super().run_node(n), rule
        if self.conserving and n.op == "call_function" and n.target in ADDITIONS and len(maps) == 2:
            rule = addition(*maps)
            return super().run_node(n), rule
        if self.conserving and n.op == "call_function" and n.target in PRODUCTS and len(maps) == 2:
            return super().run_node(n), gated(*maps)
        if self.conserving and len(maps) == 1 and self._passes(n):
            return super().run_node(n), passed_on
        if n.op == "call_module":
            module = self.fetch_attr(str(n.target))
            if isinstance(module, nn.BatchNorm2d | nn.ReLU | nn.ReLU6):
                out = super().run_node(n)
                return out, scaled(_slope(module, out))
        return derivative(self._function(n, sources), maps)

    def _passes(self, n: fx.Node) -> bool:
        if n.op == "call_module":
            return isinstance(self.fetch_attr(str(n.target)), PASSING_MODULES)
        return n.op == "call_function" and n.target in PASSING_FUNCTIONS

    def _function(self, n: fx.Node, sources: list[fx.Node]) -> Any:
        """The step as a function of its maps, which it leaves as they are."""

        def call(*maps: Tensor) -> Any:
            values = {s: value.clone() for s, value in zip(sources, maps, strict=True)}
            known = {node: values.get(node, self.env.get(node)) for node in n.all_input_nodes}
            args = fx.node.map_arg(n.args, known.__getitem__)
            kwargs = fx.node.map_arg(n.kwargs, known.__getitem__)
            return getattr(self, n.op)(n.target, args, kwargs)

        return call


def _slope(module: nn.Module, out: Tensor) -> Tensor:
    """The derivative of a normalisation [1, C, 1, 1], or of a rectifier that gave `out`."""
    if isinstance(module, nn.BatchNorm2d):
        assert module.running_var is not None
        slope = (module.running_var + module.eps).rsqrt()
        slope = slope if module.weight is None else slope * module.weight
        return slope[None, :, None, None]
    return ((out > 0) & (out < (6 if isinstance(module, nn.ReLU6) else torch.inf))).float()


def _signs(traced: fx.GraphModule) -> dict[str, Tensor]:
    """Of each convolution that batch normalisation follows, its factor's sign by channel.

    The size of that factor cancels in the shares, its sign does not.
    """
    signs = {}
    for node in traced.graph.nodes:
        if node.op != "call_module":
            continue
        before, module = node.args[0], traced.get_submodule(node.target)
        if before.op == "call_module" and isinstance(module, nn.BatchNorm2d) and module.affine:
            signs[str(before.target)] = torch.where(module.weight.detach() < 0, -1.0, 1.0)
    return signs


LEAST_TOTAL = 1e-10
"""Where all contributions together are below this, nothing goes further back."""


@dataclass(frozen=True)
class Mass:
    """The mass of N peaks on the maps of one layer, `values * factor`.

    What all peaks share is multiplied first and once, so that few passes go over the large tensor.

    Args:
        values: [N, C, h, w].
        factor: [1, C, h, w], or what broadcasts to it; None is 1.
    """

    values: Tensor
    factor: Tensor | None = None

    def times(self, factor: Tensor) -> Mass:
        return Mass(self.values, factor if self.factor is None else self.factor * factor)

    def whole(self) -> Tensor:
        return self.values if self.factor is None else self.values * self.factor

    def __add__(self, other: Mass) -> Mass:
        if other.factor is None:
            return Mass(self.whole() + other.values)
        return Mass(torch.addcmul(self.whole(), other.values, other.factor))


Rule = Callable[[Mass], tuple[Mass | None, ...]]


class PositiveConvolution:
    """The positive part of a convolution's weights, to go forth and back through.

    Args:
        module: the convolution.
        signs: factors of its output channels, [outputs], if there are any.
    """

    def __init__(self, module: nn.Conv2d, signs: Tensor | None = None) -> None:
        if module.padding_mode != "zeros" or isinstance(module.padding, str):
            raise ValueError(f"{module}: only padding with zeros, by numbers, is supported")
        weight = module.weight.detach()
        if signs is not None:
            weight = weight * signs[:, None, None, None]
        self.weight = weight.clamp(min=0).contiguous(memory_format=torch.channels_last)
        self.module = module

    def total(self, x: Tensor) -> Tensor:
        """All contributions to each output: [1, C, H, W] to [1, D, h, w]."""
        m = self.module
        return F.conv2d(x, self.weight, None, m.stride, m.padding, m.dilation, m.groups)

    def returned(self, mass: Tensor, size: tuple[int, ...]) -> Tensor:
        """What the outputs' mass [N, D, h, w] brings to each input: [N, C, H, W].

        Args:
            size: of the inputs, (H, W); several sizes have outputs of h x w.
        """
        m = self.module
        padding: Any = m.padding
        sides = zip(size, mass.shape[2:], m.stride, padding, m.dilation, m.kernel_size, strict=True)
        rest = [n - ((o - 1) * s - 2 * p + d * (k - 1) + 1) for n, o, s, p, d, k in sides]
        # Faster than `torch.nn.grad.conv2d_input`, nine times so where channels are apart.
        return F.conv_transpose2d(
            mass, self.weight, None, m.stride, padding, rest, m.groups, m.dilation
        )


def convolution(x: Tensor, positive: PositiveConvolution) -> Rule:
    """Inputs share an output's mass by (x - min x) times the positive weight between them."""
    above = x - x.amin()
    total = positive.total(above)
    share = torch.where(total > LEAST_TOTAL, 1 / total.clamp(min=LEAST_TOTAL), 0)
    size = tuple(x.shape[2:])
    return lambda mass: (Mass(positive.returned(mass.times(share).whole(), size), above),)


def addition(first: Tensor, second: Tensor) -> Rule:
    """Terms share the mass by their positive parts; evenly where neither has one."""
    positive = first.clamp(min=0)
    total = positive + second.clamp(min=0)
    share = torch.where(total > LEAST_TOTAL, positive / total.clamp(min=LEAST_TOTAL), 0.5)
    rest = 1 - share
    return lambda mass: (mass.times(share), mass.times(rest))


def gated(first: Tensor, second: Tensor) -> Rule:
    """The larger of two maps that are multiplied has all the mass; the other opened the gate."""
    if second.numel() > first.numel():
        return lambda mass: (None, mass)
    return lambda mass: (mass, None)


def passed_on(mass: Mass) -> tuple[Mass]:
    """The mass as it is: for rectifiers, normalisations, and arithmetic with constants."""
    return (mass,)


def scaled(factor: Tensor) -> Rule:
    """The mass times a factor, as the derivative of a rectifier or a normalisation has it."""
    return lambda mass: (mass.times(factor),)


def derivative(function: Callable[..., Tensor], maps: tuple[Tensor, ...]) -> tuple[Tensor, Rule]:
    """A layer's own derivative, for layers without a rule; also gives the layer's value.

    Max pooling, average pooling and interpolation keep the sum by it.
    """
    out, back = torch.func.vjp(function, *maps)[:2]
    every: Any = torch.vmap(back)

    def rule(mass: Mass) -> tuple[Mass, ...]:
        return tuple(Mass(found[:, 0]) for found in every(mass.whole()[:, None]))

    return out, rule


@dataclass(frozen=True)
class Axis:
    """Middles of cells along one axis: cell i's is at start + i * step, in pixels of the input."""

    start: float = 0.5
    step: float = 1.0

    def after(self, kernel: int, stride: int, padding: int, dilation: int = 1) -> Axis:
        """The same after a convolution or a pooling."""
        shift = dilation * (kernel - 1) / 2 - padding
        return Axis(self.start + shift * self.step, self.step * stride)


@dataclass(frozen=True)
class Cells:
    """Middles of a map's cells, down and across.

    Example:
        >>> Cells.of(fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.MaxPool2d(2))))
        Cells(down=Axis(start=1.5, step=4.0), across=Axis(start=1.5, step=4.0))
    """

    down: Axis = Axis()
    across: Axis = Axis()

    @classmethod
    def of(cls, traced: fx.GraphModule) -> Cells:
        """Of a network's output. Branches that meet are taken to have their cells alike."""
        known: dict[fx.Node, Cells] = {}
        last = cls()
        for node in traced.graph.nodes:
            sources = [known[source] for source in node.all_input_nodes if source in known]
            if node.op == "placeholder":
                known[node] = cls()
            elif sources:
                last = known[node] = sources[0]
                if node.op == "call_module":
                    last = known[node] = _after(last, traced.get_submodule(node.target))
        return last

    def points(self, cells: tuple[int, int], scale: tuple[float, float]) -> tuple[Tensor, Tensor]:
        """Middles of rows [h] and columns [w], in an image `scale` times as large as the input."""
        rows = (self.down.start + self.down.step * torch.arange(cells[0])) * scale[0]
        columns = (self.across.start + self.across.step * torch.arange(cells[1])) * scale[1]
        return rows, columns

    def evenly(self, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """Maps [C, h, w] of an input of that size, sampled at the middles of h x w equal cells."""
        places = []
        for axis, cells, length in zip((self.down, self.across), maps.shape[1:], size, strict=True):
            middles = (torch.arange(cells, device=maps.device) + 0.5) * length / cells
            places.append(2 * (middles - axis.start) / axis.step / max(cells - 1, 1) - 1)
        grid = torch.stack(torch.meshgrid(*places, indexing="ij")[::-1], dim=-1)
        return F.grid_sample(maps[None], grid[None], padding_mode="border", align_corners=True)[0]


def _after(cells: Cells, module: nn.Module) -> Cells:
    if not isinstance(module, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
        return cells
    kernel, padding = _both(module.kernel_size), _both(module.padding)
    stride, dilation = _both(module.stride), _both(getattr(module, "dilation", 1))
    return replace(
        cells,
        down=cells.down.after(kernel[0], stride[0], padding[0], dilation[0]),
        across=cells.across.after(kernel[1], stride[1], padding[1], dilation[1]),
    )


def _both(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
