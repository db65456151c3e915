"""Regions for seeds, by objectness and by response, pixel by pixel and by hand."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from annocoin import masks
from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.retrieval import By, contour_mass, objectness_scores, response_scores, retrieve
from annocoin.seeds.seed_set import Seeds
from annocoin.seeds.votes import filter_regions, fitting_boxes, seed_pixels, touched
from annocoin.types import Annotation, WeakLabel
from regions.worlds import World, worlds

STRIPES = np.repeat([[0, 0, 1, 1, 2, 2, 3, 3]], 6, axis=0)  # four stripes of 6 x 2 pixels


def stripes(members: list[list[int]], scores: list[float]) -> RegionSet:
    membership = [[stripe in region for stripe in range(4)] for region in members]
    return RegionSet.of(STRIPES, membership, scores=scores, edges=np.full((6, 8), 0.5))


def seeds_at(
    points: list[tuple[float, float]],
    labels: list[int],
    scores: list[float],
    weak_labels: list[int] | None = None,
    responses: torch.Tensor | None = None,
    size: tuple[int, int] = (6, 8),
) -> Seeds:
    """Seeds whose responses, if not given, are all on their pixel."""
    if responses is None:
        responses = torch.zeros(len(points), *size)
        for response, (x, y) in zip(responses, points, strict=True):
            response[int(y), int(x)] = 1
    return Seeds(
        size=size,
        labels=torch.tensor(labels, dtype=torch.int64),
        points=torch.tensor(points, dtype=torch.float32).view(-1, 2),
        scores=torch.tensor(scores),
        annotation_index=torch.tensor(
            weak_labels if weak_labels is not None else [0] * len(labels), dtype=torch.int64
        ),
        responses=responses,
        maps=torch.ones(len(points), 3, 4),
    )


TAG = Annotation((6, 8), (WeakLabel(1), WeakLabel(2)))


def test_the_most_object_like_region_with_the_peak_in_it() -> None:
    regions = stripes([[0], [0, 1], [1, 2], [3]], [0.3, 0.6, 0.9, 0.2])
    seeds = seeds_at([(0.5, 3), (7.5, 1)], [1, 2], [2.0, 1.0], [0, 1])
    found = retrieve(regions, seeds, TAG, "objectness")
    assert found.regions.tolist() == [1, 3]
    assert found.seeds.tolist() == [0, 1]
    assert found.scores.tolist() == pytest.approx([0.6, 0.2])
    instances = found.instances(regions, seeds)
    assert instances.labels.tolist() == [1, 2]
    assert instances.areas.tolist() == [24, 12]


def test_a_peak_that_no_region_contains_gets_the_one_with_most_of_its_response() -> None:
    regions = stripes([[0], [3], [2, 3]], [0.9, 0.8, 0.1])
    response = torch.zeros(1, 6, 8)
    response[0, :, 3:6] = 1 / 18  # stripes 1 and 2
    seeds = seeds_at([(3.5, 3)], [1], [2.0], responses=response)
    assert retrieve(regions, seeds, TAG, "objectness").regions.tolist() == [2]


def test_two_peaks_in_one_object_are_one_label() -> None:
    regions = stripes([[0, 1], [2, 3]], [0.9, 0.8])
    points = [(0.5, 1), (2.5, 4), (5.0, 2)]
    seeds = seeds_at(points, [1, 1, 1], [1.0, 3.0, 2.0])
    assert retrieve(regions, seeds, TAG).seeds.tolist() == [1, 2]  # the better seed of the first
    other_class = seeds_at(points, [1, 2, 1], [1.0, 3.0, 2.0], [0, 1, 0])
    assert retrieve(regions, other_class, TAG).seeds.tolist() == [1, 2, 0]


def test_marks_with_a_place_keep_their_label_and_satisfy_a_tag() -> None:
    regions = stripes([[0, 1], [2, 3]], [0.9, 0.8])
    weak_labels = (WeakLabel(1, box=(0, 0, 4, 6)), WeakLabel(1, box=(0, 0, 3, 6)), WeakLabel(1))
    seeds = seeds_at([(0.5, 1), (2.5, 4), (3.5, 2)], [1, 1, 1], [1.0, 3.0, 9.0], [0, 1, 2])
    found = retrieve(regions, seeds, Annotation((6, 8), weak_labels))
    assert (found.seeds.tolist(), found.regions.tolist()) == ([1, 0], [0, 0])
    far = seeds_at([(0.5, 1), (2.5, 4), (6.5, 2)], [1, 1, 1], [1.0, 3.0, 9.0], [0, 1, 2])
    assert retrieve(regions, far, Annotation((6, 8), weak_labels)).seeds.tolist() == [1, 0, 2]


@pytest.mark.parametrize("by", ["votes", "combined", "objectness", "response"])
def test_a_mark_chooses_among_the_regions_that_it_admits(by: By) -> None:
    regions = stripes([[0, 1, 2, 3], [0], [0, 1], [1]], [0.9, 0.8, 0.1, 0.05])
    seeds = seeds_at([(0.5, 3)], [1], [1.0])

    def chosen(weak_label: WeakLabel, **options: float) -> list[int]:
        annotation = Annotation((6, 8), (weak_label,))
        return retrieve(regions, seeds, annotation, by, **options).regions.tolist()

    box = WeakLabel(1, box=(0, 0, 4, 6))
    assert chosen(box, box_overlap=0.6) == [2]
    assert chosen(box, box_overlap=0.4) != [3]  # fits, but the peak is elsewhere
    assert chosen(WeakLabel(1, box=(2.5, 0, 4, 1))) == [3]  # none fits: the nearest
    mask = masks.encode((STRIPES[None] < 2).astype(np.uint8))[0]
    assert chosen(WeakLabel(1, mask=mask)) == [2]
    assert chosen(WeakLabel(1, point=(0.5, 3))) in ([0], [1], [2])
    assert chosen(WeakLabel(1)) in ([0], [1], [2])


def test_seeds_of_another_annotation_are_refused() -> None:
    regions = stripes([[0]], [0.5])
    seeds = seeds_at([(0.5, 3)], [1], [1.0], [3])
    with pytest.raises(InputError, match="seeds of another image or annotation"):
        retrieve(regions, seeds, TAG)
    with pytest.raises(InputError, match="seeds of another image or annotation"):
        retrieve(regions, seeds_at([], [], [], size=(3, 3)), TAG)
    with pytest.raises(InputError, match="expected one image"):
        retrieve(regions, seeds, Annotation((3, 3), (WeakLabel(1),)))


def test_response_wants_the_mass_inside_and_on_the_contour() -> None:
    regions = stripes([[0], [1], [0, 1], [0, 1, 2, 3]], [0.1, 0.2, 0.3, 0.4])
    response = torch.zeros(1, 6, 8)
    response[0, :, :4] = 1 / 24
    seeds = seeds_at([(0.5, 3)], [1], [1.0], responses=response)
    scores = response_scores(regions, seeds)[0]
    assert int(scores.argmax()) == 2 or float(scores[2]) > float(scores[3])
    assert retrieve(regions, seeds, TAG, "response").regions.tolist() != [3]


@given(worlds(), st.integers(0, 1000))
def test_scores_are_those_of_pixels(world: World, seed: int) -> None:
    regions, dense = world.regions, world.masks
    height, width = world.ids.shape
    rng = np.random.default_rng(seed)
    points = [(rng.uniform(0, width), rng.uniform(0, height)) for _ in range(3)]
    responses = torch.from_numpy(rng.random((3, height, width)).astype(np.float32))
    responses /= responses.sum(dim=(1, 2), keepdim=True)
    seeds = seeds_at(points, [1, 1, 2], [0.0, 1.0, 2.0], None, responses, (height, width))
    found = objectness_scores(regions, seeds)
    contour = [contour_mass(regions, response) for response in responses]
    for n, (x, y) in enumerate(points):
        inside = dense[:, int(y), int(x)]
        if inside.any():
            assert int(found[n].argmax()) == int(np.where(inside, regions.scores, -9).argmax())
        else:
            mass = [float(responses[n][torch.from_numpy(mask)].sum()) for mask in dense]
            assert mass[int(found[n].argmax())] == pytest.approx(max(mass), abs=1e-5)
        for p, mask in enumerate(dense):
            assert float(contour[n][p]) == pytest.approx(
                contour_by_loops(mask, responses[n].numpy()), abs=1e-4
            )


def contour_by_loops(mask: np.ndarray, values: np.ndarray) -> float:
    """Over the pixel sides of a mask's outline: 5 times the mean of the 5 x 5 windows around."""
    padded = np.pad(values, 2, mode="reflect") if min(values.shape) > 2 else None
    total = 0.0
    height, width = mask.shape

    def window(y: int, x: int) -> float:
        if padded is not None:
            return float(padded[y : y + 5, x : x + 5].mean())
        return float(cv2.blur(values, (5, 5))[y, x])

    for y in range(height):
        for x in range(width):
            for ny, nx in ((y + 1, x), (y, x + 1)):
                if ny < height and nx < width and mask[y, x] != mask[ny, nx]:
                    total += 5 * (window(y, x) + window(ny, nx)) / 2
    return total


