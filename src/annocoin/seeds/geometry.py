"""Where the cells of a class map lie in the image: not where a grid of equal cells would have them.

With the usual padding, a convolution of stride 2 looks at pixels 0, 2, 4, ...: after five of them
the first cell's middle is the image's first pixel, half a cell from where one would draw it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F


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
