"""Changes to a configuration: options at dotted names, and weights from files."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from annocoin.backbones import IMAGENET, SCRATCH, TINY
from annocoin.engine.config import Config
from annocoin.engine.network_config import FROM_CLASSIFIER, ClassifierOptions
from annocoin.errors import InputError

NETWORKS = ("classifier", "conditional network", "prediction network", "teacher network")

T = TypeVar("T")


def override(config: T, assignments: Mapping[str, str], prefix: str = "") -> T:
    """The configuration with values at dotted names, such as "prediction.training.lr" = "1e-3".

    All of them change at once: options that must agree are compared when all are in place.

    Example:
        >>> from annocoin.engine.presets import preset
        >>> override(preset("synthetic", ("cat",)), {"rounds": "2"}).rounds
        2
    """
    names = [item.name for item in dataclasses.fields(config)]  # type: ignore[arg-type]
    hints = typing.get_type_hints(type(config))
    values: dict[str, Any] = {}
    nested: dict[str, dict[str, str]] = {}
    for path, text in assignments.items():
        first, _, rest = path.partition(".")
        name = prefix + path
        if first not in names:
            raise InputError(f"--set {name}: no option {first!r}; there are {', '.join(names)}")
        value = getattr(config, first)
        if rest and dataclasses.is_dataclass(value):
            nested.setdefault(first, {})[rest] = text
        elif rest:
            raise InputError(f"--set {name}: {first} has no options of its own")
        elif dataclasses.is_dataclass(value) and not (text == "null" and _optional(hints[first])):
            parts = ", ".join(item.name for item in dataclasses.fields(value))
            raise InputError(f"--set {name}: say which option of it: {parts}")
        else:
            values[first] = _parse(text, hints[first], name)
    for first, inner in nested.items():
        values[first] = override(getattr(config, first), inner, f"{prefix}{first}.")
    return replace(config, **values)  # type: ignore[type-var]


def _parse(text: str, hint: Any, name: str) -> Any:
    """A value of a field's type."""
    hints = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    for kind in hints:
        if kind is type(None) and value is None:
            return None
        if kind in (bool, int) and type(value) is kind:
            return value
        if kind is float and (number := _number(text)) is not None:
            return number
        if typing.get_origin(kind) is tuple and isinstance(value, list):
            parts = typing.get_args(kind)
            any_length = parts[1:] == (Ellipsis,)
            if not any_length and len(parts) != len(value):
                continue
            if parts[0] is float and all(map(_is_number, value)):
                return tuple(map(float, value))
            if parts[0] is str and all(isinstance(item, str) for item in value):
                return tuple(value)
    if any(kind is str or typing.get_origin(kind) is Literal for kind in hints):
        return text
    raise InputError(f"--set {name}={text}: expected {getattr(hint, '__name__', hint)}")


def _optional(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def weights_folder(config: Config, folder: Path, networks: Collection[str] = NETWORKS) -> Config:
    """The configuration with backbone weights from the files of a folder.

    A file belongs to the backbone with which its name begins; "stride1x1" in the name says that
    the ResNet has its strides in 1x1 convolutions. Every backbone needs a file: nothing is
    downloaded.

    Args:
        networks: those that are trained.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such folder of backbone weights")

    def changes(backbone: str | None, weights: str, what: str) -> tuple[dict[str, Any], bool]:
        if what not in networks or weights != IMAGENET or backbone in (None, TINY):
            return {}, False
        suffixes = (".pth", ".pt", ".safetensors")
        paths = [path for path in folder.glob(f"{backbone}*") if path.suffix in suffixes]
        if not paths:
            raise InputError(
                f"{folder}: no weights of the {what}'s backbone {backbone}; expected a file "
                f"{backbone}*.pth, .pt or .safetensors"
            )
        return {"weights": str(min(paths))}, "stride1x1" in min(paths).name

    classifier, conditional = config.classifier, config.conditional
    new, in_1x1 = changes(classifier.backbone, classifier.weights, "classifier")
    if new:
        config = use_classifier(config, replace(classifier, **new, stride_in_1x1=in_1x1))
    new, in_1x1 = changes(conditional.encoder, conditional.weights, "conditional network")
    if new:
        architecture = replace(conditional.architecture, stride_in_1x1=in_1x1)
        conditional = replace(conditional, architecture=architecture, **new)
        config = replace(config, conditional=conditional)
    for name, prediction in config.prediction_networks.items():
        backbone = prediction.architecture.backbone
        new, in_1x1 = changes(backbone, prediction.weights, f"{name} network")
        if new:
            network = replace(prediction.architecture, stride_in_1x1=in_1x1)
            new_networks: Any = {name: replace(prediction, architecture=network, **new)}
            config = replace(config, **new_networks)
    return config


def use_classifier(config: Config, classifier: ClassifierOptions) -> Config:
    """The configuration with another classifier; networks that start from it follow its strides."""
    changes: dict[str, Any] = {"classifier": classifier}
    for name in config.trained_networks:
        network = getattr(config, name)
        if network.weights == FROM_CLASSIFIER:
            strides = {"stride_in_1x1": classifier.stride_in_1x1}
            architecture = replace(network.architecture, **strides)
            changes[name] = replace(network, architecture=architecture)
    return replace(config, **changes)


def check_weight_files(config: Config) -> None:
    """Raise if a file of weights does not exist, before any work is done."""
    for name in ("classifier", *config.trained_networks):
        weights = getattr(config, name).weights
        if weights not in (IMAGENET, SCRATCH, FROM_CLASSIFIER) and not Path(weights).is_file():
            raise InputError(
                f"{name}.weights {weights}: no such file; expected one, {IMAGENET} or {SCRATCH}"
            )
