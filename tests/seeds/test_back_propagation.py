"""Peak back-propagation: by hand, against autograd and loops, and that relevance is conserved."""

from __future__ import annotations

import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import fx, nn

from annocoin.backbones import build_backbone, tiny_backbone
from annocoin.errors import InputError
from annocoin.seeds.back_propagation import (
    CellCentres,
    PeakBackPropagation,
    PositiveConvolution,
    Relevance,
    addition_rule,
)
from seeds.networks import Small
from tools.scripts import load_script

autograd_responses = load_script("peak_back_propagation", "benchmarks").autograd_responses


def random_peaks(maps: torch.Tensor, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    sides = [torch.randint(0, side, (count,), generator=generator) for side in maps.shape]
    return torch.stack(sides, dim=1)


def test_two_layers_by_hand() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 1, bias=False), nn.Conv2d(2, 1, (1, 2), bias=False)).eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([2.0, -1.0]).view(2, 1, 1, 1))
        net[1].weight.copy_(torch.tensor([[1.0, 3.0], [-2.0, 1.0]]).view(1, 2, 1, 2))
    forward_pass = PeakBackPropagation(net)(torch.tensor([[[1.0, 2.0, 4.0]]]))
    # Hidden: 2x and -x, that is [2 4 8] and [-1 -2 -4]. The maps:
    # 1*2 + 3*4 + 2*1 - 2 = 14 and 1*4 + 3*8 + 2*2 - 4 = 28.
    assert forward_pass.maps.tolist() == [[[14.0, 28.0]]]
    # Minus the minimum, -4: [6 8 12] and [3 2 0]. Positive weights: 1 3 and 0 1.
    # Contributions to the second peak: 1*8 and 3*12 of the first channel, 1*0 of the second, in
    # total 44. The second channel has no positive weight for the image, so that its share, 0, is
    # lost. Therefore pixel 2 gets 8/44 of the relevance and pixel 3 gets 36/44.
    # The image minus its minimum, 1, is [0 1 3]: each hidden value has one contributing pixel.
    second = forward_pass.responses(torch.tensor([[0, 0, 1]]))
    assert second[0, 0].tolist() == pytest.approx([0, 8 / 44, 36 / 44])
    # The first peak: 1*6 + 3*8 of the first channel, 1*2 of the second, in total 32. Pixel 1 has
    # the minimum and contributes nothing; its 6/32 and the 2/32 are lost, and the rest is
    # normalised to sum to 1.
    first = forward_pass.responses(torch.tensor([[0, 0, 0]]))
    assert first[0, 0].tolist() == pytest.approx([0, 1, 0])


@pytest.mark.parametrize("rule", ["conserving", "published"])
@pytest.mark.parametrize("seed", range(4))
def test_a_batch_of_peaks_equals_single_peaks(rule: str, seed: int) -> None:
    net = Small(seed)
    image = torch.rand(3, 24, 20, generator=torch.Generator().manual_seed(seed))
    forward_pass = PeakBackPropagation(net, rule)(image)  # type: ignore[arg-type]
    assert torch.allclose(forward_pass.maps, net(image[None])[0], atol=1e-5)
    peaks = random_peaks(forward_pass.maps, 7)
    together = forward_pass.responses(peaks)
    single = torch.cat([forward_pass.responses(peak[None]) for peak in peaks])
    assert torch.allclose(together, single, atol=1e-7)
    assert torch.allclose(together, forward_pass.responses(peaks, batch=2), atol=1e-7)


@pytest.mark.parametrize("seed", range(6))
def test_published_rule_equals_autograd_with_modified_convolutions(seed: int) -> None:
    net = Small(seed)
    image = torch.rand(3, 24, 20, generator=torch.Generator().manual_seed(seed))
    forward_pass = PeakBackPropagation(net, "published")(image)
    peaks = random_peaks(forward_pass.maps, 8)
    expected = autograd_responses(net, image, peaks)()
    finite = expected.isfinite().all(dim=2).all(dim=1)  # the relevance of some peaks is lost
    assert finite.sum() > 3
    responses = forward_pass.responses(peaks)
    assert torch.allclose(responses[finite], expected[finite], atol=1e-6)
    assert torch.allclose(responses[~finite], torch.tensor(1 / (24 * 20)))


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "vgg11_bn"])
def test_published_rule_on_networks_of_torchvision(name: str) -> None:
    torch.manual_seed(0)
    whole = torchvision.models.get_model(name)
    trunk = getattr(whole, "features", None) or nn.Sequential(*list(whole.children())[:-2])
    net = trunk.eval()
    image = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    forward_pass = PeakBackPropagation(net, "published")(image)
    peaks = random_peaks(forward_pass.maps[:10], 3)
    expected = autograd_responses(net, image, peaks)()
    maximum = expected.amax(dim=(1, 2), keepdim=True)
    responses = forward_pass.responses(peaks)
    finite = expected.isfinite().all(dim=2).all(dim=1)  # the relevance of some peaks is lost
    assert torch.allclose((responses / maximum)[finite], (expected / maximum)[finite], atol=1e-4)


