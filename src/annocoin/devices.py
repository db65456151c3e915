"""Where to compute: a device by its name, checked before any work is done."""

from __future__ import annotations

import torch

from annocoin.errors import InputError

AUTO = "auto"


def open_device(name: str) -> torch.device:
    """The device of that name, "cpu", "cuda:1" or "mps"; one that cannot be used is an error.

    "auto" is a GPU where there is one.
    """
    if name == AUTO:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except Exception as error:  # every backend has its own kinds
        reason = str(error).split("\n", 1)[0][:120]
        raise InputError(f"device {name!r} cannot be used here ({reason}); try cpu") from None
    return device
