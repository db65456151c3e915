"""A prediction network as one file, whose tensors are torchvision's own state dict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchvision.models.detection import MaskRCNN

from annocoin.network_file import read_network, write_network
from annocoin.prediction.networks import Architecture, build_network

KIND = "prediction network"


def write_prediction(
    path: str | Path,
    net: MaskRCNN,
    architecture: Architecture,
    made: Mapping[str, Any] | None = None,
) -> None:
    """Write a prediction network as .safetensors, whole or not at all."""
    write_network(path, net, KIND, asdict(architecture), made)


def read_prediction(path: str | Path) -> tuple[MaskRCNN, Architecture]:
    """Read what `write_prediction` wrote; anything else is an `InputError`."""
    found: list[Architecture] = []

    def build(said: dict[str, Any]) -> MaskRCNN:
        found.append(Architecture(**{**said, "classes": tuple(said["classes"])}))
        return build_network(found[0])

    return read_network(path, KIND, build, "annocoin train"), found[0]
