from __future__ import annotations

from importlib import resources

import cv2
import numpy as np
import pytest
import torch

from annocoin.backbones import BoundaryNet
from annocoin.errors import InputError
from annocoin.regions.boundaries import BoundaryDetector
from annocoin.synthetic.dataset import render_scene

KINDS = ["network", "gradient"]


@pytest.fixture(scope="module", params=KINDS)
def detector(request: pytest.FixtureRequest) -> BoundaryDetector:
    return BoundaryDetector(request.param)


@pytest.mark.parametrize("size", [(1, 1), (1, 50), (7, 3), (33, 65), (97, 128)])
def test_maps_have_the_size_of_the_image(detector: BoundaryDetector, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    maps = detector(rng.integers(0, 256, (*size, 3), dtype=np.uint8))
    assert (maps.shape, maps.dtype) == ((3, *size), np.float32)
    assert ((maps >= 0) & (maps <= 1)).all()


def test_a_large_image_is_reduced_and_its_maps_enlarged(detector: BoundaryDetector) -> None:
    image = np.zeros((2400, 3200, 3), np.uint8)
    image[:, 1600:] = (200, 180, 60)
    maps = detector(image)
    assert maps.shape == (3, 2400, 3200)
    assert abs(int(maps.mean(axis=0)[1200].argmax()) - 1600) < 12


def test_a_step_is_a_boundary_and_a_plain_image_has_none(detector: BoundaryDetector) -> None:
    plain = np.full((96, 128, 3), 90, np.uint8)
    step = plain.copy()
    step[:, 64:] = (210, 200, 40)
    row = detector(step).mean(axis=0)[48]
    assert abs(int(row.argmax()) - 64) <= 1
    assert row[62:66].max() > 0.5
    assert row[20:44].max() < 0.3
    assert detector(plain)[:, 10:-10, 10:-10].max() < 0.3


def test_the_same_image_gives_the_same_maps(detector: BoundaryDetector) -> None:
    image = render_scene(0, 0).image
    assert np.array_equal(detector(image), detector(image))


def test_probabilities_are_higher_on_outlines_of_synthetic_objects(
    detector: BoundaryDetector,
) -> None:
    ratios = []
    for index in range(6):
        scene = render_scene(1, index)
        probability = detector(scene.image).mean(axis=0)
        edge = np.zeros(scene.ids.shape, np.uint8)
        for k in range(1, len(scene.labels) + 1):
            mask = (scene.ids == k).astype(np.uint8)
            edge |= mask - cv2.erode(mask, np.ones((3, 3), np.uint8))
        ratios.append(probability[edge > 0].mean() / probability[edge == 0].mean())
    assert np.mean(ratios) > 1.5


def test_bfloat16_gives_nearly_the_same_maps() -> None:
    image = render_scene(0, 0).image
    full = BoundaryDetector(scales=(1.0,))(image)
    half = BoundaryDetector(scales=(1.0,), precision="bf16")(image)
    assert 0 < np.abs(full - half).max() < 0.1
    assert np.abs(full - half).mean() < 0.005
    with pytest.raises(InputError, match="expected one of 32, bf16"):
        BoundaryDetector(precision="fp8")  # type: ignore[arg-type]


def test_scales_and_unknown_kinds() -> None:
    assert BoundaryDetector("gradient", scales=(1.0,))(np.zeros((5, 6, 3), np.uint8)).shape == (
        1,
        5,
        6,
    )
    with pytest.raises(InputError, match="expected one of network, gradient"):
        BoundaryDetector("canny")  # type: ignore[arg-type]


def test_the_package_has_small_weights_with_a_model_card() -> None:
    folder = resources.files("annocoin.weights")
    assert len(folder.joinpath("boundaries.safetensors").read_bytes()) < 4_000_000
    assert "BSDS500" in folder.joinpath("boundaries.md").read_text(encoding="utf-8")


def test_batch_statistics_stay_fixed_in_training() -> None:
    net = BoundaryNet().train()
    before = {k: v.clone() for k, v in net.encoder.named_buffers()}
    logits, sides = net.with_sides(torch.rand(2, 3, 64, 96))
    assert logits.shape == (2, 1, 64, 96)
    assert [tuple(side.shape[-2:]) for side in sides] == [
        (32, 48),
        (16, 24),
        (8, 12),
        (4, 6),
        (2, 3),
    ]
    logits.sum().backward()
    assert all(torch.equal(v, before[k]) for k, v in net.encoder.named_buffers())
    assert all(p.grad is not None for p in net.encoder.parameters())
