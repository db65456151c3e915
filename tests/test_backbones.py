"""Backbones: weights from files, downloads that fail, strides of ResNets, image resizing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file

from annocoin.backbones import build_backbone, resize_longest_side
from annocoin.errors import InputError


def test_unknown_backbones() -> None:
    with pytest.raises(InputError, match="expected 'tiny' or a classification network"):
        build_backbone("resnet51")
    with pytest.raises(InputError, match="its features are not a map"):
        build_backbone("vit_b_16", "none")
    with pytest.raises(InputError, match="takes only imagenet or none"):
        build_backbone("tiny", "some.pth")


def test_weights_from_files(tmp_path: Path) -> None:
    torch.manual_seed(1)
    whole = torchvision.models.resnet18()
    half = {
        key: value.half() if value.is_floating_point() else value
        for key, value in whole.state_dict().items()
    }
    torch.save(half, tmp_path / "half.pth")
    save_file(whole.state_dict(), tmp_path / "whole.safetensors")
    features = {key: value for key, value in half.items() if not key.startswith("fc.")}
    torch.save(features, tmp_path / "features.pth")
    x = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        expected = torch.nn.Sequential(*list(whole.eval().children())[:-2])(x)
        for name in ("half.pth", "whole.safetensors", "features.pth"):
            trunk = build_backbone("resnet18", tmp_path / name).eval()
            assert next(trunk.parameters()).dtype == torch.float32
            assert torch.allclose(trunk(x), expected, atol=0.05), name
    torch.save({**half, "extra": torch.zeros(1)}, tmp_path / "extra.pth")
    torch.save({"conv1.weight": torch.zeros(2, 2)}, tmp_path / "shapes.pth")
    torch.save({"epoch": 3}, tmp_path / "state.pth")
    (tmp_path / "text.pth").write_text("no weights")
    for name, reason in {
        "none.pth": "no such file",
        "extra.pth": "with 'extra'",
        "shapes.pth": "not weights of resnet18",
        "state.pth": "expected a state dict",
        "text.pth": "no weights that can be read",
    }.items():
        with pytest.raises(InputError, match=reason):
            build_backbone("resnet18", tmp_path / name)
    with pytest.raises(InputError, match="not weights of mobilenet_v2"):
        build_backbone("mobilenet_v2", tmp_path / "half.pth")


def test_weights_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(InputError, match=r"cannot be fetched .*--weights DIR"):
        build_backbone("mobilenet_v2")


def test_strides_of_original_resnets() -> None:
    trunk = build_backbone("resnet50", "none", stride_in_1x1=True)
    for stage in ("layer2", "layer3", "layer4"):
        block: Any = getattr(trunk, stage)[0]
        assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))
    with torch.inference_mode():
        assert trunk.eval()(torch.rand(1, 3, 64, 64)).shape == (1, 2048, 2, 2)
    for name in ("resnet18", "mobilenet_v2"):
        with pytest.raises(InputError, match="1x1 strides"):
            build_backbone(name, "none", stride_in_1x1=True)


def test_images_are_resized_to_their_longest_side() -> None:
    image = np.zeros((30, 60, 3), np.uint8)
    image[:, 30:, 0] = 255
    resized = resize_longest_side(image, 80)
    assert resized.shape == (3, 40, 80)
    assert float(resized[0, 20, 70]) == 1
    assert float(resized[0, 20, 10]) == 0
    assert resize_longest_side(np.zeros((1, 300, 3), np.uint8), 40).shape == (3, 32, 40)
