"""How mass goes back through one layer: split among the inputs by what they contributed.

Pure functions. Each takes what the layer saw and gives a rule: from the mass on the layer's output,
[N, ...] for N peaks, to the mass on its inputs. All but `scaled` and
`derivative` keep the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input

Rule = Callable[[Tensor], tuple[Tensor, ...]]

SMALLEST = 1e-10
"""Where all contributions together are below this, nothing goes further back."""


@dataclass(frozen=True)
class PositiveConvolution:
    """The positive part of a convolution's weights, ready for both directions.

    Args:
        forth: [outputs, inputs / groups, k, k].
        back: the same with inputs and outputs exchanged and turned by half a circle: convolving
            with it goes back, where the stride is 1. That is faster than the transposed operation.
    """

    forth: Tensor
    back: Tensor | None
    module: nn.Conv2d

    @classmethod
    def of(cls, module: nn.Conv2d, signs: Tensor | None = None) -> PositiveConvolution:
        """Of a module, its output channels multiplied by `signs` if they are given."""
        if module.padding_mode != "zeros" or isinstance(module.padding, str):
            raise ValueError(f"{module}: only padding with zeros, by numbers, is supported")
        weight = module.weight.detach()
        if signs is not None:
            weight = weight * signs[:, None, None, None]
        forth = weight.clamp(min=0).contiguous(memory_format=torch.channels_last)
        reach = cls._reach(module)
        if module.stride != (1, 1) or min(reach) < 0:
            return cls(forth, None, module)
        outputs, inputs, *kernel = forth.shape
        groups = module.groups
        turned = forth.view(groups, outputs // groups, inputs, *kernel).transpose(1, 2)
        back = turned.reshape(groups * inputs, outputs // groups, *kernel).flip(2, 3)
        return cls(forth, back.contiguous(memory_format=torch.channels_last), module)

    def total(self, x: Tensor) -> Tensor:
        """All contributions to each output: [1, C, H, W] to [1, D, h, w]."""
        m = self.module
        return F.conv2d(x, self.forth, None, m.stride, m.padding, m.dilation, m.groups)

    def returned(self, mass: Tensor, size: tuple[int, ...]) -> Tensor:
        """What the outputs' mass [N, D, h, w] brings to each input: [N, C, H, W], `size` of it."""
        m = self.module
        if self.back is not None:
            return F.conv2d(mass, self.back, None, 1, self._reach(m), m.dilation, m.groups)
        return conv2d_input(
            (len(mass), *size[1:]), self.forth, mass, m.stride, m.padding, m.dilation, m.groups
        )

    @staticmethod
    def _reach(module: nn.Conv2d) -> tuple[int, int]:
        """The padding with which convolving goes back."""
        padding: Any = module.padding
        sides = zip(module.dilation, module.kernel_size, padding, strict=True)
        down, across = (d * (k - 1) - p for d, k, p in sides)
        return down, across


def convolution(x: Tensor, positive: PositiveConvolution) -> Rule:
    """Inputs share an output's mass by (x - min x) times the positive weight between them."""
    above = x - x.amin()
    total = positive.total(above)
    share = torch.where(total > SMALLEST, 1 / total.clamp(min=SMALLEST), 0)
    size = tuple(x.shape)
    return lambda mass: (positive.returned(mass * share, size).mul_(above),)


def addition(first: Tensor, second: Tensor) -> Rule:
    """Terms share the mass by their positive parts; evenly where neither has one."""
    positive = first.clamp(min=0)
    total = positive + second.clamp(min=0)
    share = torch.where(total > SMALLEST, positive / total.clamp(min=SMALLEST), 0.5)

    def back(mass: Tensor) -> tuple[Tensor, Tensor]:
        one = mass * share
        return one, mass - one

    return back


def passed_on(mass: Tensor) -> tuple[Tensor]:
    """The mass as it is: for rectifiers, normalisations, and arithmetic with constants."""
    return (mass,)


def scaled(factor: Tensor) -> Rule:
    """The mass times a factor, as the derivative of a rectifier or a normalisation has it."""
    return lambda mass: (mass * factor,)


def derivative(function: Callable[..., Tensor], maps: tuple[Tensor, ...]) -> tuple[Tensor, Rule]:
    """A layer's own derivative, for layers without a rule; also gives the layer's value.

    Max pooling, average pooling and interpolation keep the sum by it.
    """
    out, back = torch.func.vjp(function, *maps)[:2]
    every: Any = torch.vmap(back)

    def rule(mass: Tensor) -> tuple[Tensor, ...]:
        return tuple(found[:, 0] for found in every(mass[:, None]))

    return out, rule
