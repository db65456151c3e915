"""Images as the prediction network sees them: as torchvision's own transform gives them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from annocoin.prediction.networks import batch_of, view
from prediction.worlds import network


def pixels(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("size", [(64, 96), (48, 72), (128, 160), (96, 64), (40, 160)])
def test_one_image_is_what_torchvision_makes_of_it(size: tuple[int, int]) -> None:
    net = network(size=64, longest=128)
    image = pixels(*size)
    seen = view(image, 64, 128)
    found = batch_of([seen])
    expected, _ = net.transform([torch.tensor(image).permute(2, 0, 1) / 255])
    assert found.image_sizes == expected.image_sizes
    torch.testing.assert_close(found.tensors, expected.tensors)


def test_a_batch_of_several_sizes_ends_in_zeros() -> None:
    seen = [view(pixels(64, 70, 0), 64, 128), view(pixels(100, 64, 1), 64, 128)]
    found = batch_of(seen)
    assert found.tensors.shape == (2, 3, 128, 96)
    assert found.image_sizes == [(64, 70), (100, 64)]
    for together, own in zip(found.tensors, seen, strict=True):
        alone = batch_of([own]).tensors[0]
        height, width = own.size
        assert torch.equal(together[:, :height, :width], alone[:, :height, :width])
        assert float(together[:, height:].abs().sum() + together[:, :, width:].abs().sum()) == 0


def test_a_mirrored_image_and_the_scale_of_its_boxes() -> None:
    image = pixels(50, 100)
    seen = view(image, 100, 150)
    assert seen.size == (75, 150)
    assert seen.original == (50, 100)
    assert seen.scale.tolist() == [1.5, 1.5, 1.5, 1.5]
    mirrored = seen.mirrored()
    assert torch.equal(mirrored.pixels[:, :, 0], seen.pixels[:, :, -1])
    assert mirrored.original == seen.original
    narrow = view(pixels(50, 101), 25, 150)
    assert narrow.size == (25, 50)
    assert narrow.scale.tolist() == pytest.approx([50 / 101, 0.5, 50 / 101, 0.5])
