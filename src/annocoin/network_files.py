"""A network as one file: weights and architecture, without code that could be run."""

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

MADE = "made"

Net = TypeVar("Net", bound=nn.Module)


def write_network(
    path: str | Path,
    net: nn.Module,
    kind: str,
    architecture: Mapping[str, Any],
    made: Mapping[str, Any] | None = None,
) -> None:
    """Write a network as .safetensors, whole or not at all.

    Args:
        kind: what it is, such as "classifier".
        architecture: what it is made of, apart from its weights.
        made: how it was trained.
    """
    state = {name: value.detach().cpu().contiguous() for name, value in net.state_dict().items()}
    said = {_key(kind): json.dumps(dict(architecture)), MADE: json.dumps(dict(made or {}))}
    files.write_bytes(Path(path), save(state, said))


def read_network(
    path: str | Path, kind: str, build: Callable[[dict[str, Any]], Net], maker: str
) -> Net:
    """Read what `write_network` wrote, ready for use; anything else is an `InputError`.

    Args:
        build: makes the network of an architecture.
        maker: the command that writes such files, for messages.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file; `{maker}` trains a {kind}")
    try:
        with safe_open(path, framework="pt") as file:
            said = json.loads((file.metadata() or {})[_key(kind)])
            state: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        net = build(said)
        net.load_state_dict(state)
    except Exception as error:  # a file that only looks like one can fail anywhere
        raise InputError(
            f"{path}: not a {kind} that `{maker}` wrote ({brief(str(error))})"
        ) from None
    return net.eval()


def _key(kind: str) -> str:
    return f"annocoin {kind}"
