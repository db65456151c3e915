"""A prediction network goes into a file and comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from annocoin.conditional.networks import ConditionalArchitecture as ConditionalArchitecture
from annocoin.conditional.networks import ConditionalNetwork, read_conditional, write_conditional
from annocoin.errors import InputError
from annocoin.prediction.networks import read_prediction, write_prediction
from prediction.worlds import network, picture, small


@pytest.mark.parametrize("normalised", [False, True])
def test_there_and_back(tmp_path: Path, normalised: bool) -> None:
    path = tmp_path / "net.safetensors"
    net = network(normalised=normalised)
    write_prediction(path, net, small(normalised=normalised), {"steps": 3})
    back, architecture = read_prediction(path)
    assert architecture == small(normalised=normalised)
    assert not back.training
    with torch.no_grad():
        first, second = (n([picture(0)])[0] for n in (net.eval(), back))
    assert len(first["scores"]) > 3
    for name in first:
        assert torch.equal(first[name], second[name])
    state = load_file(path)  # torchvision's own names, nothing else
    assert set(state) == set(net.state_dict())
    with safe_open(path, framework="pt") as file:
        assert json.loads(file.metadata()["made"]) == {"steps": 3}


def assert_refused(path: Path, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        read_prediction(path)
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)


def test_other_files(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    assert_refused(path, "no such file; `annocoin train` trains a prediction network")
    assert_refused(tmp_path, "no such file")
    path.write_bytes(b"nothing")
    assert_refused(path, "not a prediction network")
    write_prediction(path, network(), small())
    with pytest.raises(InputError, match="not a conditional network"):
        read_conditional(path)
    path.write_bytes(path.read_bytes()[:-100])
    assert_refused(path, "not a prediction network")
    write_conditional(path, ConditionalNetwork(ConditionalArchitecture(("cat",), "tiny", size=64)))
    assert_refused(path, "not a prediction network")


@pytest.mark.parametrize(
    "change",
    [
        {"channels": 32},
        {"classes": ["cat"]},
        {"classes": []},
        {"classes": 3},
        {"backbone": "mobilenet_v2"},
        {"backbone": "nonsense"},
        {"normalised": True},
        {"hidden": -1},
        {"colour": "red"},
    ],
)
def test_a_file_whose_weights_are_of_another_network(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "net.safetensors"
    write_prediction(path, network(), small())
    with safe_open(path, framework="pt") as file:
        said = dict(file.metadata())
    key = "annocoin prediction network"
    said[key] = json.dumps(json.loads(said[key]) | change)
    save_file(load_file(path), path, said)
    assert_refused(path, "not a prediction network that `annocoin train` wrote")
