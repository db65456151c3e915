"""Where cells lie: against the pixels that a network's output depends on."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn

from annocoin.backbones import build_backbone, tiny_backbone
from annocoin.seeds.back_propagation import Cells


def middle_by_gradient(net: nn.Module, size: int, cell: int) -> float:
    """The middle of the pixels along a row that a cell far from the rims depends on."""
    image = torch.rand(1, 3, size, size, dtype=torch.float64, requires_grad=True)
    out = net.double()(image)
    out[0, :, out.shape[2] // 2, cell].sum().backward()
    assert image.grad is not None
    (columns,) = image.grad[0].abs().sum(dim=(0, 1)).nonzero(as_tuple=True)
    return float(columns.min() + columns.max() + 1) / 2


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1)),
        nn.Sequential(nn.Conv2d(3, 4, 7, 2, 3), nn.AvgPool2d(3, 2, 1), nn.Conv2d(4, 4, 1, 2)),
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AvgPool2d(2), nn.Conv2d(4, 4, 2, 2)),
        nn.Sequential(nn.Conv2d(3, 4, 3, dilation=2), nn.Conv2d(4, 4, 4, 3, 1)),
    ],
)
def test_middles_are_those_of_what_a_cell_sees(net: nn.Sequential) -> None:
    axis = Cells.of(fx.symbolic_trace(net)).across
    for cell in (3, 4):
        assert axis.start + cell * axis.step == middle_by_gradient(net, 64, cell)


def test_residual_networks_begin_at_the_first_pixel() -> None:
    for net, stride in ((tiny_backbone(), 8), (build_backbone("resnet18", "none"), 32)):
        cells = Cells.of(fx.symbolic_trace(net))
        assert (cells.down.start, cells.down.step) == (0.5, stride)
    vgg = Cells.of(fx.symbolic_trace(build_backbone("vgg11", "none")))
    assert (vgg.across.start, vgg.across.step) == (16, 32)


def test_points_and_even_maps() -> None:
    cells = Cells.of(fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 1, 3, 2, 1))))
    rows, columns = cells.points((2, 3), (2.0, 10.0))
    assert rows.tolist() == [1, 5]
    assert columns.tolist() == [5, 25, 45]
    ramp = (0.5 + 2 * torch.arange(8.0)).view(1, 1, 8).expand(1, 3, 8)  # each cell's own middle
    even = cells.evenly(ramp, (6, 16))
    expected = ((torch.arange(8) + 0.5) * 2).clamp(max=14.5)
    assert torch.allclose(even[0, 0], expected)
    assert cells.evenly(torch.ones(2, 1, 1), (5, 9)).tolist() == [[[1.0]], [[1.0]]]
