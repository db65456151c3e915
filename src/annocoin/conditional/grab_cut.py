"""GrabCut: the object in a box, by colour models of the box's inside and outside."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

ROUNDS = 3


def grab_cut(
    image: npt.NDArray[np.uint8], place: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_] | None:
    """The object that fills most of a place, bool [H, W]; None if there is nothing to go by.

    Args:
        image: RGB, [H, W, 3].
        place: where the object may be, [H, W], such as a box; not all of the image.
    """
    if place.all() or not place.any():
        return None
    state = np.where(place, cv2.GC_PR_FGD, cv2.GC_BGD).astype(np.uint8)
    models = np.zeros((2, 1, 65))
    cv2.setRNGSeed(0)
    try:
        cv2.grabCut(image, state, (0, 0, 1, 1), models[0], models[1], ROUNDS, cv2.GC_INIT_WITH_MASK)
    except cv2.error:  # too few pixels for its colour models
        return None
    cut = np.isin(state, (cv2.GC_FGD, cv2.GC_PR_FGD))
    return cut if cut.any() else None
