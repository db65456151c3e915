"""Classifiers: any backbone, weights from files, training that can be interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file

from annocoin.backbones import build_backbone, resize_longest_side
from annocoin.data.loading import load_weak
from annocoin.engine.classifier_training import (
    ClassifierOptions,
    augmented,
    options_for,
    predict_tags,
    tag_map,
    tag_matrix,
    tags_fingerprint,
    train_classifier,
)
from annocoin.errors import InputError
from annocoin.seeds.classifier import (
    Classifier,
    ClassifierArchitecture,
    read_classifier,
    write_classifier,
)

QUICK = ClassifierOptions(backbone="tiny", size=64, epochs=3, batch=4)


@pytest.mark.parametrize(
    ("name", "stride"),
    [("tiny", 8), ("resnet18", 32), ("resnet50", 32), ("mobilenet_v2", 32), ("vgg11", 32)],
)
def test_backbones_keep_the_plane(name: str, stride: int) -> None:
    net = Classifier(ClassifierArchitecture(("a", "b", "c"), name)).eval()
    with torch.inference_mode():
        assert net(torch.rand(2, 3, 96, 64)).shape == (2, 3, 96 // stride, 64 // stride)


def test_unknown_backbones() -> None:
    with pytest.raises(InputError, match="expected 'tiny' or a classification network"):
        build_backbone("resnet51")
    with pytest.raises(InputError, match="no map"):
        build_backbone("vit_b_16", "none")
    with pytest.raises(InputError, match="takes only imagenet or none"):
        build_backbone("tiny", "some.pth")
    with pytest.raises(InputError, match="not made of convolutions alone"):
        Classifier(ClassifierArchitecture(("a",), "convnext_tiny"))
    with pytest.raises(InputError, match="not made of convolutions alone"):
        Classifier(ClassifierArchitecture(("a",), "swin_t"))
    with pytest.raises(InputError, match="at least one class"):
        ClassifierArchitecture((), "tiny")
    with pytest.raises(InputError, match="32 to 4096"):
        ClassifierArchitecture(("a",), "tiny", size=8)


def test_weights_from_files(tmp_path: Path) -> None:
    torch.manual_seed(1)
    whole = torchvision.models.resnet18()
    half = {
        key: value.half() if value.is_floating_point() else value
        for key, value in whole.state_dict().items()
    }
    torch.save(half, tmp_path / "half.pth")
    save_file(whole.state_dict(), tmp_path / "whole.safetensors")
    features = {key: value for key, value in half.items() if not key.startswith("fc.")}
    torch.save(features, tmp_path / "features.pth")
    x = torch.rand(1, 3, 64, 64)
    with torch.inference_mode():
        expected = torch.nn.Sequential(*list(whole.eval().children())[:-2])(x)
        for name in ("half.pth", "whole.safetensors", "features.pth"):
            trunk = build_backbone("resnet18", tmp_path / name).eval()
            assert next(trunk.parameters()).dtype == torch.float32
            assert torch.allclose(trunk(x), expected, atol=0.05), name
    torch.save({**half, "extra": torch.zeros(1)}, tmp_path / "extra.pth")
    torch.save({"conv1.weight": torch.zeros(2, 2)}, tmp_path / "shapes.pth")
    torch.save({"epoch": 3}, tmp_path / "state.pth")
    (tmp_path / "text.pth").write_text("no weights")
    for name, reason in {
        "none.pth": "no such file",
        "extra.pth": "with 'extra'",
        "shapes.pth": "not weights of resnet18",
        "state.pth": "expected a state dict",
        "text.pth": "no weights that can be read",
    }.items():
        with pytest.raises(InputError, match=reason):
            build_backbone("resnet18", tmp_path / name)
    with pytest.raises(InputError, match="not weights of mobilenet_v2"):
        build_backbone("mobilenet_v2", tmp_path / "half.pth")


def test_weights_that_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", offline)
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(InputError, match=r"cannot be fetched .*--backbone-weights"):
        build_backbone("mobilenet_v2")


def test_strides_of_original_resnets() -> None:
    trunk = build_backbone("resnet50", "none", stride_in_1x1=True)
    for stage in ("layer2", "layer3", "layer4"):
        block: Any = getattr(trunk, stage)[0]
        assert (block.conv1.stride, block.conv2.stride) == ((2, 2), (1, 1))
    with torch.inference_mode():
        assert trunk.eval()(torch.rand(1, 3, 64, 64)).shape == (1, 2048, 2, 2)
    for name in ("resnet18", "mobilenet_v2"):
        with pytest.raises(InputError, match="1x1 strides"):
            build_backbone(name, "none", stride_in_1x1=True)


def test_a_classifier_is_one_file(tmp_path: Path) -> None:
    net = Classifier(ClassifierArchitecture(("cat", "dög"), "tiny", size=96)).eval()
    write_classifier(tmp_path / "c.safetensors", net)
    again = read_classifier(tmp_path / "c.safetensors")
    assert again.architecture == net.architecture
    x = torch.rand(1, 3, 40, 56)
    assert torch.equal(again(x), net(x))
    assert not again.training
    save_file({"x": torch.zeros(1)}, tmp_path / "other.safetensors")
    (tmp_path / "text.safetensors").write_text("no weights")
    for name in ("other", "text"):
        with pytest.raises(InputError, match="not a classifier"):
            read_classifier(tmp_path / f"{name}.safetensors")
    with pytest.raises(InputError, match="no such file"):
        read_classifier(tmp_path / "none.safetensors")


def test_images_are_looked_at_whole() -> None:
    image = np.zeros((30, 60, 3), np.uint8)
    image[:, 30:, 0] = 255
    seen = resize_longest_side(image, 80)
    assert seen.shape == (3, 40, 80)
    assert float(seen[0, 20, 70]) == 1
    assert float(seen[0, 20, 10]) == 0
    assert resize_longest_side(np.zeros((1, 300, 3), np.uint8), 40).shape == (3, 32, 40)


def test_augmentation_depends_on_its_numbers_only() -> None:
    image = np.random.default_rng(0).integers(0, 255, (50, 70, 3), dtype=np.uint8)
    one = augmented(image, 64, np.random.default_rng([1, 2, 3]))
    assert one.shape == (3, 64, 64)
    assert torch.equal(one, augmented(image, 64, np.random.default_rng([1, 2, 3])))
    assert not torch.equal(one, augmented(image, 64, np.random.default_rng([1, 2, 4])))
    shapes = {augmented(image, s, np.random.default_rng(s)).shape for s in range(32, 60)}
    assert len(shapes) == 28
    assert 0 <= float(one.min()) <= float(one.max()) <= 1


def test_tags_and_their_fingerprint(scenes: Path) -> None:
    weak = load_weak(scenes)
    tags = tag_matrix(weak)
    for row, image in zip(tags.tolist(), weak, strict=True):
        assert [i + 1 for i, on in enumerate(row) if on] == list(image.annotation.distinct_labels)
    assert tag_map(tags, weak) == 1
    assert tags_fingerprint(weak) == tags_fingerprint(load_weak(scenes, "box"))
    assert tags_fingerprint(weak) != tags_fingerprint(weak[:7])


def test_training_learns(scenes: Path) -> None:
    """Few images, seen often: the classifier must come to know them."""
    weak = load_weak(scenes)
    lines: list[dict[str, Any]] = []
    options = options_for("tiny", size=64, epochs=40, batch=4)
    net = train_classifier(weak, options, validation=weak[:2], log=lines.append)
    assert [line["epoch"] for line in lines] == list(range(1, 41))
    assert lines[-1]["loss"] < 0.7 * lines[0]["loss"]
    assert set(lines[0]) == {"epoch", "loss", "training_tag_map", "validation_tag_map", "seconds"}
    assert tag_map(predict_tags(net, weak), weak) > 0.8


def test_an_interrupted_training_ends_as_if_it_had_not_been(scenes: Path, tmp_path: Path) -> None:
    weak = load_weak(scenes)
    straight = train_classifier(weak, QUICK)
    file = tmp_path / "part.safetensors"

    def stop(figures: dict[str, Any]) -> None:
        if figures["epoch"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_classifier(weak, QUICK, checkpoint=file, log=stop)
    torch.manual_seed(99)  # what was drawn elsewhere does not matter
    lines: list[dict[str, Any]] = []
    resumed = train_classifier(weak, QUICK, checkpoint=file, log=lines.append)
    assert [line["epoch"] for line in lines] == [2, 3]
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_checkpoint_of_something_else_is_refused(scenes: Path, tmp_path: Path) -> None:
    weak = load_weak(scenes)
    file = tmp_path / "part.safetensors"
    once = ClassifierOptions(backbone="tiny", size=64, epochs=1, batch=4)
    train_classifier(weak, once, checkpoint=file)
    with pytest.raises(InputError, match="epochs 1, now it is 3"):
        train_classifier(weak, QUICK, checkpoint=file)
    with pytest.raises(InputError, match=r"images .* now it is"):
        train_classifier(weak[:5], once, checkpoint=file)
    file.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="damaged"):
        train_classifier(weak, once, checkpoint=file)


def test_frozen_parts_and_given_statistics_stay(scenes: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = tmp_path / "r18.pth"
    torch.save(torchvision.models.resnet18().state_dict(), weights)
    options = ClassifierOptions("resnet18", str(weights), size=64, epochs=1, batch=4, frozen=5)
    net = train_classifier(load_weak(scenes), options)
    start = build_backbone("resnet18", weights)
    learnt = net.trunk.state_dict()
    for name, value in start.state_dict().items():
        stays = name.startswith(("conv1", "bn1", "layer1")) or "running" in name
        assert torch.equal(learnt[name], value) == (stays or "num_batches" in name), name


def test_layers_dropped_at_random_are_a_matter_of_the_seed(scenes: Path, tmp_path: Path) -> None:
    options = ClassifierOptions("efficientnet_b0", "none", size=64, epochs=1, batch=8)
    weak = load_weak(scenes)[:2]
    first = train_classifier(weak, options).state_dict()
    torch.rand(3)
    second = train_classifier(weak, options).state_dict()
    assert all(torch.equal(value, second[name]) for name, value in first.items())


def test_the_tiny_backbone_keeps_only_layers_that_came_with_weights() -> None:
    assert options_for("tiny").frozen == 7
    assert options_for("tiny", backbone_weights="none").frozen == 0
    assert options_for("resnet50", epochs=3) == ClassifierOptions(epochs=3)


def test_a_loss_that_is_no_number_stops(scenes: Path) -> None:
    options = ClassifierOptions(backbone="tiny", size=64, epochs=2, batch=4, head_rate=1e30)
    with pytest.raises(InputError, match=r"loss is (nan|inf) in epoch \d at images .*lower"):
        train_classifier(load_weak(scenes), options)


@pytest.mark.parametrize(
    "wrong",
    [{"epochs": 0}, {"batch": 0}, {"precision": "8"}, {"stimulated": 2.0}, {"seed": -1}],
)
def test_bad_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        ClassifierOptions(**wrong)
