"""Randomness is a function of its place."""

from __future__ import annotations

import subprocess
import sys

import torch

from annocoin.engine.randomness import generator_at, seed_of, seeded


def test_the_same_place_the_same_numbers() -> None:
    first = torch.rand(4, generator=generator_at(0, "noise", 3))
    assert torch.equal(first, torch.rand(4, generator=generator_at(0, "noise", 3)))
    assert not torch.equal(first, torch.rand(4, generator=generator_at(0, "noise", 4)))


def test_places_are_told_apart() -> None:
    places = [(0, "a", 1), (0, "a", "1"), (0, "a1"), ("0", "a", 1), (0, "a", 1, 0), (1, "a", 1)]
    assert len({seed_of(*place) for place in places}) == len(places)
    assert all(0 <= seed_of(*place) < 2**63 for place in places)


def test_another_process_draws_the_same() -> None:
    program = "from annocoin.engine.randomness import seed_of; print(seed_of(7, 'x', 'image.jpg'))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert int(answer.stdout) == seed_of(7, "x", "image.jpg")


def test_layers_draw_from_the_seed_and_leave_all_as_it_was() -> None:
    torch.manual_seed(1)
    wanted = torch.rand(2)
    torch.manual_seed(1)
    with seeded(7):
        first = torch.rand(3)
    assert torch.equal(torch.rand(2), wanted)
    with seeded(7):
        assert torch.equal(torch.rand(3), first)
