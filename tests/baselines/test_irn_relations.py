"""Inter-pixel relations against loops over pixels, written from the formulas of the paper."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from annocoin.baselines.irn_relations import (
    IGNORED,
    affinities,
    cluster_centroids,
    find_centroids,
    line_pixels,
    pixel_pairs,
    random_walk,
    relation_losses,
)

Pixel = tuple[int, int]


def pixels_of(size: tuple[int, ...]) -> list[Pixel]:
    return list(itertools.product(range(size[0]), range(size[1])))


def naive_affinity(boundary: Tensor, first: Pixel, second: Pixel) -> Tensor:
    """1 minus the maximum over pixels of the rectangle that are closer than 1 to the line."""
    (y0, x0), (y1, x1) = first, second
    highest = boundary[first]
    for y in range(min(y0, y1), max(y0, y1) + 1):
        for x in range(min(x0, x1), max(x0, x1) + 1):
            cross = (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0)
            if abs(cross) / math.hypot(y1 - y0, x1 - x0) < 1:
                highest = torch.maximum(highest, boundary[y, x])
    return 1 - highest


def naive_losses(boundary: Tensor, field: Tensor, labels: Tensor, radius: int) -> dict[str, Tensor]:
    terms: dict[str, list[Tensor]] = {}
    for b in range(len(labels)):
        for first, second in itertools.combinations(pixels_of(labels.shape[1:]), 2):
            labelled = (int(labels[b][first]), int(labels[b][second]))
            if IGNORED in labelled or math.dist(first, second) >= radius:
                continue
            affinity = naive_affinity(boundary[b], first, second)
            difference = field[b][:, first[0], first[1]] - field[b][:, second[0], second[1]]
            apart = torch.tensor(second) - torch.tensor(first)
            if labelled[0] != labelled[1]:
                kind, affinity_loss, shift = "different", -torch.log(1 - affinity + 1e-5), None
            else:
                kind = "foreground" if labelled[0] else "background"
                affinity_loss = -torch.log(affinity + 1e-5)
                shift = difference - apart if labelled[0] else difference
            terms.setdefault(f"loss_affinity_{kind}", []).append(affinity_loss)
            if shift is not None:
                terms.setdefault(f"loss_displacement_{kind}", []).append(shift.abs().mean())
    weights = {"loss_affinity_foreground": 0.25, "loss_affinity_background": 0.25}
    return {name: weights.get(name, 0.5) * torch.stack(v).mean() for name, v in terms.items()}


@pytest.mark.parametrize("seed", range(3))
def test_losses_and_gradients_are_those_of_loops(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    boundary = torch.rand(2, 5, 6, generator=generator, dtype=torch.float32).requires_grad_()
    field = (3 * torch.randn(2, 2, 5, 6, generator=generator)).requires_grad_()
    labels = torch.randint(-1, 3, (2, 5, 6), generator=generator)
    losses = relation_losses(boundary, field, labels, 4)
    expected = naive_losses(boundary, field, labels, 4)
    assert losses.keys() == expected.keys()
    for name, loss in losses.items():
        torch.testing.assert_close(loss, expected[name])
    actual = torch.autograd.grad(sum(losses.values()), [boundary, field])  # type: ignore[arg-type]
    wanted = torch.autograd.grad(sum(expected.values()), [boundary, field])  # type: ignore[arg-type]
    torch.testing.assert_close(actual, wanted)


def test_images_without_a_kind_of_pairs_have_finite_losses() -> None:
    labels = torch.full((1, 4, 4), IGNORED)
    boundary, field = torch.zeros(1, 4, 4, requires_grad=True), torch.zeros(1, 2, 4, 4)
    losses = relation_losses(boundary, field, labels, 3)
    assert all(loss.item() == 0 for loss in losses.values())


def test_every_pair_closer_than_the_radius_occurs_once() -> None:
    pairs = pixel_pairs((3, 4), 3)
    rows, columns = torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij")
    first = (rows * 4 + columns).expand_as(pairs.second)[pairs.inside]
    second = pairs.second[pairs.inside]
    found = [tuple(sorted(pair)) for pair in torch.stack([first, second], dim=1).tolist()]
    expected = [
        (i, j)
        for (i, a), (j, b) in itertools.combinations(enumerate(pixels_of((3, 4))), 2)
        if math.dist(a, b) < 3
    ]
    assert sorted(found) == sorted(expected)


def test_lines_by_hand() -> None:
    assert line_pixels(0, 2) == ((0, 0), (0, 1), (0, 2))
    assert line_pixels(1, -1) == ((0, -1), (0, 0), (1, -1), (1, 0))  # corners are 0.71 away
    # the corners (0, 2) and (1, 0) of the rectangle are 0.89 away
    assert set(line_pixels(1, 2)) == set(itertools.product((0, 1), (0, 1, 2)))
    # of (2, 2), the corners (0, 2) and (2, 0) are 1.41 away
    assert set(line_pixels(2, 2)) == set(itertools.product(range(3), repeat=2)) - {(0, 2), (2, 0)}


def test_a_wall_has_no_affinity_across_it() -> None:
    boundary = torch.zeros(5, 7)
    boundary[:, 3] = 1
    pairs = pixel_pairs((5, 7), 7)
    affinity = affinities(boundary, pairs)
    columns = torch.arange(7).expand(5, 7)
    across = (columns <= 3) & (columns + pairs.offsets[:, 1, None, None] >= 3)
    across |= (columns >= 3) & (columns + pairs.offsets[:, 1, None, None] <= 3)
    assert bool((affinity[pairs.inside & across] == 0).all())
    assert bool((affinity[pairs.inside & ~across] == 1).all())
    assert bool((affinity[~pairs.inside] == 0).all())


def two_discs() -> tuple[Tensor, Tensor, Tensor]:
    """A field that leads to the centres of two discs, 0 outside, and the discs: [2, 24, 40]."""
    rows, columns = torch.meshgrid(torch.arange(24.0), torch.arange(40.0), indexing="ij")
    field = torch.zeros(2, 24, 40)
    discs = []
    for row, column, radius in ((11, 9, 7), (12, 28, 9)):
        disc = (rows - row) ** 2 + (columns - column) ** 2 <= radius**2
        field[0][disc], field[1][disc] = (row - rows)[disc], (column - columns)[disc]
        discs.append(disc)
    return field, discs[0], discs[1]


def test_centroids_of_two_discs() -> None:
    field, left, right = two_discs()
    centroids = find_centroids(field, 20)
    for disc, centre in ((left, (11.0, 9.0)), (right, (12.0, 28.0))):
        torch.testing.assert_close(
            centroids[:, disc], torch.tensor(centre)[:, None].expand(2, int(disc.sum()))
        )
    outside = ~left & ~right
    at = torch.stack(torch.meshgrid(torch.arange(24.0), torch.arange(40.0), indexing="ij"))
    assert torch.equal(centroids[:, outside], at[:, outside])


def test_many_short_steps_reach_the_same_centroids() -> None:
    """A tenth of the displacement, but more iterations."""
    field, left, right = two_discs()
    centroids = find_centroids(0.1 * field, 300)
    torch.testing.assert_close(
        centroids[:, left].mean(dim=1), torch.tensor([11.0, 9.0]), atol=0.2, rtol=0
    )
    torch.testing.assert_close(
        centroids[:, right].mean(dim=1), torch.tensor([12.0, 28.0]), atol=0.2, rtol=0
    )


def test_discs_are_clusters() -> None:
    field, left, right = two_discs()
    clusters = cluster_centroids(find_centroids(field, 20), field, 2.5)
    assert clusters.unique().tolist() == [0, 1, 2]
    assert len(clusters[left].unique()) == len(clusters[right].unique()) == 1
    assert len(clusters[~left & ~right].unique()) == 1


def test_centroids_stay_in_the_image() -> None:
    centroids = find_centroids(torch.full((2, 5, 9), 100.0), 3)
    assert bool((centroids[0] == 4).all())
    assert bool((centroids[1] == 8).all())


@pytest.mark.parametrize("beta", [1.0, 4.0])
def test_the_random_walk_is_a_power_of_the_transition_matrix(beta: float) -> None:
    generator = torch.Generator().manual_seed(0)
    boundary = torch.rand(4, 5, generator=generator)
    values = torch.rand(3, 4, 5, generator=generator)
    pixels = pixels_of((4, 5))
    transition = np.zeros((20, 20))
    for (i, first), (j, second) in itertools.product(enumerate(pixels), repeat=2):
        if i == j:
            transition[i, j] = 1
        elif math.dist(first, second) < 3:
            transition[i, j] = float(naive_affinity(boundary, first, second)) ** beta
    transition /= transition.sum(axis=0, keepdims=True)  # published: columns sum to 1
    walked = random_walk(values, boundary, radius=3, beta=beta, steps=8)
    expected = values.flatten(1).numpy() @ np.linalg.matrix_power(transition, 8)
    np.testing.assert_allclose(walked.flatten(1).numpy(), expected, rtol=1e-4)


def test_the_walk_fills_a_room_and_does_not_leave_it() -> None:
    boundary = torch.zeros(5, 9)
    boundary[:, 4] = 1
    start = torch.zeros(1, 5, 9)
    start[0, 2, 1] = 1
    walked = random_walk(start, boundary, radius=3, beta=10, steps=512)[0]
    assert bool((walked[:, 4:] == 0).all())
    left = walked[:, :4]
    assert float(left.min()) > 0.9 * float(left.max()) > 0


def test_no_values_to_walk() -> None:
    walked = random_walk(torch.zeros(0, 4, 5), torch.zeros(4, 5), radius=3, beta=1, steps=2)
    assert walked.shape == (0, 4, 5)
