"""Peak back-propagation: by hand, against a loop over peaks, and that no mass is lost."""

from __future__ import annotations

import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from annocoin.errors import InputError
from annocoin.seeds.back_propagation import (
    Mass,
    PeakBackPropagation,
    PositiveConvolution,
    addition,
    convolution,
)
from seeds.networks import Small
from tools.scripts import load_script

one_by_one = load_script("peak_back_propagation", "benchmarks").one_by_one


def peaks_of(maps: torch.Tensor, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    sides = [torch.randint(0, side, (count,), generator=generator) for side in maps.shape]
    return torch.stack(sides, dim=1)


def test_two_layers_by_hand() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.Conv2d(2, 1, (1, 2), bias=False)).eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([2.0, -1.0]).view(2, 1, 1, 1))
        net[1].weight.copy_(torch.tensor([[1.0, 3.0], [-2.0, 1.0]]).view(1, 2, 1, 2))
    passed = PeakBackPropagation(net)(torch.tensor([[[1.0, 2.0, 4.0]]]))
    # Hidden: 2x and -x, that is [2 4 8] and [-1 -2 -4]. The maps:
    # 1*2 + 3*4 + 2*1 - 2 = 14 and 1*4 + 3*8 + 2*2 - 4 = 28.
    assert passed.maps.tolist() == [[[14.0, 28.0]]]
    # Above the least hidden value, -4: [6 8 12] and [3 2 0]. Positive weights: 1 3 and 0 1.
    # The second peak's contributions are 1*8, 3*12 from the first channel, 1*0 from the second,
    # 44 in all. The second channel has no positive weight from the image: its share, 0, is all that
    # is lost. So 8/44 of the mass goes to pixel 2, 36/44 to pixel 3.
    # The image above its least value, 1, is [0 1 3]: every pixel is its only contributor.
    second = passed.responses(torch.tensor([[0, 0, 1]]))
    assert second[0, 0].tolist() == pytest.approx([0, 8 / 44, 36 / 44])
    # The first peak: 1*6 + 3*8 from the first channel, 1*2 from the second, 32 in all. Pixel 1 is
    # at the image's least value and contributes nothing; its 6/32 and the 2/32 are lost, and what
    # is left is made to sum to 1.
    first = passed.responses(torch.tensor([[0, 0, 0]]))
    assert first[0, 0].tolist() == pytest.approx([0, 1, 0])


@pytest.mark.parametrize("rule", ["conserving", "published"])
@pytest.mark.parametrize("seed", range(4))
def test_many_peaks_at_once_are_the_same_as_one_by_one(rule: str, seed: int) -> None:
    net = Small(seed)
    image = torch.rand(3, 24, 20, generator=torch.Generator().manual_seed(seed))
    passed = PeakBackPropagation(net, rule)(image)  # type: ignore[arg-type]
    assert torch.allclose(passed.maps, net(image[None])[0], atol=1e-5)
    peaks = peaks_of(passed.maps, 7)
    together = passed.responses(peaks)
    alone = torch.cat([passed.responses(peak[None]) for peak in peaks])
    assert torch.allclose(together, alone, atol=1e-7)
    assert torch.allclose(together, passed.responses(peaks, batch=2), atol=1e-7)


@pytest.mark.parametrize("seed", range(6))
def test_published_rule_is_that_of_autograd_with_changed_convolutions(seed: int) -> None:
    net = Small(seed)
    image = torch.rand(3, 24, 20, generator=torch.Generator().manual_seed(seed))
    passed = PeakBackPropagation(net, "published")(image)
    peaks = peaks_of(passed.maps, 8)
    expected = one_by_one(net, image, peaks)()
    came = expected.isfinite().all(dim=2).all(dim=1)  # from some random peaks nothing comes back
    assert came.sum() > 3
    found = passed.responses(peaks)
    assert torch.allclose(found[came], expected[came], atol=1e-6)
    assert torch.allclose(found[~came], torch.tensor(1 / (24 * 20)))


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "vgg11_bn"])
def test_published_rule_on_networks_of_torchvision(name: str) -> None:
    torch.manual_seed(0)
    whole = torchvision.models.get_model(name)
    trunk = getattr(whole, "features", None) or nn.Sequential(*list(whole.children())[:-2])
    net = trunk.eval()
    image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    passed = PeakBackPropagation(net, "published")(image)
    peaks = peaks_of(passed.maps[:10], 3)
    expected = one_by_one(net, image, peaks)()
    greatest = expected.amax(dim=(1, 2), keepdim=True)
    found = passed.responses(peaks)
    ok = expected.isfinite().all(dim=2).all(dim=1)  # no mass comes back from some random peaks
    assert torch.allclose((found / greatest)[ok], (expected / greatest)[ok], atol=1e-4)


@given(seed=st.integers(0, 1000), size=st.integers(12, 40))
def test_mass_is_conserved(seed: int, size: int) -> None:
    """Through strides, pooling, rectifiers and additions, where something always contributes."""
    net = Small(seed)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
                module.weight.abs_().clamp_(min=0.1)
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.fill_(0)
                module.bias.fill_(0.1)
                module.running_var.fill_(4)
    passed = PeakBackPropagation(net)(0.5 + torch.rand(3, size, size))
    mass = passed._mass(peaks_of(passed.maps, 6, seed))
    assert (mass >= 0).all()
    assert torch.allclose(mass.sum(dim=(1, 2)), torch.ones(6), atol=1e-4)


