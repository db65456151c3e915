"""Expected time, memory and disk space: the sum of documented runs, and how they scale."""

from __future__ import annotations

from dataclasses import replace

import pytest

from annocoin.engine.estimates import (
    StageImages,
    disk_space,
    median_size,
    network_bytes,
    peak_memory,
    stage_seconds,
)
from annocoin.engine.presets import PRESETS, configure

VOC = StageImages(1464, 1464, 1464, 1464, (1464,) * 3, (375, 500))


def test_the_documented_run_on_photographs() -> None:
    """docs/benchmarks.md: about 2 h 20 min in bfloat16, with one to two cores."""
    config = configure("voc-cpu", ("cat",)).in_bfloat16()
    seconds = stage_seconds(config, VOC, 2)
    assert seconds["classifier"] * 1.3 == pytest.approx(870, rel=0.02)
    assert seconds["seeds"] == pytest.approx(510, rel=0.02)
    assert seconds["round 1, prediction"] * 1.3 == pytest.approx(1317, rel=0.02)
    assert seconds["final prediction"] * 1.3 == pytest.approx(1237, rel=0.02)
    assert sum(seconds.values()) < 140 * 60 < sum(stage_seconds(config, VOC, 1).values())


def test_the_documented_run_on_more_photographs() -> None:
    """docs/benchmarks.md: 6,000 images on two cores, class maps and detections at one size each."""
    changes = {"rounds": "1", "seeds.map_scales": "[1.4]"}
    changes["conditional.detection_scales"] = "[1.0]"
    config = configure("voc-cpu", ("cat",), changes).in_bfloat16()
    images = replace(VOC, seeds=6000, rounds=(2400, 6000))
    seconds = stage_seconds(config, images, 2)
    assert seconds["seeds"] == pytest.approx(1284, rel=0.02)
    assert seconds["round 1, tables"] == pytest.approx(1084, rel=0.02)  # of the last training's


@pytest.mark.parametrize("name", list(PRESETS))
def test_estimates_scale_with_images_steps_and_cores(name: str) -> None:
    config = configure(name, ("cat", "dog"))
    rounds = (1464,) * (config.rounds + 1)
    images = replace(VOC, rounds=rounds)
    base = stage_seconds(config, images, 2)
    assert all(value > 0 for value in base.values())
    assert stage_seconds(config, replace(images, regions=732), 2)["regions"] == base["regions"] / 2
    assert stage_seconds(config, images, 4)["regions"] == base["regions"] / 2
    assert stage_seconds(config, images, 4)["conditional"] < base["conditional"]
    assert "regions" not in stage_seconds(config, replace(images, regions=0), 2)
    assert ("final prediction" in base) == (config.prediction.training.final_steps > 0)
    expected = {"classifier", "regions", "seeds", "examples", "conditional"}
    assert expected | {f"round {config.rounds}, tables", "final samples"} <= base.keys()
    without = stage_seconds(config.without_rounds(), images, 2)
    assert set(without) == {"classifier", "regions", "seeds", "prediction"}
    assert peak_memory(config, images, 8) >= peak_memory(config, images, 1) > 0.8


def test_disk_space_is_that_of_files_and_networks() -> None:
    config = configure("synthetic", ("cat",))
    none = StageImages(0, 0, 0, 0, (0, 0), (100, 100))
    sizes = network_bytes(config, classifier=False)
    assert len(sizes) == 2  # conditional and prediction network
    networks = (2 * sum(sizes) + 3 * max(sizes)) / 1e9
    assert disk_space(config, none) == pytest.approx(networks)
    images = replace(none, regions=1000, prepared=1000, rounds=(1000, 1000))
    files = (41_000 + 47_000 + 2 * 11_000) * 1000 / 1e9
    assert disk_space(config, images) == pytest.approx(networks + files)


def test_the_median_size() -> None:
    assert median_size([(10, 10), (1, 1), (3, 3)]) == (3, 3)
