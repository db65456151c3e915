"""Exports run without annocoin, give the network's instances, and are not written otherwise."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torchvision.models.detection.roi_heads import paste_masks_in_image
from torchvision.models.detection.transform import GeneralizedRCNNTransform
from torchvision.models.resnet import Bottleneck

from annocoin.errors import InputError
from annocoin.prediction import export, standalone
from annocoin.prediction.export import DetectorOutput, describe_difference, export_network
from annocoin.prediction.networks import PredictionArchitecture
from annocoin.prediction.predictor import Predictor
from prediction.worlds import network, random_image, small

VARIANTS: dict[str, dict[str, Any]] = {
    "tiny": {"backbone": "tiny"},
    "tiny-group-norm": {"backbone": "tiny", "group_norm": True, "mask_layers": 2},
    "mobilenet": {"backbone": "mobilenet_v2", "box_sampling_ratio": 1, "detections_per_image": 20},
    "resnet50": {"backbone": "resnet50", "anchor_size": 20, "stride_in_1x1": True},
    "resnet101": {"backbone": "resnet101", "rpn_top_n": 40},
}
SIZES = ((64, 96), (80, 50), (200, 130))

WITHOUT_ANNOCOIN = """
import pathlib, runpy, sys
sys.modules["annocoin"] = None  # every import of it fails
import torch, torchvision
images = torch.load("images.pt")
outputs = {}
for folder in filter(pathlib.Path.is_dir, pathlib.Path().iterdir()):
    model = runpy.run_path(str(folder / "model.py"))
    assert model["CLASSES"] == ("cat", "dog", "cow")
    with torch.no_grad():
        net = model["load"]()
        outputs[folder.name] = [tuple(net([image])[0].values()) for image in images]
net = torch.jit.load("network.pt")
with torch.no_grad():
    outputs["network.pt"] = [net(image) for image in images]
torch.save(outputs, "outputs.pt")
"""


def pixels_of(image: Tensor) -> np.ndarray:
    return (image * 255).byte().permute(1, 2, 0).numpy()


def example_images() -> list[np.ndarray]:
    return [pixels_of(random_image(seed, size)) for seed, size in enumerate(SIZES)]


def as_input(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1).float() / 255


def assert_predictors(
    predictor: Predictor, pixels: np.ndarray, output: tuple[Tensor, ...], tolerance: float = 0.0
) -> None:
    """The output has the predictor's instances, in its order."""
    boxes, labels, scores, masks = output
    assert boxes.shape == (len(labels), 4)
    assert masks.shape == (len(labels), 1, *pixels.shape[:2])
    kept = (masks >= 0.5).flatten(1).any(dim=1)  # the predictor leaves out empty masks
    expected = predictor([pixels])[0]
    assert len(expected) > 3
    assert labels[kept].tolist() == expected.labels.tolist()
    torch.testing.assert_close(scores[kept].double(), expected.scores, rtol=0, atol=tolerance)
    different = (masks[kept, 0] >= 0.5) != expected.dense()
    assert float(different.float().mean()) <= tolerance


def test_code_and_torchscript_run_without_annocoin(tmp_path: Path) -> None:
    images = example_images()
    torch.save([as_input(pixels) for pixels in images], tmp_path / "images.pt")
    predictors = {}
    for name, options in VARIANTS.items():
        net = network(**options)
        for module in net.modules():
            if isinstance(module, Bottleneck):  # or random features would grow from block to block
                module.bn3.weight.fill_(0.05)
        export_network(net, small(**options), tmp_path / name, "torchvision", images=images[:2])
        assert {path.name for path in (tmp_path / name).iterdir()} == {
            "model.py",
            "prediction.safetensors",
        }
        predictors[name] = Predictor(net)
    predictors["network.pt"] = predictors["mobilenet"]
    net, architecture = predictors["mobilenet"].net, small(**VARIANTS["mobilenet"])
    export_network(net, architecture, tmp_path / "network.pt", "torchscript", images=images[:2])
    command = [sys.executable, "-c", WITHOUT_ANNOCOIN]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}  # as here: equal to the bit
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    outputs = torch.load(tmp_path / "outputs.pt")
    assert outputs.keys() == predictors.keys()
    for name, predictor in predictors.items():
        for pixels, output in zip(images, outputs[name], strict=True):
            assert_predictors(predictor, pixels, output, 1e-4 if name == "network.pt" else 0.0)
    extra = {"annocoin.json": ""}
    torch.jit.load(tmp_path / "network.pt", _extra_files=extra)
    metadata = json.loads(extra["annocoin.json"])
    assert json.loads(metadata["classes"]) == ["cat", "dog", "cow"]