@given(seed=st.integers(0, 1000), size=st.integers(12, 40))
def test_relevance_is_conserved(seed: int, size: int) -> None:
    """Through strides, pooling, activations and additions, if contributions are always positive."""
    net = Small(seed)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.BatchNorm2d):
                module.weight.abs_().clamp_(min=0.1)
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.fill_(0)
                module.bias.fill_(0.1)
                module.running_var.fill_(4)
    forward_pass = PeakBackPropagation(net)(0.5 + torch.rand(3, size, size))
    relevance = forward_pass._relevance(random_peaks(forward_pass.maps, 6, seed))
    assert (relevance >= 0).all()
    assert torch.allclose(relevance.sum(dim=(1, 2)), torch.ones(6), atol=1e-4)


@given(seed=st.integers(0, 1000), size=st.integers(12, 40))
def test_relevance_never_grows(seed: int, size: int) -> None:
    """The part of an output that comes from a bias alone is lost; nothing is added."""
    forward_pass = PeakBackPropagation(Small(seed))(torch.rand(3, size, size))
    relevance = forward_pass._relevance(random_peaks(forward_pass.maps, 6, seed))
    assert (relevance >= 0).all()
    assert (relevance.sum(dim=(1, 2)) < 1 + 1e-4).all()


@given(st.integers(0, 10_000))
def test_a_convolution_conserves_relevance_where_contributions_are_positive(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def pick(*options: int) -> int:
        return options[int(torch.randint(len(options), (1,), generator=generator))]

    groups = pick(1, 2, 4)
    kernel, stride, padding = pick(1, 2, 3), pick(1, 2), pick(0, 1, 2)
    module = nn.Conv2d(4, 8, kernel, stride, padding, dilation=pick(1, 2), groups=groups)
    x = torch.randn(1, 4, 9, 7, generator=generator)
    rule = PositiveConvolution(module).rule(x)
    out = module(x)
    relevance = torch.rand(3, *out.shape[1:], generator=generator)
    (back,) = (part.tensor() for part in rule(Relevance(relevance)))
    assert back.shape == (3, *x.shape[1:])
    # The naive reference: the relevance of every output, by its window, weight by weight.
    expected = torch.zeros_like(back)
    shifted, positive = x[0] - x.min(), module.weight.detach().clamp(min=0)
    d, kept = module.dilation[0], 0.0
    for o in range(8):
        inputs = range(o // (8 // groups) * (4 // groups), (o // (8 // groups) + 1) * (4 // groups))
        for i in range(out.shape[2]):
            for j in range(out.shape[3]):
                parts = {}
                for k, c in enumerate(inputs):
                    for a in range(kernel):
                        for b in range(kernel):
                            y, z = i * stride - padding + a * d, j * stride - padding + b * d
                            if 0 <= y < 9 and 0 <= z < 7:
                                weight = positive[o, k, a, b]
                                parts[c, y, z] = parts.get((c, y, z), 0) + weight * shifted[c, y, z]
                total = float(sum(parts.values()))
                if total > 1e-10:
                    kept += float(relevance[:, o, i, j].sum())
                    for position, part in parts.items():
                        share = relevance[:, o, i, j] * part / total
                        expected[(slice(None), *position)] += share
    assert torch.allclose(back, expected, atol=1e-5)
    assert float(back.sum()) == pytest.approx(kept, rel=1e-4)


def test_an_addition_distributes_relevance_by_positive_parts() -> None:
    rule = addition_rule(torch.tensor([3.0, -1.0, -1.0, 2.0]), torch.tensor([1.0, 2.0, -5.0, -2.0]))
    first, second = (part.tensor() for part in rule(Relevance(torch.full((1, 4), 8.0))))
    assert first.tolist() == [[6.0, 0.0, 4.0, 8.0]]
    assert second.tolist() == [[2.0, 8.0, 4.0, 0.0]]


def test_a_negative_batch_norm_factor_changes_the_signs() -> None:
    """With a negative factor, the contributions of negative weights are positive."""
    net = nn.Sequential(nn.Conv2d(2, 1, 1, bias=False), nn.BatchNorm2d(1)).eval()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([1.0, -1.0]).view(1, 2, 1, 1))
        net[1].weight.fill_(-1)
    image = torch.tensor([[[5.0, 5.0]], [[7.0, 0.0]]])
    forward_pass = PeakBackPropagation(net)(image)
    assert forward_pass._relevance(torch.tensor([[0, 0, 0]]))[0].tolist() == [[1.0, 0.0]]
    assert forward_pass._recorder.back(torch.tensor([[[[1.0, 0.0]]]]))[0, :, 0, 0].tolist() == [
        0.0,
        1.0,
    ]


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "efficientnet_b0", "densenet121"])
def test_gates_and_other_activations_keep_relevance(name: str) -> None:
    torch.manual_seed(0)
    net = torchvision.models.get_model(name).features
    net.train()
    with torch.no_grad():
        for _ in range(3):  # running statistics of real activations
            net(torch.rand(4, 3, 64, 64))
    forward_pass = PeakBackPropagation(net.eval())(torch.rand(3, 64, 64))
    total = forward_pass._relevance(random_peaks(forward_pass.maps, 4)).sum(dim=(1, 2))
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


