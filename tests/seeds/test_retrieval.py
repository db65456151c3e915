"""Regions retrieved for seeds, by hand and by loops over pixels."""

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
from annocoin.seeds.retrieval import (
    Method,
    contour_response,
    objectness_scores,
    response_scores,
    retrieve,
)
from annocoin.seeds.seed_set import Seeds
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
    annotation_index: list[int] | None = None,
    responses: torch.Tensor | None = None,
    size: tuple[int, int] = (6, 8),
) -> Seeds:
    """Seeds whose default response is 1 at the pixel of the peak."""
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
            [0] * len(labels) if annotation_index is None else annotation_index, dtype=torch.int64
        ),
        responses=responses,
        maps=torch.ones(len(points), 3, 4),
    )


TAGS = Annotation((6, 8), (WeakLabel(1), WeakLabel(2)))


def test_objectness_takes_the_best_score_among_regions_with_the_peak() -> None:
    regions = stripes([[0], [0, 1], [1, 2], [3]], [0.3, 0.6, 0.9, 0.2])
    seeds = seeds_at([(0.5, 3), (7.5, 1)], [1, 2], [2.0, 1.0], [0, 1])
    retrieved = retrieve(regions, seeds, TAGS, "objectness")
    assert retrieved.regions.tolist() == [1, 3]
    assert retrieved.seeds.tolist() == [0, 1]
    assert retrieved.scores.tolist() == pytest.approx([0.6, 0.2])
    instances = retrieved.instances(regions, seeds)
    assert instances.labels.tolist() == [1, 2]
    assert instances.areas.tolist() == [24, 12]


def test_a_peak_in_no_region_gets_the_one_with_most_of_its_response() -> None:
    regions = stripes([[0], [3], [2, 3]], [0.9, 0.8, 0.1])
    response = torch.zeros(1, 6, 8)
    response[0, :, 3:6] = 1 / 18  # stripes 1 and 2
    seeds = seeds_at([(3.5, 3)], [1], [2.0], responses=response)
    assert retrieve(regions, seeds, TAGS, "objectness").regions.tolist() == [2]


def test_two_peaks_in_one_object_give_one_instance() -> None:
    regions = stripes([[0, 1], [2, 3]], [0.9, 0.8])
    points = [(0.5, 1), (2.5, 4), (5.0, 2)]
    seeds = seeds_at(points, [1, 1, 1], [1.0, 3.0, 2.0])
    assert retrieve(regions, seeds, TAGS).seeds.tolist() == [1, 2]  # the better seed of the first
    other_class = seeds_at(points, [1, 2, 1], [1.0, 3.0, 2.0], [0, 1, 0])
    assert retrieve(regions, other_class, TAGS).seeds.tolist() == [1, 2, 0]


def test_boxes_are_not_suppressed_but_suppress_tags() -> None:
    regions = stripes([[0, 1], [2, 3]], [0.9, 0.8])
    weak_labels = (WeakLabel(1, box=(0, 0, 4, 6)), WeakLabel(1, box=(0, 0, 3, 6)), WeakLabel(1))
    seeds = seeds_at([(0.5, 1), (2.5, 4), (3.5, 2)], [1, 1, 1], [1.0, 3.0, 9.0], [0, 1, 2])
    retrieved = retrieve(regions, seeds, Annotation((6, 8), weak_labels))
    assert (retrieved.seeds.tolist(), retrieved.regions.tolist()) == ([1, 0], [0, 0])
    far = seeds_at([(0.5, 1), (2.5, 4), (6.5, 2)], [1, 1, 1], [1.0, 3.0, 9.0], [0, 1, 2])
    assert retrieve(regions, far, Annotation((6, 8), weak_labels)).seeds.tolist() == [1, 0, 2]