def test_model_py_predicts_an_image_file(tmp_path: Path) -> None:
    net, pixels = network(), example_images()[0]
    export_network(net, small(), tmp_path / "out", "torchvision", threshold=0.4, images=[pixels])
    Image.fromarray(pixels).save(tmp_path / "image.png")
    command = [sys.executable, "-I", tmp_path / "out" / "model.py"]
    done = subprocess.run([*command, tmp_path / "image.png"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        net.roi_heads.score_thresh = 0.4
        expected = net([as_input(pixels)])[0]
    assert len(expected["labels"]) > 1
    names = [small().classes[label - 1] for label in expected["labels"]]
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == names
    assert [float(line[1]) for line in lines] == pytest.approx(
        expected["scores"].tolist(), abs=6e-4
    )


@pytest.mark.parametrize("variant", ["tiny-group-norm", "mobilenet"])
def test_onnx_gives_the_predictions(tmp_path: Path, variant: str) -> None:
    options, path = VARIANTS[variant], tmp_path / "network.onnx"
    net = network(**options)
    export_network(net, small(**options), path, "onnx")
    model = onnx.load(path)
    assert max(opset.version for opset in model.opset_import) >= 16
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(metadata["classes"]) == ["cat", "dog", "cow"]
    assert "float32 [3, height, width] in 0..1" in metadata["input"]
    assert metadata["annocoin"]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_outputs()] == ["boxes", "labels", "scores", "masks"]
    (image,) = session.get_inputs()
    assert (image.name, image.type, image.shape) == (
        "image",
        "tensor(float)",
        [3, "height", "width"],
    )
    for pixels in example_images():
        output = session.run(None, {"image": as_input(pixels).numpy()})
        output = tuple(map(torch.from_numpy, output))
        assert_predictors(Predictor(net), pixels, output, 1e-3)


def test_onnx_without_instances(tmp_path: Path) -> None:
    net, images = network(), example_images()
    with torch.no_grad():
        best = [float(net.eval()([as_input(pixels)])[0]["scores"].max()) for pixels in images]
    assert best[0] != best[1]
    low, high = sorted(images[:2], key=lambda pixels: best[0 if pixels is images[0] else 1])
    threshold = sum(best[:2]) / 2
    export_network(net, small(), tmp_path / "n.onnx", "onnx", threshold=threshold, images=[high])
    session = onnxruntime.InferenceSession(tmp_path / "n.onnx", providers=["CPUExecutionProvider"])
    shapes = [v.shape for v in session.run(None, {"image": as_input(low).numpy()})]
    assert shapes == [(0, 4), (0,), (0,), (0, 1, *low.shape[:2])]


def test_masks_are_pasted_as_by_torchvision() -> None:
    torch.manual_seed(0)
    masks, corners = torch.rand(40, 1, 28, 28), torch.rand(40, 2, 2) * torch.tensor([97, 71])
    boxes = torch.cat([corners.amin(dim=1), corners.amax(dim=1)], dim=1)
    boxes[0], boxes[1] = torch.tensor([0.0, 0, 97, 71]), torch.tensor([5.0, 5, 5.2, 5.1])
    expected = paste_masks_in_image(masks, boxes, (71, 97))
    torch.testing.assert_close(
        export.paste_masks(masks, boxes, 71, 97), expected, rtol=0, atol=1e-5
    )
    assert float(expected.mean()) > 0.05
    assert export.paste_masks(masks[:0], boxes[:0], 7, 9).shape == (0, 1, 7, 9)


class Resize(nn.Module):
    def forward(self, image: Tensor) -> Tensor:
        return export.resize_to_input(image, 64, 100)


@pytest.mark.filterwarnings("ignore")
def test_input_sizes_are_torchvisions() -> None:
    """Also where rounding makes them a pixel smaller: 49 / 49 * 64 is not 64."""
    transform = GeneralizedRCNNTransform(64, 100, [0.0], [1.0]).eval()
    buffer = io.BytesIO()
    torch.onnx.export(
        Resize(), (torch.rand(1, 70, 90),), buffer, dynamo=False, opset_version=export.OPSET,
        input_names=["image"], dynamic_axes={"image": {1: "h", 2: "w"}},
    )  # fmt: skip
    session = onnxruntime.InferenceSession(buffer.getvalue(), providers=["CPUExecutionProvider"])
    scripted, shortest = torch.jit.script(Resize()), set()
    for height in range(33, 180):
        image = torch.rand(1, height, 33 + height * 7 % 150)
        expected, _ = transform.resize(image)
        shortest.add(min(expected.shape[1:]))
        for result in (
            scripted(image),
            torch.from_numpy(session.run(None, {"image": image.numpy()})[0]),
        ):
            torch.testing.assert_close(result, expected, rtol=0, atol=1e-4)
    assert {63, 64} <= shortest


def shifted(masks: Tensor, boxes: Tensor, height: int, width: int) -> Tensor:
    return PASTE(masks, boxes + 6, height, width)


PASTE = export.paste_masks


@pytest.mark.parametrize("to", ["onnx", "torchscript", "torchvision"])
def test_an_export_that_differs_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: Any
) -> None:
    if to == "torchvision":
        source = standalone.model_source
        monkeypatch.setattr(
            standalone,
            "model_source",
            lambda *arguments: source(*arguments).replace("min_size=64", "min_size=80"),
        )
    else:
        monkeypatch.setattr(export, "paste_masks", shifted)
    with pytest.raises(InputError, match="differs from the network on image 1") as refused:
        export_network(network(), small(), tmp_path / "out", to)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, file = network(), tmp_path / "file"
    file.write_text("text")
    before = sorted(tmp_path.rglob("*"))
    cases: list[tuple[str, Any, Any, dict[str, Any]]] = [
        ("expected one of onnx", file, "tflite", {}),
        ("a directory", tmp_path, "onnx", {}),
        ("exists already", tmp_path, "torchvision", {}),
        ("expected 0 to 1", file, "onnx", {"threshold": 2}),
        ("no instance in the images", tmp_path / "o", "torchvision", {"threshold": 1}),
        ("file", file, "torchscript", {"images": [file]}),
        (r"pip install annocoin\[onnx\]", tmp_path / "o", "onnx", {}),
    ]
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for message, out, to, options in cases:
        with pytest.raises(InputError, match=message):
            export_network(net, small(), out, to, **options)
    assert sorted(tmp_path.rglob("*")) == before
    assert file.read_text() == "text"


