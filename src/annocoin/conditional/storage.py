"""A conditional network as one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from annocoin.conditional.networks import Architecture, ConditionalNetwork
from annocoin.network_file import read_network, write_network

KIND = "conditional network"


def write_conditional(
    path: str | Path, net: ConditionalNetwork, made: Mapping[str, Any] | None = None
) -> None:
    """Write a conditional network as .safetensors, whole or not at all."""
    write_network(path, net, KIND, asdict(net.architecture), made)


def read_conditional(path: str | Path) -> ConditionalNetwork:
    """Read what `write_conditional` wrote; anything else is an `InputError`."""

    def build(said: dict[str, Any]) -> ConditionalNetwork:
        return ConditionalNetwork(Architecture(**{**said, "classes": tuple(said["classes"])}))

    return read_network(path, KIND, build, "annocoin train")
