"""Random numbers depend only on the purpose that they are drawn for."""

from __future__ import annotations

import subprocess
import sys

import torch

from annocoin.engine.randomness import generator_at, seed_of, seeded


def test_equal_purposes_draw_equal_numbers() -> None:
    first = torch.rand(4, generator=generator_at(0, "noise", 3))
    assert torch.equal(first, torch.rand(4, generator=generator_at(0, "noise", 3)))
    assert not torch.equal(first, torch.rand(4, generator=generator_at(0, "noise", 4)))


def test_seeds_of_different_purposes_differ() -> None:
    purposes = [(0, "a", 1), (0, "a", "1"), (0, "a1"), ("0", "a", 1), (0, "a", 1, 0), (1, "a", 1)]
    assert len({seed_of(*purpose) for purpose in purposes}) == len(purposes)
    assert all(0 <= seed_of(*purpose) < 2**63 for purpose in purposes)


def test_another_process_has_the_same_seeds() -> None:
    program = "from annocoin.engine.randomness import seed_of; print(seed_of(7, 'x', 'image.jpg'))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(printed.stdout) == seed_of(7, "x", "image.jpg")


def test_the_global_generator_is_seeded_in_a_block_only() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with seeded(7):
        first = torch.rand(3)
    assert torch.equal(torch.rand(2), expected)
    with seeded(7):
        assert torch.equal(torch.rand(3), first)
