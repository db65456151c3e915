"""Noise z^k: what makes K samples of the conditional network differ."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from annocoin.errors import check_choice, check_positive

NoiseForm = Literal["grid", "pixel", "vector"]
CELLS = 8


def draw_noise(
    samples: int,
    channels: int,
    size: tuple[int, int],
    *,
    form: NoiseForm = "grid",
    cells: int = CELLS,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Noise uniform in -1..1 for K samples of one image, float32 [K, channels, h, w] on the CPU.

    Args:
        size: (h, w) of the features that it joins.
        form: "grid" draws a value for each of cells x cells places and is smooth between them, so
            that it does not average out over a region; "pixel" draws one for every pixel (the
            paper's extra channel, literally); "vector" one for the whole image (as Kohl et al. do).
    """
    check_choice("noise", form, get_args(NoiseForm))
    check_positive("cells", cells)
    drawn = {"grid": (cells, cells), "pixel": size, "vector": (1, 1)}[form]
    noise = torch.rand(samples, channels, *drawn, generator=generator) * 2 - 1
    if form == "grid":
        return F.interpolate(noise, size=size, mode="bilinear", align_corners=True)
    return noise.expand(samples, channels, *size)
