"""Where to compute: a device by its name, checked before any work is done."""

from __future__ import annotations

import sys

import torch

from annocoin.errors import InputError

AUTO = "auto"
SLOW = "note: this processor has no bfloat16 arithmetic; full precision (32) is far faster on it"


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


def warn_of_slow_bfloat16(device: torch.device) -> None:
    """Say so where bfloat16 is to be computed by a processor that can only imitate it.

    ResNet-50, forward and back, took 20 times as long as in full precision on one with AVX2 alone.
    """
    if device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        print(SLOW, file=sys.stderr, flush=True)
