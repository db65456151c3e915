"""Synthetic scenes: deterministic, with visible objects and visible emblems."""

import dataclasses

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from annocoin.synthetic.creatures import CLASSES, EASY, HARD, SPECIES, SceneStyle, draw_traits
from annocoin.synthetic.dataset import Scene, place_creatures, render_scene


def _same(first: Scene, second: Scene) -> bool:
    return all(
        np.array_equal(getattr(first, field.name), getattr(second, field.name))
        for field in dataclasses.fields(Scene)
    )


def _shares(scene: Scene) -> np.ndarray:
    """Visible area of the emblem over that of the object, for every object."""
    area = np.bincount(scene.ids.ravel(), minlength=len(scene.labels) + 1)[1:]
    return np.bincount(scene.parts.ravel(), minlength=len(scene.labels) + 1)[1:] / area


def test_rendering_is_deterministic() -> None:
    assert _same(render_scene(3, 5), render_scene(3, 5))


def test_a_scene_does_not_depend_on_the_scenes_before_it() -> None:
    scene = render_scene(0, 4)
    assert _same([render_scene(0, index) for index in range(5)][4], scene)


@pytest.mark.parametrize("other", [(0, 1), (1, 0)])
def test_another_seed_or_index_is_another_scene(other: tuple[int, int]) -> None:
    assert not np.array_equal(render_scene(0, 0).image, render_scene(*other).image)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    index=st.integers(0, 10**6),
    size=st.tuples(st.integers(48, 200), st.integers(48, 200)),
)
def test_scenes_are_well_formed(seed: int, index: int, size: tuple[int, int]) -> None:
    scene = render_scene(seed, index, size)
    count = len(scene.labels)

    assert scene.image.shape == (*size, 3)
    assert scene.ids.shape == scene.parts.shape == size
    assert {a.dtype for a in (scene.image, scene.ids, scene.parts)} == {np.dtype(np.uint8)}

    assert 1 <= count <= 4
    assert set(np.unique(scene.ids)) - {0} == set(range(1, count + 1))
    assert set(np.unique(scene.parts)) - {0} == set(range(1, count + 1))
    assert all(1 <= label <= len(CLASSES) for label in scene.labels)

    emblem = scene.parts > 0
    assert np.array_equal(scene.parts[emblem], scene.ids[emblem])

    areas = np.bincount(scene.ids.ravel())[1:]
    assert areas.min() >= 0.004 * scene.ids.size


@pytest.mark.parametrize("size", [(128, 128), (375, 500)])
def test_the_emblem_is_a_small_part_of_an_unoccluded_object(size: tuple[int, int]) -> None:
    scenes = [render_scene(1, index, size) for index in range(25)]
    shares = np.concatenate([_shares(scene) for scene in scenes if len(scene.labels) == 1])
    assert len(shares) >= 3
    assert shares.min() >= 0.06
    assert shares.max() <= 0.15


def test_enough_of_every_object_and_emblem_is_visible() -> None:
    for seed in range(60):
        placed, ids, parts = place_creatures(np.random.default_rng(seed), (128, 128))
        for number, creature in enumerate(placed, 1):
            whole, emblem = creature.sprite.solid.sum(), creature.sprite.solid_part.sum()
            assert np.count_nonzero(ids == number) >= 0.4 * whole
            assert np.count_nonzero(parts == number) >= 0.6 * emblem
            assert 0.06 <= emblem / whole <= 0.15


def test_the_emblem_of_an_occluded_object_is_visible() -> None:
    # At least 60 % of an emblem of 6 % of the object; at most all of one of 15 % on 40 % of it.
    shares = np.concatenate([_shares(render_scene(2, index)) for index in range(60)])
    assert shares.min() >= 0.6 * 0.06
    assert shares.max() <= 0.15 / 0.4


def test_sixty_scenes_have_every_class_and_count_and_repeated_classes() -> None:
    labels = [render_scene(0, index, (64, 64)).labels for index in range(60)]
    assert {label for scene in labels for label in scene} == set(range(1, len(CLASSES) + 1))
    assert {len(scene) for scene in labels} == {1, 2, 3, 4}
    assert any(len(set(scene)) < len(scene) for scene in labels)


def test_class_names() -> None:
    names = ("ringtail", "crossbill", "starfish", "zebra", "checkerspot", "moonfish")
    assert names == CLASSES


def _typical(style: SceneStyle) -> float:
    """The fraction of creatures with the body plan and the texture of their species."""
    traits = [draw_traits(np.random.default_rng(n), n % 6 + 1, style) for n in range(60)]
    species = [SPECIES[n % 6] for n in range(60)]
    pairs = zip(traits, species, strict=True)
    return float(np.mean([(t.plan, t.texture) == (s.plan, s.texture) for t, s in pairs]))


def test_bodies_of_easy_scenes_are_typical_of_their_species() -> None:
    assert _typical(EASY) == 1.0
    assert _typical(HARD) < 0.5


def _contrasts(style: SceneStyle) -> np.ndarray:
    """Lab distance between the mean of each object and that of the background around it."""
    distances = []
    for scene in (render_scene(1, index, style=style) for index in range(20)):
        lab = cv2.cvtColor(scene.image.astype(np.float32) / 255, cv2.COLOR_RGB2Lab)
        for number in range(1, len(scene.labels) + 1):
            mask = (scene.ids == number).astype(np.uint8)
            ring = (cv2.dilate(mask, np.ones((9, 9), np.uint8)) > 0) & (scene.ids == 0)
            distances.append(np.linalg.norm(lab[mask > 0].mean(0) - lab[ring].mean(0)))
    return np.array(distances)


def test_objects_of_easy_scenes_differ_from_their_background() -> None:
    easy, hard = (np.quantile(_contrasts(style), 0.1) for style in (EASY, HARD))
    assert easy > 1.5 * hard


def test_a_very_long_image_has_an_object() -> None:
    assert all(render_scene(0, index, (48, 900)).labels for index in range(10))


@pytest.mark.parametrize(
    ("seed", "index", "size", "message"),
    [
        (0, 0, (47, 128), "an image of 47 x 128; expected sides of 48 or more"),
        (0, 0, (128, 0), "an image of 128 x 0; expected sides of 48 or more"),
        (0, -1, (128, 128), "seed 0, index -1; expected 0 or more"),
        (-2, 0, (128, 128), "seed -2, index 0; expected 0 or more"),
    ],
)
def test_bad_input_is_one_line(seed: int, index: int, size: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        render_scene(seed, index, size)
    assert "\n" not in str(caught.value)
