"""Export of prediction networks to ONNX, TorchScript or torchvision code.

Before anything is written, the export is compared with the network on images of several sizes.
"""

# No `from __future__ import annotations`: TorchScript reads the annotations of this file.
import io
import json
import runpy
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.transform import resize_boxes

from annocoin import __version__, files
from annocoin.data.images import read_image
from annocoin.errors import InputError, check_choice
from annocoin.prediction.networks import PredictionArchitecture
from annocoin.prediction.predictor import SCORE, ImageSource
from annocoin.prediction.standalone import MODEL_FILE, write_standalone
from annocoin.synthetic.dataset import render_scene

ExportFormat = Literal["onnx", "torchscript", "torchvision"]

OPSET = 17
"""RoIAlign of ONNX has torchvision's pixel centres from opset 16 on."""

INPUT = "image"
OUTPUTS = ("boxes", "labels", "scores", "masks")
DYNAMIC_AXES = {
    INPUT: {1: "height", 2: "width"},
    "boxes": {0: "instances"},
    "labels": {0: "instances"},
    "scores": {0: "instances"},
    "masks": {0: "instances", 2: "height", 3: "width"},
}
EXTRA_FILE = "annocoin.json"
"""File in a TorchScript archive with the metadata that an ONNX file has in `metadata_props`."""

SCENE_SIZES = ((240, 320), (320, 224), (160, 160), (300, 400), (224, 336), (400, 300))
"""Height and width of generated pictures to compare on; all until the network finds something."""

SCORE_TOLERANCE = 1e-3
BOX_TOLERANCE = 1e-3  # of the longer side of an image
MIN_MASK_IOU, MIN_MEAN_MASK_IOU = 0.8, 0.99  # a box that is rounded otherwise moves a mask's edge


class DetectorOutput(NamedTuple):
    """Boxes [N, 4], labels [N], scores [N] and masks, bool [N, H, W], of an image."""

    boxes: Tensor
    labels: Tensor
    scores: Tensor
    masks: Tensor


Detector = Callable[[Tensor], DetectorOutput]
"""From an image, float [3, H, W] in 0..1."""


def export_network(
    net: MaskRCNN,
    architecture: PredictionArchitecture,
    out: str | Path,
    to: ExportFormat,
    *,
    threshold: float = SCORE,
    images: Sequence[ImageSource] = (),
) -> None:
    """Write a network for programs without annocoin.

    If the export does not give the network's instances, that is an error, and nothing is written.

    Args:
        out: the file, or the new folder of "torchvision".
        threshold: minimum score of an instance.
        images: to compare on, see `annocoin.read_image`; default synthetic scenes.
    """
    out = Path(out)
    check_choice("export format", to, get_args(ExportFormat))
    if not 0 <= threshold <= 1:
        raise InputError(f"score threshold {threshold}; expected 0 to 1")
    net = net.eval().cpu()
    net.roi_heads.score_thresh = threshold
    pictures = _pictures_of(images, architecture.max_size)
    if to == "torchvision":
        with files.new_directory(out) as folder:
            write_standalone(folder, net, architecture, threshold)
            loaded = runpy.run_path(str(folder / MODEL_FILE))["load"]()
            _check_export(out, _detector(loaded), net, pictures)
        return
    if out.is_dir():
        raise InputError(f"{out}: a directory; give the name of a file")
    metadata = _metadata(architecture, threshold)
    write = _to_onnx if to == "onnx" else _to_torchscript
    content, detector = write(SingleImageNetwork(net).eval(), metadata)
    _check_export(out, detector, net, pictures)
    files.write_bytes(out, content)


class SingleImageNetwork(nn.Module):
    """A Mask R-CNN as a function of one image, to be traced for ONNX or scripted.

    The result is that of `net([image])`. Traced and scripted, torchvision computes the input size
    in float32, which makes it a pixel smaller for some images, and adds the masks to the output
    one by one.
    """

    def __init__(self, net: MaskRCNN) -> None:
        super().__init__()
        self.net = net
        self.min_size, self.max_size = int(net.transform.min_size[-1]), int(net.transform.max_size)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """An image [3, H, W] in 0..1 to boxes [N, 4], labels, scores and masks [N, 1, H, W]."""
        normalised = self.net.transform.normalize(image)
        resized = resize_to_input(normalised, self.min_size, self.max_size)
        batch = self.net.transform.batch_images([resized], 32)
        size = (resized.shape[1], resized.shape[2])
        features = self.net.backbone(batch)
        proposals, _ = self.net.rpn(ImageList(batch, [size]), features)
        detections, _ = self.net.roi_heads(features, proposals, [size])
        height, width = image.shape[1], image.shape[2]
        boxes = resize_boxes(detections[0]["boxes"], size, (height, width))
        masks = paste_masks(detections[0]["masks"], boxes, height, width)
        return boxes, detections[0]["labels"], detections[0]["scores"], masks


