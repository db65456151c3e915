from __future__ import annotations

from importlib import resources

import numpy as np
import pytest

from annocoin.regions.hierarchy import CandidateRegions
from annocoin.regions.ranking import NUM_STRENGTHS, WEAK_THRESHOLDS, Ranker, region_features
from annocoin.regions.superpixel_graph import BoundaryElements, SuperpixelGraph


@pytest.fixture
def graph() -> SuperpixelGraph:
    """A red square (superpixel 2) on a grey background, left (0) and right (1)."""
    ids = np.zeros((40, 60), np.int32)
    ids[:, 30:] = 1
    ids[10:20, 10:30] = 2
    image = np.full((40, 60, 3), 120, np.uint8)
    image[ids == 2] = (200, 20, 20)
    elements = BoundaryElements.of(ids)
    strong = np.array([0.05, 0.9, 0.8])  # 0-1, 0-2, 1-2
    return SuperpixelGraph(image, ids, elements, np.stack([strong, strong / 2, strong, strong]))


def candidates(*members: list[int]) -> CandidateRegions:
    n = len(members)
    return CandidateRegions(np.array(members, bool), np.ones(n, int), np.arange(n))


def test_features_of_hand_counted_regions(graph: SuperpixelGraph) -> None:
    square, background, whole = region_features(graph, candidates([0, 0, 1], [1, 1, 0], [1, 1, 1]))
    assert square[0] == pytest.approx(np.log(200 / 2400))
    assert square[2:5].tolist() == pytest.approx([20 / 60, 10 / 40, 1.0])
    assert background[2:5].tolist() == pytest.approx([1.0, 1.0, 2200 / 2400])
    assert square[6:11].tolist() == [0, 0, 0, 0, 0]  # touches no side of the image
    assert background[7:11].tolist() == [1, 1, 2, 4]
    # 50 pixel sides to the left background, 10 to the right one.
    assert square[19] == pytest.approx((50 * 0.9 + 10 * 0.8) / 60, abs=1e-4)
    assert square[20] == pytest.approx((50 * 0.9 + 10 * 0.8) / 120, abs=1e-4)
    first_weak = 19 + NUM_STRENGTHS
    assert square[first_weak : first_weak + len(WEAK_THRESHOLDS)].tolist() == [0, 0, 0, 0]
    assert whole[19] == 0  # no outline inside the image
    inside = 19 + NUM_STRENGTHS + len(WEAK_THRESHOLDS) + 1
    assert background[inside] == pytest.approx(
        30 * 0.05 / 31, abs=1e-4
    )  # 30 sides between the halves
    assert np.isfinite([square, background, whole]).all()


def test_colour_differences(graph: SuperpixelGraph) -> None:
    grey, left, right = graph.colour_differences
    assert grey == pytest.approx(0, abs=1e-6)
    assert left == right > 0.8


def test_the_packaged_ranker_prefers_the_object(graph: SuperpixelGraph) -> None:
    scores = Ranker()(graph, candidates([0, 0, 1], [1, 0, 0], [1, 0, 1], [0, 1, 1]))
    assert scores.shape == (4,)
    assert scores.dtype == np.float32
    assert scores.argmax() == 0


def test_features_do_not_depend_on_the_block_size(graph: SuperpixelGraph) -> None:
    rows = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1]]
    features = region_features(graph, candidates(*rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("annocoin.regions.ranking.BLOCK", 2)
        assert (region_features(graph, candidates(*rows)) == features).all()


def test_weights_are_small_and_have_a_model_card() -> None:
    folder = resources.files("annocoin.weights")
    assert len(folder.joinpath("ranker.safetensors").read_bytes()) < 80_000
    assert "BSDS500" in folder.joinpath("ranker.md").read_text(encoding="utf-8")
