"""A classifier as one file: weights and architecture, without code that could be run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from annocoin import atomic
from annocoin.errors import InputError, brief
from annocoin.network_file import MADE, read_network, write_network
from annocoin.seeds.classifier import Architecture, Classifier

KIND = "classifier"


def write_classifier(
    path: str | Path, net: Classifier, made: Mapping[str, Any] | None = None
) -> None:
    """Write a classifier as .safetensors, whole or not at all; `made` says how it was trained."""
    write_network(path, net, KIND, asdict(net.architecture), made)


def read_classifier(path: str | Path) -> Classifier:
    """Read what `write_classifier` wrote; anything else is an `InputError`."""

    def build(said: dict[str, Any]) -> Classifier:
        return Classifier(Architecture(**{**said, "classes": tuple(said["classes"])}))

    return read_network(path, KIND, build, "annocoin seeds")


def check_made(path: Path, now: Mapping[str, Any]) -> None:
    """Raise unless what the file holds was trained in this way."""
    try:
        with safe_open(path, framework="pt") as file:
            made = json.loads((file.metadata() or {})[MADE])
    except Exception as error:  # as above
        raise InputError(f"{path}: damaged ({brief(str(error))}); delete it") from None
    for name, value in now.items():
        if made.get(name) != value:
            raise InputError(
                f"{path}: of a training with {name} {made.get(name)}, now it is {value}; "
                "give the same options or another --out, or delete it"
            )


@dataclass
class Checkpoint:
    """A training that can be interrupted: what changes, and what must not have changed."""

    net: Classifier
    optimizer: torch.optim.Optimizer
    made: dict[str, Any]


def write_checkpoint(path: str | Path, state: Checkpoint, epochs: int) -> None:
    """Write the state after so many epochs, whole or not at all."""
    tensors = {f"net.{name}": value for name, value in state.net.state_dict().items()}
    for number, moments in state.optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer.{number}.{name}": v for name, v in moments.items()})
    kept = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    said = {MADE: json.dumps(state.made), "epochs": str(epochs)}
    atomic.write_bytes(Path(path), save(kept, said))


def read_checkpoint(path: str | Path, state: Checkpoint) -> int:
    """Bring a training to where the file is, if there is one; gives the epochs that are done."""
    path = Path(path)
    if not path.exists():
        return 0
    check_made(path, state.made)
    with safe_open(path, framework="pt") as file:
        epochs = int((file.metadata() or {})["epochs"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    moments: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            _, number, name = key.split(".")
            moments.setdefault(int(number), {})[name] = value
    state.net.load_state_dict(
        {key[len("net.") :]: value for key, value in tensors.items() if key.startswith("net.")}
    )
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": moments, "param_groups": groups})
    return epochs
