"""Checks before any work, and the plan of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision

from annocoin.data.dataset import WeakDataset
from annocoin.data.loading import load_weak
from annocoin.engine import preflight
from annocoin.engine.config import Config
from annocoin.engine.distribution import single_process
from annocoin.engine.image_stages import CLASSIFIER_FILE, Execution, make_regions
from annocoin.engine.prediction_training import RoundImages
from annocoin.engine.preflight import (
    Precomputed,
    check_architectures,
    check_before_work,
    dry_run,
    plan,
    plan_with_estimates,
    stage_images,
    suggest_bfloat16,
    with_precision_of,
)
from annocoin.engine.presets import PRESETS, configure
from annocoin.errors import InputError, Problems
from annocoin.progress import format_duration
from annocoin.regions.proposals import RegionOptions
from annocoin.seeds.classifier import Classifier, ClassifierArchitecture, write_classifier

TRUNK = "conditional.architecture.trunk"


@pytest.fixture
def weak(scenes: Path) -> WeakDataset:
    return load_weak(scenes, "image")


def check(dataset: WeakDataset, config: Config, out: Path, **precomputed: Any) -> Config:
    return check_before_work(dataset, out, config, Precomputed(**precomputed), Problems())


def no_download(*args: Any, **options: Any) -> None:
    raise AssertionError("weights would be downloaded")


@pytest.mark.parametrize("name", list(PRESETS))
def test_presets_pass_without_a_download(
    name: str, weak: WeakDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", no_download)
    monkeypatch.setattr(torch.hub, "download_url_to_file", no_download)
    config = configure(name, weak.classes)
    assert check(weak, config, tmp_path / "run") == config
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("trunk", ["unet", "resnet50", "mobilenet_v2", "unet-resnet18"])
def test_trunks_of_another_backbone_than_the_classifiers(trunk: str) -> None:
    check_architectures(configure("voc-cpu", ("cat",), {TRUNK: trunk}))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("voc-cpu", {TRUNK: "unet-nothing"}, "trunk unet-nothing"),
        ("voc-cpu", {TRUNK: "nothing"}, "backbone 'nothing'"),
        ("synthetic", {"classifier.backbone": "resnet51"}, "backbone 'resnet51'"),
        ("synthetic", {"prediction.architecture.backbone": "resnet51"}, "'resnet51'"),
        ("synthetic", {"classifier.backbone": "swin_t"}, "not fully convolutional"),
        ("synthetic", {"prediction.weights": "nowhere.pth"}, "nowhere.pth: no such file"),
        ("voc-r50", {TRUNK: "unet", "conditional.weights": "classifier"}, "expected the same"),
    ],
)
def test_networks_that_cannot_be_built_are_refused(
    name: str, changes: dict[str, str], message: str, weak: WeakDataset, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as error:
        check(weak, configure(name, weak.classes, changes), tmp_path)
    assert message in str(error.value)


def test_files_of_weights_are_read_before_work(weak: WeakDataset, tmp_path: Path) -> None:
    (tmp_path / "mobilenet_v2.pth").write_text("no weights")
    changes = {
        "prediction.architecture.backbone": "mobilenet_v2",
        "prediction.weights": str(tmp_path / "mobilenet_v2.pth"),
    }
    with pytest.raises(InputError, match=r"mobilenet_v2\.pth: no weights that can be read"):
        check(weak, configure("synthetic", weak.classes, changes), tmp_path)


def test_networks_follow_a_precomputed_classifier(weak: WeakDataset, tmp_path: Path) -> None:
    file = tmp_path / "c.safetensors"
    architecture = ClassifierArchitecture(weak.classes, "resnet50", stride_in_1x1=True, size=64)
    write_classifier(file, Classifier(architecture))
    from_classifier = {"prediction.weights": "classifier"}
    config = configure("voc-cpu-r50", weak.classes, from_classifier)
    checked = check(weak, config, tmp_path / "run", classifier=file)
    assert checked.classifier.stride_in_1x1
    assert checked.prediction.architecture.stride_in_1x1
    small = {**from_classifier, "classifier.backbone": "mobilenet_v2"}
    with pytest.raises(InputError, match=r"classifier is a resnet50.*backbone a mobilenet_v2"):
        check(
            weak,
            configure("voc-cpu", weak.classes, small),
            tmp_path / "run",
            classifier=file,
        )
    with pytest.raises(InputError, match="other classes than the dataset"):
        check(replace(weak, classes=("x",) * 6), config, tmp_path)


def test_a_precomputed_classifier_of_another_backbone_than_the_files_of_weights(
    weak: WeakDataset, tmp_path: Path
) -> None:
    """The file has the weights of the preset's backbone, from which no classifier is trained."""
    file, weights = tmp_path / "c.safetensors", tmp_path / "resnet18.pth"
    write_classifier(file, Classifier(ClassifierArchitecture(weak.classes, "tiny", size=64)))
    torch.save(torchvision.models.resnet18().state_dict(), weights)
    changes = {"classifier.backbone": "resnet18"}
    config = configure("synthetic", weak.classes, changes, weights=tmp_path)
    assert config.classifier.weights == str(weights)
    checked = check(weak, config, tmp_path / "run", classifier=file)
    assert checked.classifier.backbone == "tiny"
    assert checked.prediction == config.prediction
    assert check(weak, config, tmp_path / "run") == config
    mismatched = replace(config, classifier=replace(config.classifier, backbone="resnet34"))
    with pytest.raises(InputError, match=r"resnet18\.pth: not weights of resnet34"):
        check(weak, mismatched, tmp_path / "run")


