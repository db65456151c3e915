"""Random small region sets, with their superpixels and masks as arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from annocoin.regions.region_set import RegionSet


@dataclass(frozen=True)
class World:
    """A random superpixel map with random regions."""

    ids: npt.NDArray[np.int64]
    members: npt.NDArray[np.bool_]
    edges: npt.NDArray[np.float64]

    @property
    def regions(self) -> RegionSet:
        return RegionSet.of(self.ids, self.members, edges=self.edges)

    @property
    def masks(self) -> npt.NDArray[np.bool_]:
        return self.members[:, self.ids]


@st.composite
def worlds(draw: st.DrawFn, max_regions: int = 7) -> World:
    """Superpixels need not be connected; every region has at least one."""
    height, width = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    raw = rng.integers(0, draw(st.integers(1, 9)), (height, width))
    if draw(st.booleans()):  # larger superpixels
        raw = np.repeat(np.repeat(raw, 2, axis=0), 2, axis=1)
    ids = np.unique(raw, return_inverse=True)[1].reshape(raw.shape)
    count = int(ids.max()) + 1
    members = rng.random((draw(st.integers(1, max_regions)), count)) < draw(st.floats(0.1, 0.9))
    members[np.arange(len(members)), rng.integers(0, count, len(members))] = True
    return World(ids, members, rng.random(ids.shape))