@given(seed=st.integers(0, 1000), size=st.integers(12, 40))
def test_mass_is_never_made(seed: int, size: int) -> None:
    """What a bias alone brought about comes from no pixel, and is lost; nothing is added."""
    passed = PeakBackPropagation(Small(seed))(torch.rand(3, size, size))
    mass = passed._mass(peaks_of(passed.maps, 6, seed))
    assert (mass >= 0).all()
    assert (mass.sum(dim=(1, 2)) < 1 + 1e-4).all()


@given(st.integers(0, 10_000))
def test_a_convolution_conserves_mass_wherever_something_contributed(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def pick(*options: int) -> int:
        return options[int(torch.randint(len(options), (1,), generator=generator))]

    groups = pick(1, 2, 4)
    kernel, stride, padding = pick(1, 2, 3), pick(1, 2), pick(0, 1, 2)
    module = nn.Conv2d(4, 8, kernel, stride, padding, dilation=pick(1, 2), groups=groups)
    x = torch.randn(1, 4, 9, 7, generator=generator)
    rule = convolution(x, PositiveConvolution(module))
    out = module(x)
    mass = torch.rand(3, *out.shape[1:], generator=generator)
    (back,) = (part.whole() for part in rule(Mass(mass)))
    assert back.shape == (3, *x.shape[1:])
    # Slow and plain: every output's mass, by its window, weight by weight.
    expected = torch.zeros_like(back)
    above, positive = x[0] - x.min(), module.weight.detach().clamp(min=0)
    d, kept = module.dilation[0], 0.0
    for o in range(8):
        inputs = range(o // (8 // groups) * (4 // groups), (o // (8 // groups) + 1) * (4 // groups))
        for i in range(out.shape[2]):
            for j in range(out.shape[3]):
                parts = {}
                for position, c in enumerate(inputs):
                    for a in range(kernel):
                        for b in range(kernel):
                            y, z = i * stride - padding + a * d, j * stride - padding + b * d
                            if 0 <= y < 9 and 0 <= z < 7:
                                weight = positive[o, position, a, b]
                                parts[c, y, z] = parts.get((c, y, z), 0) + weight * above[c, y, z]
                total = float(sum(parts.values()))
                if total > 1e-10:
                    kept += float(mass[:, o, i, j].sum())
                    for place, part in parts.items():
                        expected[(slice(None), *place)] += mass[:, o, i, j] * part / total
    assert torch.allclose(back, expected, atol=1e-5)
    assert float(back.sum()) == pytest.approx(kept, rel=1e-4)


def test_an_addition_shares_mass_by_positive_parts() -> None:
    rule = addition(torch.tensor([3.0, -1.0, -1.0, 2.0]), torch.tensor([1.0, 2.0, -5.0, -2.0]))
    first, second = (part.whole() for part in rule(Mass(torch.full((1, 4), 8.0))))
    assert first.tolist() == [[6.0, 0.0, 4.0, 8.0]]
    assert second.tolist() == [[2.0, 8.0, 4.0, 0.0]]


def test_a_negative_normalisation_turns_the_signs() -> None:
    """What a channel is scaled by decides which of its weights speak for it."""
    net = nn.Sequential(nn.Conv2d(2, 1, 1, bias=False), nn.BatchNorm2d(1)).eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([1.0, -1.0]).view(1, 2, 1, 1))
        net[1].weight.fill_(-1)
    image = torch.tensor([[[5.0, 5.0]], [[7.0, 0.0]]])
    by_sign = PeakBackPropagation(net)(image)
    assert by_sign._mass(torch.tensor([[0, 0, 0]]))[0].tolist() == [[1.0, 0.0]]
    assert by_sign._run.back(torch.tensor([[[[1.0, 0.0]]]]))[0, :, 0, 0].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "efficientnet_b0", "densenet121"])
def test_gates_and_other_activations_pass_mass_on(name: str) -> None:
    torch.manual_seed(0)
    net = torchvision.models.get_model(name).features
    net.train()
    with torch.no_grad():
        for _ in range(3):  # statistics of real activations
            net(torch.rand(4, 3, 64, 64))
    passed = PeakBackPropagation(net.eval())(torch.rand(3, 64, 64))
    total = passed._mass(peaks_of(passed.maps, 4)).sum(dim=(1, 2))
    assert (total < 1 + 1e-3).all()
    assert (total > 0.05).all()


def test_no_module_is_changed() -> None:
    net = Small()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    forwards = {name: module.forward for name, module in net.named_modules()}
    image = torch.rand(3, 16, 16)
    plain = net(image[None])
    PeakBackPropagation(net)(image).responses(torch.tensor([[0, 0, 0]]))
    assert torch.equal(net(image[None]), plain)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert all(module.forward == forwards[name] for name, module in net.named_modules())
    hooks = [m._forward_hooks or m._backward_hooks for m in net.modules()]
    assert not any(hooks)


def test_no_peak_and_no_contribution() -> None:
    net = nn.Conv2d(3, 2, 1).eval()
    with torch.no_grad():
        net.weight.fill_(-1)
    passed = PeakBackPropagation(net)(torch.rand(3, 4, 5))
    assert passed.responses(torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 4, 5)
    even = passed.responses(torch.tensor([[1, 2, 3]]))
    assert torch.allclose(even, torch.full((1, 4, 5), 1 / 20))


def test_bad_networks_and_rules() -> None:
    with pytest.raises(InputError, match="expected one of conserving, published"):
        PeakBackPropagation(nn.Conv2d(3, 1, 1).eval(), "guided")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="training mode"):
        PeakBackPropagation(nn.Conv2d(3, 1, 1))
    with pytest.raises(ValueError, match="padding"):
        PeakBackPropagation(nn.Conv2d(3, 1, 3, padding=1, padding_mode="reflect").eval())
