"""Checkpoints: a training that is interrupted goes on where it was, and ends the same."""

from __future__ import annotations

import io
import time
from pathlib import Path

import torch
from torch import nn

from annocoin import atomic
from annocoin.errors import InputError, brief

EVERY = 60.0
"""Seconds between checkpoints."""


class Keeper:
    """Keeps the state of one training in a file, now and then.

    Args:
        path: the file.
        every: seconds; 0 keeps every step.
    """

    def __init__(self, path: Path, every: float = EVERY) -> None:
        self.path, self.every = path, every
        self._kept = time.monotonic()

    def resume(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Bring both to where the file is, if there is one; gives the steps that are done."""
        if not self.path.exists():
            return 0
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
            net.load_state_dict(state["net"])
            optimizer.load_state_dict(state["optimizer"])
            return int(state["step"])
        except Exception as error:  # a damaged file raises many kinds
            raise InputError(
                f"{self.path}: no checkpoint of this training ({brief(str(error))}); delete it"
            ) from None

    def keep(self, step: int, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write the state after so many steps, if it is time to."""
        if time.monotonic() - self._kept < self.every:
            return
        content = io.BytesIO()
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, content)
        atomic.write_bytes(self.path, content.getbuffer())
        self._kept = time.monotonic()
