"""Diffusion over superpixels: by hand, against its energy by loops over pixels, and its limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.evidence import diffuse
from regions.test_region_set import pixel_sides
from regions.worlds import World, worlds

HALVES = np.repeat([[0] * 5 + [1] * 5], 10, axis=0)  # two superpixels of 10 x 5 pixels


def halves(edge: float) -> RegionSet:
    """Two superpixels with a mean boundary probability on the border of 10 pixel sides."""
    return RegionSet.of(HALVES, np.eye(2), edges=np.full(HALVES.shape, edge))


def random_values(world: World, seed: int, rows: int = 2) -> torch.Tensor:
    count = world.members.shape[1]
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, count, generator=generator, dtype=torch.float64)


def borders(world: World) -> dict[tuple[int, int], list[float]]:
    """The boundary probability on every pixel side between two superpixels."""
    values: dict[tuple[int, int], list[float]] = {}
    for a, b, value in pixel_sides(world):
        first, second = sorted((int(world.ids[a]), int(world.ids[b])))
        if first != second:
            values.setdefault((first, second), []).append(value)
    return values


def energy(
    world: World, x: list[float], y: list[float], edge_weight: float, fidelity: float
) -> float:
    total = 0.0
    for s in range(len(x)):
        area = int((world.ids == s).sum())
        total += fidelity * math.sqrt(area) * (y[s] - x[s]) ** 2
    for (s, t), sides in borders(world).items():
        mean = sum(sides) / len(sides)
        total += len(sides) * math.exp(-edge_weight * mean) * (y[s] - y[t]) ** 2
    return total


@pytest.mark.parametrize("edge", [0.0, 0.25, 1.0])
def test_two_superpixels_by_hand(edge: float) -> None:
    """The derivatives of the energy are 0 where keep (y - x) = conductance (y' - y)."""
    conductance, keep = 10 * math.exp(-2 * edge), 0.5 * math.sqrt(50)
    total = keep + 2 * conductance
    expected = [(keep + conductance) / total, conductance / total]
    result = diffuse(halves(edge), torch.tensor([[1.0, 0.0]]), edge_weight=2, fidelity=0.5)
    assert result.dtype == torch.float32
    assert result[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_small_superpixel_takes_the_value_of_a_large_one() -> None:
    """Areas 1 and 16, one pixel side between them: y0 (1 + 1) = y1 and y1 (4 + 1) = y0 + 4 x1."""
    regions = RegionSet.of([[0, *[1] * 16]], np.eye(2))
    result = diffuse(regions, torch.tensor([[0.0, 9.0]]), fidelity=1.0)
    assert result[0].tolist() == pytest.approx([4.0, 8.0], abs=1e-5)


@given(worlds(), st.integers(0, 1000), st.floats(0, 8), st.sampled_from([0.01, 0.3, 2]))
def test_no_other_value_of_a_superpixel_has_less_energy(
    world: World, seed: int, edge_weight: float, fidelity: float
) -> None:
    """The energy is convex, so that this is its minimum."""
    values = random_values(world, seed, rows=1)
    result = diffuse(world.regions, values, edge_weight=edge_weight, fidelity=fidelity)
    x, y = values[0].tolist(), result[0].tolist()
    lowest = energy(world, x, y, edge_weight, fidelity)
    for s in range(len(x)):
        for step in (-0.1, -1e-3, 1e-3, 0.1):
            other = [*y[:s], y[s] + step, *y[s + 1 :]]
            assert energy(world, x, other, edge_weight, fidelity) >= lowest - 1e-12


@given(worlds(), st.integers(0, 1000))
def test_values_stay_between_the_extremes_and_constants_constant(world: World, seed: int) -> None:
    values = random_values(world, seed)
    values[1] = 0.7
    result = diffuse(world.regions, values)
    assert result.shape == values.shape
    assert float(result[0].min()) >= float(values[0].min()) - 1e-9
    assert float(result[0].max()) <= float(values[0].max()) + 1e-9
    torch.testing.assert_close(result[1], values[1])


@given(worlds(), st.integers(0, 1000))
def test_rows_are_independent_and_the_result_is_linear(world: World, seed: int) -> None:
    values = random_values(world, seed, rows=3)
    result = diffuse(world.regions, values)
    torch.testing.assert_close(diffuse(world.regions, values[1:2]), result[1:2])
    mixed = diffuse(world.regions, 2 * values[:1] - values[1:2])
    torch.testing.assert_close(mixed, 2 * result[:1] - result[1:2])
    assert diffuse(world.regions, values[:0]).shape == (0, values.shape[1])


def test_a_strong_edge_separates_and_none_mixes() -> None:
    values = torch.tensor([[1.0, 0.0]])
    assert diffuse(halves(0.0), values)[0].tolist() == pytest.approx([0.5, 0.5], abs=0.01)
    separated = diffuse(halves(1.0), values)[0].tolist()
    assert separated == pytest.approx([1, 0], abs=0.05)
    rising = [float(diffuse(halves(e), values)[0, 0]) for e in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert rising == sorted(rising)


def test_superpixels_that_do_not_touch_keep_their_values_apart() -> None:
    """The first and the last touch only the second, whose borders are strong."""
    ids = np.repeat([[0, 0, 1, 1, 2, 2]], 4, axis=0)
    regions = RegionSet.of(ids, np.eye(3), edges=np.ones(ids.shape))
    result = diffuse(regions, torch.tensor([[1.0, 0.0, 0.0]]), edge_weight=100)
    assert result[0].tolist() == pytest.approx([1, 0, 0], abs=1e-6)


@given(worlds(), st.integers(0, 1000))
def test_an_enlarged_image_has_the_same_result(world: World, seed: int) -> None:
    values = random_values(world, seed)
    enlarged = RegionSet.of(
        world.ids.repeat(2, axis=0).repeat(2, axis=1),
        world.members,
        edges=world.edges.repeat(2, axis=0).repeat(2, axis=1),
    )
    small = diffuse(world.regions, values)
    torch.testing.assert_close(diffuse(enlarged, values), small, rtol=1e-5, atol=1e-5)


def test_extreme_edges_and_few_superpixels() -> None:
    single = RegionSet.of(np.zeros((3, 3), int), [[1]])
    assert diffuse(single, torch.tensor([[3.0]])).tolist() == [[3.0]]
    values = torch.tensor([[1.0, 0.0]])
    torch.testing.assert_close(diffuse(halves(1.0), values, edge_weight=1e4), values)
    unweighted = diffuse(halves(1.0), values, edge_weight=0)
    torch.testing.assert_close(unweighted, diffuse(halves(0.0), values))


@pytest.mark.parametrize("shape", [(2,), (1, 3), (1, 2, 2), (2, 1)])
def test_values_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected \[C, 2\]"):
        diffuse(halves(0.0), torch.zeros(shape))


@pytest.mark.parametrize(
    "option",
    [
        {"edge_weight": -1.0},
        {"fidelity": 0.0},
        {"fidelity": -1.0},
        {"edge_weight": math.nan},
        {"fidelity": math.nan},
    ],
)
def test_bad_options(option: dict[str, float]) -> None:
    with pytest.raises(InputError, match="expected 0 or more, and above 0"):
        diffuse(halves(0.0), torch.zeros(1, 2), **option)
