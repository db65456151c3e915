"""Class maps at half the stride, over sizes and mirrored, against the classifier's own maps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from annocoin.errors import InputError
from annocoin.seeds.class_maps import ClassMapper, halve_stride
from annocoin.seeds.classifier import Classifier, ClassifierArchitecture
from regions.test_region_set import interpolate

CLASSES = ("cat", "dog", "cow")


def classifier(backbone: str = "tiny", *, in_1x1: bool = False) -> Classifier:
    """Random weights, of which every layer's output keeps about the variance of its input."""
    torch.manual_seed(0)
    net = Classifier(ClassifierArchitecture(CLASSES, backbone, in_1x1, size=64))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
    return net.eval()


@pytest.fixture(scope="module")
def net() -> Classifier:
    return classifier()


def random_image(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def maps_of(net: Classifier, image: np.ndarray) -> Tensor:
    with torch.no_grad():
        return net(torch.from_numpy(image.transpose(2, 0, 1).copy())[None] / 255)[0]


@pytest.mark.parametrize(
    ("backbone", "in_1x1"),
    [("mobilenet_v2", False), ("resnet18", False), ("resnet50", True), ("tiny", False)],
)
@pytest.mark.parametrize("size", [(64, 96), (70, 50)])
def test_half_the_stride_keeps_the_values_of_the_original_cells(
    backbone: str, in_1x1: bool, size: tuple[int, int]
) -> None:
    net = classifier(backbone, in_1x1=in_1x1)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    image = random_image(*size)
    original = maps_of(net, image)
    assert float(original.std()) > 1e-3, "otherwise any values would pass"
    dense = maps_of(halve_stride(net), image)
    stride = 4 if backbone == "tiny" else 16
    assert dense.shape == (3, math.ceil(size[0] / stride), math.ceil(size[1] / stride))
    tolerance = 1e-4 * float(original.abs().max())
    torch.testing.assert_close(dense[:, ::2, ::2], original, rtol=0, atol=tolerance)
    assert torch.equal(maps_of(net, image), original), "the original is not changed"
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_new_cells_lie_between_the_original_ones(net: Classifier) -> None:
    """The maps of an image that is shifted by half a cell's stride, away from the border."""
    image = random_image(128, 128)
    dense = maps_of(halve_stride(net), image)
    shifted = maps_of(net, np.roll(image, (-4, -4), (0, 1)))
    inner = slice(5, 11)
    between = dense[:, 1::2, 1::2][:, inner, inner]
    torch.testing.assert_close(between, shifted[:, inner, inner], rtol=1e-3, atol=1e-4)


def test_a_vgg_stays_as_it_is() -> None:
    net, image = classifier("vgg11"), random_image(64, 64)
    copied = halve_stride(net)
    assert copied is not net
    assert torch.equal(maps_of(copied, image), maps_of(net, image))


def test_values_are_kept_if_pooling_follows_the_last_strided_convolution() -> None:
    """A DenseNet has one strided convolution, the first; its other strides are of pooling."""
    net, image = classifier("densenet121"), random_image(64, 64)
    original, dense = maps_of(net, image), maps_of(halve_stride(net), image)
    step = dense.shape[1] // original.shape[1]
    tolerance = 1e-4 * float(original.abs().max())
    torch.testing.assert_close(dense[:, ::step, ::step], original, rtol=0, atol=tolerance)


def resampled(maps: Tensor, size: tuple[int, int], start: float, step: float) -> Tensor:
    """Maps at the centres of equal parts of the input; cell i is centred at start + i step."""

    def neighbours(cell: int, cells: int, length: int) -> list[tuple[int, float]]:
        position = ((cell + 0.5) * length / cells - start) / step
        position = min(max(position, 0.0), cells - 1.0)
        first = int(position)
        return [(first, 1 - position + first), (min(first + 1, cells - 1), position - first)]

    result = torch.zeros_like(maps)
    count, height, width = maps.shape
    for c in range(count):
        for y in range(height):
            for x in range(width):
                for row, of_row in neighbours(y, height, size[0]):
                    for column, of_column in neighbours(x, width, size[1]):
                        result[c, y, x] += of_row * of_column * maps[c, row, column]
    return result


@pytest.mark.parametrize("size", [(48, 64), (64, 52)])
@pytest.mark.parametrize("dense", [False, True])
def test_one_size_gives_the_classifiers_maps_at_the_centres_of_equal_cells(
    net: Classifier, size: tuple[int, int], dense: bool
) -> None:
    image = random_image(*size)
    maps = ClassMapper(net, (64,), dense=dense)(image)
    stride = 4 if dense else 8
    original = maps_of(halve_stride(net) if dense else net, image)
    assert original.shape[1:] == (size[0] // stride, math.ceil(size[1] / stride))
    expected = resampled(original, size, start=0.5, step=stride)
    torch.testing.assert_close(maps, expected, rtol=1e-4, atol=1e-4)


def test_a_mirrored_image_has_mirrored_maps(net: Classifier) -> None:
    image = random_image(64, 96)
    mirror_image = np.ascontiguousarray(image[:, ::-1])
    plain, mirror = ClassMapper(net, (96,)), ClassMapper(net, (96,), mirror=True)
    maps = mirror(image)
    torch.testing.assert_close(mirror(mirror_image), maps.flip(2), rtol=1e-4, atol=1e-5)
    of_both = (plain(image) + plain(mirror_image).flip(2)) / 2
    torch.testing.assert_close(maps, of_both, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(plain(image), maps, atol=1e-3)


@pytest.mark.parametrize("sizes", [(64, 96), (96, 64)])
def test_sizes_are_averaged_at_the_cells_of_the_largest(
    net: Classifier, sizes: tuple[int, ...]
) -> None:
    image = random_image(48, 64)
    small, large = ClassMapper(net, (64,))(image), ClassMapper(net, (96,))(image)
    assert (small.shape, large.shape) == ((3, 6, 8), (3, 9, 12))
    enlarged = torch.tensor([interpolate(single, (9, 12)) for single in small.tolist()])
    maps = ClassMapper(net, sizes)(image)
    torch.testing.assert_close(maps, (large + enlarged) / 2, rtol=1e-4, atol=1e-4)
    assert not maps.requires_grad


def test_images_of_any_shape_and_bfloat16(net: Classifier) -> None:
    for size in ((4, 90), (300, 20), (1, 1)):
        maps = ClassMapper(net, (64, 40), mirror=True, dense=True)(random_image(*size))
        assert bool(maps.isfinite().all())
    image = random_image(64, 64)
    full, half = (ClassMapper(net, (64,), bfloat16=b)(image) for b in (False, True))
    assert half.dtype == torch.float32
    assert float((half - full).abs().mean() / full.std()) < 0.1
    assert not torch.equal(half, full)


@pytest.mark.parametrize("sizes", [(), (16,), (64, 31), (0,), (-64,)])
def test_bad_sizes(net: Classifier, sizes: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"sizes \(.*expected sides of at least 32 pixels"):
        ClassMapper(net, sizes)
