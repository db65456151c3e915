"""Peak back-propagation: which pixels a peak of a class map comes from.

A peak's unit of mass goes back through the network, split at every layer by how much each input
contributed, so that the map that arrives at the image sums to one. The network is traced once; a
run on an image keeps a rule for each of its steps, and mass then goes back through the rules, all
peaks of the image at once. Nothing is patched, and no gradient is computed.
"""

from __future__ import annotations

import operator
from typing import Any, Literal, get_args

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from annocoin.errors import check_choice
from annocoin.seeds import contributions
from annocoin.seeds.contributions import SMALLEST, Mass, PositiveConvolution, Rule
from annocoin.seeds.geometry import Cells

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
        return torch.where(total > SMALLEST, mass / total.clamp(min=SMALLEST), even)

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
            rule = contributions.convolution(maps[0], self.positive[str(n.target)])
            return super().run_node(n), rule
        if self.conserving and n.op == "call_function" and n.target in ADDITIONS and len(maps) == 2:
            rule = contributions.addition(*maps)
            return super().run_node(n), rule
        if self.conserving and n.op == "call_function" and n.target in PRODUCTS and len(maps) == 2:
            return super().run_node(n), contributions.gated(*maps)
        if self.conserving and len(maps) == 1 and self._passes(n):
            return super().run_node(n), contributions.passed_on
        if n.op == "call_module":
            module = self.fetch_attr(str(n.target))
            if isinstance(module, nn.BatchNorm2d | nn.ReLU | nn.ReLU6):
                out = super().run_node(n)
                return out, contributions.scaled(_slope(module, out))
        return contributions.derivative(self._function(n, sources), maps)

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
