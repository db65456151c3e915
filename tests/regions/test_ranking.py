from __future__ import annotations

from importlib import resources

import numpy as np
import pytest

from annocoin.regions.hierarchy import CandidateRegions
from annocoin.regions.ranking import NUM_STRENGTHS, WEAK_THRESHOLDS, Ranker, region_features
from annocoin.regions.superpixel_graph import BoundaryElements, SuperpixelGraph


@pytest.fixture
def graph() -> SuperpixelGraph:
    """A red square in a grey field that is cut in two: superpixels 0 left, 1 right, 2 square."""
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


def test_measurements_are_what_one_counts(graph: SuperpixelGraph) -> None:
    square, field, whole = region_features(graph, candidates([0, 0, 1], [1, 1, 0], [1, 1, 1]))
    assert square[0] == pytest.approx(np.log(200 / 2400))
    assert square[2:5].tolist() == pytest.approx([20 / 60, 10 / 40, 1.0])
    assert field[2:5].tolist() == pytest.approx([1.0, 1.0, 2200 / 2400])
    assert square[6:11].tolist() == [0, 0, 0, 0, 0]  # touches no side of the image
    assert field[7:11].tolist() == [1, 1, 2, 4]
    # 50 pixel sides to the left field, 10 to the right one.
    assert square[19] == pytest.approx((50 * 0.9 + 10 * 0.8) / 60, abs=1e-4)
    assert square[20] == pytest.approx((50 * 0.9 + 10 * 0.8) / 120, abs=1e-4)
    first_weak = 19 + NUM_STRENGTHS
    assert square[first_weak : first_weak + len(WEAK_THRESHOLDS)].tolist() == [0, 0, 0, 0]
    assert whole[19] == 0  # no outline inside the image
    inside = 19 + NUM_STRENGTHS + len(WEAK_THRESHOLDS) + 1
    assert field[inside] == pytest.approx(30 * 0.05 / 31, abs=1e-4)  # 30 sides between the halves
    assert np.isfinite([square, field, whole]).all()


def test_colours_that_differ_are_seen(graph: SuperpixelGraph) -> None:
    grey, left, right = graph.colour_differences
    assert grey == pytest.approx(0, abs=1e-6)
    assert left == right > 0.8


def test_the_shipped_ranker_knows_an_object_from_a_background(graph: SuperpixelGraph) -> None:
    scores = Ranker()(graph, candidates([0, 0, 1], [1, 0, 0], [1, 0, 1], [0, 1, 1]))
    assert scores.shape == (4,)
    assert scores.dtype == np.float32
    assert scores.argmax() == 0


def test_many_candidates_are_measured_in_blocks(graph: SuperpixelGraph) -> None:
    rows = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1]]
    few = region_features(graph, candidates(*rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("annocoin.regions.ranking.BLOCK", 2)
        assert (region_features(graph, candidates(*rows)) == few).all()


def test_weights_are_small_and_have_a_card() -> None:
    folder = resources.files("annocoin.weights")
    assert len(folder.joinpath("ranker.safetensors").read_bytes()) < 80_000
    assert "BSDS500" in folder.joinpath("ranker.md").read_text(encoding="utf-8")
