"""Requirements of tags, points, boxes, masks and mixtures of them, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annocoin import masks
from annocoin.conditional.requirements import (
    REQUIREMENT_FIELDS,
    grab_cut,
    requirements_from_arrays,
    requirements_of,
    requirements_to_arrays,
)
from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet
from annocoin.types import Annotation, WeakLabel
from conditional.worlds import annotated, annotation, random_seeds, seeds_at, stripes


def compatible(weak_labels: Annotation, regions: RegionSet, **options: Any) -> list[list[bool]]:
    """The compatible regions of each requirement."""
    required = requirements_of(weak_labels, regions, **options).required
    return [r.compatible.tolist() for r in required]


def test_tag_is_compatible_with_every_region_and_allows_extra() -> None:
    result = requirements_of(annotation(WeakLabel(2)), stripes([0], [1, 2], [3]))
    assert result.labels == (2,)
    assert [r.compatible.tolist() for r in result.required] == [[True] * 3]
    assert result.required[0].allows_extra
    assert result.extra_allowed.tolist() == [[True] * 3]


def test_seeds_restrict_tags_to_regions_with_peaks_of_their_class_only() -> None:
    regions = stripes([0], [0, 1], [1, 2], [3])
    seeds = seeds_at([(0.5, 3), (3.5, 3)], [1, 2])
    assert compatible(annotation(WeakLabel(1), WeakLabel(2)), regions, seeds=seeds) == [
        [True, False, False, False],
        [False, False, True, False],
    ]


def test_seeds_are_ignored_if_they_leave_too_few_regions() -> None:
    """One region contains the peaks of both classes."""
    seeds = seeds_at([(0.5, 3), (3.5, 3)], [1, 2])
    tags = annotation(WeakLabel(1), WeakLabel(2))
    result = requirements_of(tags, stripes([0, 1], [3]), seeds=seeds)
    assert result.num_fallbacks == 0
    assert [r.compatible.tolist() for r in result.required] == [[True, True]] * 2


def test_two_tags_with_one_region() -> None:
    result = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), stripes([0]))
    assert result.num_fallbacks == 1
    assert len(result.regions) == 2
    assert int(result.regions.areas[1]) == 48  # the whole image


def test_point_is_compatible_with_regions_that_contain_it_and_no_other_point() -> None:
    regions = stripes([0], [0, 1], [1], [2, 3])
    points = annotation(WeakLabel(1, point=(0.5, 1)), WeakLabel(1, point=(2.5, 1)))
    result = requirements_of(points, regions)
    assert result.required[0].compatible.tolist() == [True, False, False, False]
    assert result.required[1].compatible.tolist() == [False, False, True, False]
    assert not result.extra_allowed.any()


def test_point_outside_of_all_regions_gets_its_superpixel() -> None:
    result = requirements_of(annotation(WeakLabel(1, point=(7.0, 2.0))), stripes([0], [1]))
    assert result.num_fallbacks == 1
    assert result.required[0].compatible.tolist() == [False, False, True]
    assert result.regions.masks()[2].nonzero()[:, 1].unique().tolist() == [6, 7]


@pytest.mark.parametrize(
    ("right", "expected"),
    [
        (4, [False, True, False, False]),  # IoU .5, 1, .67
        (3, [False, True, False, False]),  # .67, .75, .5
        (2.9, [True, True, False, False]),  # .69, .725, .48
    ],
)
def test_box_is_compatible_with_regions_that_fit(right: float, expected: list[bool]) -> None:
    regions = stripes([0], [0, 1], [0, 1, 2], [3])
    assert compatible(annotation(WeakLabel(3, box=(0, 0, right, 6))), regions) == [expected]


def test_a_high_overlap_with_the_box_is_enough_in_the_paper() -> None:
    """By default, only regions that fit nearly as well as the best one are compatible."""
    regions = stripes([0], [0, 1], [0, 1, 2], [3])
    box = annotation(WeakLabel(3, box=(0, 0, 4, 6)))

    def fits(**options: float) -> list[bool]:
        return requirements_of(box, regions, **options).required[0].compatible.tolist()

    iou = [2 / 4, 4 / 4, 4 / 6, 0]
    assert fits() == [False, True, False, False]
    for threshold in (0.3, 0.6, 0.9):
        expected = [value >= threshold for value in iou]
        assert fits(best_fit_share=0.0, box_overlap=threshold) == expected


def test_a_box_may_allow_extra_regions() -> None:
    regions = stripes([0], [0, 1], [0, 1, 2], [3])
    labels = annotation(WeakLabel(3, box=(0, 0, 4, 6)), WeakLabel(5, point=(7, 1)))
    exactly_one = requirements_of(labels, regions, best_fit_share=0.0)
    assert not exactly_one.extra_allowed.any()
    at_least_one = requirements_of(labels, regions, best_fit_share=0.0, box_allows_extra=True)
    assert [r.allows_extra for r in at_least_one.required] == [True, False]
    assert at_least_one.extra_allowed.tolist() == [[True, True, True, False], [False] * 4]


def test_box_without_a_fitting_region_is_filled() -> None:
    result = requirements_of(annotation(WeakLabel(1, box=(3, 1, 5, 3))), stripes([0], [3]))
    assert result.num_fallbacks == 1
    assert int(result.regions.areas[-1]) == 4
    assert result.regions.boxes[-1].tolist() == [3, 1, 5, 3]
    box = annotation(WeakLabel(3, box=(0, 0, 3, 6)))
    assert requirements_of(box, stripes([0, 1])).num_fallbacks == 0
    assert requirements_of(box, stripes([0, 1]), box_overlap=0.8).num_fallbacks == 1


def test_grab_cut_segments_the_object_in_a_box_without_a_fitting_region() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 40, (60, 80, 3), dtype=np.uint8)
    rows, columns = np.mgrid[:60, :80]
    disc = (rows - 30) ** 2 + (columns - 40) ** 2 < 15**2
    image[disc] = rng.integers(200, 255, (int(disc.sum()), 3))
    regions = RegionSet.of(np.repeat([[0, 1]], 60, axis=0).repeat(40, axis=1), [[1, 0]])
    box = Annotation((60, 80), (WeakLabel(1, box=(24, 14, 56, 46)),))
    mask = requirements_of(box, regions, image=image).regions.masks()[-1].numpy()
    assert (mask & disc).sum() / (mask | disc).sum() > 0.95
    assert grab_cut(image, np.ones((60, 80), dtype=bool)) is None


def test_two_boxes_with_one_compatible_region() -> None:
    box = (0.0, 0.0, 2.0, 6.0)
    boxes = annotation(WeakLabel(1, box=box), WeakLabel(2, box=box))
    result = requirements_of(boxes, stripes([0], [3]))
    assert result.num_fallbacks == 1
    assert len(result.regions) == 3


def test_annotated_mask_is_a_region_of_its_label_only() -> None:
    dense = np.zeros((1, 6, 8), dtype=bool)
    dense[0, 1:3, 1:4] = True
    mask_and_tag = annotation(WeakLabel(1, mask=masks.encode(dense)[0]), WeakLabel(1))
    result = requirements_of(mask_and_tag, stripes([0], [1, 2]))
    assert result.regions.masks()[2].tolist() == dense[0].tolist()
    assert [r.compatible.tolist() for r in result.required] == [[False, False, True]]
    assert result.extra_allowed.tolist() == [[True, True, False]]  # by the tag


def test_tag_beside_a_box_of_its_class_requires_nothing() -> None:
    labels = annotation(WeakLabel(1), WeakLabel(1, box=(0, 0, 2, 6)), WeakLabel(1))
    result = requirements_of(labels, stripes([0], [1, 2]))
    assert [r.annotation_index for r in result.required] == [1]
    assert result.extra_allowed.all()


def test_first_tag_of_a_class_is_required() -> None:
    tags = annotation(WeakLabel(1), WeakLabel(2), WeakLabel(1))
    result = requirements_of(tags, stripes([0], [1]))
    assert [(r.label, r.annotation_index) for r in result.required] == [(1, 0), (2, 1)]


def test_crowd_has_one_or_more_objects_inside() -> None:
    crowd = annotation(WeakLabel(1, box=(0, 0, 4, 6), crowd=True))
    result = requirements_of(crowd, stripes([0], [1], [2, 3]))
    assert result.required[0].compatible.tolist() == [True, True, False]
    assert result.required[0].allows_extra
    assert result.extra_allowed.tolist() == [[True, True, False]]


def test_without_regions_every_label_gets_one() -> None:
    labels = (WeakLabel(1), WeakLabel(2, point=(0.5, 0.5)), WeakLabel(3, box=(1, 1, 3, 3)))
    result = requirements_of(annotation(*labels), stripes([0])[[]])
    assert result.num_fallbacks == 3
    assert result.regions.areas.tolist() == [48, 12, 4]


def test_met_by() -> None:
    result = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), stripes([0], [1], [2]))
    assert result.met_by(torch.tensor([1, 2, 0]))
    assert result.met_by(torch.tensor([1, 2, 1]))
    assert not result.met_by(torch.tensor([1, 0, 1]))
    assert result.unconstrained().met_by(torch.tensor([0, 0, 0]))


def test_empty_annotation_requires_nothing() -> None:
    result = requirements_of(annotation(), stripes([0], [1]))
    assert result.labels == ()
    assert result.required == ()
    assert result.extra_allowed.shape == (0, 2)


def test_annotation_of_another_image() -> None:
    with pytest.raises(InputError, match="expected one image"):
        requirements_of(Annotation((6, 9), (WeakLabel(1),)), stripes([0]))


@settings(deadline=None)
@given(annotated(), st.integers(0, 1000), st.booleans())
def test_requirements_can_be_met(
    image: tuple[RegionSet, Annotation], seed: int, seeded: bool
) -> None:
    regions, weak_labels = image
    seeds = random_seeds(weak_labels, seed) if seeded else None
    result = requirements_of(weak_labels, regions, seeds=seeds)
    assert all(bool(r.compatible.any()) for r in result.required)
    assert {r.label for r in result.required} == set(weak_labels.distinct_labels)
    located = {i for i, kind in enumerate(weak_labels.kinds) if kind != "tag"}
    assert located <= {r.annotation_index for r in result.required}
    assert torch.equal(result.regions.masks()[: len(regions)], regions.masks())


@settings(deadline=None)
@given(annotated(), st.integers(0, 1000), st.booleans())
def test_arrays_hold_all_of_the_requirements(
    image: tuple[RegionSet, Annotation], seed: int, seeded: bool
) -> None:
    regions, weak_labels = image
    seeds = random_seeds(weak_labels, seed) if seeded else None
    before = requirements_of(weak_labels, regions, seeds=seeds)
    arrays = requirements_to_arrays(before)
    assert arrays.keys() == REQUIREMENT_FIELDS.keys()
    for name, (shape, dtypes) in REQUIREMENT_FIELDS.items():
        assert arrays[name].ndim == len(shape)
        assert arrays[name].dtype.name in dtypes
    after = requirements_from_arrays(arrays, before.regions)
    assert after.regions is before.regions
    assert after.labels == before.labels
    assert after.num_fallbacks == before.num_fallbacks
    assert torch.equal(after.extra_allowed, before.extra_allowed)
    for first, second in zip(after.peaks, before.peaks, strict=True):
        assert torch.equal(first, second)
    for one, other in zip(after.required, before.required, strict=True):
        assert torch.equal(one.compatible, other.compatible)
        assert one._replace(compatible=other.compatible) == other


def test_arrays_of_other_regions() -> None:
    arrays = requirements_to_arrays(requirements_of(annotation(WeakLabel(1)), stripes([0], [1])))
    with pytest.raises(ValueError, match="1 bytes for 16 x 2 bits"):
        requirements_from_arrays(arrays, stripes(*[[0]] * 16))


def test_box_does_not_lose_its_region_to_a_tag() -> None:
    tag, box = WeakLabel(1), WeakLabel(2, box=(0, 0, 2, 6))
    for labels in ((tag, box), (box, tag)):
        seeds = seeds_at([(0.5, 3)], [1], [labels.index(tag)])
        result = requirements_of(annotation(*labels), stripes([0], [3]), seeds=seeds)
        assert result.num_fallbacks == 0


def test_crowd_has_no_peaks() -> None:
    """It allows extra instances although it has a single seed."""
    crowd = annotation(WeakLabel(1, box=(0, 0, 6, 6), crowd=True))
    seeds = seeds_at([(0.5, 3)], [1])
    result = requirements_of(crowd, stripes([0], [1], [2], [3]), seeds=seeds)
    assert [contains.shape[1] for contains in result.peaks] == [0]


def test_label_with_an_empty_mask_counts_as_a_box_or_a_tag() -> None:
    empty = masks.encode(np.zeros((1, 6, 8), dtype=bool))[0]
    regions = stripes([0], [3])
    box = annotation(WeakLabel(1, mask=empty, box=(0, 0, 2, 6)))
    assert compatible(box, regions) == [[True, False]]
    assert compatible(annotation(WeakLabel(1, mask=empty)), regions) == [[True, True]]


def test_seeds_of_another_annotation() -> None:
    seeds = seeds_at([(0.5, 3), (7.0, 3)], [1, 2])
    with pytest.raises(InputError, match="run `annocoin seeds` again"):
        requirements_of(annotation(WeakLabel(2), WeakLabel(1)), stripes([0]), seeds=seeds)
    with pytest.raises(InputError, match="run `annocoin seeds` again"):
        requirements_of(annotation(WeakLabel(1)), stripes([0]), seeds=seeds)