def test_no_peaks_and_no_contributions() -> None:
    net = nn.Conv2d(3, 2, 1).eval()
    with torch.no_grad():
        net.weight.fill_(-1)
    forward_pass = PeakBackPropagation(net)(torch.rand(3, 4, 5))
    assert forward_pass.responses(torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 4, 5)
    uniform = forward_pass.responses(torch.tensor([[1, 2, 3]]))
    assert torch.allclose(uniform, torch.full((1, 4, 5), 1 / 20))


def test_bad_networks_and_rules() -> None:
    with pytest.raises(InputError, match="expected one of conserving, published"):
        PeakBackPropagation(nn.Conv2d(3, 1, 1).eval(), "guided")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="training mode"):
        PeakBackPropagation(nn.Conv2d(3, 1, 1))
    with pytest.raises(ValueError, match="padding"):
        PeakBackPropagation(nn.Conv2d(3, 1, 3, padding=1, padding_mode="reflect").eval())


def centre_by_gradient(net: nn.Module, size: int, cell: int) -> float:
    """The centre of the columns on which a cell far from the image border depends."""
    image = torch.rand(1, 3, size, size, dtype=torch.float64, requires_grad=True)
    out = net.double()(image)
    out[0, :, out.shape[2] // 2, cell].sum().backward()
    assert image.grad is not None
    (columns,) = image.grad[0].abs().sum(dim=(0, 1)).nonzero(as_tuple=True)
    return float(columns.min() + columns.max() + 1) / 2


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.Conv2d(4, 4, 3, 2, 1)),
        nn.Sequential(nn.Conv2d(3, 4, 7, 2, 3), nn.AvgPool2d(3, 2, 1), nn.Conv2d(4, 4, 1, 2)),
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.AvgPool2d(2), nn.Conv2d(4, 4, 2, 2)),
        nn.Sequential(nn.Conv2d(3, 4, 3, dilation=2), nn.Conv2d(4, 4, 4, 3, 1)),
    ],
)
def test_centres_are_those_of_receptive_fields(net: nn.Sequential) -> None:
    centres = CellCentres.of(fx.symbolic_trace(net))
    for cell in (3, 4):
        assert centres.start[1] + cell * centres.step[1] == centre_by_gradient(net, 64, cell)


def test_centres_of_backbones() -> None:
    for net, stride in ((tiny_backbone(), 8), (build_backbone("resnet18", "none"), 32)):
        centres = CellCentres.of(fx.symbolic_trace(net))
        assert centres == CellCentres((0.5, 0.5), (stride, stride))
    vgg = CellCentres.of(fx.symbolic_trace(build_backbone("vgg11", "none")))
    assert vgg == CellCentres((16, 16), (32, 32))
    oblong = nn.Sequential(nn.Conv2d(3, 1, (1, 3), (4, 2), (0, 2)))
    assert CellCentres.of(fx.symbolic_trace(oblong)) == CellCentres((0.5, -0.5), (4, 2))


def test_centres_in_the_image_and_resampled_maps() -> None:
    centres = CellCentres.of(fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 1, 3, 2, 1))))
    rows, columns = centres.in_image((2, 3), (2.0, 10.0))
    assert rows.tolist() == [1, 5]
    assert columns.tolist() == [5, 25, 45]
    ramp = (0.5 + 2 * torch.arange(8.0)).view(1, 1, 8).expand(1, 3, 8)  # the centre of each cell
    resampled = centres.resample(ramp, (6, 16))
    expected = ((torch.arange(8) + 0.5) * 2).clamp(max=14.5)
    assert torch.allclose(resampled[0, 0], expected)
    assert centres.resample(torch.ones(2, 1, 1), (5, 9)).tolist() == [[[1.0]], [[1.0]]]