def test_a_classifier_of_other_classes_or_of_the_run_itself(
    weak: WeakDataset, tmp_path: Path
) -> None:
    config = configure("synthetic", weak.classes)
    file = tmp_path / CLASSIFIER_FILE
    write_classifier(file, Classifier(ClassifierArchitecture(("cat",), "tiny")))
    with pytest.raises(InputError, match=r"a classifier of \('cat',\); the dataset has"):
        check(weak, config, tmp_path / "run", classifier=file)
    with pytest.raises(InputError, match="is the run's own classifier"):
        check(weak, config, tmp_path, classifier=file)


@pytest.mark.parametrize(
    ("supervision", "rounds", "stages"),
    [
        ("image", None, ["classifier", "regions", "seeds", "conditional", "1 round", "final"]),
        ("image", 0, ["classifier", "regions", "seeds", "labels", "prediction"]),
        ("mask", None, ["prediction"]),
    ],
)
def test_the_plan_lists_the_stages(
    scenes: Path, supervision: Any, rounds: int | None, stages: list[str]
) -> None:
    dataset = load_weak(scenes, supervision)
    config = configure("synthetic", dataset.classes, rounds=rounds)
    lines = plan(config, dataset, Precomputed())
    assert lines[0] == f"8 images, 6 classes, supervision {supervision}"
    assert [line[:14].strip() for line in lines[1:]] == stages
    if rounds == 0 or supervision == "mask":
        assert "560 steps of 4 images" in lines[-1]


def test_the_plan_counts_the_images_of_the_classifier(weak: WeakDataset) -> None:
    config = configure("synthetic", weak.classes)
    lines = plan(config, weak[:5], Precomputed(), more_tags=weak[5:])
    assert lines[0].startswith("5 images")
    assert lines[1].endswith("epochs of 8 images")
    assert lines[2].endswith("of 5 images")


def test_the_plan_with_estimates(
    weak: WeakDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure("synthetic", weak.classes)
    monkeypatch.setattr(preflight, "cores", lambda: 2)
    arguments: Any = (config, weak, Precomputed(), None, tmp_path / "no" / "run", single_process())
    lines, seconds = plan_with_estimates(*arguments)
    assert all("; about " in line for line in lines[1:7])
    total = format_duration(sum(seconds.values()))
    assert lines[7].startswith(f"in all about {total} on 2 cores, ")
    assert not (tmp_path / "no").exists()
    images = stage_images(config, weak, Precomputed())
    assert (images.classifier, images.regions, images.rounds) == (8, 8, (8, 8))
    monkeypatch.setattr(preflight, "disk_space", lambda *_: 1e9)
    monkeypatch.setattr(preflight, "peak_memory", lambda *_: 1e9)
    *_, memory, disk = plan_with_estimates(*arguments)[0]
    assert "GB of memory are free" in memory
    assert f"GB of disk space are free at {tmp_path}" in disk


def test_precomputed_regions_are_needed_for_the_images_that_are_used(
    weak: WeakDataset, tmp_path: Path
) -> None:
    steps = {"prediction.training.steps": "1", "prediction.training.final_steps": "1"}
    config = configure("synthetic", weak.classes, {"rounds": "1", **steps})
    used = RoundImages(weak, config).used
    assert 0 < len(used) < len(weak)
    options, serial = RegionOptions("gradient", 60), Execution(jobs=1)
    regions = make_regions(used, tmp_path / "used", options, serial)
    assert check(weak, config, tmp_path / "run", regions=regions) == config
    fewer = make_regions(used[1:], tmp_path / "fewer", options, serial)
    with pytest.raises(InputError, match=f"no regions of image '{used.images[0].image_id}'"):
        check(weak, config, tmp_path / "run", regions=fewer)


def test_a_dry_run_has_the_checks_of_a_run(weak: WeakDataset, tmp_path: Path) -> None:
    group = single_process(precision="bf16-mixed")
    config = configure("synthetic", weak.classes)
    lines = dry_run(weak[:5], tmp_path, config, more_images=weak[5:], group=group)
    assert lines[0].startswith("8 images")
    changed = replace(config, classifier=replace(config.classifier, backbone="resnet51"))
    with pytest.raises(InputError, match="resnet51"):
        dry_run(weak, tmp_path, changed, group=group)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "precision", "supported", "noted"),
    [
        ("voc-cpu", "32-true", True, True),
        ("voc-cpu", "bf16-mixed", True, False),
        ("voc-cpu-r50", "32-true", True, False),  # has bfloat16 of its own
        ("voc-cpu", "32-true", False, False),
        ("synthetic", "32-true", True, False),
    ],
)
def test_bfloat16_is_suggested_where_it_saves_time(
    name: str, precision: str, supported: bool, noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "has_bfloat16", lambda: supported)
    group = single_process(precision=precision)
    config = with_precision_of(group, configure(name, ("cat",)))
    assert bool(suggest_bfloat16(config, group)) == noted


@pytest.mark.parametrize("name", list(PRESETS))
def test_bfloat16_is_for_all_stages(name: str) -> None:
    config = configure(name, ("cat",)).in_bfloat16()
    precisions = [network.training.precision for network in config.prediction_networks.values()]
    assert {config.classifier.precision, config.seeds.precision, *precisions} == {"bf16"}
