"""Networks as .safetensors files: weights, architecture and provenance, and no executable code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from annocoin import files
from annocoin.errors import InputError, brief

PROVENANCE = "provenance"

Net = TypeVar("Net", bound=nn.Module)


def write_network(
    path: str | Path,
    net: nn.Module,
    kind: str,
    architecture: Mapping[str, Any],
    provenance: Mapping[str, Any] | None = None,
) -> None:
    """Write a network as .safetensors, atomically.

    Args:
        kind: of the network, such as "classifier".
        architecture: the arguments from which `read_network` builds it.
        provenance: how it was trained.
    """
    state = {name: value.detach().cpu().contiguous() for name, value in net.state_dict().items()}
    metadata = {_key(kind): dict(architecture), PROVENANCE: dict(provenance or {})}
    texts = {key: json.dumps(value) for key, value in metadata.items()}
    files.write_bytes(Path(path), save(state, texts))


def read_network(
    path: str | Path, kind: str, build: Callable[[dict[str, Any]], Net], command: str
) -> Net:
    """Read a file of `write_network`, in evaluation mode; anything else is an `InputError`.

    Args:
        build: makes the network of an architecture.
        command: that writes such files, for messages.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; `{command}` trains a {kind}")
    try:
        with safe_open(path, framework="pt") as file:
            architecture = json.loads((file.metadata() or {})[_key(kind)])
            state: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        net = build(architecture)
        net.load_state_dict(state)
    except Exception as error:  # the content of a wrong file can fail at any step
        raise InputError(
            f"{path}: not a {kind} that `{command}` wrote ({brief(str(error))})"
        ) from None
    return net.eval()


def check_provenance(path: Path, expected: Mapping[str, Any]) -> None:
    """Raise unless the provenance of a file has these values."""
    try:
        with safe_open(path, framework="pt") as file:
            provenance = json.loads((file.metadata() or {})[PROVENANCE])
    except Exception as error:  # the content of a wrong file can fail at any step
        raise InputError(f"{path}: damaged ({brief(str(error))}); delete it") from None
    for name, value in expected.items():
        if provenance.get(name) != value:
            raise InputError(
                f"{path}: trained with {name} {provenance.get(name)}, now it is {value}; "
                "use the same options or another --out, or delete it"
            )


def _key(kind: str) -> str:
    return f"annocoin {kind}"