@torch.jit.script_if_tracing
def resize_to_input(image: Tensor, min_size: int, max_size: int) -> Tensor:
    """Resize an image [3, H, W] as torchvision's transform does, which is not traced or scripted.

    The size is computed in float64, as by Python.
    """
    sides = torch._shape_as_tensor(image)[1:].to(torch.float64)
    limits = torch.tensor([min_size, max_size], dtype=torch.float64)  # a number would be multiplied
    scale = (limits / torch.stack([sides.min(), sides.max()])).min()
    size = (sides * scale).floor().to(torch.int64)
    shape = [int(size[0]), int(size[1])]
    return F.interpolate(image[None], shape, mode="bilinear", align_corners=False)[0]


def paste_masks(masks: Tensor, boxes: Tensor, height: int, width: int) -> Tensor:
    """Masks [N, 1, M, M] of boxes [N, 4] in the image: [N, 1, H, W].

    The result is that of torchvision's `paste_masks_in_image`, as two matrix products.
    """
    size = int(masks.shape[3]) + 2
    padded = F.pad(masks, (1, 1, 1, 1))[:, 0]
    centre = (boxes[:, 2:] + boxes[:, :2]) * 0.5
    half = (boxes[:, 2:] - boxes[:, :2]) * 0.5 * (float(size) / (size - 2))
    first, last = (centre - half).to(torch.int64), (centre + half).to(torch.int64)
    rows = _interpolation(first[:, 1], last[:, 1], height, size)
    columns = _interpolation(first[:, 0], last[:, 0], width, size)
    return torch.bmm(torch.bmm(rows, padded), columns.transpose(1, 2))[:, None]


def _interpolation(first: Tensor, last: Tensor, length: int, size: int) -> Tensor:
    """Weights of `size` samples over the pixels first..last of a line: [N, length, size]."""
    extent = (last - first + 1).clamp(min=1)
    offset = torch.arange(length, device=first.device)[None] - first[:, None]
    source = (offset.to(torch.float32) + 0.5) * (size / extent.to(torch.float32))[:, None] - 0.5
    samples = torch.arange(size, device=first.device)
    distance = (source.clamp(0, size - 1)[:, :, None] - samples).abs()
    inside = (offset >= 0) & (offset < extent[:, None])
    return (1 - distance).clamp(min=0) * inside[:, :, None].to(torch.float32)


def _metadata(architecture: PredictionArchitecture, threshold: float) -> dict[str, str]:
    return {
        "annocoin": __version__,
        "classes": json.dumps(architecture.classes),
        "labels": "1 is the first of classes, 0 is the background",
        "input": f"{INPUT}: RGB, float32 [3, height, width] in 0..1, of any size",
        "output": "boxes: x0, y0, x1, y1 in pixels, float32 [N, 4]; labels: int64 [N]; "
        "scores: float32 [N]; masks: probabilities, float32 [N, 1, height, width]",
        "score_threshold": str(threshold),
    }


def _to_onnx(module: SingleImageNetwork, metadata: dict[str, str]) -> tuple[bytes, Detector]:
    """The content of an .onnx file, and the network that onnxruntime makes of it."""
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise InputError(f"no module {error.name}; pip install annocoin[onnx]") from None
    buffer = io.BytesIO()
    example = torch.from_numpy(_scene(0)).permute(2, 0, 1).float() / 255
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of traced sizes, and that this exporter is the old one
        torch.onnx.export(
            module,
            (example,),
            buffer,  # type: ignore[arg-type]
            dynamo=False,  # torchvision's detectors branch on data and support this exporter
            opset_version=OPSET,
            input_names=[INPUT],
            output_names=list(OUTPUTS),
            dynamic_axes=DYNAMIC_AXES,
        )
    model = onnx.load_model_from_string(buffer.getvalue())
    onnx.helper.set_model_props(model, metadata)
    content: bytes = model.SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def detect(image: Tensor) -> DetectorOutput:
        outputs = session.run(list(OUTPUTS), {INPUT: image.numpy()})
        return _output(*map(torch.from_numpy, outputs))

    return content, detect


