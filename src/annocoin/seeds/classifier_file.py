"""A classifier as one file: weights and architecture, without code that could be run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from annocoin import atomic
from annocoin.errors import InputError, brief
from annocoin.seeds.classifier import Architecture, Classifier

KEY = "annocoin classifier"


def write_classifier(path: str | Path, net: Classifier) -> None:
    """Write a classifier as .safetensors, whole or not at all."""
    state = {name: value.detach().cpu().contiguous() for name, value in net.state_dict().items()}
    content = save(state, {KEY: json.dumps(asdict(net.architecture))})
    atomic.write_bytes(Path(path), content)


def read_classifier(path: str | Path) -> Classifier:
    """Read what `write_classifier` wrote; anything else is an `InputError`."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; `annocoin seeds` trains a classifier")
    try:
        with safe_open(path, framework="pt") as file:
            said = json.loads((file.metadata() or {})[KEY])
            state: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        architecture = Architecture(**{**said, "classes": tuple(said["classes"])})
        net = Classifier(architecture)
        net.load_state_dict(state)
    except Exception as error:  # a file that only looks like one can fail anywhere
        raise InputError(
            f"{path}: not a classifier that `annocoin seeds` wrote ({brief(str(error))})"
        ) from None
    return net.eval()


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
    said = {"made": json.dumps(state.made, sort_keys=True), "epochs": str(epochs)}
    atomic.write_bytes(Path(path), save(kept, said))


def read_checkpoint(path: str | Path, state: Checkpoint) -> int:
    """Bring a training to where the file is, if there is one; gives the epochs that are done."""
    path = Path(path)
    if not path.exists():
        return 0
    try:
        with safe_open(path, framework="pt") as file:
            said = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        made, epochs = json.loads(said["made"]), int(said["epochs"])
    except Exception as error:  # as above
        raise InputError(f"{path}: a damaged checkpoint ({brief(str(error))}); delete it") from None
    for name, value in state.made.items():
        if made.get(name) != value:
            raise InputError(
                f"{path}: of a training with {name} {made.get(name)}, now it is {value}; "
                "delete it, or give the same options"
            )
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
