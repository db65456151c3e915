"""The conditional network against the paper's order of operations, one sample at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given, settings
from torch.nn import functional as F

from annocoin.conditional.networks import (
    ConditionalArchitecture,
    ConditionalNetwork,
    draw_noise,
    read_conditional,
    write_conditional,
)
from annocoin.conditional.trunks import UNet, build_trunk
from annocoin.engine.randomness import generator_at
from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.classifier import read_classifier
from regions.worlds import World, worlds

CLASSES = ("cat", "dog", "cow")


def network(**changes: object) -> ConditionalNetwork:
    torch.manual_seed(0)
    net = ConditionalNetwork(ConditionalArchitecture(CLASSES, "tiny", **changes)).eval()  # type: ignore[arg-type]
    torch.nn.init.normal_(net.join_noise.weight)
    torch.nn.init.normal_(net.classify.weight)
    return net


@settings(max_examples=25, deadline=None)
@given(worlds())
@pytest.mark.parametrize(
    ("pool_over", "relu"), [("image", True), ("region", True), ("image", False)]
)
def test_scores_are_those_of_masked_features(pool_over: str, relu: bool, world: World) -> None:
    """In the paper's order: mask the joined features of each region, classify, average."""
    net = network(pool_over=pool_over, relu=relu, score_scale=3.0)
    height, width = world.ids.shape
    features = torch.randn(32, height, width)
    noise = torch.rand(4, 4, height, width) * 2 - 1
    with torch.no_grad():
        scores = net.unary(features, noise, world.regions)
        for k in range(4):
            joined = F.conv2d(
                torch.cat([features, noise[k]])[None],
                torch.cat([net.join.weight, net.join_noise.weight], dim=1),
                net.join.bias,
            )
            joined = joined.relu() if relu else joined
            for u, mask in enumerate(world.masks):
                inside = torch.from_numpy(mask)
                pixels = net.classify(joined)[0] * inside
                count = inside.sum() if pool_over == "region" else inside.numel()
                expected = 3 * pixels.sum(dim=(1, 2)) / count
                torch.testing.assert_close(scores[k, u], expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(worlds())
def test_the_papers_order_of_mask_convolution_and_pooling(world: World) -> None:
    """Masks first: the features outside are 0, and the last convolution adds its bias to them."""
    net = network(relu=False, score_scale=1.0, noise_channels=1, bias_outside=True)
    torch.nn.init.normal_(net.classify.bias)
    height, width = world.ids.shape
    features, noise = torch.randn(32, height, width), torch.rand(2, 1, height, width) * 2 - 1
    with torch.no_grad():
        scores = net.unary(features, noise, world.regions, [0, 2])
        for k in range(2):
            joined = net.join(features[None]) + net.join_noise(noise[k][None])
            for u, mask in enumerate(world.masks):
                maps = net.classify(joined * torch.from_numpy(mask))[0]
                expected = maps.mean(dim=(1, 2))[[0, 2]]
                torch.testing.assert_close(scores[k, u], expected, rtol=1e-4, atol=1e-4)


def test_a_backbone_at_its_own_resolution() -> None:
    """Appendix C: the features of the ResNet, stride 32, are not interpolated."""
    torch.manual_seed(0)
    architecture = ConditionalArchitecture(CLASSES, "resnet18", size=96, upsample=False)
    net = ConditionalNetwork(architecture, "none").eval()
    image = torch.rand(1, 3, 96, 70)
    regions = RegionSet.of(np.repeat([[0, 1]], 96, axis=0).repeat(35, axis=1), [[1, 0], [1, 1]])
    with torch.no_grad():
        features = net.features(image)[0]
        padded = F.pad((image - net.mean) / net.std, (0, 96 - 70))
        expected = net.trunk.layers(padded)[0]
        assert features.shape == (512, 3, 3)
        torch.testing.assert_close(features, expected)
        scores = net.unary(features, None, regions)
        pixels = net.pixel_scores(features, None)[0]
    inside = torch.tensor([[1.0, 0.0, 0.0]] * 3)  # the centres of pixels are at 11.7, 35, 58.3
    inside[:, 1] = float(regions.superpixels[48, 35] == 0)
    torch.testing.assert_close(scores[0, 0], 16 * (pixels * inside).mean(dim=(1, 2)))
    finer = ConditionalNetwork(replace(architecture, upsample=True), "none").eval()
    assert finer.features(image).shape == (1, 512, 12, 9)


def test_k_samples_at_once_equal_single_ones() -> None:
    net = network()
    features = torch.randn(32, 12, 10)
    noise = net.noise(5, features, generator_at(1))
    with torch.no_grad():
        together = net.pixel_scores(features, noise)
        single = torch.cat([net.pixel_scores(features, noise[k : k + 1]) for k in range(5)])
    torch.testing.assert_close(together, single)
    assert together.shape == (5, 4, 12, 10)


def test_zero_noise_is_the_pointwise_network() -> None:
    net = network()
    features = torch.randn(32, 6, 6)
    with torch.no_grad():
        pointwise = net.pixel_scores(features, None)
        zero_noise = net.pixel_scores(features, torch.zeros(1, 4, 6, 6))
    torch.testing.assert_close(pointwise, zero_noise)


def test_scores_of_some_classes() -> None:
    net = network()
    features, noise = torch.randn(32, 6, 6), torch.rand(2, 4, 6, 6)
    with torch.no_grad():
        some = net.pixel_scores(features, noise, [0, 3])
        every = net.pixel_scores(features, noise)
    torch.testing.assert_close(some, every[:, [0, 3]])
    with pytest.raises(InputError, match=r"classes \[0, 4\]; the network has 0..3"):
        net.pixel_scores(features, noise, [0, 4])


@pytest.mark.parametrize("name", ["unet", "tiny", "unet-mobilenet_v2", "unet-resnet50", "resnet50"])
@pytest.mark.parametrize("size", [(64, 64), (71, 45)])
def test_trunks_have_their_channels_and_gradients(name: str, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    trunk = build_trunk(name, "none").train()
    features = trunk(torch.randn(2, 3, *size))
    assert features.shape[:2] == (2, trunk.channels)
    if name != "tiny":  # a pyramid at half the resolution
        assert features.shape[2:] == (size if "unet" in name else tuple(-(-s // 8) for s in size))
    features.square().mean().backward()
    assert any(weights.grad is not None for weights in trunk.parameters())


def test_unet_of_kohl_et_al() -> None:
    """Seven levels of 32 x 1, 2, 4, 6, 6, 6, 6 channels, three convolutions each, up and down."""
    convolutions = [m for m in UNet().modules() if isinstance(m, torch.nn.Conv2d)]
    assert len(convolutions) == 3 * 7 + 3 * 6
    assert [m.out_channels for m in convolutions[:21:3]] == [32, 64, 128, 192, 192, 192, 192]


def test_encoder_weights_from_a_torchvision_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = torchvision.models.mobilenet_v2(weights=None).eval()
    torch.save(original.state_dict(), tmp_path / "mobilenet.pth")
    trunk = build_trunk("unet-mobilenet_v2", tmp_path / "mobilenet.pth").eval()
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        deepest = trunk.encoder(image)[-1]
        torch.testing.assert_close(deepest, original.features(image))
    with pytest.raises(InputError, match="not weights of resnet50"):
        build_trunk("unet-resnet50", tmp_path / "mobilenet.pth")
    with pytest.raises(InputError, match="no such file"):
        build_trunk("unet-mobilenet_v2", tmp_path / "missing.pth")


def test_encoder_with_strides_in_1x1() -> None:
    trunk = build_trunk("unet-resnet50", "none", stride_in_1x1=True)
    assert trunk.encoder.layer2[0].conv1.stride == (2, 2)
    assert trunk.encoder.layer2[0].conv2.stride == (1, 1)
    with pytest.raises(InputError, match="only ResNets"):
        build_trunk("unet-mobilenet_v2", "none", stride_in_1x1=True)


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("unet", "file.pth", "has no pretrained weights"),
        ("tiny", "file.pth", "takes only imagenet or none"),
        ("unet-nonsense", "none", "cannot build it"),
        ("nonsense", "none", "expected"),
    ],
)
def test_bad_trunks(name: str, weights: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_trunk(name, weights)


@pytest.mark.parametrize(
    "change",
    [
        {"classes": ()},
        {"size": 8},
        {"noise": "loud"},
        {"noise_channels": 0},
        {"pool_over": "sum"},
        {"score_scale": 0.0},
    ],
)
def test_bad_architectures(change: dict[str, object]) -> None:
    with pytest.raises(InputError):
        ConditionalArchitecture(**{"classes": CLASSES, **change})  # type: ignore[arg-type]


def test_forms_of_noise() -> None:
    size = (40, 60)
    for form in ("grid", "pixel", "vector"):
        noise = draw_noise(64, 3, size, form=form, generator=generator_at(form))
        assert noise.shape == (64, 3, *size)
        assert float(noise.min()) >= -1
        assert float(noise.max()) <= 1
        assert float(noise.max()) > 0.9
        again = draw_noise(64, 3, size, form=form, generator=generator_at(form))
        assert torch.equal(noise, again)
    means = {
        form: draw_noise(200, 1, size, form=form, generator=generator_at(0)).mean(dim=(2, 3)).std()
        for form in ("grid", "pixel", "vector")
    }
    assert means["pixel"] < 0.02 < means["grid"] < 0.2 < means["vector"]  # of averages


def test_initial_noise_weights_change_features_by_the_strength() -> None:
    net = network(noise="pixel", relu=False)
    features = torch.randn(3, 32, 30, 30) * torch.arange(1, 33)[:, None, None]
    net.init_noise_weights(features, 0.5, generator_at(0))
    noise = net.noise(200, features[0], generator_at(1))
    with torch.no_grad():
        change = net.join_noise(noise).transpose(0, 1).flatten(1).std(dim=1)
        spread = net.join(features).transpose(0, 1).flatten(1).std(dim=1)
    assert float((change / spread).square().mean().sqrt()) == pytest.approx(0.5, rel=0.25)
    assert np.isfinite(change.numpy()).all()


def test_write_and_read(tmp_path: Path) -> None:
    net = network(size=64, noise="vector")
    write_conditional(tmp_path / "net.safetensors", net)
    copy = read_conditional(tmp_path / "net.safetensors")
    assert copy.architecture == net.architecture
    image, noise = torch.rand(1, 3, 64, 48), torch.rand(2, 4, 32, 24)
    with torch.no_grad():
        first, second = (n.pixel_scores(n.features(image)[0], noise) for n in (net, copy))
    assert torch.equal(first, second)


def test_read_other_files(tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a conditional network"):
        read_conditional(tmp_path / "bad.safetensors")
    with pytest.raises(InputError, match="no such file"):
        read_conditional(tmp_path / "missing.safetensors")
    write_conditional(tmp_path / "net.safetensors", network(size=64))
    with pytest.raises(InputError, match="not a classifier"):
        read_classifier(tmp_path / "net.safetensors")
