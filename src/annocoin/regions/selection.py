"""Selection: the best candidates that differ enough from one another, the first most of all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

ROUNDS = ((100, 0.65), (300, 0.75), (600, 0.8), (1_000_000, 0.85), (1_000_000, 0.95))
"""(until so many are chosen, the IoU that two of them may have). The first ones cover the image,
those after them refine; the last round is for images with few candidates."""

BLOCK = 256


def select(
    members: npt.NDArray[np.bool_],
    areas: npt.NDArray[np.int64],
    limit: int,
    rounds: Sequence[tuple[int, float]] = ROUNDS,
) -> npt.NDArray[np.int64]:
    """Positions of at most `limit` candidates, in the order in which they were chosen.

    Each round walks through the candidates that are left, best first, and takes those whose IoU
    with everything taken before is at most the round's.

    Args:
        members: candidates by falling worth, [N, S].
        areas: pixels of each superpixel, [S].
    """
    chosen = _Chosen(members, areas, limit)
    for until, most in rounds:
        rest = np.flatnonzero(chosen.worst <= most)
        for start in range(0, len(rest), BLOCK):
            if len(chosen) >= min(until, limit):
                break
            chosen.take(rest[start : start + BLOCK], most, min(until, limit))
    return np.asarray(chosen.positions, dtype=np.int64)


class _Chosen:
    """What was taken so far, and for each candidate the greatest IoU with it that is known."""

    def __init__(
        self, members: npt.NDArray[np.bool_], areas: npt.NDArray[np.int64], limit: int
    ) -> None:
        self.members = members.astype(np.float32)
        self.weights = areas.astype(np.float32)
        self.sizes = self.members @ self.weights
        self.worst = np.zeros(len(members), dtype=np.float32)
        self.compared = np.zeros(len(members), dtype=np.int64)  # with so many of the taken ones
        self.positions: list[int] = []
        self._weighted = np.empty((min(limit, len(members)), members.shape[1]), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, block: npt.NDArray[np.int64], most: float, until: int) -> None:
        """Take from the candidates of `block`, in their order, what differs enough."""
        begin = int(self.compared[block].min())
        if begin < len(self):
            overlap = self._iou(block, np.asarray(self.positions[begin:]), begin)
            self.worst[block] = np.maximum(self.worst[block], overlap.max(axis=1))
            self.compared[block] = len(self)
        block = block[self.worst[block] <= most]
        weighted = self.members[block] * self.weights
        common = weighted @ self.members[block].T
        sizes = self.sizes[block]
        among = common / (sizes[:, None] + sizes[None, :] - common)
        worst = self.worst[block]
        for i, position in enumerate(block.tolist()):
            if worst[i] > most:
                continue
            self._weighted[len(self)] = weighted[i]
            self.positions.append(position)
            np.maximum(worst, among[i], out=worst)  # with itself 1: never taken again
            if len(self) >= until:
                break
        self.worst[block] = worst

    def _iou(
        self, block: npt.NDArray[np.int64], taken: npt.NDArray[np.int64], begin: int
    ) -> npt.NDArray[np.float32]:
        common = self.members[block] @ self._weighted[begin : begin + len(taken)].T
        union = self.sizes[block][:, None] + self.sizes[taken][None, :] - common
        return np.asarray(common / union, dtype=np.float32)
