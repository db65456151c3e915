"""The state of a training in a file, from which it resumes."""

from __future__ import annotations

import hashlib
import io
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from annocoin import files
from annocoin.errors import InputError, brief

CHECKPOINT_SECONDS = 60.0
CHECKPOINTS = 10
MAX_SHARE = 0.05
"""Of the time, for checkpoints that are younger than `CHECKPOINT_SECONDS`."""

DIGEST_BYTES = hashlib.sha256().digest_size


class Checkpointer:
    """The state of one training in a file: weights, optimizer, and number of steps."""

    def __init__(self, path: Path | None, seconds: float = CHECKPOINT_SECONDS) -> None:
        self.path, self.seconds = path, seconds
        self._saved, self._cost = time.monotonic(), 0.0

    def resume(self, name: str, module: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Load the state, if there is a file; gives the number of steps that are done."""
        if self.path is None or not self.path.exists():
            return 0
        try:
            state = read_checkpoint(self.path)
            if state["name"] != name:
                raise ValueError(f"it is of {state['name']!r}")
            module.load_state_dict(state["module"])
            optimizer.load_state_dict(state["optimizer"])
            return int(state["step"])
        except Exception as error:  # a damaged file raises many kinds
            raise InputError(
                f"{self.path}: not a checkpoint of this training ({brief(str(error))}); delete it, "
                "and the training starts anew"
            ) from None

    def save(
        self,
        step: int,
        steps: int,
        name: str,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        """Write the state after a step, if the last file is old enough.

        Also after each tenth of the steps, so that a short training resumes too, where writing is a
        small part of the time.
        """
        started = time.monotonic()
        age = started - self._saved
        tenths = step * CHECKPOINTS // steps
        is_tenth = tenths > (step - 1) * CHECKPOINTS // steps and step < steps
        due = age >= self.seconds or (is_tenth and MAX_SHARE * age >= self._cost)
        if self.path is None or not due:
            return
        state = {"name": name, "step": step, "module": module.state_dict()}
        write_checkpoint(self.path, state | {"optimizer": optimizer.state_dict()})
        self._saved = time.monotonic()
        self._cost = self._saved - started


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a state after a digest of it: torch does not notice changed bits."""
    content = io.BytesIO(bytes(DIGEST_BYTES))
    content.seek(DIGEST_BYTES)
    torch.save(state, content)
    view = content.getbuffer()
    view[:DIGEST_BYTES] = hashlib.sha256(view[DIGEST_BYTES:]).digest()
    files.write_bytes(path, view)


def read_checkpoint(path: Path) -> Any:
    """The state in a file of `write_checkpoint`; no code in it is executed."""
    content = memoryview(files.read_bytes(path))
    if hashlib.sha256(content[DIGEST_BYTES:]).digest() != content[:DIGEST_BYTES]:
        raise ValueError("its content does not fit its digest")
    body = io.BytesIO(content[DIGEST_BYTES:])
    return torch.load(body, map_location="cpu", weights_only=True)
