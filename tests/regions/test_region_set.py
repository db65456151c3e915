"""Operations of region sets, against a naive version on pixels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annocoin import masks as rle
from annocoin.regions import algebra
from annocoin.regions.region_set import RegionSet
from regions.worlds import World, worlds


def pixel_sides(world: World) -> list[tuple[tuple[int, int], tuple[int, int], float]]:
    """All pairs of neighbouring pixels with the greater of their edge values."""
    height, width = world.ids.shape
    sides = []
    for y, x in itertools.product(range(height), range(width)):
        for other in ((y, x + 1), (y + 1, x)):
            if other[0] < height and other[1] < width:
                value = max(world.edges[y, x], world.edges[other])
                sides.append(((y, x), other, float(value)))
    return sides


def separating(world: World, u: int, v: int) -> list[float]:
    """Edge values on the pixel sides that separate two regions, straight from the definition."""
    first, second = world.masks[u], world.masks[v]
    both = first | second
    values = []
    for a, b, value in pixel_sides(world):
        crosses = first[a] != first[b] or second[a] != second[b]
        if both[a] and both[b] and crosses and world.ids[a] != world.ids[b]:
            values.append(value)
    return values


@given(worlds())
def test_areas_boxes_and_masks(world: World) -> None:
    regions = world.regions
    masks = world.masks
    assert torch.equal(regions.masks(), torch.from_numpy(masks))
    assert regions.areas.tolist() == masks.sum(axis=(1, 2)).tolist()
    assert regions.superpixel_areas.tolist() == np.bincount(world.ids.ravel()).tolist()
    for mask, box, encoded in zip(masks, regions.boxes.tolist(), regions.rles(), strict=True):
        rows, columns = np.nonzero(mask)
        assert box == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert (rle.decode([encoded], world.ids.shape)[0] == mask).all()


@given(worlds())
def test_overlaps(world: World) -> None:
    regions = world.regions
    iou, share, common = regions.iou(), regions.containment(), regions.intersections()
    for u, v in itertools.product(range(len(regions)), repeat=2):
        first, second = world.masks[u], world.masks[v]
        inside = (first & second).sum()
        assert common[u, v] == inside
        assert iou[u, v] == pytest.approx(inside / (first | second).sum(), abs=1e-6)
        assert share[u, v] == pytest.approx(inside / first.sum(), abs=1e-6)


@given(worlds(), worlds())
def test_overlap_with_masks(world: World, other: World) -> None:
    shape = world.ids.shape
    masks = np.resize(other.masks, (3, *shape))
    iou = world.regions.iou_with(torch.from_numpy(masks))
    for u, v in itertools.product(range(len(world.members)), range(3)):
        union = (world.masks[u] | masks[v]).sum()
        expected = (world.masks[u] & masks[v]).sum() / union
        assert iou[u, v] == pytest.approx(expected, abs=1e-6)


@given(worlds(), st.integers(0, 10**6))
def test_points_and_boxes(world: World, seed: int) -> None:
    height, width = world.ids.shape
    rng = np.random.default_rng(seed)
    points = rng.random((4, 2)) * (width, height)
    points[0] = (width, height)  # the far corner belongs to the last pixel
    contains = world.regions.contains(torch.from_numpy(points))
    for i, (x, y) in enumerate(points):
        pixel = min(int(y), height - 1), min(int(x), width - 1)
        assert contains[:, i].tolist() == world.masks[:, pixel[0], pixel[1]].tolist()
    box = torch.tensor([[0.0, 0.0, width / 2, height]])
    iou = world.regions.box_iou(box)
    for u, (x0, y0, x1, y1) in enumerate(world.regions.boxes.tolist()):
        inter = max(0.0, min(x1, width / 2) - x0) * (y1 - y0)
        union = (x1 - x0) * (y1 - y0) + width / 2 * height - inter
        assert iou[u, 0] == pytest.approx(inter / union, abs=1e-6)


@given(worlds())
def test_edge_strength_between_regions(world: World) -> None:
    total, mean = (
        world.regions.edge_strength_between(),
        world.regions.edge_strength_between(mean=True),
    )
    assert torch.equal(total, total.T)
    for u, v in itertools.product(range(len(world.members)), repeat=2):
        values = separating(world, u, v)
        assert total[u, v] == pytest.approx(sum(values), abs=1e-4)
        assert mean[u, v] == pytest.approx(np.mean(values) if values else 0, abs=1e-4)


@given(worlds())
def test_neighbours_overlap_or_touch(world: World) -> None:
    near = world.regions.neighbours()
    for u, v in itertools.product(range(len(world.members)), repeat=2):
        first, second = world.masks[u], world.masks[v]
        touch = any(
            (first[a] and second[b]) or (first[b] and second[a]) for a, b, _ in pixel_sides(world)
        )
        expected = u != v and bool((first & second).any() or touch)
        assert bool(near[u, v]) == expected


@given(worlds())
def test_rings_touch_regions_from_outside(world: World) -> None:
    rings = world.regions.rings()
    assert rings.shape == world.members.shape
    sides = pixel_sides(world)
    for u, mask in enumerate(world.masks):
        touching = {int(world.ids[a]) for a, b, _ in sides if mask[b] and not mask[a]}
        touching |= {int(world.ids[b]) for a, b, _ in sides if mask[a] and not mask[b]}
        assert set(rings[u].nonzero()[:, 0].tolist()) == touching


def interpolate(values: list[list[float]], size: tuple[int, int]) -> list[list[float]]:
    """Bilinear interpolation of h x w values to another size, cell centre by cell centre."""

    def neighbours(position: int, length: int, cells: int) -> list[tuple[int, float]]:
        centre = (position + 0.5) * cells / length - 0.5
        centre = min(max(centre, 0.0), cells - 1.0)
        first = int(centre)
        return [(first, 1 - centre + first), (min(first + 1, cells - 1), centre - first)]

    height, width = size
    result = [[0.0] * width for _ in range(height)]
    for y, x in itertools.product(range(height), range(width)):
        for row, of_row in neighbours(y, height, len(values)):
            for column, of_column in neighbours(x, width, len(values[0])):
                result[y][x] += of_row * of_column * values[row][column]
    return result


@given(worlds(), st.integers(1, 5), st.integers(1, 5), st.integers(0, 1000))
def test_means_of_maps_over_superpixels(world: World, rows: int, columns: int, seed: int) -> None:
    maps = torch.randn(2, rows, columns, generator=torch.Generator().manual_seed(seed))
    means = world.regions.superpixel_means(maps)
    height, width = world.ids.shape
    for c, single in enumerate(maps.tolist()):
        resized = interpolate(single, (height, width))
        for s in range(world.members.shape[1]):
            inside = [
                resized[y][x]
                for y, x in itertools.product(range(height), range(width))
                if world.ids[y, x] == s
            ]
            assert float(means[c, s]) == pytest.approx(sum(inside) / len(inside), abs=1e-5)


def test_means_over_superpixels_by_hand() -> None:
    regions = RegionSet.of([[0, 0, 1, 2], [0, 0, 1, 2]], [[1, 0, 0]])
    maps = torch.tensor([[[1.0, 3.0, 5.0, 7.0], [2.0, 4.0, 6.0, 8.0]]])
    assert regions.superpixel_means(maps).tolist() == [[2.5, 5.5, 7.5]]
    half = regions.superpixel_means(maps.half())
    assert (half.dtype, half.tolist()) == (torch.float32, [[2.5, 5.5, 7.5]])
    assert regions.rings().tolist() == [[False, True, False]]


@given(worlds(), st.sampled_from(["image", "region", "sum"]), st.booleans())
def test_pooled_features_and_their_gradient(world: World, over: str, batched: bool) -> None:
    shape = (2, 3, *world.ids.shape) if batched else (3, *world.ids.shape)
    features = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    pooled = world.regions.pool(features, over)  # type: ignore[arg-type]
    masks = torch.from_numpy(world.masks).double()
    naive = torch.einsum("...chw,phw->...pc", features, masks)
    if over == "image":
        naive = naive / world.ids.size
    elif over == "region":
        naive = naive / masks.sum(dim=(1, 2))[:, None]
    torch.testing.assert_close(pooled, naive)
    weights = torch.rand_like(pooled)
    (gradient,) = torch.autograd.grad((pooled * weights).sum(), features)
    (expected,) = torch.autograd.grad((naive * weights).sum(), features)
    torch.testing.assert_close(gradient, expected)


def test_features_of_another_resolution_count_for_the_superpixel_under_their_centre() -> None:
    ids = np.array([[0, 0, 0, 1], [0, 0, 0, 1], [2, 2, 2, 2], [2, 2, 2, 2]])
    regions = RegionSet.of(ids, np.eye(3))
    assert algebra.resize_superpixels(regions.superpixels, (2, 2)).tolist() == [[0, 1], [2, 2]]
    features = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    assert regions.pool(features, "sum").flatten().tolist() == [1.0, 2.0, 7.0]
    assert regions.pool(features, "region").flatten().tolist() == [1.0, 2.0, 3.5]
    fine = torch.ones(1, 8, 8)
    assert regions.pool(fine).flatten().tolist() == [24 / 64, 8 / 64, 32 / 64]


@given(worlds(), st.integers(0, 10**6))
def test_indexing_and_moving(world: World, seed: int) -> None:
    regions = world.regions
    rng = np.random.default_rng(seed)
    keep = torch.from_numpy(rng.random(len(regions)) < 0.5)
    chosen = regions[keep]
    assert torch.equal(chosen.masks(), regions.masks()[keep])
    assert torch.equal(chosen.scores, regions.scores[keep])
    assert torch.equal(regions[[0]].masks(), regions[0].masks())
    assert len(regions[:2]) == min(2, len(regions))
    moved = chosen.to("cpu")
    assert torch.equal(moved.edge_strength, regions.edge_strength)


def test_intersections_stay_exact_in_huge_images() -> None:
    areas = torch.tensor([2**25 + 1, 1])  # float32 would lose the one
    members = torch.tensor([[True, False], [True, True]])
    common = algebra.intersections(members, areas)
    assert common.tolist() == [[2**25 + 1, 2**25 + 1], [2**25 + 1, 2**25 + 2]]


@pytest.mark.parametrize(
    ("ids", "members", "message"),
    [
        (np.zeros((2, 2)), [[1]], "whole numbers"),
        (np.zeros((2, 2, 1), int), [[1]], "whole numbers"),
        (np.zeros((0, 3), int), [[1]], "whole numbers"),
        (np.array([[0, 2]]), [[1, 1, 1]], "each used"),
        (np.array([[0, 1]]), [[1]], "each used"),
        (np.array([[-1, 0]]), [[1]], "each used"),
        (np.array([[0, 1]]), [1, 1], "each used"),
        (np.array([[0, 1]]), [[1, 0], [0, 0]], "empty region"),
    ],
)
def test_bad_superpixels_and_membership_are_refused(
    ids: object, members: object, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RegionSet.of(ids, members)  # type: ignore[arg-type]


def test_scores_and_edge_strength_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        RegionSet.of(np.array([[0, 1]]), [[1, 0]], scores=[1.0, 2.0])
    with pytest.raises(ValueError, match="expected"):
        RegionSet.of(np.array([[0, 1]]), [[1, 0]], edge_strength=[1.0, 2.0])


def test_an_empty_region_set() -> None:
    empty = RegionSet.of(np.array([[0, 1]]), np.zeros((0, 2)))
    assert len(empty) == 0
    assert (
        empty.iou().shape
        == empty.edge_strength_between().shape
        == empty.neighbours().shape
        == (0, 0)
    )
    assert empty.boxes.shape == (0, 4)
    assert empty.rings().shape == (0, 2)
    assert empty.superpixel_means(torch.ones(3, 1, 2)).tolist() == [[1, 1]] * 3
    assert empty.pool(torch.ones(3, 1, 2)).shape == (0, 3)
    assert empty.rles() == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_sums_do_not_overflow_or_round(dtype: torch.dtype) -> None:
    regions = RegionSet.of(np.zeros((300, 300), int), [[1]])
    ones = torch.ones(1, 300, 300, dtype=dtype)
    for over in ("image", "region"):
        pooled = regions.pool(ones, over)  # type: ignore[arg-type]
        assert pooled.dtype == dtype
        assert pooled.item() == 1


def test_autocast_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    ids = np.arange(36).reshape(6, 6).repeat(31, axis=0).repeat(33, axis=1)
    regions = RegionSet.of(ids, rng.random((9, 36)) < 0.5, edges=rng.random(ids.shape))
    features = torch.rand(4, 6 * 31, 6 * 33)
    plain = [regions.iou(), regions.edge_strength_between(), regions.pool(features)]
    with torch.autocast("cpu", torch.bfloat16):
        mixed = [regions.iou(), regions.edge_strength_between(), regions.pool(features)]
    assert all(torch.equal(one, two) for one, two in zip(plain, mixed, strict=True))


def test_wrong_shapes_and_choices_are_refused() -> None:
    ids = np.array([[0, 0, 1], [0, 0, 1]])
    with pytest.raises(ValueError, match="edges of shape"):
        RegionSet.of(ids, np.eye(2), edges=np.zeros((3, 2)))
    with pytest.raises(ValueError, match="NaN"):
        RegionSet.of(ids, np.eye(2), scores=[np.nan, 0])
    regions = RegionSet.of(ids, np.eye(2))
    with pytest.raises(ValueError, match="masks of shape"):
        regions.iou_with(torch.ones(1, 3, 2))
    with pytest.raises(ValueError, match="over 'regions'"):
        regions.pool(torch.ones(1, 2, 3), "regions")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected floats"):
        regions.pool(torch.ones(1, 2, 3, dtype=torch.uint8))
    with pytest.raises(ValueError, match="expected floats"):
        regions.pool(torch.ones(2, 3))
    with pytest.raises(ValueError, match="boxes of shape"):
        regions.box_iou(torch.ones(4))
    with pytest.raises(ValueError, match="points of shape"):
        regions.contains([[1, 2, 3]])
    assert regions.contains([[0.5, 0.5]]).tolist() == [[True], [False]]
    assert regions.box_iou(np.array([[0, 0, 2, 2]])).tolist() == [[1.0], [0.0]]
    assert regions.iou_with(torch.full((1, 2, 3), 255, dtype=torch.uint8))[0, 0] == 4 / 6
    assert regions.iou_with(torch.ones(0, 2, 3)).shape == (2, 0)
    assert regions.pool(torch.ones(0, 5, 2, 3)).shape == (0, 2, 5)
    outside = torch.tensor([[-0.1, 0.0], [1.0, 2.5], [3.1, 1.0], [3.0, 2.0]])
    assert regions.contains(outside).tolist() == [[False] * 4, [False, False, False, True]]
    assert torch.equal(regions[::-1].masks(), regions.masks().flip(0))
    assert torch.equal(RegionSet.of(torch.from_numpy(ids), torch.eye(2)).masks(), regions.masks())
