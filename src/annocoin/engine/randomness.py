"""Random numbers that depend on where they are used, and on nothing that happened before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_of(*where: int | str) -> int:
    """A seed of 63 bits for a purpose, such as (seed, "conditional", step, image id)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in where)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_at(*where: int | str) -> torch.Generator:
    """A generator for a purpose, see `seed_of`."""
    return torch.Generator().manual_seed(seed_of(*where))


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's global generators in the block; outside of it their state does not change.

    Args:
        device: a GPU whose generator is seeded as well.
    """
    devices = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
