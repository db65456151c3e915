"""The point of a seed: a peak's cell is coarse, its response shows where it really comes from."""

from __future__ import annotations

import cv2
import numpy as np
import torch
from torch import Tensor

from annocoin.types import Annotation

BLUR = 0.024
"""The deviation of the blur, as a share of the image's longer side: single pixels say little."""


def settled(points: Tensor, responses: Tensor, marks: Tensor, annotation: Annotation) -> Tensor:
    """Points moved to where their responses are densest: float32 [N, 2], x, y.

    The seeds of a box stay in it; a point or a mask that a person gave stays where it is.

    Args:
        points: float32 [N, 2], in the image.
        responses: [N, h, w], at any resolution.
        marks: the mark that each is for, int64 [N].
    """
    moved = points.clone()
    height, width = responses.shape[1:]
    across, down = annotation.size[1] / width, annotation.size[0] / height
    columns = (np.arange(width) + 0.5) * across
    rows = (np.arange(height) + 0.5) * down
    for i, number in enumerate(marks.tolist()):
        mark = annotation[number]
        if mark.point is not None or mark.mask is not None:
            continue
        dense = cv2.GaussianBlur(
            responses[i].numpy(), (0, 0), BLUR * max(height, width), borderType=cv2.BORDER_CONSTANT
        )
        if mark.box is not None:
            x0, y0, x1, y1 = mark.box
            inside = ((rows >= y0) & (rows < y1))[:, None] & ((columns >= x0) & (columns < x1))
            if not inside.any():  # smaller than a pixel of the response
                continue
            dense = np.where(inside, dense, -1)
        row, column = np.unravel_index(int(dense.argmax()), dense.shape)
        moved[i] = torch.tensor([columns[column], rows[row]])
    return moved