def _to_torchscript(module: SingleImageNetwork, metadata: dict[str, str]) -> tuple[bytes, Detector]:
    """The content of a TorchScript archive, and the network loaded from it."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is deprecated
        scripted = torch.jit.script(module)
        torch.jit.save(scripted, buffer, _extra_files={EXTRA_FILE: json.dumps(metadata)})
        loaded = torch.jit.load(io.BytesIO(buffer.getvalue()))
    return buffer.getvalue(), lambda image: _output(*loaded(image))


def _detector(net: MaskRCNN) -> Detector:
    def detect(image: Tensor) -> DetectorOutput:
        found = net([image])[0]
        return _output(*(found[name] for name in OUTPUTS))

    return detect


def _output(boxes: Tensor, labels: Tensor, scores: Tensor, masks: Tensor) -> DetectorOutput:
    return DetectorOutput(boxes, labels, scores, masks[:, 0] >= 0.5)


def _check_export(
    out: Path, exported: Detector, net: MaskRCNN, pictures: Iterable[npt.NDArray[np.uint8]]
) -> None:
    """Raise unless an export gives the instances of the network in all pictures.

    Of generated ones, two are enough if the network has an instance in them.
    """
    detect, instances = _detector(net), 0
    threshold, limit = net.roi_heads.score_thresh, net.roi_heads.detections_per_img
    for number, picture in enumerate(pictures):
        if number >= 2 and instances and isinstance(pictures, Iterator):
            break
        image = torch.from_numpy(picture).permute(2, 0, 1).float() / 255
        with torch.no_grad():
            expected, found = detect(image), exported(image)
        full = len(expected.scores) == limit
        cut = max(threshold, float(expected.scores.min())) if full else threshold
        if difference := describe_difference(expected, found, cut):
            size = f"{picture.shape[0]} x {picture.shape[1]}"
            raise InputError(
                f"{out}: not written, because the export differs from the network on image "
                f"{number + 1} ({size}): {difference}"
            )
        instances += len(expected.scores)
    if not instances:
        raise InputError(
            f"{out}: not written, because the network has no instance in the images that the "
            "export is checked on; pass other images with --check, or a lower --score"
        )


def describe_difference(expected: DetectorOutput, found: DetectorOutput, cut: float) -> str | None:
    """The difference of two results on an image, None if they agree.

    Args:
        cut: score below which instances are left out. Those within the tolerance of it may be in
            one of the results only.
    """
    side, ious = max(expected.masks.shape[1:]), []
    free = torch.ones(len(found.scores), dtype=torch.bool)
    for i, score in enumerate(expected.scores):
        distance = (found.boxes - expected.boxes[i]).abs().amax(dim=1)
        same = free & (found.labels == expected.labels[i]) & (distance <= BOX_TOLERANCE * side)
        same &= (found.scores - score).abs() <= SCORE_TOLERANCE
        if same.any():
            j = int(distance.masked_fill(~same, torch.inf).argmin())
            free[j] = False
            ious.append(_iou(expected.masks[i], found.masks[j]))
        elif score > cut + SCORE_TOLERANCE:
            label = int(expected.labels[i])
            return f"no instance of class {label} with score {score:.4f} and the same box"
    if (found.scores[free] > cut + SCORE_TOLERANCE).any():
        return f"{len(found.scores)} instances instead of {len(expected.scores)}"
    if ious and (min(ious) < MIN_MASK_IOU or np.mean(ious) < MIN_MEAN_MASK_IOU):
        return f"masks with an IoU of {min(ious):.3f} or more, {np.mean(ious):.3f} on average"
    return None


def _iou(one: Tensor, other: Tensor) -> float:
    union = int((one | other).sum())
    return int((one & other).sum()) / union if union else 1.0


def _scene(index: int) -> npt.NDArray[np.uint8]:
    return render_scene(0, index, SCENE_SIZES[index]).image


def _pictures_of(images: Sequence[ImageSource], max_size: int) -> Iterable[Any]:
    """The images with sides of at most `max_size`, or generated ones; of at least two sizes."""
    if not images:
        return (_scene(index) for index in range(len(SCENE_SIZES)))
    pictures = []
    for image in images:
        pixels: npt.NDArray[Any] = read_image(image)
        scale = max_size / max(pixels.shape[:2])
        if scale < 1:  # masks of all instances at full size would take gigabytes
            size = [max(1, round(side * scale)) for side in pixels.shape[1::-1]]
            pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        pictures.append(np.array(pixels))
    if len({picture.shape for picture in pictures}) == 1:
        pictures.append(pictures[0][: -(-2 * len(pictures[0]) // 3)].copy())  # two thirds of it
    return pictures