@given(worlds(), st.integers(0, 1000), st.floats(0.05, 1))
def test_filter_is_that_of_pixels(world: World, seed: int, strong: float) -> None:
    height, width = world.ids.shape
    rng = np.random.default_rng(seed)
    points = [(rng.uniform(0, width), rng.uniform(0, height)) for _ in range(2)]
    responses = torch.from_numpy(rng.random((2, height, width)).astype(np.float32))
    seeds = seeds_at(points, [1, 2], [0.0, 1.0], None, responses, (height, width))
    pixels = seed_pixels(seeds, strong)
    for n, (x, y) in enumerate(points):
        expected = (responses[n] >= strong * responses[n].max()).numpy()
        expected[int(y), int(x)] = True
        assert (pixels[n].numpy() == expected).mean() > 0.9  # rounding at the very limit
        assert pixels[n, int(y), int(x)]
    kept = touched(world.regions, seeds, strong)
    hit = pixels.any(dim=0).numpy()
    assert kept.tolist() == [bool((mask & hit).any()) for mask in world.masks]
    # A peak is a seed's pixel, so what contains one always stays.
    assert (kept | ~world.regions.contains(seeds.points).any(dim=1)).all()


def test_boxes_keep_what_fits_and_at_least_the_best() -> None:
    regions = stripes([[0, 1, 2, 3], [0], [0, 1], [3]], [0.9, 0.8, 0.1, 0.05])
    annotation = Annotation(
        (6, 8), (WeakLabel(1, box=(0, 0, 4, 6)), WeakLabel(2, box=(7, 0, 8, 1)))
    )
    assert fitting_boxes(regions, annotation, 0.6).tolist() == [False, False, True, True]
    assert fitting_boxes(regions, annotation, 0.5).tolist() == [True, True, True, True]
    assert not fitting_boxes(regions, TAG).any()
    seeds = seeds_at([(0.5, 3), (7.5, 0.5)], [1, 2], [2.0, 1.0], [0, 1])
    kept = filter_regions(regions, seeds, annotation, box_overlap=0.6)
    assert kept.tolist() == [False, False, True, True]
    mixed = Annotation((6, 8), (WeakLabel(1), WeakLabel(2, box=(7, 0, 8, 1))))
    kept = filter_regions(regions, seeds, mixed, box_overlap=0.6, best=0)
    assert kept.tolist() == [True, True, True, True]
    near = seeds_at([(2.5, 3)], [1], [2.0])
    kept = filter_regions(regions, near, Annotation((6, 8), (WeakLabel(1),)), best=0)
    assert kept.tolist() == [True, False, True, False]
    kept = filter_regions(regions, near, Annotation((6, 8), (WeakLabel(1),)), best=2)
    assert kept.tolist() == [True, True, True, False]


def test_nothing_to_retrieve() -> None:
    regions = stripes([[0]], [0.5])
    none = seeds_at([], [], [])
    assert len(retrieve(regions, none, Annotation((6, 8)))) == 0
    assert len(retrieve(regions, none, Annotation((6, 8)), "response")) == 0
    assert not filter_regions(regions, none, Annotation((6, 8))).any()
    with pytest.raises(InputError, match="expected one of votes, combined, objectness, response"):
        retrieve(regions, none, TAG, "luck")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="above 0"):
        seed_pixels(none, 0)
