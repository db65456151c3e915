"""Small networks with every kind of layer, and peak back-propagation one peak at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """Convolutions of all kinds, normalisation, both rectifiers, pooling, a residual addition."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Conv2d(3, 6, 3, stride=2, padding=1)
        self.bn1 = nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False)
        self.bn2 = nn.BatchNorm2d(6)
        self.relu6 = nn.ReLU6(inplace=True)
        self.project = nn.Conv2d(6, 6, 1)
        self.bn3 = nn.BatchNorm2d(6)
        self.head = nn.Conv2d(6, 4, 1)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1, 1)  # some factors are negative
                nn.init.normal_(module.bias, 0.5)
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.5) / 0.25
        x = self.pool(self.relu(self.bn1(self.first(x))))
        out = self.bn3(self.project(self.relu6(4 * self.bn2(self.depthwise(x)))))
        out += x
        return self.head(self.relu(out))


class _Before(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, above):
        ctx.save_for_backward(above)
        return x.clone()

    @staticmethod
    def backward(ctx, mass):
        return mass * ctx.saved_tensors[0], None


class _After(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out, total):
        ctx.save_for_backward(total)
        return out.clone()

    @staticmethod
    def backward(ctx, mass):
        (total,) = ctx.saved_tensors
        return torch.where(total > 1e-10, mass / total, 0), None


class PeakConvolution(nn.Module):
    """A convolution whose backward pass is PRM's, by autograd."""

    def __init__(self, inner: nn.Conv2d) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        m = self.inner
        geometry = (m.stride, m.padding, m.dilation, m.groups)
        above = (x - x.min()).detach()
        positive = m.weight.detach().relu()
        total = nn.functional.conv2d(above, positive, None, *geometry)
        with torch.no_grad():
            value = m(x)
        linear = nn.functional.conv2d(_Before.apply(x, above), positive, None, *geometry)
        return _After.apply(linear, total) + (value - linear).detach()


def one_by_one(net: nn.Module, image: Tensor, peaks: Tensor) -> Tensor:
    """The published rule: a backward pass of autograd for each peak, [N, H, W]; changes the net."""
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Conv2d) and not isinstance(module, PeakConvolution):
                setattr(module, name, PeakConvolution(child))
    pixels = image[None].clone().requires_grad_()
    maps = net(pixels)
    found = []
    for c, row, column in peaks.tolist():
        (mass,) = torch.autograd.grad(maps[0, c, row, column], pixels, retain_graph=True)
        mass = mass[0].sum(dim=0).clamp(min=0)
        found.append(mass / mass.sum())
    return torch.stack(found)
