"""What tags, points, boxes, masks and mixtures of them demand, by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from annocoin import masks
from annocoin.conditional.requirements import grab_cut, requirements_of
from annocoin.conditional.scoring import Candidates, seed_prior, seed_votes
from annocoin.errors import InputError
from annocoin.regions.region_set import RegionSet
from annocoin.seeds.seed_set import Seeds
from annocoin.types import Annotation, WeakLabel
from conditional.worlds import annotated, random_seeds

STRIPES = np.repeat([[0, 0, 1, 1, 2, 2, 3, 3]], 6, axis=0)  # four stripes of 6 x 2 pixels


def stripes(*members: list[int]) -> RegionSet:
    return RegionSet.of(STRIPES, [[s in region for s in range(4)] for region in members])


def annotation(*weak_labels: WeakLabel) -> Annotation:
    return Annotation((6, 8), weak_labels)


def seeds_at(
    points: list[tuple[float, float]], labels: list[int], weak_labels: list[int] | None = None
) -> Seeds:
    """Seeds for weak_labels of the same classes, in order, if not said otherwise."""
    count = len(points)
    if weak_labels is None:
        weak_labels = [sorted(set(labels)).index(label) for label in labels]
    return Seeds(
        size=(6, 8),
        labels=torch.tensor(labels),
        points=torch.tensor(points),
        scores=torch.ones(count),
        annotation_index=torch.tensor(weak_labels),
        responses=torch.full((count, 2, 2), 0.25),
        maps=torch.zeros(count, 2, 2),
    )


def test_a_tag_admits_every_region_and_more_may_follow() -> None:
    found = requirements_of(annotation(WeakLabel(2)), stripes([0], [1, 2], [3]))
    assert found.labels == (2,)
    assert [r.compatible.tolist() for r in found.required] == [[True] * 3]
    assert found.further.tolist() == [[True] * 3]


def test_seeds_leave_regions_with_a_peak_of_the_class_and_none_of_another() -> None:
    regions = stripes([0], [0, 1], [1, 2], [3])
    seeds = seeds_at([(0.5, 3), (3.5, 3)], [1, 2])
    found = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), regions, seeds=seeds)
    assert found.required[0].compatible.tolist() == [True, False, False, False]
    assert found.required[1].compatible.tolist() == [False, False, True, False]


def test_peaks_in_one_region_let_a_tag_fall_back_on_any() -> None:
    seeds = seeds_at([(0.5, 3), (3.5, 3)], [1, 2])
    found = requirements_of(
        annotation(WeakLabel(1), WeakLabel(2)), stripes([0, 1], [3]), seeds=seeds
    )
    assert found.added == 0
    assert [r.compatible.tolist() for r in found.required] == [[True, True]] * 2


def test_two_tags_that_one_region_would_have_to_meet() -> None:
    found = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), stripes([0]))
    assert found.added == 1
    assert len(found.regions) == 2
    assert int(found.regions.areas[1]) == 48  # the whole image


def test_a_point_admits_regions_that_contain_it_and_no_other_point() -> None:
    regions = stripes([0], [0, 1], [1], [2, 3])
    weak_labels = annotation(WeakLabel(1, point=(0.5, 1)), WeakLabel(1, point=(2.5, 1)))
    found = requirements_of(weak_labels, regions)
    assert found.required[0].compatible.tolist() == [True, False, False, False]
    assert found.required[1].compatible.tolist() == [False, False, True, False]
    assert not found.further.any()


def test_a_point_in_no_region_gets_its_superpixel() -> None:
    found = requirements_of(annotation(WeakLabel(1, point=(7.0, 2.0))), stripes([0], [1]))
    assert found.added == 1
    assert found.required[0].compatible.tolist() == [False, False, True]
    assert found.regions.masks()[2].nonzero()[:, 1].unique().tolist() == [6, 7]


def test_a_box_admits_regions_that_fit_it() -> None:
    regions = stripes([0], [0, 1], [0, 1, 2], [3])
    found = requirements_of(annotation(WeakLabel(3, box=(0, 0, 4, 6))), regions)
    assert found.required[0].compatible.tolist() == [False, True, False, False]
    between = requirements_of(
        annotation(WeakLabel(3, box=(0, 0, 3, 6))), regions
    )  # IoU 2/3, 3/4, 1/2
    assert between.required[0].compatible.tolist() == [False, True, False, False]
    about = requirements_of(annotation(WeakLabel(3, box=(0, 0, 2.9, 6))), regions)  # .69, .725, .48
    assert about.required[0].compatible.tolist() == [True, True, False, False]
    strict = requirements_of(annotation(WeakLabel(3, box=(0, 0, 3, 6))), regions, box_overlap=0.8)
    assert strict.added == 1


def test_a_box_that_no_region_fits_is_filled() -> None:
    found = requirements_of(annotation(WeakLabel(1, box=(3, 1, 5, 3))), stripes([0], [3]))
    assert found.added == 1
    assert int(found.regions.areas[-1]) == 4
    assert found.regions.boxes[-1].tolist() == [3, 1, 5, 3]


def test_grab_cut_finds_the_object_in_a_box_that_no_region_fits() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 40, (60, 80, 3), dtype=np.uint8)
    rows, columns = np.mgrid[:60, :80]
    disc = (rows - 30) ** 2 + (columns - 40) ** 2 < 15**2
    image[disc] = rng.integers(200, 255, (int(disc.sum()), 3))
    regions = RegionSet.of(np.repeat([[0, 1]], 60, axis=0).repeat(40, axis=1), [[1, 0]])
    said = Annotation((60, 80), (WeakLabel(1, box=(24, 14, 56, 46)),))
    found = requirements_of(said, regions, image=image)
    mask = found.regions.masks()[-1].numpy()
    assert (mask & disc).sum() / (mask | disc).sum() > 0.95
    assert grab_cut(image, np.ones((60, 80), dtype=bool)) is None


def test_two_boxes_that_want_the_same_region() -> None:
    box = (0.0, 0.0, 2.0, 6.0)
    found = requirements_of(
        annotation(WeakLabel(1, box=box), WeakLabel(2, box=box)), stripes([0], [3])
    )
    assert found.added == 1
    assert len(found.regions) == 3


def test_a_mask_joins_the_regions_and_is_nobody_elses() -> None:
    dense = np.zeros((1, 6, 8), dtype=bool)
    dense[0, 1:3, 1:4] = True
    said = annotation(WeakLabel(1, mask=masks.encode(dense)[0]), WeakLabel(1))
    found = requirements_of(said, stripes([0], [1, 2]))
    assert found.regions.masks()[2].tolist() == dense[0].tolist()
    assert [r.compatible.tolist() for r in found.required] == [[False, False, True]]
    assert found.further.tolist() == [[True, True, False]]  # the tag may find others


def test_a_tag_beside_a_box_of_its_class_requires_nothing_more() -> None:
    found = requirements_of(
        annotation(WeakLabel(1), WeakLabel(1, box=(0, 0, 2, 6)), WeakLabel(1)), stripes([0], [1, 2])
    )
    assert [r.annotation_index for r in found.required] == [1]
    assert found.further.all()


def test_a_crowd_is_one_or_more_objects_in_its_place() -> None:
    found = requirements_of(
        annotation(WeakLabel(1, box=(0, 0, 4, 6), crowd=True)), stripes([0], [1], [2, 3])
    )
    assert found.required[0].compatible.tolist() == [True, True, False]
    assert found.further.tolist() == [[True, True, False]]


def test_without_regions_every_mark_gets_one() -> None:
    regions = stripes([0])[[]]
    found = requirements_of(
        annotation(WeakLabel(1), WeakLabel(2, point=(0.5, 0.5)), WeakLabel(3, box=(1, 1, 3, 3))),
        regions,
    )
    assert found.added == 3
    assert found.regions.areas.tolist() == [48, 12, 4]


def test_met_by() -> None:
    found = requirements_of(annotation(WeakLabel(1), WeakLabel(2)), stripes([0], [1], [2]))
    assert found.met_by(torch.tensor([1, 2, 0]))
    assert found.met_by(torch.tensor([1, 2, 1]))
    assert not found.met_by(torch.tensor([1, 0, 1]))
    assert found.without_obligation().met_by(torch.tensor([0, 0, 0]))


def test_nothing_said_nothing_required() -> None:
    found = requirements_of(annotation(), stripes([0], [1]))
    assert found.labels == ()
    assert found.required == ()
    assert found.further.shape == (0, 2)


def test_another_image() -> None:
    with pytest.raises(InputError, match="expected one image"):
        requirements_of(Annotation((6, 9), (WeakLabel(1),)), stripes([0]))


@settings(deadline=None)
@given(annotated())
def test_every_requirement_has_a_region(world: tuple[RegionSet, Annotation]) -> None:
    regions, said = world
    found = requirements_of(said, regions)
    assert all(bool(r.compatible.any()) for r in found.required)
    assert {r.label for r in found.required} == set(said.distinct_labels)
    placed = [number for number, weak_label in enumerate(said) if weak_label.kind != "tag"]
    assert set(placed) <= {r.annotation_index for r in found.required}
    assert torch.equal(found.regions.masks()[: len(regions)], regions.masks())


@settings(deadline=None)
@given(annotated(), st.integers(0, 1000))
def test_with_seeds_too(world: tuple[RegionSet, Annotation], seed: int) -> None:
    regions, said = world
    found = requirements_of(said, regions, seeds=random_seeds(said, seed))
    assert all(bool(r.compatible.any()) for r in found.required)
    votes = seed_votes(found, random_seeds(said, seed))
    assert bool(votes.isfinite().all())
    assert bool(((votes.sum(dim=1) - 1).abs() < 1e-4)[votes.sum(dim=1) > 0].all())
    assert seed_prior(found, random_seeds(said, seed)).isfinite().all()


def test_a_tag_beside_a_mask_that_holds_its_peak() -> None:
    """The seed of the tag has nothing to vote for; that is no reason to stop."""
    dense = np.zeros((1, 6, 8), dtype=bool)
    dense[0, :, 6:] = True
    said = annotation(WeakLabel(1, mask=masks.encode(dense)[0]), WeakLabel(1))
    seeds = seeds_at([(7.0, 3), (7.0, 3)], [1, 1], [0, 1])
    found = requirements_of(said, stripes([0], [1]), seeds=seeds)
    assert seed_votes(found, seeds)[0].tolist() == [0, 0, 1]
    assert seed_votes(found, seeds)[1].sum() in (0, 1)


def test_a_box_does_not_lose_its_region_to_a_tag() -> None:
    tag, box = WeakLabel(1), WeakLabel(2, box=(0, 0, 2, 6))
    regions = stripes([0], [3])
    for weak_labels, labels in (((tag, box), [1]), ((box, tag), [1])):
        seeds = seeds_at([(0.5, 3)], labels, [weak_labels.index(tag)])
        assert requirements_of(annotation(*weak_labels), regions, seeds=seeds).added == 0


def test_more_of_a_crowd_may_follow_though_it_has_one_seed() -> None:
    said = annotation(WeakLabel(1, box=(0, 0, 6, 6), crowd=True))
    seeds = seeds_at([(0.5, 3)], [1])
    found = requirements_of(said, stripes([0], [1], [2], [3]), seeds=seeds)
    assert [held.shape[1] for held in found.peaks] == [0]


def test_an_empty_mask_says_no_more_than_its_box() -> None:
    nothing = masks.encode(np.zeros((1, 6, 8), dtype=bool))[0]
    boxed = requirements_of(
        annotation(WeakLabel(1, mask=nothing, box=(0, 0, 2, 6))), stripes([0], [3])
    )
    assert boxed.required[0].compatible.tolist() == [True, False]
    tagged = requirements_of(annotation(WeakLabel(1, mask=nothing)), stripes([0], [3]))
    assert tagged.required[0].compatible.tolist() == [True, True]


def test_seeds_of_another_annotation() -> None:
    seeds = seeds_at([(0.5, 3), (7.0, 3)], [1, 2])
    with pytest.raises(InputError, match="run `annocoin seeds` again"):
        requirements_of(annotation(WeakLabel(2), WeakLabel(1)), stripes([0]), seeds=seeds)
    with pytest.raises(InputError, match="run `annocoin seeds` again"):
        requirements_of(annotation(WeakLabel(1)), stripes([0]), seeds=seeds)


def test_everything_moves_to_another_device() -> None:
    said = annotation(WeakLabel(1), WeakLabel(2, box=(0, 0, 2, 6)))
    seeds = seeds_at([(0.5, 3), (7.0, 3)], [1, 2])
    requirements = requirements_of(said, stripes([0], [1, 2], [3]), seeds=seeds)
    table = torch.zeros(len(requirements.regions), 1 + len(requirements.labels))
    moved = Candidates(requirements, seeds=seeds, table=table).to("meta")
    there = [*moved.suppression, moved.coupling, moved.prior, moved.thought]
    there += [moved.requirements.further]
    there += [r.compatible for r in moved.requirements.required] + list(moved.requirements.peaks)
    there += [moved.regions.membership, moved.regions.superpixels]
    assert all(tensor is not None and tensor.device.type == "meta" for tensor in there)
