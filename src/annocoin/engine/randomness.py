"""Randomness that depends on where it is used and on nothing that happened before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_of(*place: int | str) -> int:
    """A number of 63 bits for a place, such as (seed, "conditional", step, image id)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in place)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_at(*place: int | str) -> torch.Generator:
    """A generator for a place: the same place, the same numbers."""
    return torch.Generator().manual_seed(seed_of(*place))


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """What torch draws in the block depends on this seed only, and nothing outside is override.

    Args:
        device: where they compute, if not on the processor.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
