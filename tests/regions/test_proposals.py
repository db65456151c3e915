"""Region proposals of images of every kind and size."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from annocoin.data.images import read_image
from annocoin.errors import InputError
from annocoin.regions.boundaries import BoundaryDetector
from annocoin.regions.hierarchy import Tree
from annocoin.regions.proposals import (
    RegionProposer,
    build_graph,
    build_trees,
    limit_size,
    upsample,
)
from annocoin.regions.region_set import RegionSet
from annocoin.regions.superpixel_graph import BoundaryElements, SuperpixelGraph
from annocoin.synthetic.dataset import render_scene


@pytest.fixture(scope="module")
def propose() -> RegionProposer:
    return RegionProposer(BoundaryDetector("gradient"))


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    return np.asarray(render_scene(0, 5, (160, 160)).image)


def test_regions_cover_the_objects_of_a_scene() -> None:
    """Mean best IoU over six scenes, with the boundary network."""
    propose = RegionProposer()
    best = []
    for seed in range(6):
        scene = render_scene(seed, 0)
        truth = torch.from_numpy(np.stack([scene.ids == i + 1 for i in range(len(scene.labels))]))
        best += propose(scene.image).iou_with(truth).amax(dim=0).tolist()
    assert np.mean(best) > 0.75


def test_proposals_are_distinct_limited_and_end_with_the_whole_image(
    propose: RegionProposer, photo: np.ndarray
) -> None:
    regions = propose(photo)
    assert regions.size == photo.shape[:2]
    assert 1 < len(regions) <= 1000
    assert regions.membership.shape[1] <= 600
    assert len({row.tobytes() for row in regions.membership.numpy()}) == len(regions)
    assert regions.membership[-1].all()  # the whole image
    assert not regions.membership[:-1].all(dim=1).any()
    assert torch.isfinite(regions.scores).all()
    assert (regions.edge_strength <= regions.lengths + 1e-4).all()
    assert regions.edge_strength.sum() > 0


def test_the_same_image_gives_the_same_regions(propose: RegionProposer, photo: np.ndarray) -> None:
    first, second = propose(photo), propose(photo.copy())
    assert torch.equal(first.superpixels, second.superpixels)
    assert torch.equal(first.membership, second.membership)
    assert torch.equal(first.scores, second.scores)


@pytest.mark.parametrize(("limit", "superpixels"), [(1, 600), (2, 2), (20, 30)])
def test_limits_hold(photo: np.ndarray, limit: int, superpixels: int) -> None:
    detector = BoundaryDetector("gradient", scales=(1.0,))
    regions = RegionProposer(detector, limit=limit, superpixels=superpixels)(photo)
    assert 1 <= len(regions) <= limit
    assert regions.membership.shape[1] <= superpixels
    assert regions.membership[-1].all()


@pytest.mark.parametrize("kind", ["network", "gradient"])
@pytest.mark.parametrize("size", [(1, 1), (1, 30), (2, 2), (40, 3), (17, 23)])
def test_tiny_images_have_regions(kind: str, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    propose = RegionProposer(BoundaryDetector(kind))  # type: ignore[arg-type]
    for image in (
        rng.integers(0, 256, (*size, 3), dtype=np.uint8),
        np.full((*size, 3), 77, np.uint8),  # constant colour
    ):
        regions = propose(image)
        assert regions.size == size
        assert len(regions) >= 1
        assert regions.membership[-1].all()


def test_a_huge_image_is_reduced_first(propose: RegionProposer) -> None:
    image = np.full((6000, 8000, 3), 90, np.uint8)
    cv2.circle(image, (3000, 2500), 1500, (240, 200, 30), -1)
    regions = propose(image)
    assert regions.size == (6000, 8000)
    disc = torch.from_numpy(image[None, :, :, 2] == 30)
    small = regions[regions.areas < 20e6]
    assert small.iou_with(disc).max() > 0.95


@pytest.mark.parametrize("mode", ["L", "RGBA", "I;16", "P", "1"])
def test_every_kind_of_image_file(propose: RegionProposer, tmp_path: Path, mode: str) -> None:
    values = np.zeros((100, 120), np.uint16)
    values[20:70, 30:100] = 60_000
    if mode == "I;16":
        Image.fromarray(values).save(tmp_path / "a.png")
    else:
        Image.fromarray((values // 256).astype(np.uint8)).convert(mode).save(tmp_path / "a.png")
    regions = propose(read_image(tmp_path / "a.png"))
    box = torch.from_numpy(values[None] > 0)
    assert regions.iou_with(box).max() > 0.9


def test_limit_size_and_upsample() -> None:
    image = np.zeros((100, 3000, 3), np.uint8)
    assert limit_size(image).shape == (27, 800, 3)
    assert limit_size(np.zeros((2, 4000, 3), np.uint8)).shape == (1, 800, 3)
    assert limit_size(image[:, :800]).shape == (100, 800, 3)
    values = np.arange(6).reshape(2, 3)
    large = upsample(values, (5, 7))
    assert np.unique(large).tolist() == [0, 1, 2, 3, 4, 5]
    assert upsample(values, (2, 3)) is values
    assert RegionSet.of(large, np.eye(6)).areas.sum() == 35


def first_merge(tree: Tree) -> list[int]:
    return np.flatnonzero(tree.members()[tree.leaves]).tolist()


def test_trees_of_average_fine_scales_colours_and_volume() -> None:
    """Four superpixels in a row; each tree has another weakest border."""
    ids = np.repeat(np.arange(4), [10, 10, 10, 10])[None].repeat(10, axis=0).astype(np.int32)
    image = np.zeros((10, 40, 3), np.uint8)
    image[:, 10:] = 200  # superpixels 1 and 2 have the same colour
    image[:, 30:] = 120
    strengths = np.array(
        [
            [0.2, 0.4, 0.3],  # average: 0 and 1 merge first
            [0.9, 0.1, 0.9],  # the coarsest scale has no tree
            [0.9, 0.9, 0.1],  # 2 and 3
            [0.9, 0.1, 0.9],  # 1 and 2
        ]
    )
    trees = build_trees(SuperpixelGraph(image, ids, BoundaryElements.of(ids), strengths))
    assert [first_merge(tree) for tree in trees[:4]] == [[0, 1], [2, 3], [1, 2], [1, 2]]
    assert len(trees) == 5
    assert trees[4].members()[-1].all()


def test_superpixels_follow_colours_where_no_boundary_is_detected() -> None:
    image = np.zeros((20, 40, 3), np.uint8)
    image[:, 20:] = (250, 220, 30)
    graph = build_graph(image, np.zeros((3, 20, 40), np.float32), 100)
    assert graph.ids[0, 5] != graph.ids[0, 35]
    assert (graph.mean_strength == 0).all()
    assert graph.mean_strength.shape == (4, len(graph.elements.pairs))


def test_scores_fall_and_limits_are_checked(propose: RegionProposer, photo: np.ndarray) -> None:
    scores = propose(photo).scores
    assert (scores.diff() <= 0).all()
    assert 0 <= scores.min() <= scores.max() <= 1
    for name in ("limit", "superpixels", "candidates"):
        with pytest.raises(InputError, match=f"{name} 0; expected at least 1"):
            RegionProposer(propose.detector, **{name: 0})


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((9, 9, 3)),
        np.zeros((9, 9, 3), np.float32),
        np.zeros((9, 9), np.uint8),
        np.zeros((9, 9, 4), np.uint8),
        np.zeros((3, 9, 9), np.uint8),
        np.zeros((0, 9, 3), np.uint8),
        "photo.jpg",
    ],
)
def test_other_arrays_than_rgb_images_are_refused(propose: RegionProposer, image: object) -> None:
    with pytest.raises(InputError, match=r"expected RGB as a uint8 array \[H, W, 3\]"):
        propose(image)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"expected RGB as a uint8 array \[H, W, 3\]"):
        propose.detector(image)  # type: ignore[arg-type]
