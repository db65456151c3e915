"""Prediction of instances: torchvision's, for any kind of image, independent of other images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from annocoin.errors import InputError
from annocoin.prediction.predictor import Predictor
from annocoin.types import Instances
from prediction.worlds import network, random_image


def image(seed: int, size: tuple[int, int]) -> np.ndarray:
    return (random_image(seed, size) * 255).byte().permute(1, 2, 0).numpy()


def assert_same(one: Instances, other: Instances) -> None:
    assert len(one) > 3
    assert one.scores.tolist() == other.scores.tolist()
    assert one.labels.tolist() == other.labels.tolist()
    assert torch.equal(one.dense(), other.dense())


def test_images_of_several_sizes() -> None:
    images = [image(0, (64, 96)), image(1, (80, 50)), image(2, (200, 130))]
    predictions = Predictor(network())(images)
    assert [instances.size for instances in predictions] == [(64, 96), (80, 50), (200, 130)]
    for instances in predictions:
        assert len(instances) > 3
        assert instances.dense().shape == (len(instances), *instances.size)
        assert instances.scores.tolist() == sorted(instances.scores.tolist(), reverse=True)
        assert set(instances.labels.tolist()) <= {1, 2, 3}
        assert float(instances.scores.min()) >= 0.05
        assert bool(instances.dense().flatten(1).any(dim=1).all())
    assert Predictor(network())([]) == []


def test_predictions_do_not_depend_on_other_images() -> None:
    """A batch would be padded to the largest image, which changes features at the border."""
    predictor, images = Predictor(network()), [image(0, (64, 96)), image(1, (96, 64))]
    for single, together in zip(images, predictor(images), strict=True):
        assert_same(predictor([single])[0], together)


def test_files_pillow_images_and_arrays(tmp_path: Path) -> None:
    pixels = image(0, (64, 96))
    Image.fromarray(pixels).save(tmp_path / "image.png")
    predictor = Predictor(network())
    expected = predictor([pixels])[0]
    path = tmp_path / "image.png"
    for instances in predictor([path, str(path), Image.fromarray(pixels)]):
        assert_same(instances, expected)


def test_grey_transparent_and_rotated_images(tmp_path: Path) -> None:
    predictor, pixels = Predictor(network()), image(0, (64, 96))
    grey = pixels[:, :, 0]
    assert_same(*predictor([grey, np.repeat(grey[:, :, None], 3, axis=2)]))
    alpha = np.full((64, 96, 1), 255, np.uint8)
    alpha[:, :40] = 0
    white = np.where(alpha == 0, np.uint8(255), pixels)
    assert_same(*predictor([np.concatenate([pixels, alpha], axis=2), white]))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be rotated by 90 degrees clockwise
    Image.fromarray(pixels).save(tmp_path / "rotated.png", exif=exif)
    rotated = predictor([tmp_path / "rotated.png", np.ascontiguousarray(np.rot90(pixels, -1))])
    assert rotated[0].size == (96, 64)
    assert_same(*rotated)


@pytest.mark.parametrize(
    "single", ["image.png", Path("image.png"), Image.new("RGB", (8, 8)), np.zeros((8, 8, 3))]
)
def test_a_single_image_is_refused(single: object) -> None:
    with pytest.raises(InputError, match="expected a sequence"):
        Predictor(network())(single)  # type: ignore[arg-type]


def test_instances_are_torchvisions() -> None:
    net, pixels = network().train(), image(0, (64, 96))
    instances = Predictor(net, threshold=0.4)([pixels])[0]
    with torch.no_grad():
        expected = net.eval()([torch.from_numpy(pixels).permute(2, 0, 1) / 255])[0]
    rows = [
        i
        for i, (score, mask) in enumerate(zip(expected["scores"], expected["masks"], strict=True))
        if score >= 0.4 and (mask >= 0.5).any()
    ]
    assert 0 < len(rows) < len(expected["scores"])
    assert instances.labels.tolist() == expected["labels"][rows].tolist()
    assert instances.scores.tolist() == expected["scores"][rows].tolist()
    assert torch.equal(instances.dense(), expected["masks"][rows, 0] >= 0.5)


def test_empty_masks_are_left_out() -> None:
    net, pixels = network(), image(0, (64, 96))
    assert len(Predictor(net)([pixels])[0]) > 3
    torch.nn.init.constant_(net.roi_heads.mask_predictor.mask_fcn_logits.bias, -1e4)
    assert len(Predictor(net)([pixels])[0]) == 0


def test_predictors_with_one_network_and_different_thresholds() -> None:
    """One of them below torchvision's threshold."""
    net, images = network(detections_per_image=1000), [image(0, (64, 96))]
    low, high = Predictor(net, threshold=0.0), Predictor(net, threshold=0.3)
    scores = low(images)[0].scores
    assert float(scores.min()) < 0.05
    assert 0 < len(scores[scores >= 0.3]) < len(scores)
    assert high(images)[0].scores.tolist() == scores[scores >= 0.3].tolist()
    assert low(images)[0].scores.tolist() == scores.tolist()


@pytest.mark.parametrize("threshold", [-0.1, 1.5, float("nan")])
def test_bad_thresholds(threshold: float) -> None:
    with pytest.raises(InputError, match="expected 0 to 1"):
        Predictor(network(), threshold=threshold)