def example_images_to_compare_on_have_two_sizes_and_are_not_huge() -> None:
    big = np.zeros((300, 100, 3), np.uint8)
    shapes = [picture.shape for picture in export._pictures_of([big, big], 150)]
    assert shapes == [(150, 50, 3), (150, 50, 3), (100, 50, 3)]
    shapes = [picture.shape for picture in export._pictures_of([big, big[:99]], 150)]
    assert shapes == [(150, 50, 3), (99, 100, 3)]
    assert len({picture.shape for picture in export._pictures_of([], 150)}) > 2


def output() -> DetectorOutput:
    """Two instances in an image of 100 x 100."""
    masks = torch.zeros(2, 100, 100, dtype=torch.bool)
    masks[0, 10:40, 10:40] = masks[1, 50:90, 50:90] = True
    boxes = torch.tensor([[10.0, 10, 40, 40], [50, 50, 90, 90]])
    return DetectorOutput(boxes, torch.tensor([1, 2]), torch.tensor([0.9, 0.6]), masks)


def test_differences() -> None:
    expected, one = output(), output()
    assert describe_difference(expected, one, 0.05) is None
    swapped = DetectorOutput(*(value.flip(0) for value in one))
    assert describe_difference(expected, swapped, 0.05) is None
    for name, value in {
        "labels": torch.tensor([1, 1]),
        "scores": torch.tensor([0.9, 0.602]),
        "boxes": one.boxes + torch.tensor([[0.0], [0.2]]),
        "masks": one.masks.roll(6, dims=2),
    }.items():
        assert describe_difference(expected, one._replace(**{name: value}), 0.05), name
    close = one._replace(scores=one.scores + 5e-4, boxes=one.boxes - 0.05)
    assert describe_difference(expected, close, 0.05) is None
    first = DetectorOutput(*(value[:1] for value in one))
    assert "no instance of class 2" in str(describe_difference(expected, first, 0.05))
    assert "2 instances instead of 1" in str(describe_difference(first, expected, 0.05))
    for a, b in ((expected, first), (first, expected)):  # at the threshold it may be missing
        assert describe_difference(a, b, 0.5995) is None


def run_source(path: Path) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "model", "__file__": str(path)}
    exec(compile(path.read_text(), "model.py", "exec"), namespace)
    return namespace


@pytest.mark.parametrize(
    "names", [("{one}",), ("it's", '"', "\\", "line\nbreak", "日本", *"abcdefghi")]
)
def test_class_names_in_code(tmp_path: Path, names: tuple[str, ...]) -> None:
    path = tmp_path / "model.py"
    path.write_text(standalone.model_source(PredictionArchitecture(names), 0.05))
    assert run_source(path)["CLASSES"] == names


def test_generated_code_is_clean(tmp_path: Path) -> None:
    for i, (name, options) in enumerate(VARIANTS.items()):
        classes = tuple(f"class {j}" for j in range(5 * i + 1))
        a = PredictionArchitecture(classes, **options | {"fpn_channels": 256, "mask_layers": 4})
        (tmp_path / f"{name}.py").write_text(standalone.model_source(a, 0.05))
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select", "E,F,W,I"], ["format", "--check"]):
        subprocess.run([*ruff, *command, "--line-length", "100", tmp_path], check=True)
