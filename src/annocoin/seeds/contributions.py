"""How mass goes back through one layer: split among the inputs by what they contributed.

Pure functions. Each takes what the layer saw and gives a rule: from the mass on the layer's output
to the mass on each of its inputs. All but `scaled` and `derivative` keep the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SMALLEST = 1e-10
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
    share = torch.where(total > SMALLEST, 1 / total.clamp(min=SMALLEST), 0)
    size = tuple(x.shape[2:])
    return lambda mass: (Mass(positive.returned(mass.times(share).whole(), size), above),)


def addition(first: Tensor, second: Tensor) -> Rule:
    """Terms share the mass by their positive parts; evenly where neither has one."""
    positive = first.clamp(min=0)
    total = positive + second.clamp(min=0)
    share = torch.where(total > SMALLEST, positive / total.clamp(min=SMALLEST), 0.5)
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
