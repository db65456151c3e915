"""Networks as .safetensors files: weights, architecture and provenance, and no executable code.

Files have a digest of their content, which is checked when they are read, and equal networks give
equal bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn

from annocoin import files
from annocoin.errors import InputError, brief

PROVENANCE = "provenance"
METADATA = "__metadata__"
"""The key of texts in the header of a .safetensors file, by its format."""

MAX_HEADER_BYTES = 100_000_000
"""As in safetensors itself."""

Net = TypeVar("Net", bound=nn.Module)
T = TypeVar("T")


def write_network(
    path: str | Path,
    net: nn.Module,
    kind: str,
    architecture: Mapping[str, Any],
    provenance: Mapping[str, Any] | None = None,
    *,
    half: bool = False,
) -> None:
    """Write a network as .safetensors, atomically.

    Args:
        kind: of the network, such as "classifier".
        architecture: the arguments from which `read_network` builds it.
        provenance: how it was trained.
        half: store weights as float16, in half of the space.
    """
    state = {name: value.detach().cpu().contiguous() for name, value in net.state_dict().items()}
    if half:
        state = {name: _to_half(name, value) for name, value in state.items()}
    metadata = {_key(kind): dict(architecture), PROVENANCE: dict(provenance or {})}
    texts = {key: json.dumps(value) for key, value in metadata.items()}
    content = memoryview(save(state))  # without texts, whose order it draws at random
    start = 8 + int.from_bytes(content[:8], "little")
    header, data = json.loads(bytes(content[8:start])), content[start:]
    digest = _start_digest(header, texts)
    digest.update(data)
    header = {METADATA: {**texts, files.DIGEST: digest.hexdigest()}, **header}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)  # the format aligns the tensors
    files.write_bytes(Path(path), b"".join([len(head).to_bytes(8, "little"), head, data]))


def read_network(
    path: str | Path, kind: str, build: Callable[[dict[str, Any]], Net], command: str
) -> Net:
    """Read a file of `write_network`, in evaluation mode; anything else is an `InputError`.

    Args:
        build: makes the network of an architecture.
        command: that writes such files, for messages.
    """
    with _reading(path, kind, command):
        architecture = json.loads(_read_texts(Path(path))[_key(kind)])
        with safe_open(path, framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            with torch.device("meta"):  # a small file can claim any architecture
                _check_shapes(build(dict(architecture)), shapes)
            net = build(dict(architecture))
            state: dict[str, Tensor] = {name: file.get_tensor(name) for name in shapes}
        if not all(bool(value.isfinite().all()) for value in state.values()):
            raise ValueError("weights are not finite")
        net.load_state_dict(state)  # float16 becomes the network's float32
    return net.eval()


def read_architecture(
    path: str | Path, kind: str, build: Callable[[dict[str, Any]], T], command: str
) -> T:
    """The architecture in a file of `write_network`, without its weights.

    Args:
        build: makes the architecture of its options.
    """
    with _reading(path, kind, command):
        return build(json.loads(_read_texts(Path(path))[_key(kind)]))


def check_network(path: Path) -> None:
    """Raise unless a file is as it was written, by its digest."""
    try:
        _read_texts(path)
    except Exception as error:  # the content of a wrong file can fail at any step
        raise InputError(f"{path}: damaged ({brief(str(error))})") from None


def check_provenance(path: Path, expected: Mapping[str, Any]) -> None:
    """Raise unless the provenance of a file has these values."""
    try:
        provenance = dict(json.loads(_read_texts(path)[PROVENANCE]))
    except Exception as error:  # as above
        raise InputError(
            f"{path}: damaged ({brief(str(error))}); delete it, and it is trained again"
        ) from None
    for name, value in expected.items():
        if provenance.get(name) != value:
            raise InputError(
                f"{path}: trained with {name} {provenance.get(name)}, now it is {value}; "
                "use the same options or another --out, or delete it"
            )


def _read_texts(path: Path) -> dict[str, str]:
    """The texts in the header of a file, after a check of its digest; old files have none."""
    with files.open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        header = dict(json.loads(file.read(length)))
        texts = dict(header.pop(METADATA, {}))
        expected = texts.pop(files.DIGEST, None)
        if expected is None and len(texts) > 2:
            raise ValueError("unknown texts in the header")
        digest = _start_digest(header, texts)
        while expected is not None and (chunk := file.read(1 << 20)):
            digest.update(chunk)
    if expected not in (None, digest.hexdigest()):
        raise ValueError("its content does not fit its digest")
    return texts


def _start_digest(header: Mapping[str, Any], texts: Mapping[str, str]) -> Any:
    """The digest of a file's header; that of its tensors is to follow."""
    return hashlib.sha256(json.dumps([header, texts], sort_keys=True).encode())


def _check_shapes(net: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    expected = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    for name in {**expected, **shapes}:
        if expected.get(name) != shapes.get(name):
            raise ValueError(f"{name} is {shapes.get(name)}, expected {expected.get(name)}")


def _key(kind: str) -> str:
    return f"annocoin {kind}"


def _to_half(name: str, value: Tensor) -> Tensor:
    half = value.half() if value.is_floating_point() else value
    if not half.isfinite().all():
        raise InputError(f"weights {name}: too large for float16; store them as float32")
    return half


@contextmanager
def _reading(path: str | Path, kind: str, command: str) -> Iterator[None]:
    """Report anything that goes wrong in the block as a file that is not a network of this kind."""
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file; `{command}` trains a {kind}")
    try:
        yield
    except Exception as error:  # the content of a wrong file can fail at any step
        raise InputError(
            f"{path}: not a {kind} that `{command}` wrote ({brief(str(error))})"
        ) from None
