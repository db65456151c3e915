"""A conditional network goes into a file and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from annocoin.conditional.networks import (
    ConditionalArchitecture,
    ConditionalNetwork,
    read_conditional,
    write_conditional,
)
from annocoin.errors import InputError
from annocoin.seeds.classifier import read_classifier


def test_there_and_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = ConditionalNetwork(
        ConditionalArchitecture(("cat", "dog"), "tiny", size=64, noise="vector")
    ).eval()
    write_conditional(tmp_path / "net.safetensors", net)
    back = read_conditional(tmp_path / "net.safetensors")
    assert back.architecture == net.architecture
    image, noise = torch.rand(1, 3, 64, 48), torch.rand(2, 4, 32, 24)
    with torch.no_grad():
        first, second = (n.pixel_scores(n.features(image)[0], noise) for n in (net, back))
    assert torch.equal(first, second)


def test_other_files(tmp_path: Path) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="not a conditional network"):
        read_conditional(tmp_path / "bad.safetensors")
    with pytest.raises(InputError, match="no such file"):
        read_conditional(tmp_path / "missing.safetensors")
    net = ConditionalNetwork(ConditionalArchitecture(("cat",), "tiny", size=64))
    write_conditional(tmp_path / "net.safetensors", net)
    with pytest.raises(InputError, match="not a classifier"):
        read_classifier(tmp_path / "net.safetensors")