@pytest.mark.parametrize("method", ["votes", "combined", "objectness", "response"])
def test_only_compatible_regions_are_retrieved(method: Method) -> None:
    regions = stripes([[0, 1, 2, 3], [0], [0, 1], [1]], [0.9, 0.8, 0.1, 0.05])
    seeds = seeds_at([(0.5, 3)], [1], [1.0])

    def best(weak_label: WeakLabel, **options: float) -> list[int]:
        annotation = Annotation((6, 8), (weak_label,))
        return retrieve(regions, seeds, annotation, method, **options).regions.tolist()

    box = WeakLabel(1, box=(0, 0, 4, 6))
    assert best(box, box_overlap=0.6) == [2]
    assert best(box, box_overlap=0.4) != [3]  # its box matches, but the peak is outside
    assert best(WeakLabel(1, box=(2.5, 0, 4, 1))) == [3]  # none matches: the highest IoU
    mask = masks.encode((STRIPES[None] < 2).astype(np.uint8))[0]
    assert best(WeakLabel(1, mask=mask)) == [2]
    assert best(WeakLabel(1, point=(0.5, 3))) in ([0], [1], [2])
    assert best(WeakLabel(1)) in ([0], [1], [2])


def test_seeds_of_another_annotation_are_refused() -> None:
    regions = stripes([[0]], [0.5])
    seeds = seeds_at([(0.5, 3)], [1], [1.0], [3])
    with pytest.raises(InputError, match="seeds of another image or annotation"):
        retrieve(regions, seeds, TAGS)
    with pytest.raises(InputError, match="seeds of another image or annotation"):
        retrieve(regions, seeds_at([], [], [], size=(3, 3)), TAGS)
    with pytest.raises(InputError, match="expected one image"):
        retrieve(regions, seeds, Annotation((3, 3), (WeakLabel(1),)))


def test_response_scores_count_the_inside_and_the_contour() -> None:
    regions = stripes([[0], [1], [0, 1], [0, 1, 2, 3]], [0.1, 0.2, 0.3, 0.4])
    response = torch.zeros(1, 6, 8)
    response[0, :, :4] = 1 / 24
    seeds = seeds_at([(0.5, 3)], [1], [1.0], responses=response)
    scores = response_scores(regions, seeds)[0]
    assert int(scores.argmax()) == 2 or float(scores[2]) > float(scores[3])
    assert retrieve(regions, seeds, TAGS, "response").regions.tolist() != [3]


@given(worlds(), st.integers(0, 1000))
def test_scores_equal_those_of_pixels(world: World, seed: int) -> None:
    regions, dense = world.regions, world.masks
    height, width = world.ids.shape
    rng = np.random.default_rng(seed)
    points = [(rng.uniform(0, width), rng.uniform(0, height)) for _ in range(3)]
    responses = torch.from_numpy(rng.random((3, height, width)).astype(np.float32))
    responses /= responses.sum(dim=(1, 2), keepdim=True)
    seeds = seeds_at(points, [1, 1, 2], [0.0, 1.0, 2.0], None, responses, (height, width))
    scores = objectness_scores(regions, seeds)
    contour = [contour_response(regions, response) for response in responses]
    for n, (x, y) in enumerate(points):
        inside = dense[:, int(y), int(x)]
        if inside.any():
            assert int(scores[n].argmax()) == int(np.where(inside, regions.scores, -9).argmax())
        else:
            sums = [float(responses[n][torch.from_numpy(mask)].sum()) for mask in dense]
            assert sums[int(scores[n].argmax())] == pytest.approx(max(sums), abs=1e-5)
        for p, mask in enumerate(dense):
            assert float(contour[n][p]) == pytest.approx(
                contour_by_loops(mask, responses[n].numpy()), abs=1e-4
            )


def contour_by_loops(mask: np.ndarray, values: np.ndarray) -> float:
    """The sum over the pixel sides of a mask's outline of 5 times the mean of 5 x 5 windows."""
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


def test_nothing_to_retrieve() -> None:
    regions = stripes([[0]], [0.5])
    none = seeds_at([], [], [])
    assert len(retrieve(regions, none, Annotation((6, 8)))) == 0
    assert len(retrieve(regions, none, Annotation((6, 8)), "response")) == 0
    with pytest.raises(InputError, match="expected one of votes, combined, objectness, response"):
        retrieve(regions, none, TAGS, "luck")  # type: ignore[arg-type]
